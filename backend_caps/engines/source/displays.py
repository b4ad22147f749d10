"""Expressions that make a list, a set, a mapping or a text, of an interpreted program."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from backend_caps.engines.source.builtin_functions import SPECIAL
from backend_caps.engines.source.calls import Evaluate
from backend_caps.engines.source.operators import Operators
from backend_caps.engines.source.uncertainty import has_unknown, merge
from backend_caps.engines.source.values import Frame, Instance, Native, Perhaps, Unknown

_CONVERSIONS: Mapping[str, Callable[[Any], str]] = {"r": repr, "s": str, "a": ascii}


class Displays(Operators):
    """Makes containers and texts, comprehensions too."""

    def _slice(self, node: ast.Slice, frame: Frame) -> Native:
        bounds = [each and self.value(each, frame) for each in (node.lower, node.upper, node.step)]
        return Unknown("slice") if has_unknown(bounds) else slice(*bounds)

    def _dict(self, node: ast.Dict) -> Evaluate:
        pairs = [
            (None if key is None else self.evaluator(key), self.evaluator(value))
            for key, value in zip(node.keys, node.values, strict=True)
        ]

        def evaluate(frame: Frame) -> Native:
            made: dict[Native, Native] = {}
            for key, value_of in pairs:
                own = value_of(frame)
                if key is not None:
                    at = key(frame)
                    if isinstance(at, Unknown | list | dict):
                        return Unknown(ast.unparse(node))
                    made[at] = own
                elif isinstance(own, Mapping):
                    merge(made, own)
                else:
                    return Unknown(ast.unparse(node))
            return self._fresh(made)

        return evaluate

    def _elements(self, nodes: Sequence[ast.expr]) -> Callable[[Frame], list[Native]]:
        each_of = [(self.evaluator(each), isinstance(each, ast.Starred)) for each in nodes]

        def evaluate(frame: Frame) -> list[Native]:
            made: list[Native] = []
            for value_of, is_starred in each_of:
                value = value_of(frame)
                if not is_starred:
                    made.append(value)
                elif isinstance(values := self.iterated(value), Unknown):
                    made.append(Perhaps(values.why))
                else:
                    made.extend(values)
            self._fresh(made)
            return made

        return evaluate

    def _collected(self, make: Callable[[list[Native]], Native], nodes: list[ast.expr]) -> Evaluate:
        elements = self._elements(nodes)
        return lambda frame: make(elements(frame))

    def _set(self, values: list[Native]) -> Native:
        return self._native(set, [values], {})

    def _comprehension(
        self,
        make: Callable[[list[Native]], Native],
        node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp,
        *results: ast.expr,
    ) -> Evaluate:
        values_of = [*map(self.evaluator, results)]
        loops = [
            (self.storer(each.target), self.evaluator(each.iter), [*map(self.evaluator, each.ifs)])
            for each in node.generators
        ]

        def rounds(at: int, frame: Frame) -> Iterator[Native]:
            if at == len(loops):
                found = [value_of(frame) for value_of in values_of]
                yield found[0] if len(found) == 1 else tuple(found)
                return
            store, iterated_of, tests = loops[at]
            values = self.iterated(iterated_of(frame))
            if isinstance(values, Unknown):
                yield Perhaps(values.why)
                return
            for value in values:
                store(value, frame)
                truths = [self.truth(test(frame)) for test in tests]
                if False not in truths:
                    inner = rounds(at + 1, frame)
                    is_certain = None not in truths
                    yield from inner if is_certain else map(_perhaps, [*inner])

        def evaluate(frame: Frame) -> Native:
            level = len(self._maybe)
            inner = Frame(frame.module, {}, frame, frame.owner, frame.function, level, frame.traits)
            return make([*rounds(0, inner)])

        return evaluate

    def _dict_comp(self, node: ast.DictComp) -> Evaluate:
        def make(pairs: list[Native]) -> Native:
            if any(isinstance(each, Unknown) or has_unknown(each[0]) for each in pairs):
                return Unknown(ast.unparse(node))
            return self._fresh(dict(pairs))

        return self._comprehension(make, node, node.key, node.value)

    def _joined_str(self, node: ast.JoinedStr, frame: Frame) -> Native:
        parts = []
        for each in node.values:
            if isinstance(each, ast.Constant):
                parts.append(str(each.value))
            else:
                assert isinstance(each, ast.FormattedValue), "a text has no other parts"
                parts.append(self._formatted(each, frame))
        return "".join(parts)

    def _formatted(self, node: ast.FormattedValue, frame: Frame) -> str:
        value = self.value(node.value, frame)
        spec = "" if node.format_spec is None else str(self.value(node.format_spec, frame))
        if isinstance(value, Instance):
            value = SPECIAL[str](self, [value], {})
        try:
            converted = _CONVERSIONS.get(chr(max(node.conversion, 0)))
            return format(converted(value) if converted else value, spec)
        except (TypeError, ValueError):
            return f"{{{ast.unparse(node.value)}}}"


def _perhaps(value: Native) -> Native:
    """Return an element that may be there."""
    return value if isinstance(value, Perhaps) else Perhaps("comprehension", value)
