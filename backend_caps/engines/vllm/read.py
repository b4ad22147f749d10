"""Read vLLM's attention backends from its source.

A name of vLLM's registries, such as `FLASH_ATTN`, becomes a record whose parts are classes. Each
subclass of vLLM's `AttentionBackend` becomes a record too, also one without a registered name
that only a model uses.

vLLM declares nothing about `host_seq_lens`: a builder takes from the batch what it needs, which
`host_lengths` reads of its code.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from backend_caps.capability.backend import Backend, EngineClass, Reading
from backend_caps.capability.declaration import Declaration, Part
from backend_caps.capability.facts import Given
from backend_caps.capability.provenance import Origin, Status
from backend_caps.capability.vocabulary import AttentionArch
from backend_caps.engines.reading import EngineReading, Finding, class_record, not_followed
from backend_caps.engines.source.classes import Classes, labels
from backend_caps.engines.source.files import Tree
from backend_caps.engines.source.guards import Guarded, condition, returns
from backend_caps.engines.source.index import FunctionDef, Index, Value
from backend_caps.engines.source.module import ClassDef, Module
from backend_caps.engines.vllm import features
from backend_caps.engines.vllm.acceptance import read_acceptances
from backend_caps.engines.vllm.arguments import read_launches
from backend_caps.engines.vllm.capabilities import GRAPHS, Findings
from backend_caps.engines.vllm.lookup import Lookup, class_in
from backend_caps.engines.vllm.platform_names import platform_names
from backend_caps.resolution.rules import RuleSet

KNOWN_VERSIONS = ("0.32.0", "0.33.0")
"""The versions whose records were compared with the source, row by row, or with its answers."""
REGISTRIES = ("vllm.v1.attention.backends.registry", "vllm.attention.backends.registry")
"""The module of the registries, and where it is up to 0.13; below likewise."""
_ENUMS = ("AttentionBackendEnum", "MambaAttentionBackendEnum")
BACKEND = "AttentionBackend"
BUILDER = "AttentionMetadataBuilder"
_ROOTS = {
    BACKEND: ("vllm.v1.attention.backend", "vllm.attention.backends.abstract"),
    BUILDER: ("vllm.v1.attention.backend", "vllm.v1.attention.backends.utils"),
}
_AS_CAPABILITIES = frozenset(
    {
        *GRAPHS,
        "supported_dtypes",
        "supports_block_size",
        "supports_compute_capability",
        "supports_dtype",
        "supports_head_size",
        "supports_kv_cache_dtype",
        *features.PREDICATES.values(),
        features.LAYOUTS,
        features.TYPES,
    }
)
"""Flags of the roots that are read as capabilities."""
_PREDICATES = ("supports_", "supported_", "is_")
_MORE = ("get_builder_cls",)


@dataclass(frozen=True, slots=True)
class Made:
    """A class that a dotted path names."""

    path: str
    definition: ClassDef
    """The class statement; inside a function if a call of that makes the class."""
    call: str | None = None
    """The call that makes the class, in the source's words."""


@dataclass(frozen=True, slots=True)
class Name:
    """A registered name with its classes."""

    enum: str
    name: str
    at: str
    """`file:line`."""
    made: tuple[Guarded[Made], ...]
    """Empty if the class is not in the source."""


def read_vllm(tree: Tree) -> EngineReading:
    """Read the backends of a vLLM; a missing anchor becomes a problem."""
    return read_backends(Index(tree))


def read_backends(index: Index, paths: Iterable[str] = ()) -> EngineReading:
    """Read the backends of a tree, and the classes at further paths, of whatever base."""
    index.note_unless_known(KNOWN_VERSIONS)
    rules = RuleSet(
        name="-".join(part for part in (index.tree.package, index.tree.version) if part),
        rules=(),
        relays=frozenset(),  # a server of whatever algorithm overlaps as its final value says
        algorithms=frozenset(),
        mixes_relayed_rows=True,
        builders_copy=True,
    )
    records = _Records(index, paths)
    reading = index.reading(records.all(), rules, launches=partial(read_launches, index))
    return replace(
        reading,
        root=records.root(),
        platforms=platform_names(index),
        acceptances=partial(read_acceptances, index, reading.backends),
    )


def _names(index: Index) -> Iterator[Name]:
    """List the names of both registries, without placeholders that have no class."""
    for enum in _ENUMS:
        definition = class_in(index, REGISTRIES, enum)
        for each in definition.given if definition else ():
            match each.value:
                case ast.Constant(value="" | None) | ast.FunctionDef() | ast.AsyncFunctionDef():
                    continue
                case ast.Constant(value=str(path)):
                    made = tuple(classes_at(index, path))
                    yield Name(enum, each.name, each.at, made)
                    if made:
                        continue
            index.add(not_followed("vllm", each.name, each.at))


def classes_at(index: Index, path: str) -> Iterator[Guarded[Made]]:
    """Follow a dotted path to the classes that it may name."""
    source, _, name = path.rpartition(".")
    module = index.module(source)
    targets = [] if module is None else index.resolve(ast.Name(id=name, ctx=ast.Load()), module)
    for guards, target in targets:
        match target:
            case ClassDef():
                yield Guarded(guards, Made(target.path, target))
            case Value(module=made_in, node=ast.Call() as call):
                for definition in _returned(index, call, made_in):
                    yield Guarded(guards, Made(path, definition, ast.unparse(call)))


