"""SGLang's backends, names, rules and command line, read from its source."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from backend_caps.capability.backend import Backend, Status
from backend_caps.capability.declaration import Declaration, Part
from backend_caps.capability.kind import Phase, Role
from backend_caps.capability.provenance import Source
from backend_caps.engines import problems
from backend_caps.engines.reading import EngineReading
from backend_caps.engines.sglang.backends import LONGEST, NEEDS, Backends
from backend_caps.engines.sglang.command_line import read_aliases, read_engine_options
from backend_caps.engines.sglang.conditions import given_of
from backend_caps.engines.sglang.names import Name, Names, Place
from backend_caps.engines.sglang.rules import read_rules
from backend_caps.engines.source.attributes import Attributes, Stated
from backend_caps.engines.source.classes import Classes
from backend_caps.engines.source.index import Index
from backend_caps.engines.source.module import ClassDef, Function
from backend_caps.engines.source.tree import Tree

_BASE = "sglang.srt.layers.attention.base_attn_backend"
_ROOT = "AttentionBackend"
_EXTRA_FLAGS = ("tbo_supports_cuda_graph",)
"""Flags that SGLang reads without its base class having them."""
_STATES = re.compile(rb"^[ \t]+(?:self\.)?needs_cpu_seq_lens[ \t]*(?:[:|&]|=[^=])", re.MULTILINE)
_ROLES: Mapping[Place, tuple[tuple[Role, frozenset[Phase]], ...]] = {
    Place.TARGET: (
        (Role.TARGET, frozenset(Phase)),
        (Role.DRAFT, frozenset({Phase.PREFILL})),
    ),
    Place.DRAFT_DECODE: ((Role.DRAFT, frozenset({Phase.DECODE})),),
    Place.DRAFT_EXTEND: ((Role.DRAFT_EXTEND, frozenset(Phase)),),
}
"""The uses that a class made for a place gets. The draft's own runner prefills."""


def is_wanted(path: str) -> bool:
    """Tell whether a file of the package is one of the server's runtime."""
    return path.startswith("sglang/srt/") or path in {"sglang/_version.py", "sglang/version.py"}


def read_sglang(tree: Tree) -> EngineReading:
    """Read a version of SGLang; what is not where it should be is a problem, the rest is read."""
    index = Index(tree)
    classes = Classes(index)
    names = Names(index, classes).read()
    backends = tuple(_backends(index, classes, names))
    return EngineReading(
        engine="sglang",
        version=tree.version,
        source=tree.source,
        backends=(*backends, *_named(index, names, backends)),
        rules=read_rules(index),
        command_line=read_engine_options(index),
        problems=index.problems,
        num_files=len(tree.files),
        num_parsed=index.num_parsed,
    )


def _backends(index: Index, classes: Classes, names: Mapping[str, Name]) -> Iterator[Backend]:
    module = index.module(_BASE)
    root = next((c for c in module.classes if c.name == _ROOT), None) if module else None
    if root is None:
        version = index.tree.version or "of unknown version"
        path = _BASE.replace(".", "/") + ".py"
        index.tell(problems.anchor_missing("sglang", version, f"class {_ROOT}", path))
        return
    flags = _flags(root)
    attributes = Attributes(index, classes, {NEEDS, LONGEST, *flags})
    records = Backends(classes, attributes, root, flags)
    placed = _placed(names)
    found = list(_definitions(index, classes, attributes, root, placed))
    labels = _labels(found)
    for definition in found:
        own = placed.get(definition, {})
        yield records.record(
            definition,
            name=labels[definition],
            version=index.tree.version,
            registered_as=sorted(own),
            roles=frozenset(
                role for places in own.values() for p in places for role, _ in _ROLES[p]
            ),
        )


def _roles(places: Iterable[set[Place]]) -> frozenset[Role]:
    return frozenset(role for each in places for place in each for role, _ in _ROLES[place])


def _flags(root: ClassDef) -> list[str]:
    """List the flags that the base class has, and its methods that answer with a constant."""
    found = []
    for statement in root.node.body:
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant()):
                found.append(name)
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant()):
                found.append(name)
            case ast.FunctionDef(
                name=name, body=[*_, ast.Return(value=ast.Constant(value=bool()))]
            ):
                found.append(name)
    return sorted({*found, *_EXTRA_FLAGS} - {NEEDS, LONGEST})


def _placed(names: Mapping[str, Name]) -> dict[ClassDef, dict[str, set[Place]]]:
    """List, for each class, the names it is made for, and the places."""
    placed: dict[ClassDef, dict[str, set[Place]]] = {}
    for name in names.values():
        for place, made in name.made.items():
            for _, definition in made:
                placed.setdefault(definition, {}).setdefault(name.name, set()).add(place)
    return placed


def _definitions(
    index: Index,
    classes: Classes,
    attributes: Attributes,
    root: ClassDef,
    placed: Mapping[ClassDef, object],
) -> Iterator[ClassDef]:
    """List the backends: by their base, by their registration, or by the flag they state."""
    by_base = index.files_of_descendants({root.name})
    by_flag = [p for p in index.containing(NEEDS.encode()) if _STATES.search(index.tree.files[p])]
    by_name = [definition.module.path for definition in placed]
    for path in sorted({*by_base, *by_flag, *by_name}):
        module = index.parse(path)
        for definition in module.classes if module else ():
            stated = attributes.stated(definition, NEEDS)
            if (
                classes.descends(definition, root.path)
                or definition in placed
                or (stated is not None and definition is not root and _states(stated))
            ):
                yield definition


def _states(stated: Stated) -> bool:
    """Tell a statement from one that keeps what the class was given."""
    return any(
        not (isinstance(each.value, ast.Name) and each.value.id == NEEDS)
        or isinstance(each.value, Function)
        for each in stated.statements
    )


def _labels(definitions: list[ClassDef]) -> dict[ClassDef, str]:
    """Name the classes: those of one name by their modules too, or by their conditions."""
    often = Counter(each.name for each in definitions)
    labels: dict[ClassDef, str] = {}
    for each in definitions:
        label = each.name
        if often[label] > 1:
            label = f"{each.module.name.rpartition('.')[2]}.{label}"
        while label in labels.values():
            label += "'"
        labels[each] = label
    return labels


def _named(
    index: Index, names: Mapping[str, Name], backends: tuple[Backend, ...]
) -> Iterator[Backend]:
    """List a record for each name, whose parts are the classes; one for each alias too."""
    labels = {each.engine_class.path: each.name for each in backends if each.engine_class}
    for name in names.values():
        yield _name(index, name.name, name, labels)
    for alias, target in read_aliases(index).items():
        if target in names and alias not in names:
            yield _name(index, alias, names[target], labels)


def _name(index: Index, name: str, of: Name, labels: Mapping[str, str]) -> Backend:
    parts = [
        Part(labels[made.path], phases=phases, roles={role}, given=given_of(guards))
        for place, all_made in of.made.items()
        for guards, made in all_made
        for role, phases in _ROLES[place]
        if made.path in labels
    ]
    return Backend(
        name=name,
        status=Status.OK,
        source=Source(distribution="sglang", version=index.tree.version),
        declaration=Declaration(parts=parts),
    )
