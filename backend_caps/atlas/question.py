"""A question in words, and what each release's backends answer to it, with the lines they rest on.

The patterns and tests are data, which the site's script reads too: both give the same answers.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from packaging.version import Version
from pydantic import JsonValue

from backend_caps.atlas.documents import (
    AtlasSettingDocument,
    CellDocument,
    ClassDocument,
    ReleaseDocument,
)
from backend_caps.capability.gpu import gpus
from backend_caps.capability.kind import Role
from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.report.words import words_of

PLATFORMS = {
    "cuda": r"\b(?:cuda|nvidia)\b(?! ?graph)",
    "rocm": r"\b(?:rocm|amd|mi\d{3}x?|aiter)\b",
    "cpu": r"\b(?:x86|(?:on|for)(?: an?| the)? cpus?)\b",
    "xpu": r"\b(?:xpu|intel gpus?)\b",
}
"""The patterns of platforms, which the engine's own code for each names its backends by."""
MACHINE = ("compute_capability", "platform")
"""What a question asks of a backend by naming a machine."""
LEVELS = [each.value for each in HostSeqLens]
_OPEN = {"undeclared": "not stated", "depends": "it depends"}
_ALL_ROLES = [role.value for role in Role]
_WINDOW = re.compile(r">= (\d+\.\d+)(?: and < (\d+\.\d+))?")


class Answer(Enum):
    """Whether a backend fits; of several, the last in this order decides."""

    YES = "fits"
    OPEN = "may fit"
    NO = "does not fit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One thing that a question asks of a backend."""

    words: str
    """The piece of the question."""
    capability: str
    """The capability, or `platform`."""
    test: str
    """How a value is compared; `questions.toml` lists the tests."""
    value: JsonValue
    """What it is compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The answer of one backend to one thing that is asked."""

    answer: Answer
    asked: Asked
    value: str
    """The backend's value, in words."""
    at: str | None
    """`file:line` of the statement; None where nothing states it."""
    stated_by: str | None = None
    """The class that states it in place of the backend's own."""


@cache
def patterns() -> list[dict[str, Any]]:
    """Return the patterns with what they ask: those of words, of GPUs and of platforms."""
    text = Path(__file__).with_name("questions.toml").read_text("utf-8")
    asked: list[dict[str, Any]] = tomllib.loads(text)["asked"]
    for gpu in gpus().values():
        if gpu.rocm_arch is None:
            major, minor = gpu.compute_capability
            asked.append(
                {
                    "pattern": rf"\b{gpu.key.lower().replace('rtx', 'rtx ?')}\b",
                    "capability": "compute_capability",
                    "test": "runs_on",
                    "value": f"{major}.{minor}",
                }
            )
    for platform, pattern in PLATFORMS.items():
        asked.append(
            {"pattern": pattern, "capability": "platform", "test": "named", "value": platform}
        )
    return asked


def asked_in(question: str) -> list[Asked]:
    """Return what a question asks, in the order of the table.

    Each pattern takes the pieces that it matches away, so that `MLA sparse` does not ask for MLA.
    """
    rest, found = f" {' '.join(question.lower().split())} ", list[Asked]()
    for row in patterns():
        pattern = re.compile(row["pattern"])
        for match in pattern.finditer(rest):
            number = next(filter(None, match.groups()), None)
            value = row.get("value") if number is None else _number(number, row["test"])
            asked = Asked(
                words=match[0].strip(), capability=row["capability"], test=row["test"], value=value
            )
            if (asked.capability, asked.value) not in [(e.capability, e.value) for e in found]:
                found.append(asked)
        rest = pattern.sub(" ; ", rest)
    return found


def _number(text: str, test: str) -> JsonValue:
    """Read a number; of a compute capability `90` and `9.0` are the same."""
    if test != "runs_on":
        return int(text)
    return text if "." in text else f"{text[:-1]}.{text[-1]}"


def names_in(question: str, names: Iterable[str]) -> set[str]:
    """Return the names of backends, as server flags have them, that a question has as words."""
    text = " ".join(question.lower().split())
    return {name for name in names if re.search(rf"\b{_spelled(name)}\b", text)}


def _spelled(name: str) -> str:
    """Return the pattern of a name, whose parts may be written apart or with hyphens."""
    return re.escape(name.lower()).replace("_", "[ _-]?")


