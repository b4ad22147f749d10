"""Checks a cell of the atlas against the source that it was read from.

Each check returns a `Result`: right, wrong, or not known with the reason.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.upstream.atlas_answers import Question, form
from tests.upstream.atlas_live import LiveClass, Scope, World
from tests.upstream.atlas_statements import eval_
from tests.upstream.atlas_unknown import Outcome, outcomes

Cell = Mapping[str, Any]
"""The JSON of a cell."""
RIGHT, WRONG, NOT_KNOWN = "right", "wrong", "not known"
ROOT = "AttentionBackend"
_EXACT = frozenset(
    ["seq_lens_cpu", "_seq_lens_cpu", "num_computed_tokens_cpu", "_num_computed_tokens_cpu"]
)
_BOUND = "seq_lens_cpu_upper_bound"
_COPIES = frozenset({"cpu", "item", "tolist", "numpy"})
_SUBJECT = re.compile(r"(?:(\w+): )?(\w+)(?:\(\))? (?:returns|=|refuses|reads|\|=) ")
_LENGTHS = re.compile(r"\b(seq_lens|compute_num_computed_tokens|num_computed_tokens|block_nums)\b")


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
    """Run the conditions of a cell beside its question; those of local names are left out."""
    cell, stated = question.cell, list[tuple[ast.expr, Any]]()
    about = _SUBJECT.search(cell["words"] + " ")
    owner = (subject.owner_(about[2]) if about else None) or subject
    local = {
        node.id
        for statement in owner.body_.bound.get(about[2] if about else "", ())
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    for each in cell.get("when") or ():
        written = each["given"].get("expression")
        if written is None or local & set(re.findall(r"\w+", written)):
            return Result(RIGHT, "conditions not run")
        expression = ast.parse(written, mode="eval").body
        stated.append((expression, form(question.capability, each["value"])))
    base = form(question.capability, cell["value"])

    def is_met() -> bool:
        value = question.ask()
        given = [under for test, under in stated if bool(eval_(test, owner.scope_))]
        expected = given or ([] if cell["value"] == "depends" else [base])
        return all(value == each for each in expected)

    found = outcomes(is_met)
    wrong = any(not each.value for each in found if not (each.open or each.broken))
    return Result(WRONG, "a condition gives another value") if wrong else Result(RIGHT)


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


def check_place(world: World, cell: Cell) -> Result:
    """Check that the line named holds what the words speak of."""
    place = cell.get("declared_at")
    if place is None:
        return Result(RIGHT) if cell["origin"] == "undeclared" else Result(NOT_KNOWN, "no line")
    found = statement_at(world, place)
    if found is None:
        return Result(WRONG, f"{place} holds no statement")
    subjects = {match[2] for match in _SUBJECT.finditer(cell["words"] + " ")}
    subjects |= {"__init__"} if "__init__() refuses" in cell["words"] else set()
    if _bound_by(found[0]) & subjects:
        return Result(RIGHT)
    shown = ast.unparse(found[0]).partition("\n")[0]
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
    if capability == "max_context_len_known":
        return _check_longest(world, cell)
    if capability == "host_seq_lens":
        return _check_lengths(world, live, cell)
    question = Question(live, ROOT, capability, cell)
    subject, subjects = live, [live]
    results = [check_place(world, cell), check_words(world, cell, live)]
    about = _SUBJECT.search(cell["words"] + " ") or re.match("(\\w+):()", cell["words"])
    if capability == "graph_replay" or (about and about[1]) or "; MLA" in cell["words"]:
        subjects = list(_parts(live, capability))
        subject = subjects[0] if subjects else live
        named = set(re.findall(r"(\w+): ", cell["words"]))
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
    """Check that the line named is of a class here, or of a base of one."""
    path, _, line = cell["declared_at"].rpartition(":")
    for owner in (each for live in lives for each in live.mro_ if each.scope_.path == path):
        stated = (each for statements in owner.body_.bound.values() for each in statements)
        if any(each.lineno == int(line) for each in stated):
            return Result(RIGHT)
    return Result(WRONG, f"{path}:{line} is of no class of {lives}")


def _parts(live: LiveClass, capability: str) -> Iterator[LiveClass]:
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
            raw = outcomes(lambda: list(question.live.get_supported_kernel_block_sizes()))
            kinds = [{type(b) for b in each.value or ()} for each in raw]
            said = "" if any(len(kind) > 1 for kind in kinds) else f"the source gives {raw}"
        case "head_sizes" if "is not read" in question.cell["words"]:
            tests = [c for c in question.live.mro_ if "supports_head_size" in c.body_.bound]
            said = f"{tests} state a test" if tests else ""
        case _:
            said = f"no rule here for {question.capability}"
            return Result(NOT_KNOWN, said)
    return Result(WRONG, said) if said else Result(RIGHT)


def _check_longest(world: World, cell: Cell) -> Result:
    found = statement_at(world, cell["declared_at"])
    is_there = found is not None and ast.unparse(found[0]).startswith("max_seq_len: int")
    if not is_there:
        return Result(WRONG, f"{cell['declared_at']} is no field max_seq_len")
    text = (found or (None, ""))[1]
    line = int(cell["declared_at"].rpartition(":")[2])
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef) and node.lineno <= line <= (node.end_lineno or 0):
            is_it = node.name == "CommonAttentionMetadata"
            return Result(RIGHT) if is_it else Result(WRONG, f"{node.name} has it")
    return Result(WRONG, "no class holds it")


def _check_lengths(world: World, live: LiveClass, cell: Cell) -> Result:
    """Check what the methods that a builder's `build` calls read of the lengths on the host."""
    if cell["origin"] == "not-known":
        return Result(NOT_KNOWN, "the atlas does not know either")
    builders = list(_parts(live, "host_seq_lens"))
    if not builders:
        return Result(NOT_KNOWN, "no builder is found")
    reads = {kind for builder in builders for kind in _reads(builder)}
    if cell["value"] == "none":
        if not reads:
            return Result(RIGHT)
        return Result(NOT_KNOWN, f"it or a function it calls names {sorted(reads)}")
    found = statement_at(world, cell["declared_at"])
    here = set(_kinds(found[0])) if found else set()
    if cell["value"] not in here:
        return Result(WRONG, f"{cell['declared_at']} reads {sorted(here)}")
    if cell["value"] not in reads:
        return Result(NOT_KNOWN, f"only {sorted(reads)} is reached from build")
    if cell["value"] == "upper_bound" and "exact" in reads:
        return Result(NOT_KNOWN, "it or a function it calls names exact lengths too")
    return Result(RIGHT)


