"""Whether the arguments of a call fit the parameters of a function."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile

from backend_caps.engines.source.guards import Function, returns

_LONGEST = 100
"""The most characters of parameters, or of a condition, in a sentence."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a function."""

    name: str
    is_required: bool
    is_positional: bool = True
    """Whether it may be given by position."""
    is_named: bool = True
    """Whether it may be given by name."""
    default: str = field(default="", compare=False)
    """What it is where it is left out, if that is a number, a text, or alike."""


@dataclass(frozen=True)
class Signature:
    """The parameters of a function, without the one that a bound method fills."""

    parameters: tuple[Parameter, ...]
    takes_more: bool = False
    """Whether it has `*args`."""
    takes_any_name: bool = False
    """Whether it has `**kwargs`."""

    @cached_property
    def positional(self) -> list[Parameter]:
        """Those that may be given by position, in order."""
        return [each for each in self.parameters if each.is_positional]

    def __str__(self) -> str:
        words = [each.name if each.is_required else f"{each.name}=…" for each in self.positional]
        words += ["*args"] * self.takes_more
        named = [each for each in self.parameters if not each.is_positional]
        words += ["*"] * (bool(named) and not self.takes_more)
        words += [each.name if each.is_required else f"{each.name}=…" for each in named]
        words += ["**kwargs"] * self.takes_any_name
        return f"({', '.join(words)})"

    @classmethod
    def of(cls, function: Function, *, is_bound: bool) -> Signature:
        """Read the parameters of a function, without the first of a method that is bound."""
        own = function.args
        positional = [*own.posonlyargs, *own.args]
        num_required = len(positional) - len(own.defaults)
        defaults = [*[None] * num_required, *own.defaults]
        found = [
            Parameter(
                each.arg,
                is_required=default is None,
                is_named=at >= len(own.posonlyargs),
                default=plain(default),
            )
            for at, (each, default) in enumerate(zip(positional, defaults, strict=True))
        ][is_bound:]
        found += [
            Parameter(each.arg, default is None, is_positional=False, default=plain(default))
            for each, default in zip(own.kwonlyargs, own.kw_defaults, strict=True)
        ]
        return cls(tuple(found), own.vararg is not None, own.kwarg is not None)


def brief(parts: Signature | Arguments) -> str:
    """Write parameters or arguments for a sentence: the first ones, where there are many."""
    text = str(parts)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST].rpartition(', ')[0]}, …)"


def shortened(condition: str) -> str:
    """Write a condition for a sentence: its first words, where there are many."""
    return condition if len(condition) <= _LONGEST else f"{condition[:_LONGEST]}…"


@dataclass(frozen=True, slots=True)
class Arguments:
    """What a call gives."""

    positional: tuple[str, ...]
    """The arguments by position, in the source's words, up to an unpacked sequence."""
    names: frozenset[str]
    """The names of the others."""
    has_sequence: bool = False
    """Whether it unpacks a sequence, of unknown length."""
    has_mapping: bool = False
    """Whether it unpacks a mapping, of unknown keys."""

    def __str__(self) -> str:
        words = [*self.positional] + ["*…"] * self.has_sequence
        words += [f"{name}=…" for name in sorted(self.names)] + ["**…"] * self.has_mapping
        return f"({', '.join(words)})"

    @classmethod
    def of(cls, call: ast.Call) -> Arguments:
        """Read what a call gives."""
        positional = [*takewhile(lambda each: not isinstance(each, ast.Starred), call.args)]
        named = [each.arg for each in call.keywords]
        return cls(
            tuple(map(ast.unparse, positional)),
            frozenset(filter(None, named)),
            has_sequence=len(positional) < len(call.args),
            has_mapping=None in named,
        )

    def fault(self, signature: Signature) -> str | None:
        """Say what does not fit a signature; None where it fits, or may."""
        places, num_given = signature.positional, len(self.positional)
        if num_given > len(places) and not signature.takes_more:
            most = f"at most {len(places)}" if places else "no"
            return f"takes {most} arguments by position, and gets {num_given}"
        filled = {each.name for each in places[:num_given]}
        known = {each.name for each in signature.parameters if each.is_named}
        if not signature.takes_any_name and (unknown := sorted(self.names - known)):
            return f"takes no {_listed(unknown)}"
        if twice := sorted(self.names & filled & known):
            return f"gets {_listed(twice)} by position and by name"
        filled |= self.names & known
        missing = [
            each.name
            for each in signature.parameters
            if each.is_required and each.name not in filled and not self._may_fill(each)
        ]
        return f"needs {_listed(missing)}, and does not get it" if missing else None

    def _may_fill(self, parameter: Parameter) -> bool:
        """Return whether what is unpacked may have a parameter's argument."""
        by_position = self.has_sequence and parameter.is_positional
        return by_position or (self.has_mapping and parameter.is_named)

    def misplaced(self, signature: Signature) -> str | None:
        """Say which argument by position goes to another parameter than that of its name."""
        given = dict(zip(self.parameters(signature), self.positional, strict=False))
        own = {each.name for each in signature.parameters}
        own -= {name for name, words in given.items() if name in words}  # these got theirs
        for words, parameter in zip(self.positional, signature.positional, strict=False):
            name = words.rpartition(".")[2]
            if name in own and name != parameter.name and parameter.name not in words:
                return f"gets {words} as {parameter.name}"
        return None

    def parameters(self, signature: Signature) -> tuple[str, ...]:
        """List the parameters that the arguments by position go to."""
        return tuple(each.name for each in signature.positional[: len(self.positional)])

    def left_out(self, signature: Signature) -> tuple[tuple[str, str], ...]:
        """List the parameters that are surely left out, each with its default, if it is plain."""
        given = {*self.parameters(signature), *self.names}
        return tuple(
            (each.name, each.default)
            for each in signature.parameters
            if each.default and each.name not in given and not self._may_fill(each)
        )

    def others(self, signature: Signature) -> tuple[str, ...]:
        """List the parameters that no argument by position goes to."""
        given = self.parameters(signature)
        return tuple(each.name for each in signature.parameters if each.name not in given)


def plain(value: ast.expr | None) -> str:
    """Write a value that is a number, a text, or alike; empty for another."""
    match value:
        case ast.Constant() | ast.UnaryOp(operand=ast.Constant()):
            return ast.unparse(value)
    return ""


def _listed(names: list[str]) -> str:
    return ", ".join(map(repr, names))


def result_lengths(function: Function) -> frozenset[int]:
    """List how many values a function may return; empty where its text does not say."""
    if is_generator(function):
        return frozenset()
    lengths = [_length(case.value) for case in returns(function)]
    known = frozenset(each for each in lengths if each is not None)
    return frozenset() if None in lengths else known


def _length(value: ast.expr) -> int | None:
    match value:
        case ast.Tuple(elts=values) if not any(isinstance(each, ast.Starred) for each in values):
            return len(values)
    return None


def is_generator(function: Function) -> bool:
    """Return whether a function yields values."""
    return any(isinstance(node, ast.Yield | ast.YieldFrom) for node in inner_nodes(function))


def inner_nodes(function: Function) -> Iterator[ast.AST]:
    """List the nodes of a function's body, without those of functions and classes in it."""
    pending: list[ast.AST] = [*function.body]
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, Function | ast.Lambda | ast.ClassDef):
            pending += ast.iter_child_nodes(node)
