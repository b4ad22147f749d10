"""Checks a cell of the atlas against the source that it was read from.

Each check returns a `Result`: right, wrong, or not known with the reason.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

from tests.upstream.atlas.answers import Question, form
from tests.upstream.atlas.live_classes import LiveClass, World
from tests.upstream.atlas.statements import evaluate
from tests.upstream.atlas.unknown_values import BrokenError, Outcome, outcomes

Cell = Mapping[str, Any]
"""The JSON of a cell."""
RIGHT, WRONG, NOT_KNOWN = "right", "wrong", "not known"
ROOT = "AttentionBackend"
_SUBJECT = re.compile(r"(?:(\w+): )?(\w+)(?:\(\))? (?:returns|=|refuses|reads|\|=) ")


@dataclass(frozen=True)
class Result:
    """What a check says of a cell."""

    verdict: str
    why: str = ""


def compare(cell: Cell, capability: str, found: list[Outcome]) -> Result:
    """Compare the outcomes of a question with a cell's value and its conditions."""
    broken = [each.broken for each in found if each.broken]
    several = {each.value for each in found if not (each.open or each.broken)}
    if broken and cell["value"] == "depends" and "when" not in cell and len(several) > 1:
        return Result(RIGHT)
    if broken:
        return Result(NOT_KNOWN, f"not run: {broken[0]}")
    values = {each.value for each in found if not each.open}
    is_open = any(each.open for each in found)
    shown = " | ".join(sorted(map(_shown, values))) + (" | open" if is_open else "")
    stated = [form(capability, each["value"]) for each in cell.get("when") or ()]
    if cell["value"] == "depends":
        if set(stated) - values and not is_open:
            return Result(WRONG, f"a value under a condition is not among {shown}")
        if len(values) + is_open > 1 or is_open:
            return Result(RIGHT)
        return _of_single(capability, values, shown)
    expected = {form(capability, cell["value"]), *stated}
    # An open run of a function ends at one of its returns, which the other runs have reached.
    is_reached = values == expected and (not is_open or len(expected) > 1)
    if is_open and not is_reached:
        return Result(NOT_KNOWN, f"only a run decides it: {shown}")
    return Result(RIGHT) if is_reached else Result(WRONG, f"the source gives {shown}")


def _of_single(capability: str, values: set[Any], shown: str) -> Result:
    """Judge `depends` where the source decides; a list of sizes may be too long to be a value."""
    (value,) = values
    if capability == "head_sizes" and len(value) > 16:
        return Result(RIGHT, "the sizes that pass are no short list")
    return Result(WRONG, f"the source decides it: {shown}")


def _shown(value: object) -> str:
    if isinstance(value, frozenset):
        some = sorted(map(str, value))
        return "{" + ", ".join(some[:12]) + (f", … {len(some)}" if len(some) > 12 else "") + "}"
    return str(value)


def check_conditions(question: Question, subject: LiveClass) -> Result:
    """Run the conditions of a cell after its question, with the names that its function had."""
    cell = question.cell
    if "when" not in cell:
        return Result(RIGHT)
    about = _SUBJECT.search(cell["words"] + " ")
    name = about[2] if about else ""
    owner = subject.owner_(name) or subject
    stored = {
        node.id
        for statement in owner.body_.bound.get(name, ())
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    given = [
        (ast.parse(each["given"]["expression"], mode="eval").body, each["value"])
        for each in cell["when"]
        if "expression" in each["given"]
    ]
    if len(given) < len(cell["when"]):
        return Result(NOT_KNOWN, "a condition is of a flag")

    def is_met() -> bool:
        value, local = _asked(question, name)
        own = {**dict.fromkeys(stored, _UNBOUND), **local}
        met = [under for test, under in given if evaluate(test, owner.scope_, own)]
        met = met or ([] if cell["value"] == "depends" else [cell["value"]])
        return all(value == form(question.capability, each) for each in met)

    found = outcomes(is_met)
    if any(each.value is False for each in found):
        return Result(WRONG, "a condition gives another value")
    broken = [each.broken for each in found if each.broken]
    return Result(NOT_KNOWN, f"conditions not run: {broken[0]}") if broken else Result(RIGHT)


class _Unbound:
    """A name that a function binds in a branch that was not run."""

    def __getattr__(self, name: str) -> object:
        raise BrokenError(name)

    def __bool__(self) -> bool:
        message = "an unbound name"
        raise BrokenError(message)


_UNBOUND = _Unbound()


def _asked(question: Question, name: str) -> tuple[Any, Mapping[str, Any]]:
    """Return an answer, and the names that the last function of a name ended with."""
    local: dict[str, Any] = {}

    def on_event(frame: FrameType, event: str, _: object) -> None:
        if event == "return" and frame.f_code.co_name == name:
            local.clear()
            local.update(frame.f_locals)

    sys.setprofile(on_event)
    try:
        return question.ask(), local
    finally:
        sys.setprofile(None)


def statement_at(world: World, place: str) -> tuple[ast.stmt, str] | None:
    """Return the innermost statement that holds a line, and the text of its file."""
    path, _, line = place.rpartition(":")
    text = world.text(path)
    if text is None:
        return None
    holding = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.stmt) and node.lineno <= int(line) <= (node.end_lineno or 0)
    ]
    return (max(holding, key=lambda node: node.lineno), text) if holding else None


