"""Checks a cell of a class of SGLang against the source that it was read from."""

from __future__ import annotations

import ast
import re
from functools import partial

from tests.upstream.atlas.answers import read_ends
from tests.upstream.atlas.checks import (
    NOT_KNOWN,
    RIGHT,
    ROOT,
    WRONG,
    Cell,
    Result,
    check_place,
    compare,
    is_at,
    statement_at,
    worst,
)
from tests.upstream.atlas.live_classes import LiveClass, World
from tests.upstream.atlas.statements import eval_
from tests.upstream.atlas.unknown_values import outcomes


def check_sglang(world: World, path: str, capability: str, cell: Cell) -> Result:
    """Check a cell of a class of SGLang."""
    live = world.find(path)
    match capability:
        case "host_seq_lens":
            return _check_needs(world, live, cell)
        case "max_context_len_known":
            return _check_max_len(world, live, cell)
        case "attention_sinks":
            return _check_sinks(live, cell)
        case "shared_reads_end":
            return _check_ends(live, cell)
        case "roles":
            return _check_roles(world, live, cell)
        case "max_speculative_topk":
            return _check_topk(world, live, cell)
    return Result(NOT_KNOWN, f"no rule here for {capability}")


def _assigned(
    live: LiveClass, name: str
) -> list[tuple[LiveClass, ast.expr, ast.FunctionDef | None]]:
    """List where the first class that states an attribute does so, in its body or a method."""
    for owner in live.mro_:
        found: list[tuple[LiveClass, ast.expr, ast.FunctionDef | None]] = []
        for part in owner.node_.body:
            function = part if isinstance(part, ast.FunctionDef) else None
            for node in ast.walk(part):
                match node:
                    case ast.Assign(targets=[target], value=value):
                        pass
                    case ast.AnnAssign(target=target, value=ast.expr() as value):
                        pass
                    case ast.AugAssign(target=target, value=value):
                        pass
                    case _:
                        continue
                wanted = f"self.{name}" if function else name
                if ast.unparse(target) == wanted:
                    found.append((owner, value, function))
        if found:
            return found
    return []


def _check_needs(world: World, live: LiveClass, cell: Cell) -> Result:
    stated = _assigned(live, "needs_cpu_seq_lens")
    owner = stated[0][0] if stated else None
    name = owner.node_.name if owner else ""
    if cell["origin"] == "undeclared":
        is_root = name in {"", ROOT}
        of_root = Result(RIGHT) if is_root else Result(WRONG, f"{name} states it")
        return worst([of_root, check_place(world, cell)])
    expected = cell.get("inherited_from", live.node_.name)
    if name != expected:
        return Result(WRONG, f"{name} states it, not {expected}")
    # One that a method makes under a condition leaves that of the class body, or of a base, open.
    in_method = [each for each in stated if each[2]]
    is_sure = any(value in _top_values(function) for _, value, function in in_method if function)
    counted = in_method if is_sure else stated
    if in_method and not is_sure and len(counted) == len(in_method):
        return Result(NOT_KNOWN, "a base states what holds where no condition does")
    found = []
    for each, value, _ in counted:
        found += outcomes(partial(_need, value, each))
    return worst([check_place(world, cell), compare(cell, "host_seq_lens", found)])


def _top_values(function: ast.FunctionDef) -> list[ast.expr]:
    """List what a function assigns under no condition."""
    return [
        part.value
        for part in function.body
        if isinstance(part, ast.Assign | ast.AnnAssign | ast.AugAssign) and part.value
    ]


def _need(expression: ast.expr, owner: LiveClass) -> str:
    return "exact" if eval_(expression, owner.scope_) else "none"


