"""Reads Triton's tensor IR from the text that its compiler prints.

The compiler has already checked types, put helpers where they are called, and folded what is known
at compile time, so what is left is short: one operation a line, in regions of blocks. Only that
text is read: Triton's own objects show neither attributes nor blocks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from itertools import count

import torch

from backend_caps.simulator.errors import Site
from backend_caps.simulator.kernels.errors import KernelTextError
from backend_caps.simulator.kernels.ir import Block, Function, Kind, Operation, kind_of
from backend_caps.simulator.kernels.locations import Locations

_VALUE = re.compile(r"%[\w$.-]+(?:#\d+)?")
_RESULTS = re.compile(r"(%[\w$.-]+(?::\d+)?(?:, %[\w$.-]+(?::\d+)?)*) = ")
_NAME = re.compile(r'"?([a-z_]+(?:\.[a-z_0-9]+)+)"?')
_FUNCTION = re.compile(r'tt\.func (?:public |private )?@"?([^"(]+)"?\(')
_FOR = re.compile(r"(%\S+) = (%\S+) to (%\S+) step (%\S+)")
_LABEL = re.compile(r"(\^bb\d+)(?:\((.*)\))?:(?:\s+//.*)?$")
_INITIAL = re.compile(r"(%[\w$.-]+) = (%[\w$.-]+(?:#\d+)?)")
_STRING = re.compile(r'"[^"]*"')  # a quote in one is printed as its code
_KEPT = re.compile(r'"(\d+)"')
_POINTER = re.compile(r"!tt\.ptr<((?:[^<>]|<[^<>]*>)*)>")
_OPENERS, _CLOSERS = "<({[", ">)}]"


@cache
def _tokens(separator: str) -> re.Pattern[str]:
    """Match what `split_outside` looks at; an arrow closes no bracket."""
    return re.compile(rf"{re.escape(separator)}|->|[<({{\[>)}}\]]")


def split_outside(text: str, separator: str) -> list[str]:
    """Split a text where a separator stands outside of all brackets."""
    if separator not in text:
        return [text]
    parts, depth, start = list[str](), 0, 0
    for found in _tokens(separator).finditer(text):
        token = found[0]
        if token == separator:
            if depth == 0:
                parts.append(text[start : found.start()])
                start = found.end()
        elif token in _OPENERS:
            depth += 1
        elif token in _CLOSERS:
            depth -= 1
    return [*parts, text[start:]]


def _up_to_closing(text: str) -> str:
    """Return a text up to the bracket that closes one before it."""
    depth = 0
    for place, character in enumerate(text):
        depth += (character in _OPENERS) - (character in _CLOSERS)
        if depth < 0:
            return text[:place]
    raise KernelTextError(f"a line {text!r}")


class _Reader:
    """Reads the functions of a module.

    Args:
        text: the module.
        libraries: as `Locations` takes them.
    """

    def __init__(self, text: str, libraries: Sequence[str]) -> None:
        lines = text.splitlines()
        self._locations = Locations(lines, libraries)
        self._lines = [line.strip() for line in lines if not line.startswith(("#", "module"))]
        self._place = 0
        self._numbers = count()
        self._kinds: dict[int, Kind] = {}
        # Values by name: of the region that is read, and of those around it.
        self._scopes: list[dict[str, int]] = []

    def functions(self) -> dict[str, Function]:
        """Read all."""
        functions = {}
        while self._place < len(self._lines):
            line = self._lines[self._place]
            opened = _FUNCTION.match(line)
            self._place += 1
            if opened is not None:
                function = self._function(opened[1], _up_to_closing(line[opened.end() :]))
                functions[function.name] = function
        return functions

    def _function(self, name: str, arguments: str) -> Function:
        self._numbers, self._kinds, self._scopes = count(), {}, [{}]
        values = self._declare(arguments)
        names = {value: own.removeprefix("%") for own, value in self._scopes[0].items()}
        blocks = self._region()
        self._place += 1
        return Function(name=name, arguments=values, kinds=self._kinds, blocks=blocks, names=names)

    def _declare(self, text: str) -> list[int]:
        """Define the values of a list of arguments, `%a: i32 loc(...), %b: ...`."""
        values = []
        for entry in filter(None, split_outside(text, ", ")):
            name, _, kind = entry.partition(": ")
            values.append(self._define(name, kind_of(re.split(r" \{| loc\(", kind)[0])))
        return values

    def _define(self, name: str, kind: Kind) -> int:
        value = next(self._numbers)
        self._kinds[value] = kind
        self._scopes[-1][name] = value
        return value

    def _value(self, name: str) -> int:
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name]
        raise KernelTextError(f"{name}, which nothing defines")

    def _values(self, text: str) -> list[int]:
        return [self._value(name) for name in _VALUE.findall(text)]

    def _inner(self, arguments: Sequence[tuple[str, Kind]] = ()) -> list[Block]:
        """Read a region of an operation, with the arguments that its first block has."""
        self._scopes.append({})
        blocks = self._region([self._define(*argument) for argument in arguments])
        self._scopes.pop()
        return blocks

    def _region(self, arguments: Sequence[int] = ()) -> list[Block]:
        """Read blocks up to the line that ends the region, which is left."""
        blocks = [Block("", list(arguments))]
        while not (line := self._lines[self._place]).startswith("}"):
            self._place += 1
            label = _LABEL.match(line) if line.startswith("^") else None
            if label is None:
                if line:
                    blocks[-1].operations.append(self._operation(line))
            elif blocks[-1].operations:
                blocks.append(Block(label[1], self._declare(label[2] or "")))
            else:  # the first one, whose label is printed where it has arguments
                given = self._declare(label[2] or "")
                blocks[-1] = Block(label[1], given or list(arguments))
        for block in blocks:
            if not block.operations or block.operations[-1].name not in _TERMINATORS:
                block.operations.append(Operation(name="scf.yield"))  # left out where it is empty
        return blocks

    def _operation(self, line: str) -> Operation:
        line, lines = self._split_location(line)
        results = _RESULTS.match(line)
        rest = line if results is None else line[results.end() :]
        named = _NAME.match(rest)
        if named is None:
            raise KernelTextError(f"a line {line!r}")
        rest = rest[named.end() :].strip()
        name = named[1]
        match name:
            case "scf.for":
                operation = self._for(name, rest)
            case "scf.if":
                operation = self._if(name, rest)
            case "scf.while":
                operation = self._while(name, rest)
            case "tt.reduce" | "tt.scan":
                operation = self._generic(name, rest)
            case _:
                operation = self._plain(name, rest)
        operation.lines = lines or operation.lines
        if results is not None:
            operation.results = self._results(results[1], operation.kinds)
        return operation

    def _split_location(self, line: str) -> tuple[str, Sequence[Site]]:
        """Split a line's location off."""
        place = line.rfind(" loc(")
        if place < 0 or not line.endswith(")"):
            return line, ()
        return line[:place], self._locations.lines(line[place + len(" loc(") : -1])

    def _results(self, text: str, kinds: Sequence[Kind]) -> list[int]:
        names: list[str] = []
        for entry in text.split(", "):
            name, _, number = entry.partition(":")
            names += [f"{name}#{place}" for place in range(int(number))] if number else [name]
        if len(names) != len(kinds):
            raise KernelTextError(f"{len(kinds)} types for the results {text}")
        return [self._define(name, kind) for name, kind in zip(names, kinds, strict=True)]

    def _plain(self, name: str, rest: str) -> Operation:
        """Read an operation of one line."""
        if rest.endswith("{"):
            raise KernelTextError(f"operation {name!r}")
        # Strings may hold anything that else has a meaning.
        strings = _STRING.findall(rest) if '"' in rest else []
        places = count()
        text = _STRING.sub(lambda _: f'"{next(places)}"', rest) if strings else rest
        head, types = _split_types(f" {text}")
        operation = Operation(name=name)
        if name.startswith("cf."):
            condition, *targets = split_outside(rest, ", ") if "cond" in name else ("", rest)
            operation.operands = self._values(condition)
            operation.targets = [self._target(target) for target in targets]
            return operation
        head, attributes = _split_attributes(head)
        operation.operands = self._values(head)

        def restored(text: str) -> str:
            return _KEPT.sub(lambda kept: strings[int(kept[1])], text) if strings else text

        operation.attributes = {key: restored(value) for key, value in attributes.items()}
        operation.words = restored(" ".join(_VALUE.sub("", head).split()))
        operation.kinds = result_kinds(
            name, types, [self._kinds[each] for each in operation.operands]
        )
        return operation

    def _target(self, text: str) -> tuple[str, list[int]]:
        """Read a branch's target, `^bb1(%a, %b : i32, f32)`."""
        label, _, arguments = text.partition("(")
        return label.strip(), self._values(arguments)

    def _for(self, name: str, rest: str) -> Operation:
        opened = _FOR.match(rest)
        if opened is None:
            raise KernelTextError(f"a loop {rest!r}")
        bounds = [self._value(opened[place]) for place in (2, 3, 4)]
        carried = _INITIAL.findall(rest.partition("iter_args")[2])
        kinds = [self._kinds[self._value(initial)] for _, initial in carried]
        index = (opened[1], self._kinds[bounds[0]])
        initials = [self._value(initial) for _, initial in carried]
        inner = [index, *zip((own for own, _ in carried), kinds, strict=True)]
        operation = Operation(name=name, operands=[*bounds, *initials], kinds=kinds)
        operation.regions = [self._inner(inner)]
        self._close(operation)
        return operation

    def _if(self, name: str, rest: str) -> Operation:
        _, _, types = rest.removesuffix("{").partition("->")
        operation = Operation(name=name, operands=self._values(rest), kinds=_kinds_in(types))
        operation.regions = [self._inner()]
        if self._lines[self._place].startswith("} else {"):
            self._place += 1
            operation.regions.append(self._inner())
        self._close(operation)
        return operation

    def _while(self, name: str, rest: str) -> Operation:
        head, _, types = rest.removesuffix("{").rpartition(" : ")
        carried = _INITIAL.findall(head)
        initials = [self._value(initial) for _, initial in carried]
        inner = [
            (own, self._kinds[value]) for (own, _), value in zip(carried, initials, strict=True)
        ]
        operation = Operation(name=name, operands=initials)
        operation.kinds = _kinds_in(types.partition("->")[2])
        operation.regions = [self._inner(inner)]
        self._place += 1  # } do {
        operation.regions.append(self._inner())
        self._close(operation)
        return operation

    def _generic(self, name: str, rest: str) -> Operation:
        """Read an operation in MLIR's generic form: `"tt.reduce"(%1) <{axis = 0 : i32}> ({`."""
        head, attributes = _split_attributes(rest)
        operation = Operation(name=name, operands=self._values(head), attributes=attributes)
        if not rest.endswith("({"):
            raise KernelTextError(f"{name} without a region")
        operation.regions = [self._inner()]
        closing = self._close(operation)
        operation.kinds = _kinds_in(closing.rpartition("->")[2])
        return operation

    def _close(self, operation: Operation) -> str:
        """Read the line that ends an operation's regions, without its location."""
        line, lines = self._split_location(self._lines[self._place])
        operation.lines = lines or operation.lines
        self._place += 1
        return line


