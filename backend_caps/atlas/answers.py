"""The answers to a question, as a document: the backends that fit, and why others do not."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from backend_caps.atlas.documents import ReleaseDocument
from backend_caps.atlas.question import Answer, Asked, Reply, asked_in, names_in, replies, verdict
from backend_caps.report.document import LEFT_OUT, WRITTEN, Document
from backend_caps.report.sections import Columns, Lines, Section, titled_table
from backend_caps.report.words import words_of

AnswerName = Annotated[Literal["fits", "may fit", "does not fit"], WRITTEN]


class AskedDocument(Document):
    """One thing that a question asks of a backend."""

    words: str
    """The piece of the question."""
    capability: str
    """The capability, or `platform`."""
    value: JsonValue
    """What its value is compared with."""


class ReplyDocument(Document):
    """The answer of one backend to one thing that is asked."""

    capability: str
    """The capability, or `platform`."""
    answer: AnswerName
    """Whether the backend's value is what is asked for."""
    value: str
    """That value, in words."""
    at: Annotated[str | None, LEFT_OUT] = None
    """`file:line` of the statement; left out where nothing states it."""
    stated_by: Annotated[str | None, LEFT_OUT] = None
    """The class that states it, where the backend's own does not."""


class AnswerDocument(Document):
    """The answer of one backend of one release."""

    distribution: str
    """The engine, or the plugin of one."""
    version: str
    """The release."""
    backend: str
    """The class."""
    registered_as: list[str]
    """The names that server flags use for it."""
    answer: AnswerName
    """Of its replies the worst."""
    replies: list[ReplyDocument]
    """One for each thing that is asked."""


class AskDocument(Document):
    """A question, and what each backend answers."""

    schema_: Annotated[Literal["backend-caps/ask@1"], Field(alias="schema")]
    question: str
    """The question as it was typed."""
    asked: list[AskedDocument]
    """What was understood of it; empty where nothing was."""
    answers: list[AnswerDocument]
    """One for each backend; those that fit come first."""


def answer(question: str, releases: Iterable[ReleaseDocument]) -> AskDocument:
    """Ask the backends of some releases: those that the question names, or all."""
    asked, known = asked_in(question), [*releases]
    named = {name for each in known for name in names_in(question, each.names)}
    found = [
        _of_class(release, name, asked, named)
        for release in known
        for name, own in release.classes.items()
        if not named or named & {*own.registered_as}
    ]
    order = [each.value for each in Answer]
    found.sort(key=lambda each: (order.index(each.answer), _num_open(each)))
    return AskDocument(
        schema_="backend-caps/ask@1",
        question=question,
        asked=[AskedDocument.of(each) for each in asked],
        answers=found,
    )


def _of_class(
    release: ReleaseDocument, name: str, asked: Sequence[Asked], named: Collection[str]
) -> AnswerDocument:
    found = replies(release, name, asked, named)
    return AnswerDocument(
        distribution=release.distribution,
        version=release.version,
        backend=name,
        registered_as=release.classes[name].registered_as,
        answer=verdict(found),
        replies=[_reply(each) for each in found],
    )


def _reply(reply: Reply) -> ReplyDocument:
    return ReplyDocument.of(reply, capability=reply.asked.capability)


def _num_open(own: AnswerDocument) -> int:
    return sum(each.answer == Answer.OPEN.value for each in own.replies)


def answers_view(document: AskDocument) -> Iterator[Section]:
    """Write the answers: what was understood, then the backends, each with the reason."""
    understood = (f"{e.words}: {e.capability} {words_of(e.value)}" for e in document.asked)
    yield Lines(tuple(understood) or ("nothing of the question was understood",))
    for kind in Answer if document.asked else ():
        own = [each for each in document.answers if each.answer == kind.value]
        columns = _FITS if kind is Answer.YES else _COLUMNS
        rows = (tuple(write(each) for write in columns.values()) for each in own)
        yield from titled_table(f"{len(own)} {kind.value}", tuple(columns), rows, "names")


def _reasons(own: AnswerDocument) -> str:
    """Write the replies that decide, each with its line."""
    deciding = (each for each in own.replies if each.answer == own.answer)
    return "\n".join(
        f"{each.capability}: {each.value}{f' at {each.at}' if each.at else ''}" for each in deciding
    )


_FITS: Columns[AnswerDocument] = {
    "backend": lambda own: own.backend,
    "flag": lambda own: ", ".join(own.registered_as),
    "release": lambda own: f"{own.distribution} {own.version}",
}
_COLUMNS: Columns[AnswerDocument] = {**_FITS, "because": _reasons}
