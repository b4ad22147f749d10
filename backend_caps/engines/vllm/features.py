"""What a vLLM backend states of features, of context parallelism and of the KV cache's layout.

A predicate of the class decides; where it has none, its implementation does: by an attribute, or
by a constructor that refuses an argument. That a constructor refuses nothing states nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping

from backend_caps.capability.kind import ANY, UNDECLARED
from backend_caps.capability.provenance import Origin
from backend_caps.capability.vocabulary import AttentionType, KVLayout
from backend_caps.engines.reading import Finding
from backend_caps.engines.source.guards import Function, Guarded, decided, guarded
from backend_caps.engines.source.module import ClassDef
from backend_caps.engines.source.statements import StatedValue
from backend_caps.engines.vllm.lookup import Answer, Lookup, finding

PREDICATES: Mapping[str, str] = {
    "sliding_window": "supports_sliding_window",
    "attention_sinks": "supports_sink",
    "non_causal": "supports_non_causal",
    "multimodal_prefix": "supports_mm_prefix",
    "per_head_kv_scales": "supports_per_head_quant_scales",
    "decode_context_parallel": "supports_dcp",
    "prefill_context_parallel": "supports_pcp",
    "batch_invariant": "supports_batch_invariance",
}
"""The method of a backend that states each feature."""
TYPES, LAYOUTS, ONE_LAYOUT = (
    "supports_attn_type",
    "supported_kv_cache_layouts",
    "get_required_kv_cache_layout",
)
_ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    "decode_context_parallel": ("supports_dcp", "can_return_lse_for_decode"),
    "prefill_context_parallel": ("supports_pcp",),
}
"""Attributes of an implementation; of two, the first that it or a base has.

Releases without the first share out the decode of what returns the logarithms by which the outputs
of ranks are joined.
"""
_ARGUMENTS: Mapping[str, str] = {
    "sliding_window": "sliding_window",
    "logit_soft_cap": "logits_soft_cap",
}
"""The argument of an implementation's constructor that asks for a feature."""
_LAYOUT_NAMES = {"LBNHC": KVLayout.NHD, "LBHNC": KVLayout.HND}


class Features:
    """Reads classes of backends and of their implementations."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup

    def of(self, backend: ClassDef) -> dict[str, Finding | None]:
        """Return the findings of a backend's class and its bases, by capability."""
        implementation = self._implementation(backend)
        return {
            "attention_types": self._read(backend, TYPES, _types_of),
            **{
                name: self._read(backend, predicate, _constant_of)
                or self._of_implementation(implementation, name)
                or self._worked_out(backend, predicate)
                for name, predicate in PREDICATES.items()
            },
            "logit_soft_cap": self._of_implementation(implementation, "logit_soft_cap"),
            "kv_layouts": self._read(backend, LAYOUTS, self._layouts_of)
            or self._read(backend, ONE_LAYOUT, self._layouts_of),
        }

    def _read(
        self, backend: ClassDef, name: str, value_of: Callable[[Answer, StatedValue], object]
    ) -> Finding | None:
        """Read a method of the backend; None where only the root has one."""
        answer = self._lookup.below_root(backend, name)
        return None if answer is None else finding(backend, answer, _cases(answer, value_of))

    def _worked_out(self, backend: ClassDef, name: str) -> Finding | None:
        """Read what the root answers for the class from its implementation's base."""
        reading = self._lookup.worked_out(backend, name)
        return None if reading is None else Finding(reading=reading)

    def _implementation(self, backend: ClassDef) -> ClassDef | None:
        """Find the class that computes; None where there is not just one."""
        answer = self._lookup.below_root(backend, "get_impl_cls")
        if answer is None or answer.only is None:
            return None
        match list(answer.resolve(answer.only)):
            case [((), ClassDef() as implementation)]:
                return implementation
        return None

    def _of_implementation(self, implementation: ClassDef | None, feature: str) -> Finding | None:
        """Read an attribute of the implementation, or what its constructor refuses."""
        if implementation is None:
            return None
        about = implementation.name
        roots = {root.module.path for root in self._lookup.roots}
        stated = (
            self._lookup.nearest(implementation, name) for name in _ATTRIBUTES.get(feature, ())
        )
        answer = next((each for each in stated if each is not None), None)
        if answer is not None:
            if answer.owner.module.path in roots:
                return None
            return finding(implementation, answer, _cases(answer, _constant_of), about=about)
        argument = _ARGUMENTS.get(feature)
        answer = None if argument is None else self._lookup.nearest(implementation, "__init__")
        if answer is None or answer.function is None or argument is None:
            return None
        if not _refuses(answer.function, argument):
            return None
        words = f"{about}: __init__() refuses {argument}"
        is_own = answer.owner is implementation
        reading = answer.reading_for(implementation, Origin.DECLARED, words, value=False)
        return Finding(reading=reading, base=False if is_own else UNDECLARED)

    def _layouts_of(self, answer: Answer, case: StatedValue) -> object:
        """Return the layouts of a list, or of `super()` or None, which leave all to vLLM."""
        match case.value:
            case ast.Constant(value=None):
                return ANY
            case ast.Constant(value=str(name)):
                return _layouts([name])
            case ast.Tuple(elts=members):
                return _layouts(_member(each, "KVCacheLayout") for each in members)
            case ast.Call(func=called) if ast.unparse(called) == f"super().{answer.last.name}":
                above = self._lookup.below_root(answer.owner, answer.last.name, after=answer.owner)
                return ANY if above is None else None
        return None


