"""The examples on the pages: run, and compared with what the pages show.

A page is a transcript. Its fenced blocks are taken from top to bottom, in one folder of its own:

* ```` ```console ```` holds commands after `$ `, each followed by what it prints.
* ```` ```python ```` is run; ```` ```text output ```` after it is what it prints.
* A block with `title="FILE"` is that file, written before what follows is run.

Other blocks are not run. A line that is just `…` stands for lines left out.

    python -m docs.tools.examples PAGE...           tells what a page shows wrongly
    python -m docs.tools.examples --write PAGE...   puts in what was printed
"""

from __future__ import annotations

import difflib
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from docs.tools.outputs import RENEW
from docs.tools.page_reader import Reader

_FENCE = re.compile(r"^```(?P<info>[^`\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_TITLE = re.compile(r'title="([^"]+)"')
_LEFT_OUT = "…"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block of a page."""

    language: str
    title: str | None
    is_output: bool
    """Whether it is what the block before it prints."""
    text: str
    span: tuple[int, int]
    """Where the text stands in the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A block that does not show what was printed."""

    block: Block
    printed: str

    def __str__(self) -> str:
        lines = difflib.ndiff(self.block.text.splitlines(), self.printed.splitlines())
        return "\n".join(line for line in lines if not line.startswith("?"))


def blocks_of(text: str) -> Iterator[Block]:
    """List the fenced blocks of a page."""
    for match in _FENCE.finditer(text):
        language, _, rest = match["info"].partition(" ")
        title = _TITLE.search(rest)
        yield Block(
            language=language,
            title=title[1] if title else None,
            is_output="output" in rest.split(),
            text=match["text"],
            span=match.span("text"),
        )


def has_examples(page: Path) -> bool:
    """Tell whether anything on a page is run."""
    blocks = blocks_of(page.read_text("utf-8"))
    return any(block.language in {"console", "python"} and not block.title for block in blocks)


def differences(page: Path, folder: Path) -> list[Difference]:
    """Run a page's examples in an empty folder; list the blocks that show something else."""
    blocks = list(blocks_of(page.read_text("utf-8")))
    found = []
    with Reader(folder) as reader:
        for block, following in zip(blocks, [*blocks[1:], None], strict=True):
            if block.title is not None:
                reader.write(block.title, block.text)
            elif block.language == "console":
                found.append(Difference(block=block, printed=reader.transcript(block.text)))
            elif block.language == "python":
                printed = reader.python(block.text)
                shown = following if following and following.is_output else None
                assert shown or not printed, f"{page}: printed, and shown nowhere: {printed}"
                if shown:
                    found.append(Difference(block=shown, printed=printed))
    return [each for each in found if not shows(each.block.text, each.printed)]


def shows(shown: str, printed: str) -> bool:
    """Tell whether a page shows what was printed, but for the lines that it leaves out."""
    lines = [
        r"(?:.*\n)+?" if line == _LEFT_OUT else re.escape(line) + r"\n"
        for line in shown.splitlines()
    ]
    return re.fullmatch("".join(lines), printed) is not None


def _trimmed(shown: str, printed: str) -> str:
    """Leave out of what is printed what the page leaves out, where the lines around it are left."""
    page, lines, at = shown.splitlines(), printed.splitlines(), 0
    for before, line, after in zip(page, page[1:], page[2:], strict=False):
        if line == _LEFT_OUT and before in lines[at:]:
            start = lines.index(before, at) + 1
            if after in lines[start:]:
                lines[start : lines.index(after, start)] = [_LEFT_OUT]
                at = start
    return "".join(f"{line}\n" for line in lines)


def write(page: Path) -> bool:
    """Put what is printed in the place of what a page shows; tell whether it was another."""
    with tempfile.TemporaryDirectory() as folder:
        found = differences(page, Path(folder))
    text = page.read_text("utf-8")
    for each in reversed(found):
        start, end = each.block.span
        text = text[:start] + _trimmed(each.block.text, each.printed) + text[end:]
    page.write_text(text, "utf-8")
    return bool(found)


def main(arguments: Sequence[str]) -> int:
    """Compare pages, or write them; the status of the process."""
    pages = [Path(each) for each in arguments if each != "--write"]
    status = 0
    for page in filter(has_examples, pages):
        if "--write" in arguments:
            sys.stdout.write(f"renewed {page}\n" if write(page) else "")
            continue
        with tempfile.TemporaryDirectory() as folder:
            for difference in differences(page, Path(folder)):
                status = 1
                sys.stdout.write(f"{page} shows something else; renew it: {RENEW}\n{difference}\n")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