def _check_topk(world: World, live: LiveClass, cell: Cell) -> Result:
    """Run the test at the line named: it refuses one branch more than the value, and not that."""
    owner = live.owner_("__init__")
    found = statement_at(world, cell["declared_at"])
    statement = found[0] if found else None
    if owner is None or not isinstance(statement, ast.If):
        return Result(WRONG, f"{cell['declared_at']} is no test of a constructor")
    if not isinstance(statement.body[-1], ast.Raise):
        return Result(WRONG, f"{cell['declared_at']} raises nothing")
    test = compile(ast.Expression(statement.test), "test", "eval")
    most = int(cell["value"]) if cell["origin"] == "declared" else 1
    refused = [bool(eval(test, {}, {"topk": each})) for each in (most, most + 1)]  # noqa: S307
    if refused != [False, True]:
        return Result(WRONG, f"{ast.unparse(statement.test)} refuses another number")
    expected = cell.get("inherited_from", live.node_.name)
    is_there = owner.node_.name == expected
    return Result(RIGHT) if is_there else Result(WRONG, f"{owner!r} states it, not {expected}")


def _check_max_len(world: World, live: LiveClass, cell: Cell) -> Result:
    stated = _assigned(live, "max_context_len")
    if cell["origin"] == "undeclared":
        return Result(WRONG, f"{stated[0][0]!r} sets it") if stated else Result(RIGHT)
    if not stated:
        return Result(WRONG, "no class sets it")
    found = statement_at(world, cell["declared_at"])
    lines = {(o.scope_.path, value.lineno) for o, value, _ in stated}
    path, _, line = cell["declared_at"].rpartition(":")
    if found is None or "max_context_len" not in ast.unparse(found[0]):
        return Result(WRONG, f"{cell['declared_at']} does not set it")
    if not any(path == p and abs(int(line) - n) < 4 for p, n in lines):
        return Result(WRONG, f"{cell['declared_at']} is not among {sorted(lines)}")
    is_open = any(re.match(r"getattr\(\w+_backend", ast.unparse(value)) for _, value, _ in stated)
    is_right = is_open == (cell["value"] == "depends")
    return (
        Result(RIGHT) if is_right else Result(WRONG, f"it is set to what {stated[0][0]!r} is given")
    )


def _check_sinks(live: LiveClass, cell: Cell) -> Result:
    named = re.match(r"(\w+)\(\)", cell["words"])
    owner = live.owner_(named[1]) if named else None
    if named is None or owner is None or owner.node_.name == ROOT:
        return Result(WRONG, f"no class below the root has {cell['words']}")
    if owner.node_.name != cell.get("inherited_from", live.node_.name):
        return Result(WRONG, f"{owner!r} states it")
    if not is_at(owner, named[1], cell["declared_at"]):
        return Result(WRONG, f"{cell['declared_at']} is not {named[1]} of {owner!r}")
    # The root's forward calls the others; one that a class has in its place decides alone.
    forward = live.owner_("forward")
    others: tuple[str, ...] = ("forward", "forward_extend", "forward_decode")
    if named[1] == "forward" or (forward is not None and _passes_on(forward, named[1])):
        others = (str(named[1]),)
    for name in others:
        for each in (one for one in [live.owner_(name)] if one and one.node_.name != ROOT):
            function = each.body_.bound[name][-1]
            given = function.args if isinstance(function, ast.FunctionDef) else None
            if given is None or given.kwarg or "sinks" in ast.unparse(given):
                verdict = WRONG if name == named[1] else NOT_KNOWN
                return Result(verdict, f"{name} of {each!r} may take sinks")
    return Result(RIGHT)


def _passes_on(owner: LiveClass, name: str) -> bool:
    """Return whether a class's forward hands its further arguments to another method."""
    text = ast.unparse(owner.body_.bound["forward"][-1])
    return f"self.{name}(" in text and "**kwargs)" in text.partition(f"self.{name}(")[2]