def subjects_of(cell: Cell) -> set[str]:
    """Return the names that the words of a cell state something of."""
    named = {match[2] for match in _SUBJECT.finditer(cell["words"] + " ")}
    return named | ({"__init__"} if "__init__() refuses" in cell["words"] else set())


def check_place(world: World, cell: Cell) -> Result:
    """Check that the line named binds what the words speak of."""
    place, subjects = cell.get("declared_at"), subjects_of(cell)
    if place is None:
        return Result(RIGHT) if cell["origin"] == "undeclared" else Result(NOT_KNOWN, "no line")
    found = statement_at(world, place)
    if found is not None and _bound_by(found[0]) & subjects:
        return Result(RIGHT)
    shown = ast.unparse(found[0]).partition("\n")[0] if found else "no statement"
    return Result(WRONG, f"{place} does not bind {' or '.join(sorted(subjects))}: {shown}")


def _bound_by(statement: ast.stmt) -> set[str]:
    """Return the names, or the attributes of `self`, that a statement binds."""
    match statement:
        case ast.FunctionDef(name=name):
            return {name}
        case ast.Assign(targets=targets):
            return {ast.unparse(each).removeprefix("self.") for each in targets}
        case ast.AnnAssign(target=target) | ast.AugAssign(target=target):
            return {ast.unparse(target).removeprefix("self.")}
    return set()


def check_words(world: World, cell: Cell, live: LiveClass) -> Result:
    """Check that the names in the words of a statement occur in the files of its class."""
    path = str(cell.get("declared_at", "")).rpartition(":")[0]
    texts = [world.text(path) or "", *(each.scope_.text for each in live.mro_)]
    written = re.sub(r"\(a page is .*|\('auto', .*", "", cell["words"])
    written = re.sub(r"\b(?:returns|where|refuses|reads|states|nothing|the|root)\b", "", written)
    names = set(re.findall(r"[A-Za-z_]\w+", written))
    missing = sorted(name for name in names if not any(name in text for text in texts))
    return Result(WRONG, f"the source lacks {', '.join(missing)}") if missing else Result(RIGHT)


def check_origin(live: LiveClass, cell: Cell, subject: LiveClass) -> Result:
    """Check which class states what the words name: this one, or the one inherited from."""
    owners = [
        owner
        for match in _SUBJECT.finditer(cell["words"] + " ")
        if (owner := (subject if match[1] else live).owner_(match[2])) is not None
    ]
    if not owners:
        return Result(NOT_KNOWN, f"no class of {live!r} states the words' names")
    own = {live.node_, subject.node_}
    others = [owner for owner in owners if owner.node_ not in own]
    if cell["origin"] == "inherited":
        is_named = cell["inherited_from"] in {other.node_.name for other in others}
        return Result(RIGHT) if is_named else Result(WRONG, f"it is stated by {owners}")
    is_own = len(others) < len(owners)
    return Result(RIGHT) if is_own else Result(WRONG, f"it is stated by {others} only")


