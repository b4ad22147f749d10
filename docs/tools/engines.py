"""The pages of the engines' own backends: what their source says, as a matrix.

python -m docs.tools.engines            tells which pages are stale
python -m docs.tools.engines --write    writes them

An engine whose wheel was not fetched is left out, and said.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path

from backend_caps.engines.read import read_engine
from backend_caps.report.backend_views import report_view, rules_view
from backend_caps.report.backends import report_document
from backend_caps.report.sections import Heading, Section, markdown
from docs.tools.outputs import ROOT, Files, main

_CELLS = """\
`undeclared` is what the source does not say; it counts as the worst value.
`depends` hangs on a condition, which the report shows in the source's own words.
`(inherited)` stands in a parent class, and not again in the class; it counts as undeclared.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePage:
    """A page on one version of an engine."""

    engine: str
    version: str
    called: str
    page: str
    more: str
    """A sentence on where to read on."""

    @property
    def path(self) -> Path:
        """The page's file."""
        return ROOT / "docs" / "reference" / self.page

    @property
    def wheel(self) -> Path | None:
        """The wheel that the page is read from; None where it was not fetched."""
        found = (ROOT / ".cache" / "wheels").glob(f"{self.engine}-{self.version}-*.whl")
        return next(iter(sorted(found)), None)


PAGES: Mapping[str, EnginePage] = {
    "sglang": EnginePage(
        engine="sglang",
        version="0.5.23",
        called="SGLang",
        page="sglang.md",
        more="[What the kit finds](sglang-findings.md) in two of them is another page.",
    ),
    "vllm": EnginePage(
        engine="vllm",
        version="0.33.0",
        called="vLLM",
        page="vllm-backends.md",
        more="[vLLM's words](vllm.md) says what of vLLM stands for which capability.",
    ),
}


def text_of(page: EnginePage) -> str:
    """Write a page from its wheel."""
    assert page.wheel is not None, f"no wheel of {page.engine} {page.version} in .cache/wheels"
    shown = "".join(_page(page, page.wheel))
    return shown.rstrip() + "\n"


def _page(page: EnginePage, wheel: Path) -> Iterator[str]:
    reading = read_engine(page.engine, wheel)
    by_class = sorted(reading.backends, key=lambda backend: backend.name.rpartition(".")[2])
    document = report_document(by_class, (), None, reading=reading)
    assert document.engine is not None, "it is on an engine"
    _, *sections = report_view(document)
    matrix = takewhile(lambda section: not isinstance(section, Heading), sections)
    num_classes = sum(backend.class_ is not None for backend in document.backends)
    yield f"# {page.called}'s backends\n\n"
    yield f"What {page.called} {page.version}'s own attention backends say of themselves"
    yield f", read from its source: {num_classes} classes.\n"
    yield f"Nothing of {page.called} was imported or run.\n{page.more}\n\n{_CELLS}\n"
    yield f"```sh\nbackend-caps report --engine {page.engine} --source WHEEL\n```\n\n"
    yield "## What each class says\n\n"
    yield _tables(matrix)
    yield _tables(rules_view(document.engine))


def _tables(sections: Iterator[Section]) -> str:
    return markdown(tuple(sections)) + "\n"


def files() -> Files:
    """List the pages whose wheels were fetched, and say which others there are."""
    for page in PAGES.values():
        if page.wheel is None:
            sys.stdout.write(f"{page.page}: its wheel was not fetched (make vllm)\n")
    return {page.path: partial(text_of, page) for page in PAGES.values() if page.wheel is not None}


if __name__ == "__main__":
    sys.exit(main(files(), sys.argv[1:]))
