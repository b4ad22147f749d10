"""SGLang's backends, names, rules and command line, read from its source."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from backend_caps.capability.backend import Backend, EngineClass, Reading
from backend_caps.capability.declaration import Declaration, Part
from backend_caps.capability.kind import Phase, Role
from backend_caps.capability.provenance import Origin
from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.engines.reading import EngineReading, Fault, Finding, class_record
from backend_caps.engines.sglang.arguments import read_launches
from backend_caps.engines.sglang.backends import LONGEST, NEEDS, Backends
from backend_caps.engines.sglang.command_line import ARGUMENTS, read_aliases, read_engine_options
from backend_caps.engines.sglang.conditions import given_of, read_rules
from backend_caps.engines.sglang.names import Name, Names, Runner, is_usable
from backend_caps.engines.source.attributes import Attributes
from backend_caps.engines.source.classes import Classes, free_label, labels
from backend_caps.engines.source.files import Tree
from backend_caps.engines.source.index import FunctionDef, Index
from backend_caps.engines.source.module import ClassDef
from backend_caps.engines.source.statements import Stated
from backend_caps.resolution.uses import PAIR

_BASE = "sglang.srt.layers.attention.base_attn_backend"
_WRAPPER = "sglang.srt.layers.attention.hybrid_attn_backend.HybridAttnBackend"
_ROOT = "AttentionBackend"
_EXTRA_FLAGS = ("tbo_supports_cuda_graph",)
"""Flags that SGLang reads although its base class does not define them."""
_RUNTIME = ("sglang/srt/", "sglang/kernels/ops/attention/fla/chunk_delta_h.py")
"""The server's own modules, and the one whose chunk size the pages of linear attention must fit."""
_BESIDE = frozenset({"sglang/utils.py", "sglang/_version.py", "sglang/version.py"})
_FLAG_TYPES = frozenset(
    {"bool", "int", "Optional[bool]", "Optional[int]", "bool | None", "int | None"}
)
_STATES = re.compile(
    rb"^[ \t\f]+(?:self\.|def[ \t]+)?needs_cpu_seq_lens[ \t]*(?:[:|&(]|=[^=])", re.MULTILINE
)
"""A line of a class or a method that states the flag."""
_ROLES: Mapping[Runner, tuple[tuple[Role, frozenset[Phase]], ...]] = {
    Runner.TARGET: ((Role.TARGET, frozenset(Phase)), (Role.DRAFT, frozenset({Phase.PREFILL}))),
    Runner.DRAFT_DECODE: ((Role.DRAFT, frozenset({Phase.DECODE})),),
    Runner.DRAFT_EXTEND: ((Role.DRAFT_EXTEND, frozenset(Phase)),),
}
"""The roles and phases of a class, by its runner. The draft model's own runner prefills."""


def is_wanted(path: str) -> bool:
    """Return whether a file of the package is one of the server's runtime."""
    return path.startswith(_RUNTIME) or path in _BESIDE


def read_sglang(tree: Tree) -> EngineReading:
    """Read a version of SGLang; a missing anchor becomes a problem, and the rest is read."""
    index = Index(tree)
    launches = partial(read_launches, index)
    found = _Records(index)
    records = list(found.all())
    reading = index.reading(records, read_rules(index), read_engine_options(index), launches)
    return replace(reading, root=found.root(), faults=tuple(_known_faults(tree)))


def _known_faults(tree: Tree) -> Iterator[Fault]:
    stored = tomllib.loads(Path(__file__).with_name("faults.toml").read_text("utf-8"))
    for each in stored["fault"]:
        if tree.version in each.pop("versions"):
            yield Fault(**each)
    for each in stored["hardware"]:
        file = each["path"].rpartition(".")[0].replace(".", "/") + ".py"
        lines = tree.files.get(file, b"").decode("utf-8", "replace").splitlines()
        found = (at for at, line in enumerate(lines, 1) if line.startswith(each["imports"]))
        if (at := next(found, None)) is not None:
            yield Fault(
                path=each["path"],
                at=f"{file}:{at}",
                message=lines[at - 1].partition("#")[0].strip(" ("),
                devices=frozenset(each["devices"]),
            )