def replies(
    release: ReleaseDocument, name: str, asked: Sequence[Asked], named: Collection[str] = ()
) -> list[Reply]:
    """Return what one class answers to each thing that is asked.

    Args:
        release: the release.
        name: the class.
        asked: what a question asks.
        named: the names of backends in it; a class that has some of them answers for these alone.
    """
    own = release.classes[name]
    own = own.model_copy(update={"cells": served_cells(release, name)})
    found = [
        _named(own, each) if each.capability == "platform" else _reply(own, release.root, each)
        for each in asked
    ]
    followed = sorted({each.name for each in own.settings or ()})
    names = [each for each in followed if each in named] or followed
    decided = (_with_server(reply, own, release.tried or {}, asked, names) for reply in found)
    return [_unless_refuted(reply, own.refuted) for reply in decided]


def _unless_refuted(reply: Reply, refuted: Mapping[str, str]) -> Reply:
    """Leave open what the source says, and a run of the kit refutes."""
    words = refuted.get(reply.asked.capability)
    if words is None or reply.answer is not Answer.YES:
        return reply
    value = f"{reply.value}, which a run refutes: {words}"
    return replace(reply, answer=Answer.OPEN, value=value)


def _with_server(
    reply: Reply,
    own: ClassDocument,
    tried: Mapping[str, Sequence[JsonValue]],
    asked: Sequence[Asked],
    names: Sequence[str],
) -> Reply:
    """Return the answer of a server's processing of arguments, where it decides one.

    It does where it decides the same for all names. A class that says no itself is not asked.
    """
    each = reply.asked
    if reply.answer is Answer.NO:
        return reply
    wanted = [value for value in tried.get(each.capability, ()) if _is_asked(value, each)]
    decided = [_decided(own, wanted, asked, each, name) for name in names]
    if not decided or None in decided or len({own.accepted for own in decided if own}) > 1:
        return reply
    setting = decided[0]
    assert setting is not None, "each name has one"
    return replace(
        reply,
        answer=Answer.YES if setting.accepted else Answer.NO,
        value=setting.words,
        at=setting.declared_at,
        stated_by="the server",
    )


def _decided(
    own: ClassDocument, wanted: Sequence[JsonValue], asked: Sequence[Asked], each: Asked, name: str
) -> AtlasSettingDocument | None:
    """Return the setting that decides for a name: one that is taken, or one of all refused.

    A machine beside what is set on it is its condition: the setting says nothing of the machine.
    """
    by_capability = {other.capability: other for other in asked}
    found = [
        setting
        for setting in own.settings or ()
        if setting.name == name
        and each.capability in setting.settings
        and (len(setting.settings) == 1 or each.capability not in MACHINE)
        and setting.settings.keys() <= by_capability.keys()
        and all(
            _is_asked(value, by_capability[key], accepted=setting.accepted)
            for key, value in setting.settings.items()
        )
    ]
    refused = [setting for setting in found if not setting.accepted]
    values = [setting.settings[each.capability] for setting in refused]
    is_number = each.test == "at_least"  # a larger one is refused where a smaller one is
    if refused and (is_number or all(value in values for value in wanted)):
        return refused[0]
    return next((setting for setting in found if setting.accepted), None)


def _is_asked(value: JsonValue, asked: Asked, *, accepted: bool = False) -> bool:
    """Return whether a value is one that is asked for, or one that decides of it.

    What takes a number takes a smaller one; what refuses it refuses a larger one.
    """
    match asked.test:
        case "any_of":
            return isinstance(asked.value, list) and value in asked.value
        case "at_least":
            assert isinstance(asked.value, int), asked
            assert isinstance(value, int), value
            return value >= asked.value if accepted else value <= asked.value
    return value == asked.value and type(value) is type(asked.value)


def verdict(found: Sequence[Reply]) -> Answer:
    """Return the answer that decides: of the replies the worst, and open for none."""
    order = list(Answer)
    return max((each.answer for each in found), key=order.index, default=Answer.OPEN)


def served_cells(release: ReleaseDocument, name: str) -> dict[str, CellDocument]:
    """Return a class's cells, with what the other classes of its names make of them."""
    return {
        **_of_drafts(release, name),
        **release.classes[name].cells,
        **_served_roles(release, name),
    }


def _of_drafts(release: ReleaseDocument, name: str) -> dict[str, CellDocument]:
    """Return the branches of the class that drafts where this one serves."""
    limit = "max_speculative_topk"
    for parts in release.names.values():
        served = {part.given for part in parts if part.name == name and part.roles == ["target"]}
        drafts = [
            release.classes[part.name]
            for part in parts
            if part.given in served and part.roles == ["draft"] and part.phases == ["decode"]
        ]
        cells = [each.cells[limit] for each in drafts if limit in each.cells]
        if cells and len(cells) == len(drafts):
            by = drafts[0].path.rpartition(".")[2]
            return {limit: cells[0].model_copy(update={"inherited_from": by})}
    return {}