_TERMINATORS = frozenset(
    {
        "cf.br",
        "cf.cond_br",
        "scf.condition",
        "scf.yield",
        "tt.reduce.return",
        "tt.return",
        "tt.scan.return",
    }
)
_BOOLEANS = frozenset({"arith.cmpi", "arith.cmpf"})
_NO_RESULTS = frozenset({"tt.store", "tt.print", "tt.assert", "scf.yield", "scf.condition"})


def result_kinds(name: str, types: Sequence[str], operands: Sequence[Kind]) -> list[Kind]:
    """Return the types of an operation's results, of the types that are printed behind it."""
    if not types or name in _NO_RESULTS:
        return [Kind(torch.bool)] if name == "arith.constant" else []
    if "->" in types:
        kinds = [kind_of(entry) for entry in types[types.index("->") + 1 :] if entry]
        return kinds * 2 if name == "tt.split" else kinds
    kind = kind_of(types[-1])
    if name in _BOOLEANS:
        return [Kind(torch.bool, kind.shape)]
    if name == "tt.addptr":
        return [operands[0]]
    if name == "tt.load":
        return [kind_of(_POINTER.sub(r"\1", types[-1]))]
    return [kind]


def _kinds_in(text: str) -> list[Kind]:
    """Read types in a list, with or without parentheses around it."""
    text = text.strip()
    inner = text[1:-1] if text.startswith("(") else text
    return [kind_of(entry.strip()) for entry in split_outside(inner, ", ") if entry.strip()]