class _Records:
    """Makes the records of classes, of names that flags use, and of names not followed."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._classes = Classes(index)
        self._names = Names(self._classes).read()
        self._aliases = {
            alias: target
            for alias, target in read_aliases(index).items()
            if target in self._names
            and alias not in self._names
            and is_usable(index, alias, ARGUMENTS)
        }
        taken = {*self._names, *self._aliases}
        lost = [name for name, own in self._names.items() if own.lost is not None]
        self._lost = {name: free_label(f"{name}, not followed", taken) for name in lost}
        self._placed = _placed(self._names)
        self._root = index.class_in(_BASE, _ROOT)
        self._backends = self._of_classes({*taken, *self._lost.values()})

    def all(self) -> Iterator[Backend]:
        """List the records of classes, names, aliases and the wrapper of two backends."""
        yield from self._backends.values()
        for name, own in self._names.items():
            yield self._of_name(name, own)
            if own.lost is not None:
                yield self._of_lost(name, own.lost)
        for alias, target in self._aliases.items():
            yield self._of_name(alias, self._names[target])
        yield from pair_of(self._backends.values())

    def root(self) -> Backend | None:
        """Make the record of the root, whose flag a server reads of a class that states none."""
        if self._root is None:
            return None
        stated = Attributes(self._classes, {NEEDS}).stated(self._root, NEEDS)
        match [] if stated is None else [each.value for each in stated.values]:
            case [ast.Constant(value=bool(needs))]:
                level = HostSeqLens.EXACT if needs else HostSeqLens.NONE
            case _:
                return None
        assert stated is not None, "it has a value"
        reading = stated.reading(Origin.DECLARED, stated.words, level)
        findings = {"host_seq_lens": Finding(reading=reading, base=level)}
        source = self._index.source(self._root.at)
        return class_record(_ROOT, source, findings, EngineClass(path=self._root.path))

    def _of_classes(self, taken: Collection[str]) -> Mapping[ClassDef, Backend]:
        """Make a record for each class, with a unique label."""
        root = self._root
        if root is None:
            return {}
        flags = _flags(root)
        attributes = Attributes(self._classes, {NEEDS, LONGEST, *flags})
        if attributes.stated(root, NEEDS) is None:
            self._index.note_missing(f"{NEEDS} in class {_ROOT}", _BASE)
        records = Backends(self._classes, attributes, root, flags)
        found = list(self._definitions(attributes, root))
        named = labels([(each.path, each) for each in found], taken=taken)
        backends: dict[ClassDef, Backend] = {}
        for definition, label in zip(found, named, strict=True):
            places = self._placed.get(definition, {})
            runners = set[Runner]().union(*places.values())
            roles = frozenset(role for each in runners for role, _ in _ROLES[each])
            backends[definition] = records.record(definition, label, sorted(places), roles)
        return backends

    def _definitions(self, attributes: Attributes, root: ClassDef) -> Iterator[ClassDef]:
        """List the backends: by their base, by their registration, or by the flag they state."""
        index = self._index
        by_base = index.heads.files_below({root.name})
        names = index.heads.names_below({root.name})
        named = {p for p in index.containing(NEEDS.encode()) if _STATES.search(index.tree.files[p])}
        by_name = [definition.module.path for definition in self._placed]
        for each in index.classes_of(sorted({*by_base, *named, *by_name})):
            if each is not root and (
                each in self._placed
                or (each.name in names and self._classes.descends(each, root.path))
                or (each.module.path in named and _decides(attributes.stated(each, NEEDS)))
            ):
                yield each

    def _of_name(self, label: str, name: Name) -> Backend:
        parts = [
            Part(
                self._lost[name.name] if made is None else self._backends[made].name,
                phases=phases,
                roles={role},
                given=given_of(guards),
            )
            for place, all_made in name.made.items()
            for guards, made in all_made
            for role, phases in _ROLES[place]
            if made is None or made in self._backends
        ]
        source = self._index.source()
        return Backend(name=label, source=source, declaration=Declaration(parts=parts))

    def _of_lost(self, name: str, function: FunctionDef) -> Backend:
        """Make the undeclared record of a name whose class was not found."""
        words = f"what {function.node.name}() makes could not be followed to a class"
        own = EngineClass(
            path=f"{function.module.name}.{function.node.name}",
            registered_as=(name,),
            readings={"host_seq_lens": Reading(origin=Origin.UNDECLARED, words=words)},
        )
        label, source = self._lost[name], self._index.source(function.at)
        return Backend(name=label, source=source, declaration=Declaration(), engine_class=own)


def _flags(root: ClassDef) -> list[str]:
    """List the base class's flags, and its methods that return a constant.

    Attributes of other types are a step's state with a default, and no flags.
    """
    found = []
    for statement in root.node.body:
        match statement:
            case ast.AnnAssign(
                target=ast.Name(id=name), annotation=annotation, value=ast.Constant()
            ) if ast.unparse(annotation) in _FLAG_TYPES:
                found.append(name)
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=bool()))
                | ast.FunctionDef(
                    name=name, body=[*_, ast.Return(value=ast.Constant(value=bool()))]
                )
            ):
                found.append(name)
    return sorted({*found, *_EXTRA_FLAGS} - {NEEDS, LONGEST})


def _placed(names: Mapping[str, Name]) -> Mapping[ClassDef, Mapping[str, set[Runner]]]:
    """List, for each class, the names and the runners that it is made for."""
    placed: dict[ClassDef, dict[str, set[Runner]]] = {}
    for name in names.values():
        for place, made in name.made.items():
            for definition in {each for _, each in made if each is not None}:
                placed.setdefault(definition, {}).setdefault(name.name, set()).add(place)
    return placed


def _decides(stated: Stated | None) -> bool:
    """Return whether a class states the flag, and does not just store an argument."""
    return stated is not None and any(
        not (isinstance(each.value, ast.Name) and each.value.id == NEEDS)
        for each in stated.statements
    )


def pair_of(backends: Iterable[Backend]) -> Iterator[Backend]:
    """Make the record of SGLang's wrapper of two backends, if it states no rule for needs.

    So the pair counts as undeclared. A stated rule joins the two by phase, and so does the
    resolver without a record.
    """
    for backend in backends:
        own = backend.engine_class
        reading = own.readings.get("host_seq_lens") if own else None
        is_undeclared = reading is None or reading.origin is Origin.UNDECLARED
        if own is not None and own.path == _WRAPPER and is_undeclared:
            joined = Declaration(parts=[Part(backend.name)])
            yield Backend(name=PAIR, source=backend.source, declaration=joined)