def _served_roles(release: ReleaseDocument, name: str) -> dict[str, CellDocument]:
    """Return the roles of the names that a class is registered as, in place of its own.

    A flag's name may have one class for the served model and another one for drafts: it is the name
    that serves both, and that a question is about.
    """
    cell = release.classes[name].cells.get("roles")
    if cell is None or not isinstance(cell.value, list):
        return {}
    beside = [each for each in release.names.values() if name in [part.name for part in each]]
    roles = {role for parts in beside for part in parts for role in part.roles or _ALL_ROLES}
    served = sorted(roles | {str(role) for role in cell.value})
    return {"roles": cell.model_copy(update={"value": served})}


def shown(value: JsonValue) -> str:
    """Write a value for a page; what leaves it open is said in words."""
    return _OPEN.get(str(value)) or words_of(value)


def _named(own: ClassDocument, asked: Asked) -> Reply:
    at = (own.platforms or {}).get(str(asked.value))
    answer = Answer.OPEN if at is None else Answer.YES
    return Reply(answer=answer, asked=asked, value=_chosen_on(own), at=at)


def _chosen_on(own: ClassDocument) -> str:
    return f"chosen on {', '.join(own.platforms or ()) or 'no platform that is read'}"


def _reply(own: ClassDocument, root: ClassDocument | None, asked: Asked) -> Reply:
    cell, stated_by = own.cells.get(asked.capability), None
    of_root = None if root is None else root.cells.get(asked.capability)
    if root is not None and of_root is not None and _is_silent(cell, of_root):
        cell, stated_by = of_root, root.path.rpartition(".")[2]
    if cell is None:
        return Reply(answer=Answer.OPEN, asked=asked, value="not stated", at=None)
    answer, value = _answer(cell, asked), shown(cell.value)
    if asked.test == "runs_on" and answer is Answer.YES and "cuda" not in (own.platforms or ()):
        # Its source refuses no GPU, which that of a backend for other hardware does not do either.
        answer, value = Answer.OPEN, f"{value}, {_chosen_on(own)}"
    return Reply(
        answer=answer,
        asked=asked,
        value=value,
        at=cell.declared_at,
        stated_by=stated_by or cell.inherited_from,
    )


def _is_silent(cell: CellDocument | None, of_root: CellDocument) -> bool:
    """Return whether a class states nothing itself, so that the engine reads its root's value."""
    return cell is None or (
        cell.value == "undeclared" and cell.declared_at in (None, of_root.declared_at)
    )


def _answer(cell: CellDocument, asked: Asked) -> Answer:
    """Compare every value that a cell may have: it fits where all do, and not where none does."""
    if cell.value == "undeclared" and asked.capability == "graph_replay" and not cell.when:
        return Answer.NO  # an engine replays no graph of a backend that does not say so
    if cell.value in ("depends", "undeclared"):
        return Answer.OPEN
    fits = {
        _fits(value, asked) for value in (cell.value, *(each.value for each in cell.when or ()))
    }
    if fits == {True}:
        return Answer.YES
    return Answer.NO if fits == {False} else Answer.OPEN


def _fits(value: JsonValue, asked: Asked) -> bool | None:
    """Return whether a value is what is asked for; None where it is not known."""
    if value == "any":
        return True
    fits: bool | None = _TESTS[asked.test](value, asked.value)
    return fits


def _takes(sizes: JsonValue, size: JsonValue) -> bool | None:
    match sizes:
        case {"exact": exact}:
            return exact == size
        case {"multiple_of": int(of)} if isinstance(size, int):
            return size % of == 0
        case {"one_of": [*some]}:
            return size in some
    return None


def _runs_on(windows: JsonValue, version: JsonValue) -> bool:
    assert isinstance(windows, list)
    return any(_is_in(str(window), str(version)) for window in windows)


def _is_in(window: str, version: str) -> bool:
    match = _WINDOW.fullmatch(window)
    assert match is not None, window
    low, high = match.groups()
    return Version(low) <= Version(version) and (high is None or Version(version) < Version(high))


def _members(value: JsonValue) -> Iterator[JsonValue]:
    yield from value if isinstance(value, list) else [value]


_TESTS: Mapping[str, Callable[[Any, Any], bool | None]] = {
    "any_of": lambda value, wanted: any(each in [*_members(value)] for each in wanted),
    "all_of": lambda value, wanted: all(each in [*_members(value)] for each in wanted),
    "is": lambda value, wanted: value is wanted,
    "takes": _takes,
    "runs_on": _runs_on,
    "at_most": lambda value, wanted: LEVELS.index(value) <= LEVELS.index(wanted),
    "at_least": lambda value, wanted: value is None or value >= wanted,
}