def _kinds(node: ast.AST) -> Iterator[str]:
    """Yield what a piece of source reads of the lengths."""
    for each in ast.walk(node):
        match each:
            case ast.Attribute(attr=name, ctx=ast.Load()) if name == _BOUND:
                yield "upper_bound"
            case ast.Attribute(attr=name, ctx=ast.Load()) if name in _EXACT:
                yield "exact"
            case ast.Call(func=ast.Attribute(value=value, attr=name)) if (
                name in _COPIES or (name == "to" and "cpu" in ast.unparse(each))
            ) and _LENGTHS.search(ast.unparse(value)):
                yield "exact"


def _reads(builder: LiveClass) -> set[str]:
    """Return what `build` of a builder, and the functions that it calls, read."""
    todo = _methods(builder, "build")
    done: set[int] = set()
    kinds: set[str] = set()
    while todo:
        scope, function = todo.pop()
        if id(function) in done or not isinstance(function, ast.FunctionDef):
            continue
        done.add(id(function))
        kinds |= set(_kinds(function))
        for node in ast.walk(function):
            if isinstance(node, ast.Attribute):
                todo += _methods(builder, node.attr)
            elif isinstance(node, ast.Name):
                todo += _definitions(scope, node.id)
    return kinds


def _methods(live: LiveClass, name: str) -> list[tuple[Scope, ast.stmt]]:
    return [(c.scope_, each) for c in live.mro_ for each in c.body_.bound.get(name, ())]


def _definitions(scope: Scope, name: str) -> Iterator[tuple[Scope, ast.stmt]]:
    """Yield the functions that a name stands for, through imports."""
    for statement in scope.bound.get(name, ()):
        if isinstance(statement, ast.ImportFrom):
            home = scope.world.module(scope.source(statement))
            if home is not None and home is not scope:
                yield from _definitions(home, name)
        else:
            yield scope, statement