def _split_types(text: str) -> tuple[str, Sequence[str]]:
    """Split off what is printed behind the last colon that is outside of all brackets."""
    *heads, types = split_outside(text, " : ")
    return (" : ".join(heads), _listed(types)) if heads else (text, ())


@cache
def _listed(types: str) -> Sequence[str]:
    """List types, those of results behind an arrow."""
    before, *after = (
        split_outside(types, " -> ") if " -> " in types else split_outside(types, " to ")
    )
    given = [entry.strip() for entry in split_outside(before, ", ")]
    if after:
        last = after[0].strip()
        inner = last[1:-1] if last.startswith("(") else last
        given += ["->", *(entry.strip() for entry in split_outside(inner, ", "))]
    return tuple(given)


def _split_attributes(text: str) -> tuple[str, dict[str, str]]:
    """Split off what is printed in braces."""
    attributes: dict[str, str] = {}
    if "{" not in text:
        return text, attributes
    for pattern in (r"<\{(.*?)\}>", r"\{(.*)\}"):
        found = re.search(pattern, text)
        if found is not None:
            for entry in split_outside(found[1], ", "):
                key, _, value = entry.partition(" = ")
                attributes[key.strip()] = split_outside(value, " : ")[0]
            text = text[: found.start()] + text[found.end() :]
    return text, attributes


def read_module(text: str, libraries: Sequence[str] = ()) -> dict[str, Function]:
    """Read the functions of a module, by name.

    Args:
        text: the module, as Triton prints it.
        libraries: folders whose lines are passed over for those of their callers.

    Raises:
        KernelTextError: something in it is not known here.
    """
    return _Reader(text, libraries).functions()
