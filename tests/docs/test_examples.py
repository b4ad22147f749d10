"""What the pages show is what is printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.tools.examples import differences, has_examples
from docs.tools.outputs import RENEW
from tests.docs.pages import PAGES, name_of

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("page", [p for p in PAGES if has_examples(p)], ids=name_of)
def test_page_shows_what_is_printed(page: Path, tmp_path: Path) -> None:
    """Every command and every block of Python on a page prints what the page shows."""
    found = [str(difference) for difference in differences(page, tmp_path)]

    assert not found, f"renew it by {RENEW}, or repair what is printed:\n" + "\n".join(found)


_RAISES = "```python\n1 / 0\n```\n\n```text output\n```\n"


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        pytest.param("```console\n$ echo one\ntwo\n```\n", ["$ echo one\none\n"], id="other"),
        pytest.param("```console\n$ seq 5\n1\n…\n5\n```\n", [], id="lines left out"),
        pytest.param(_RAISES, ["builtins.ZeroDivisionError: division by zero\n"], id="an error"),
    ],
)
def test_example_that_prints_something_else_is_told(
    text: str, printed: list[str], tmp_path: Path
) -> None:
    """A page that shows another output than is printed has a difference; `…` is any lines."""
    page = tmp_path / "page.md"
    page.write_text(text, "utf-8")

    assert [difference.printed for difference in differences(page, tmp_path)] == printed


def test_readme_is_short() -> None:
    """The README has at most 120 lines."""
    readme = next(page for page in PAGES if name_of(page) == "README.md")

    assert readme.read_text("utf-8").count("\n") <= 120
