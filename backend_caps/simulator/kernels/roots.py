"""Which of a kernel's arguments its pointers come from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from backend_caps.simulator.kernels.ir import Block, Function, Operation

Roots = frozenset[int] | None
"""Arguments, as values of the function; None is any memory of the device."""
_FROM_ELSEWHERE = frozenset({"tt.call", "tt.int_to_ptr", "tt.load"})


class PointerRoots:
    """The roots of a function's pointers, which loops and branches may merge.

    Args:
        function: the function.
        given: the roots of its arguments, where a kernel calls it; a kernel's are roots themselves.
        sizes: the bytes of an element that each root points to, where a kernel calls it.
    """

    def __init__(
        self,
        function: Function,
        given: Mapping[int, Roots] | None = None,
        sizes: Mapping[int, int] | None = None,
    ) -> None:
        self._kinds = kinds = function.kinds
        pointers = [value for value in function.arguments if kinds[value].is_pointer]
        own = {value: kinds[value].dtype.itemsize for value in pointers}
        self.sizes = own if sizes is None else sizes
        """The bytes of an element that each root points to."""
        itself: dict[int, Roots] = {value: frozenset({value}) for value in pointers}
        self._roots = itself if given is None else dict(given)
        self._arguments = {block.label: block.arguments for block in function.blocks}
        before: dict[int, Roots] = {}
        while before != self._roots:
            before = dict(self._roots)
            self._follow(function.blocks)

    def of(self, value: int) -> Roots:
        """Return the roots of a pointer."""
        return self._roots.get(value, frozenset())

    def _follow(self, blocks: Sequence[Block]) -> None:
        for block in blocks:
            for operation in block.operations:
                self._follow_operation(operation)

    def _follow_operation(self, operation: Operation) -> None:
        for label, values in operation.targets:
            self._merge(self._arguments[label], values)
        name, results, regions = operation.name, operation.results, operation.regions
        if name == "scf.for":
            inner, carried = regions[0][0], operation.operands[3:]
            self._merge(inner.arguments[1:], carried)
            self._merge(inner.arguments[1:], inner.operations[-1].operands)
            self._merge(results, carried)
            self._merge(results, inner.operations[-1].operands)
        elif name == "scf.while":
            before, after = (region[0] for region in regions)
            given = before.operations[-1].operands[1:]
            self._merge(before.arguments, operation.operands)
            self._merge(before.arguments, after.operations[-1].operands)
            self._merge(after.arguments, given)
            self._merge(results, given)
        elif name == "scf.if":
            for region in regions:
                self._merge(results, region[0].operations[-1].operands)
        else:
            self._derive(operation)
        for region in regions:
            self._follow(region)

    def _derive(self, operation: Operation) -> None:
        """Give an operation's results the roots of all pointers that it takes."""
        for result in operation.results:
            if self._kinds[result].is_pointer:
                if operation.name in _FROM_ELSEWHERE:
                    self._roots[result] = None
                else:
                    pointers = [each for each in operation.operands if self._kinds[each].is_pointer]
                    for pointer in pointers:
                        self._merge((result,), (pointer,))

    def _merge(self, values: Iterable[int], others: Iterable[int]) -> None:
        for value, other in zip(values, others, strict=False):
            if self._kinds[value].is_pointer:
                mine, its = self.of(value), self.of(other)
                self._roots[value] = None if mine is None or its is None else mine | its
