"""What a vLLM backend states of dtypes, sizes, devices, attention and graph replay.

Capabilities do not express all of it; the reading's words name what they leave out:

- `auto` as the dtype of the KV cache is the model's, and no dtype by itself;
- a page may be any multiple of a kernel's block, and of any one of several blocks;
- a sparse MLA backend takes only models that are both, which is `sparse` here;
- a sparse one without MLA is `block_sparse`, whatever its index chooses.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from backend_caps.capability.backend import Reading
from backend_caps.capability.kind import ANY, UNDECLARED
from backend_caps.capability.model import AUTO, dtype
from backend_caps.capability.provenance import Origin
from backend_caps.capability.sets import Exact, MultipleOf, OneOf
from backend_caps.capability.vocabulary import AttentionArch
from backend_caps.engines.reading import Finding
from backend_caps.engines.source.guards import Guarded, Guards, under
from backend_caps.engines.source.module import ClassDef
from backend_caps.engines.vllm.features import Features
from backend_caps.engines.vllm.host_lengths import host_lengths, longest_length
from backend_caps.engines.vllm.lookup import Answer, Item, Lookup, conditional, finding, windows_of
from backend_caps.engines.vllm.pages import page_test, sizes_of_test
from backend_caps.resolution.launch import LEVELS

_SCALE = "AttentionCGSupport"
GRAPHS = ("_cudagraph_support", "cudagraph_support")
"""A builder's attribute for its graphs, and its name in 0.11.0."""
_METHOD = "get_cudagraph_support"
_OWN = frozenset(f"{owner}.{name}" for name in GRAPHS for owner in ("cls", "self"))
_ARCHS = {AttentionArch[name]: f"is_{name.lower()}" for name in ("MLA", "SSM", "SPARSE")}
_Levels = list[Guarded[object]]
Builders = list[Guarded[ClassDef]]
"""The metadata builders that a backend may have, with their conditions."""


@dataclass(frozen=True, slots=True)
class _Use:
    """What a method makes of a list that a class states."""

    convert: Callable[[tuple[Item, ...]], object | None]
    """Return the capability's value for the list's items; None if it has none for these."""
    loss: str = ""
    """What the list does not say itself."""


@dataclass(frozen=True, slots=True)
class _List:
    """A list that a class states, and the method that looks at it, or decides in its place."""

    name: str
    decided_by: str
    use: Callable[[Answer], _Use | None]
    """Return what a method makes of the list; None if that is not understood."""
    of_test: Callable[[Answer], object | None] = lambda _: None
    """Return the value of a method that decides in the list's place; None if it is not read."""


def _looked_up(name: str, convert: Callable[[tuple[Item, ...]], object | None]) -> _List:
    """Return a list that a method looks its argument up in, as roots do."""
    method, listed = name.replace("supported_", "supports_").removesuffix("s"), f"cls.{name}"
    if name.startswith("get_"):
        method, listed = method.removeprefix("get_"), f"{listed}()"

    def use(test: Answer) -> _Use | None:
        found = f"{test.argument} in {listed}"
        match [test.spelled_out(case.value) for case in test.cases_of_argument]:
            case [one] if one in {found, f"{test.argument} is None or {found}"}:
                return _Use(lambda items: convert(items) if items else None)
            case [one] if one == f"not {listed} or {found}":
                return _Use(lambda items: convert(items) if items else ANY)
        return None

    return _List(name, method, use, sizes_of_test if convert is _sizes else lambda _: None)


def _pages(test: Answer) -> _Use | None:
    asked = page_test(test)
    return None if asked is None else _Use(asked.pages, asked.words)


def _dtypes(items: tuple[Item, ...]) -> object | None:
    return frozenset(dtype(item) for item in items if item != AUTO) or None


def _sizes(items: tuple[Item, ...]) -> object | None:
    sizes = frozenset(item for item in items if isinstance(item, int))
    return OneOf(sizes) if len(sizes) == len(items) else None


def _kernel_blocks(items: tuple[Item, ...]) -> object | None:
    match items:
        case ():
            return ANY
        case [str(multiple)]:
            return MultipleOf(int(multiple.rpartition(" ")[2]))
        case [int(block)]:
            return Exact(block)
    blocks = frozenset(item for item in items if isinstance(item, int))
    return OneOf(blocks) if len(blocks) == len(items) else None


