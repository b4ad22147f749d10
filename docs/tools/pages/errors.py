"""The generated parts of `docs/reference/errors.md`."""

from __future__ import annotations

import inspect

import backend_caps
from backend_caps.errors import CodedError
from docs.tools.error_examples import BY_OCCASION
from docs.tools.markdown import anchor_of, table
from docs.tools.sources import first_line


def occasions() -> str:
    """Give each occasion a row, with a link to its errors."""
    rows = [(f"[{each.title}](#{anchor_of(each.title)})", each.told) for each in BY_OCCASION]
    return table(("occasion", "its errors"), rows)


def errors() -> str:
    """Give each error with an example, by the occasion on which it is raised."""
    return "\n\n".join(
        "\n\n".join(
            (
                f"## {each.title}\n\n{each.told}",
                *map(_codes, each.coded),
                *map(_error, each.examples),
            )
        )
        for each in BY_OCCASION
    )


def _codes(kind: type[CodedError]) -> str:
    rows = [(f"`{code}`", occasion) for code, occasion in sorted(kind.codes.items())]
    return f"### {kind.__name__}\n\n{first_line(kind)}\n\n{table(('code', 'raised where'), rows)}"


def _error(example: backend_caps.BackendCapsError) -> str:
    kind = type(example)
    fields = list(inspect.signature(kind).parameters)
    told = f"Fields: {', '.join(f'`{name}`' for name in fields)}." if fields else "No fields."
    return f"### {kind.__name__}\n\n{first_line(kind)} {told}\n\n```text\n{example}\n```"
