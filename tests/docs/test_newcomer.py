"""The newcomer's path can be walked: where it begins is on the pages, and stumbling is reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.tools.examples import blocks_of
from docs.tools.page_reader import OF_TESTS, ROOT, Reader
from tests.docs.newcomer import FIRST, README, TUTORIALS, StumbleError, follow


def test_readme_begins_with_one_command() -> None:
    """One block of the README sets everything up, by one command."""
    blocks = blocks_of((ROOT / README).read_text("utf-8"))

    assert [block.text.count("\n$ ") for block in blocks if block.text.startswith(FIRST)] == [0]


def test_first_tutorial_says_how_to_come_to_the_program() -> None:
    """One block of it puts what was set up on the path."""
    blocks = blocks_of((ROOT / TUTORIALS[0]).read_text("utf-8"))

    assert [block.text for block in blocks if block.language == "sh"] == [". .venv/bin/activate\n"]


def test_last_tutorial_ends_with_claims_that_hold() -> None:
    """It checks the backend whole, and shows no claim that does not hold."""
    blocks = list(blocks_of((ROOT / TUTORIALS[-1]).read_text("utf-8")))

    (checked,) = [own.text for own in blocks if "--quick --lines" in own.text]
    assert " held " in checked
    assert "does not hold" not in checked


def test_walk_yields_what_was_typed(tmp_path: Path) -> None:
    """Each command is a step, and a shell stays where the one before it went."""
    text = "```console\n$ mkdir new && cd new\n$ basename $PWD\nnew\n```\n"

    with Reader(tmp_path, OF_TESTS) as reader:
        steps = [str(step) for step in follow(reader, "page.md", text)]

    assert steps == ["page.md: mkdir new && cd new", "page.md: basename $PWD"]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("```console\n$ echo one\ntwo\n```\n", id="a command"),
        pytest.param("```python\nprint(1)\n```\n\n```text output\n2\n```\n", id="Python"),
    ],
)
def test_walk_stumbles_over_what_is_not_so(text: str, tmp_path: Path) -> None:
    """What prints something else than the page shows ends the walk."""
    with Reader(tmp_path, OF_TESTS) as reader, pytest.raises(StumbleError, match="page shows"):
        list(follow(reader, "page.md", text))