_BLOCKS = "get_supported_kernel_block_sizes"
_LISTS = {
    "page_sizes": _List(_BLOCKS, "supports_block_size", _pages, sizes_of_test),
    "dtypes": _looked_up("supported_dtypes", _dtypes),
    "kv_cache_dtypes": _looked_up("supported_kv_cache_dtypes", _dtypes),
    "head_sizes": _looked_up("get_supported_head_sizes", _sizes),
}
_AUTO = "'auto', the model's own dtype, is no dtype by itself"


class Findings:
    """Reads classes of backends, and of their metadata builders."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup
        self._features = Features(lookup)

    def of(self, backend: ClassDef, builders: Builders | None) -> dict[str, Finding | None]:
        """Return the findings of a backend's class and its bases, by capability."""
        return {
            "graph_replay": self._graph_replay(backend, builders),
            **self._host_lengths(builders),
            **{name: self._list(backend, each) for name, each in _LISTS.items()},
            "kernel_block_sizes": self._kernel_blocks(backend),
            "compute_capability": self._compute_capability(backend),
            "attention_arch": self._attention_arch(backend),
            **self._features.of(backend),
        }

    def _host_lengths(self, builders: Builders | None) -> Mapping[str, Finding | None]:
        """Return what builders read of the lengths, and the bound that each batch has."""
        lookup = self._lookup
        found = [
            Guarded(guards, finding)
            for guards, builder in builders or ()
            if (finding := host_lengths(lookup.classes, builder, lookup.roots)) is not None
        ]
        if not found:
            return {}
        lengths = _one_of(found) if len(found) > 1 else found[0].value
        return {"host_seq_lens": lengths, "max_context_len_known": longest_length(lookup.classes)}

    def _list(self, backend: ClassDef, stated: _List) -> Finding | None:
        answer = self._lookup.below_root(backend, stated.name)
        decider = self._lookup.nearest(backend, stated.decided_by)
        use = None if decider is None else stated.use(decider)
        if use is None and decider is not None and decider.owner not in self._lookup.roots:
            # The method decides in place of the list, which is named in the words only.
            loss = answer.text if answer else ""
            return finding(backend, decider, [Guarded((), stated.of_test(decider))], loss=loss)
        if answer is None:
            return None
        if use is None:
            use = _Use(lambda _: None, f"{stated.decided_by}() is not read")
        return _of_list(backend, answer, use)

    def _kernel_blocks(self, backend: ClassDef) -> Finding | None:
        answer = self._lookup.below_root(backend, _BLOCKS)
        return None if answer is None else _of_list(backend, answer, _Use(_kernel_blocks))

    def _compute_capability(self, backend: ClassDef) -> Finding | None:
        answer = self._lookup.below_root(backend, "supports_compute_capability")
        if answer is None:
            return None
        windows = [Guarded(c.guards, windows_of(c.value, answer.argument)) for c in answer.cases]
        return finding(backend, answer, windows)

    def _attention_arch(self, backend: ClassDef) -> Finding | None:
        by_arch = {arch: self._lookup.below_root(backend, name) for arch, name in _ARCHS.items()}
        answers = {arch: answer for arch, answer in by_arch.items() if answer is not None}
        if not answers:
            return None
        values = {n: a.only.value for n, a in answers.items() if isinstance(a.only, ast.Constant)}
        is_known = len(values) == len(answers)
        true = {arch for arch, own in values.items() if own is True}
        # A sparse MLA backend states both, and takes only models that are both: `sparse` here.
        sparse = AttentionArch.SPARSE if AttentionArch.MLA in true else AttentionArch.BLOCK_SPARSE
        archs = frozenset({sparse} if AttentionArch.SPARSE in true else true)
        inherited_first = sorted(answers.values(), key=lambda answer: answer.owner is backend)
        value = Guarded((), (is_known and archs) or None)
        of_archs = finding(backend, inherited_first[0], [value])
        words = "; ".join(answer.text for answer in answers.values())
        of_archs = replace(of_archs, reading=replace(of_archs.reading, words=words))
        return _without_value(of_archs) if is_known and not archs else of_archs

    def builders(self, backend: ClassDef) -> Builders | None:
        """List a backend's builders with their conditions; None if one is not found."""
        answer = self._lookup.below_root(backend, "get_builder_cls")
        if answer is None:
            return []
        builders: Builders = []
        for case in answer.cases:
            for guards, target in under(case.guards, answer.resolve(case.value)):
                if not isinstance(target, ClassDef):
                    return None
                builders.append(Guarded(guards, target))
        return builders or None

    def _graph_replay(self, backend: ClassDef, builders: Builders | None) -> Finding | None:
        """Return the batches that `builders` let a backend's graphs be replayed for."""
        if builders is None:
            answer = self._lookup.below_root(backend, "get_builder_cls")
            assert answer is not None, "no builder is unknown without a method that returns it"
            return finding(backend, answer, ())
        findings = [Guarded(guards, self._of_builder(builder)) for guards, builder in builders]
        if len(findings) > 1:
            return _one_of(findings)
        return findings[0].value if findings else None

    def _of_builder(self, builder: ClassDef) -> Finding:
        """Read the method, or the attribute if the method only returns that."""
        answer = self._lookup.nearest(builder, _METHOD)
        if answer is None or (answer.only and ast.unparse(answer.only) in _OWN):
            answer = self._attribute(builder)
        if answer is None or answer.owner in self._lookup.roots:
            root = f"; the root: {answer.text}" if answer else ""
            words = f"{builder.name}: states nothing{root}"
            return Finding(reading=Reading(origin=Origin.UNDECLARED, words=words))
        levels = self._levels(builder, answer, ())
        return finding(builder, answer, levels or (), about=builder.name)

    def _attribute(self, builder: ClassDef) -> Answer | None:
        return next(filter(None, (self._lookup.nearest(builder, name) for name in GRAPHS)), None)

    def _levels(self, builder: ClassDef, answer: Answer, guards: Guards) -> _Levels | None:
        """Read every case, following `cls._cudagraph_support` and `super()`."""
        levels: _Levels = []
        for case in answer.cases:
            around = (*guards, *case.guards)
            next_answer = None
            match case.value:
                case ast.Attribute(value=scale, attr=level) if level in LEVELS and ast.unparse(
                    scale
                ).endswith(_SCALE):
                    levels.append(Guarded(around, LEVELS[level]))
                    continue
                case ast.Attribute() as attribute if ast.unparse(attribute) in _OWN:
                    next_answer = self._attribute(builder)
                case ast.Call(func=called) if ast.unparse(called) == f"super().{_METHOD}":
                    next_answer = self._lookup.nearest(builder, _METHOD, after=answer.owner)
            more = next_answer and self._levels(builder, next_answer, around)
            if not more:
                return None
            levels += more
        return levels or None


