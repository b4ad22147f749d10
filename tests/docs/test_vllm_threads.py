"""What the page on threads of vLLM's tracker shows of two releases is what is printed."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

from docs.tools.examples import blocks_of, shows
from docs.tools.page_reader import Reader
from tests.docs.pages import ROOT

_PAGE = (ROOT / "docs" / "explanation" / "what-a-plan-would-have-said.md").read_text("utf-8")
_MODELS = Path(__file__).with_name("models")
_WHEELS = ("vllm-0.15.1-*.whl", "vllm-0.33.0-*.whl")
"""Those that `make vllm` brings, of the ones that the page names."""
_HEADING = re.compile(r"^### (\d+): ", re.MULTILINE)


def _answers_by_thread() -> dict[str, list[str]]:
    """List the commands that the page runs for each thread, with what they print."""
    found = [*_HEADING.finditer(_PAGE), None]
    return {
        at[1]: [
            block.text
            for block in blocks_of(_PAGE[at.end() : following and following.start()])
            if block.text.startswith("$ backend-caps ")
        ]
        for at, following in pairwise(found)
        if at is not None
    }


_ANSWERS = _answers_by_thread()
_CHECKED = [
    pytest.param(text, id=f"{thread}-{number}")
    for thread, texts in _ANSWERS.items()
    for number, text in enumerate(texts)
    if any(f" {each} " in text for each in _WHEELS)
]


def test_page_answers_twelve_threads() -> None:
    """Each is linked, stands in the table, and has a command with its output."""
    assert len(_ANSWERS) == 12
    for thread, texts in _ANSWERS.items():
        assert re.search(rf"\[vllm#{thread}\]\(https://[^)]*/{thread}\)", _PAGE)
        assert f"\n| [{thread}](#{thread}-" in _PAGE
        assert texts, thread


@pytest.mark.upstream
@pytest.mark.vllm_wheel
@pytest.mark.parametrize("answer", _CHECKED)
def test_answer_is_what_is_printed(answer: str, tmp_path: Path) -> None:
    """An answer is what the wheel gives, but for the lines that the page leaves out."""
    wheels = (each for name in _WHEELS for each in (ROOT / ".cache" / "wheels").glob(name))
    for each in (*wheels, *_MODELS.iterdir()):
        (tmp_path / each.name).symlink_to(each)

    with Reader(tmp_path) as reader:
        printed = reader.transcript(answer)

    assert shows(answer, printed), f"the page shows something else than:\n{printed}"
