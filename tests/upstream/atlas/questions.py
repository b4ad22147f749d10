"""What the atlas answers to questions of the engines' trackers, beside the answers accepted there.

The questions stand in `questions.toml`, chosen before the atlas was asked.
"""

from __future__ import annotations

import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Literal

import click
from pydantic import BaseModel, ConfigDict
from rich import box
from rich.console import Console
from rich.table import Table

from backend_caps.atlas.build import ReleaseStore
from backend_caps.atlas.documents import ReleaseDocument
from backend_caps.atlas.question import Answer, Asked, asked_in, names_in, replies, verdict

QUESTIONS = Path(__file__).with_suffix(".toml")


class Question(BaseModel):
    """A question of a tracker, and the answer that was accepted there."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    question: str
    """The question in our words, as a user types it into a search box."""
    source: str
    """The issue or pull request, as `owner/repo#number`."""
    engine: Literal["sglang", "vllm"]
    """The engine."""
    release: str
    """The release that the answer is about."""
    yes: tuple[str, ...]
    """The classes that fit, by the accepted answer."""
    no: tuple[str, ...]
    """The classes that do not fit, by the accepted answer."""
    note: str
    """What was answered, and by whom."""

    def expected(self) -> dict[str, Answer]:
        """Return the accepted answer of each class."""
        return dict.fromkeys(self.yes, Answer.YES) | dict.fromkeys(self.no, Answer.NO)


class Outcome(Enum):
    """How the atlas' answer compares with the accepted one."""

    RIGHT = "right"
    OPEN = "open"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A question, and what the atlas answers."""

    question: Question
    """The question with its accepted answer."""
    asked: Sequence[Asked]
    """What the atlas understands of it."""
    answers: dict[str, Answer]
    """The atlas' answer for each class that the accepted answer names."""

    def outcome(self) -> Outcome:
        """Return right where each class is answered as expected, and open else.

        One class that is answered with certainty and opposite makes it wrong.
        """
        expected = self.question.expected()
        if self.answers == expected:
            return Outcome.RIGHT
        certain = {name: got for name, got in self.answers.items() if got is not Answer.OPEN}
        is_wrong = any(expected[name] is not got for name, got in certain.items())
        return Outcome.WRONG if is_wrong else Outcome.OPEN

    def row(self) -> Iterator[str]:
        """Return the cells of the table's row."""
        expected = self.question.expected()
        yield f"{self.question.question}\n{self.question.source} ({self.question.release})"
        yield "\n".join(f"{e.capability} {e.test} {e.value}" for e in self.asked) or "nothing"
        yield "\n".join(expected)
        yield "\n".join(each.value for each in expected.values())
        yield "\n".join(self.answers[name].value for name in expected)
        yield self.outcome().value


def questions() -> list[Question]:
    """Read the questions."""
    read = tomllib.loads(QUESTIONS.read_text("utf-8"))
    return [Question.model_validate(each) for each in read["asked"]]


def trial_of(question: Question, release: ReleaseDocument) -> Trial:
    """Ask the atlas a question, of the classes that the accepted answer names."""
    names = question.expected()
    lacking = sorted(set(names) - set(release.classes))
    assert not lacking, f"{question.source}: {release.version} has no {', '.join(lacking)}"
    asked = asked_in(question.question)
    named = names_in(question.question, release.names)
    answers = {name: verdict(replies(release, name, asked, named)) for name in names}
    return Trial(question=question, asked=asked, answers=answers)


def trials(folder: Path) -> list[Trial]:
    """Ask every question of the data in a folder."""
    data = ReleaseStore(folder)
    releases = {
        (name, each.version): each for name in ("sglang", "vllm") for each in data.load(name)
    }
    return [trial_of(each, releases[each.engine, each.release]) for each in questions()]


def table_of(found: Sequence[Trial]) -> Table:
    """Return the table of what was asked and answered."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_lines=True)
    for column in ("question", "understood", "class", "expected", "answered", "outcome"):
        table.add_column(column, overflow="fold")
    for each in found:
        table.add_row(*each.row())
    return table


def summary_of(found: Sequence[Trial]) -> Iterator[str]:
    """Return a line for each engine and for both: how many are right, open and wrong."""
    for engine in ("vllm", "sglang", "both"):
        of_it = [each for each in found if engine in (each.question.engine, "both")]
        counts = Counter(each.outcome() for each in of_it)
        words = ", ".join(f"{counts[each]} {each.value}" for each in Outcome)
        share = counts[Outcome.RIGHT] / len(of_it)
        yield f"{engine}: {words} of {len(of_it)}; {share:.0%} right"


@click.command(help=__doc__)
@click.argument("data", type=click.Path(exists=True, file_okay=False, path_type=Path))
def main(data: Path) -> None:
    """Exit with 1 where an answer is wrong with certainty."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 190)
    found = trials(data)
    console.print(table_of(found), markup=False)
    for line in summary_of(found):
        console.print(line, markup=False)
    sys.exit(any(each.outcome() is Outcome.WRONG for each in found))


if __name__ == "__main__":
    main()