def _without_value(stated: Finding) -> Finding:
    """Keep the words of a finding whose value no capability expresses."""
    return Finding(reading=replace(stated.reading, origin=Origin.UNDECLARED), base=UNDECLARED)


def _one_of(findings: list[Guarded[Finding]]) -> Finding:
    """Join the findings of builders of which a condition chooses one."""
    readings = [each.reading for _, each in findings]
    reading = Reading(
        origin=Origin.CONDITIONAL,
        words="; ".join(dict.fromkeys(each.words for each in readings)),
        declared_at=readings[-1].declared_at,
    )
    if any(each.origin is not Origin.DECLARED for each in readings):
        return Finding(reading=reading)
    values = [Guarded(guards, each.base) for guards, each in findings]
    only = readings[0].value
    if all(value == only for _, value in values):
        return Finding(reading=replace(reading, origin=Origin.DECLARED, value=only), base=only)
    return conditional(reading, values)


def _of_list(backend: ClassDef, answer: Answer, use: _Use) -> Finding:
    """Return the finding of a list, as a method uses it."""
    lists = [answer.items(case.value) for case in answer.cases]
    values = [None if items is None else use.convert(items) for items in lists]
    cases = [Guarded(case.guards, v) for case, v in zip(answer.cases, values, strict=True)]
    has_auto = any(AUTO in items for items in lists if items)
    loss = "; ".join(filter(None, [use.loss, _AUTO if has_auto else ""]))
    of_list = finding(backend, answer, cases, loss=loss)
    return _without_value(of_list) if None in values and None not in lists else of_list
