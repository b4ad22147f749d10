"""Lines of source that Triton's IR names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from backend_caps.simulator.errors import Site
from backend_caps.simulator.kernels.ir import NOWHERE

_ALIAS = re.compile(r"(#loc\d*) = loc\((.*)\)$")
_FILE = re.compile(r'"([^"]*)":(\d+):\d+')


def moved(text: str, file: str) -> str:
    """Name in a text the files that it was compiled from by where they are now.

    Triton's cache knows a kernel by its source, so the text may be of another checkout.

    Args:
        text: the module; its first location is the kernel's.
        file: where the kernel is now.
    """
    found = _FILE.search(text)
    if found is None or found[1] == file:
        return text
    before, now = found[1].split("/"), file.split("/")
    while before and now and before[-1] == now[-1]:
        before.pop()
        now.pop()
    if not any(before):  # every path begins so, a library's too
        return text.replace(f'"{found[1]}"', f'"{file}"')
    return text.replace(f'"{"/".join(before)}/', f'"{"/".join(now)}/')


class Locations:
    """Lines of source, by the aliases that the text has for them.

    Args:
        lines: the text.
        libraries: folders whose lines are passed over for those of their callers.
    """

    def __init__(self, lines: Sequence[str], libraries: Sequence[str]) -> None:
        matches = filter(None, map(_ALIAS.match, lines))
        self._aliases = {match[1]: match[2] for match in matches}
        self._libraries = tuple(libraries)
        self._kept: dict[str, tuple[Site, ...]] = {}

    def lines(self, text: str) -> tuple[Site, ...]:
        """Return the lines that a location stands for, from the innermost that is in no library."""
        kept = self._kept.get(text)
        if kept is None:
            lines = tuple(self._lines(text)) or (NOWHERE,)
            own = tuple(line for line in lines if not line.file.startswith(self._libraries))
            kept = self._kept[text] = own or lines
        return kept

    def _lines(self, text: str) -> Iterator[Site]:
        text = self._aliases.get(text, text)
        file = _FILE.match(text)
        if file is not None:
            yield Site(file[1], int(file[2]))
        else:
            for alias in re.findall(r"#loc\d*", text):
                yield from self._lines(alias)