def _check_ends(live: LiveClass, cell: Cell) -> Result:
    owner = live.owner_("shared_read_ends")
    expected = cell.get("inherited_from", live.node_.name)
    if owner is None or owner.node_.name != expected:
        return Result(WRONG, f"{owner!r} states it, not {expected}")
    if not is_at(owner, "shared_read_ends", cell["declared_at"]):
        return Result(WRONG, f"{cell['declared_at']} is not shared_read_ends of {owner!r}")
    seen: set[str] = set()
    for phase in ("prefill", "decode", "verify"):
        found = outcomes(partial(read_ends, live, phase))
        values = {each.value for each in found if each.value}
        said = re.search(rf"{phase}: ([^;]*)", cell["words"])
        named = set(
            re.findall(r"pre_replay|in_replay|post_replay|unknown", said[1] if said else "")
        )
        if named and named != values:
            return Result(WRONG, f"{phase}: the source gives {sorted(values)}")
        if any(each.broken for each in found):
            return Result(NOT_KNOWN, f"not run: {found}")
        if not named and all(each.value and each.value in values for each in found):
            return Result(WRONG, f"{phase}: the source gives {sorted(values)}")
        seen |= values
    given = {(each["given"].get("phase") or [""])[0] for each in cell.get("when") or ()}
    return (
        Result(RIGHT) if given <= {"prefill", "decode", "verify"} else Result(NOT_KNOWN, str(seen))
    )


def _check_roles(world: World, live: LiveClass, cell: Cell) -> Result:
    """Check by name who makes the class: the registry of targets, and the makers of drafts."""
    name = live.node_.name
    if cell["declared_at"] != f"{live.scope_.path}:{live.node_.lineno}":
        return Result(WRONG, f"{name} is not at {cell['declared_at']}")
    uses = {
        "target": _makers(world, "register_attention_backend", name),
        "draft": _makers(world, "_decode_backend", name),
        "draft_extend": _makers(world, "_prefill_backend", name),
    }
    found = {role for role, made in uses.items() if made}
    # The runner of a draft model makes a backend of its own, by the registry of targets; it keeps
    # that one where the maker of another for draft extend returns None.
    found |= {"draft"} if "target" in found else set()
    path = "sglang/srt/speculative/draft_utils.py"
    for registered in re.findall(r"\w+", cell["words"].partition(" for ")[2]):
        for node in ast.walk(ast.parse(world.text(path) or "")):
            is_maker = (
                isinstance(node, ast.FunctionDef)
                and node.name == f"_create_{registered}_prefill_backend"
            )
            if is_maker and "target" in found and "return None" in ast.unparse(node):
                found |= {"draft_extend"}
    value = set(cell["value"])
    if found == value:
        return Result(RIGHT)
    return Result(NOT_KNOWN, f"by name it is made as {sorted(found)}")


def _makers(world: World, mark: str, name: str) -> list[str]:
    """List the functions with a mark, as their name or their decorator, that name a class."""
    folders = (
        "sglang/srt/layers/attention/attention_registry",
        "sglang/srt/speculative/draft_utils",
    )
    made = []
    for path in (f"{folder}.py" for folder in folders):
        for node in ast.walk(ast.parse(world.text(path) or "")):
            if isinstance(node, ast.FunctionDef):
                marks = [node.name, *map(ast.unparse, node.decorator_list)]
                names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
                names |= {n.name for n in ast.walk(node) if isinstance(n, ast.alias)}
                names |= _names_within(world, node)
                if any(mark in each for each in marks) and name in names:
                    made.append(node.name)
    return made


def _names_within(world: World, function: ast.FunctionDef) -> set[str]:
    """Return the names in functions that a function imports and calls."""
    names: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.ImportFrom) and node.module:
            home = world.module(node.module)
            for alias in node.names:
                for inner in home.bound.get(alias.name, ()) if home else ():
                    if isinstance(inner, ast.FunctionDef):
                        names |= {n.id for n in ast.walk(inner) if isinstance(n, ast.Name)}
                        names |= {n.name for n in ast.walk(inner) if isinstance(n, ast.alias)}
    return names