def worst(results: Iterable[Result]) -> Result:
    """Return a wrong result if there is one, else one that is not known, else a right one."""
    order = (RIGHT, NOT_KNOWN, WRONG)
    return max(results, key=lambda each: order.index(each.verdict))


def check_vllm(world: World, path: str, capability: str, cell: Cell) -> Result:
    """Check a cell of a class of vLLM or of a plugin of it."""
    live = world.find(path)
    question = Question(live, ROOT, capability, cell)
    subject, subjects = live, [live]
    results = [check_place(world, cell), check_words(world, cell, live)]
    about = _SUBJECT.search(cell["words"] + " ") or re.match("(\\w+):()", cell["words"])
    if capability == "graph_replay" or (about and about[1]) or "; MLA" in cell["words"]:
        subjects = list(parts_of(live, capability))
        subject = subjects[0] if subjects else live
        named = set(re.findall(r"(?:^|; )(\w+): ", cell["words"]))
        parts = {part.node_.name for each in subjects for part in each.mro_}
        if not named <= parts:
            results.append(Result(WRONG, f"{sorted(named)} are not among {sorted(parts)}"))
        results[1] = check_words(world, cell, subject) if len(subjects) == 1 else Result(RIGHT)
    found = outcomes(question.ask)
    if cell["origin"] == "undeclared":
        return worst([*results[:1], _check_undeclared(question, subject, found)])
    if cell["origin"] == "conditional":
        results.append(check_conditions(question, subject))
    else:
        results.append(check_origin(live, cell, subject))
    return worst(
        [*results, _check_owner([live, *subjects], cell), compare(cell, capability, found)]
    )


def _check_owner(lives: list[LiveClass], cell: Cell) -> Result:
    """Check that the line named is that of the nearest class which binds the words' names."""
    for owner, name in ((live.owner_(name), name) for live in lives for name in subjects_of(cell)):
        if owner is not None and is_at(owner, name, cell["declared_at"]):
            return Result(RIGHT)
    return Result(WRONG, f"{cell['declared_at']} is not of the nearest class of {lives}")


def is_at(owner: LiveClass, name: str, place: str) -> bool:
    """Return whether a class binds a name at a place."""
    statements = owner.body_.bound.get(name, ())
    return place in {f"{owner.scope_.path}:{each.lineno}" for each in statements}


def parts_of(live: LiveClass, capability: str) -> Iterator[LiveClass]:
    """Return the builders or the implementations that a backend may have."""
    asked = live.get_builder_cls if capability in _OF_BUILDER else live.get_impl_cls
    for each in outcomes(asked):
        if isinstance(each.value, LiveClass):
            yield each.value


_OF_BUILDER = ("graph_replay", "host_seq_lens")


def _check_undeclared(question: Question, subject: LiveClass, found: list[Outcome]) -> Result:
    """Check that nothing below the root states it, or that what it states is no value."""
    values = {each.value for each in found if not each.open and not each.broken}
    match question.capability:
        case "graph_replay":
            names = ("get_cudagraph_support", "_cudagraph_support", "cudagraph_support")
            root = next(
                (c for c in subject.mro_ if c.node_.name == "AttentionMetadataBuilder"), None
            )
            # An attribute of another release's name is not read.
            read = [name for name in names if root is None or name in root.body_.bound]
            below = [o for o in map(subject.owner_, read) if o is not None and o is not root]
            said = f"{below} states it" if below else ""
        case "kv_cache_dtypes":
            said = f"the source gives {_shown(min(values))}" if values != {frozenset()} else ""
        case "kernel_block_sizes":
            raw = outcomes(lambda: list(question.blocks()))
            kinds = [{type(b) for b in each.value or ()} for each in raw]
            said = "" if any(len(kind) > 1 for kind in kinds) else f"the source gives {raw}"
        case "head_sizes" if "is not read" in question.cell["words"]:
            tests = [c for c in question.live.mro_ if "supports_head_size" in c.body_.bound]
            said = f"{tests} state a test" if tests else ""
        case _:
            said = f"no rule here for {question.capability}"
            return Result(NOT_KNOWN, said)
    return Result(WRONG, said) if said else Result(RIGHT)