def _cases(
    answer: Answer, value_of: Callable[[Answer, StatedValue], object]
) -> list[Guarded[object]]:
    return [Guarded(case.guards, value_of(answer, case)) for case in answer.cases]


def _constant_of(_: Answer, case: StatedValue) -> object:
    match case.value:
        case ast.Constant(value=bool(value)):
            return value
    return None


def _types_of(answer: Answer, case: StatedValue) -> object:
    """Return the types that a test of its argument lets pass."""
    match case.value:
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
            members = [right]
        case ast.Compare(
            left=left, ops=[ast.In()], comparators=[ast.Tuple() | ast.List() | ast.Set() as some]
        ):
            members = some.elts
        case _:
            return None
    names = [_member(each, "AttentionType") for each in members]
    if ast.unparse(left) != answer.argument or not set(names) <= set(AttentionType.__members__):
        return None
    return frozenset(AttentionType[name] for name in names)


def _member(value: ast.expr, enum: str) -> str:
    """Return the name of an enum's member; an empty text for other expressions."""
    match value:
        case ast.Attribute(value=ast.Name(id=name), attr=member) if name == enum:
            return member
    return ""


def _layouts(names: Iterable[str]) -> object:
    known = {**_LAYOUT_NAMES, **KVLayout.__members__}
    found = [known.get(name) for name in names]
    return None if None in found else frozenset(found)


def _refuses(constructor: Function, argument: str) -> bool:
    """Return whether a constructor raises for an argument that is given, the others being None."""
    arguments = {each.arg for each in (*constructor.args.args, *constructor.args.kwonlyargs)}
    lists: dict[str, ast.List] = {}

    def is_given(test: ast.expr) -> bool | None:
        match test:
            case ast.Name(id=name) if name in arguments:
                return name == argument
            case ast.Compare(
                left=ast.Name(id=name),
                ops=[ast.IsNot() | ast.NotIn()],
                comparators=[ast.Constant(value=None) | ast.Tuple()],
            ) if name in arguments:
                return name == argument
            case ast.Call(func=ast.Name(id="any"), args=[ast.Name(id=name)]) if name in lists:
                return _holds(lists[name], argument)
            case ast.Call(func=ast.Name(id="any"), args=[ast.List() as some]):
                return _holds(some, argument)
        return None

    for guards, statement in guarded(constructor.body):
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.List() as value):
                lists[name] = value
            case ast.Raise() if guards and all(decided(each, is_given) for each in guards):
                return True
    return False


def _holds(some: ast.List, name: str) -> bool | None:
    """Return whether a list holds a name, which decides; without it, the others do."""
    return True if any(isinstance(e, ast.Name) and e.id == name for e in some.elts) else None