def _returned(index: Index, call: ast.Call, module: Module) -> Iterator[ClassDef]:
    """List the classes that a function defines and returns."""
    for _, function in index.resolve(call.func, module):
        if isinstance(function, FunctionDef):
            scope = function.module.scope_of(function.node.body)
            for case in returns(function.node):
                for _, target in index.resolve(case.value, function.module, (scope,)):
                    if isinstance(target, ClassDef):
                        yield target


class _Records:
    """Makes the records of the registries' names and of the classes."""

    def __init__(self, index: Index, paths: Iterable[str]) -> None:
        self._index = index
        classes = Classes(index)
        roots = {name: class_in(index, modules, name) for name, modules in _ROOTS.items()}
        self._roots = {name: each for name, each in roots.items() if each is not None}
        self._lookup = Lookup(classes, self._roots.values())
        self._findings = Findings(self._lookup)
        names = list(_names(index))
        counts = Counter(each.name for each in names)
        self._names = {
            each.name if counts[each.name] == 1 else f"{each.enum}.{each.name}": each
            for each in names
        }
        registered = [made for name in self._names.values() for _, made in name.made]
        known = {each.definition for each in registered}
        below = index.heads.files_below({BACKEND}) if BACKEND in self._roots else ()
        others = (
            Made(each.path, each)
            for each in index.classes_of(below)
            if each not in known and classes.descends(each, self._roots[BACKEND].path)
        )
        named = (each for path in paths for _, each in classes_at(index, path))
        every = list(dict.fromkeys([*registered, *others, *named]))
        every_label = labels([(each.path, each.definition) for each in every], taken=self._names)
        self._labels = dict(zip(every, every_label, strict=True))

    def all(self) -> Iterator[Backend]:
        """List the names, then the classes."""
        for label, name in self._names.items():
            yield self._of_name(label, name)
        for made, label in self._labels.items():
            yield self._of_class(label, made)

    def root(self) -> Backend | None:
        """Make the record of the root, whose values a class has that states none."""
        if (root := self._roots.get(BACKEND)) is None:
            return None
        findings = Findings(Lookup(self._lookup.classes, ())).of(root, [])
        arch = findings["attention_arch"]
        if arch is not None and arch.reading.origin is Origin.UNDECLARED:  # none of the others
            mha = frozenset({AttentionArch.MHA})
            reading = replace(arch.reading, origin=Origin.DECLARED, value=mha)
            findings["attention_arch"] = Finding(reading=reading, base=mha)
        source = self._index.source(root.at)
        return class_record(BACKEND, source, findings, EngineClass(path=root.path))

    def _of_name(self, label: str, name: Name) -> Backend:
        """Make the record of a name; it is broken if its class is not in the source."""
        source = self._index.source(name.at)
        if not name.made:
            missing = not_followed("vllm", name.name, name.at)
            return Backend(name=label, status=Status.BROKEN, source=source, problems=(missing,))
        cases = [(self._labels[made], condition(guards)) for guards, made in name.made]
        parts = [Part(each, given=Given(expression=when) if when else None) for each, when in cases]
        return Backend(name=label, source=source, declaration=Declaration(parts=parts))

    def _of_class(self, label: str, made: Made) -> Backend:
        definition = made.definition
        builders = self._findings.builders(definition)
        findings = self._findings.of(definition, builders)
        attributes = self._readings(definition, (*self._flags(BACKEND), *_MORE))
        attributes |= self._of_builders([each for _, each in builders or ()])
        names = [n for n, name in self._names.items() if made in [each for _, each in name.made]]
        engine_class = EngineClass(
            path=made.path,
            registered_as=tuple(sorted(names)),
            attributes=attributes,
            composite=made.call,
        )
        return class_record(label, self._index.source(definition.at), findings, engine_class)

    def _of_builders(self, builders: Sequence[ClassDef]) -> dict[str, Reading]:
        """Read the flags of a class's metadata builders, of which a condition may choose one."""
        flags = [self._readings(each, self._flags(BUILDER)) for each in builders]
        if len(flags) < 2:  # noqa: PLR2004 - nothing to choose
            return flags[0] if flags else {}
        named = dict.fromkeys(name for each in flags for name in each)
        words = {
            name: "; ".join(
                f"{builder.name}: {each[name].words if name in each else f'states no {name}'}"
                for builder, each in zip(builders, flags, strict=True)
            )
            for name in named
        }
        return {n: Reading(origin=Origin.CONDITIONAL, words=text) for n, text in words.items()}

    def _flags(self, root: str) -> list[str]:
        """List a root's flags: its attributes, and its methods with the name of a predicate."""
        stated = self._lookup.stated(self._roots[root]).items() if root in self._roots else ()
        flags = {n for n, each in stated if not each.function or n.startswith(_PREDICATES)}
        return sorted(flags - _AS_CAPABILITIES)

    def _readings(self, definition: ClassDef, names: Iterable[str]) -> dict[str, Reading]:
        readings = {name: self._reading(definition, name) for name in names}
        return {name: each for name, each in readings.items() if each is not None}

    def _reading(self, definition: ClassDef, name: str) -> Reading | None:
        answer = self._lookup.below_root(definition, name)
        if answer is None:
            return self._lookup.worked_out(definition, name)
        value: object = None
        match answer.only:
            case ast.Constant(value=constant):
                value, is_known = constant, True
            case ast.Name(id=name) if answer.last.name == "get_builder_cls":
                value, is_known = name, True
            case only:
                value = None if only is None else answer.items(only)
                is_known = value is not None
        if is_known:
            return answer.reading_for(definition, Origin.DECLARED, answer.text, value)
        return answer.reading_for(definition, Origin.CONDITIONAL, answer.text_in_full)
