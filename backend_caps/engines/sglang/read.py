"""SGLang's backends, names, rules and command line, read from its source."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping

from backend_caps.capability.backend import Backend, EngineClass, Reading
from backend_caps.capability.declaration import Declaration, Part
from backend_caps.capability.kind import Phase, Role
from backend_caps.capability.provenance import Origin, Source
from backend_caps.engines.reading import EngineReading, record
from backend_caps.engines.sglang.backends import LONGEST, NEEDS, Backends
from backend_caps.engines.sglang.command_line import ARGUMENTS, read_aliases, read_engine_options
from backend_caps.engines.sglang.conditions import given_of, read_rules
from backend_caps.engines.sglang.names import Name, Names, Runner, is_usable
from backend_caps.engines.source.attributes import Attributes
from backend_caps.engines.source.classes import Classes, labels
from backend_caps.engines.source.files import Tree
from backend_caps.engines.source.index import FunctionDef, Index
from backend_caps.engines.source.methods import Stated
from backend_caps.engines.source.module import ClassDef
from backend_caps.resolution.uses import PAIR

_BASE = "sglang.srt.layers.attention.base_attn_backend"
_WRAPPER = "sglang.srt.layers.attention.hybrid_attn_backend.HybridAttnBackend"
_ROOT = "AttentionBackend"
_EXTRA_FLAGS = ("tbo_supports_cuda_graph",)
"""Flags that SGLang reads without its base class having them."""
_FLAG_TYPES = frozenset(
    {"bool", "int", "Optional[bool]", "Optional[int]", "bool | None", "int | None"}
)
_STATES = re.compile(
    rb"^[ \t\f]+(?:self\.|def[ \t]+)?needs_cpu_seq_lens[ \t]*(?:[:|&(]|=[^=])", re.MULTILINE
)
"""A line of a class or a method that states the flag."""
_ROLES: Mapping[Runner, tuple[tuple[Role, frozenset[Phase]], ...]] = {
    Runner.TARGET: (
        (Role.TARGET, frozenset(Phase)),
        (Role.DRAFT, frozenset({Phase.PREFILL})),
    ),
    Runner.DRAFT_DECODE: ((Role.DRAFT, frozenset({Phase.DECODE})),),
    Runner.DRAFT_EXTEND: ((Role.DRAFT_EXTEND, frozenset(Phase)),),
}
"""The uses that a class made for a place gets. The draft's own runner prefills."""


def is_wanted(path: str) -> bool:
    """Return whether a file of the package is one of the server's runtime."""
    return path.startswith("sglang/srt/") or path in {"sglang/_version.py", "sglang/version.py"}


def read_sglang(tree: Tree) -> EngineReading:
    """Read a version of SGLang; what is not where it should be is a problem, the rest is read."""
    index = Index(tree)
    classes = Classes(index)
    names = Names(index, classes).read()
    aliases = {
        alias: target
        for alias, target in read_aliases(index).items()
        if target in names and alias not in names and is_usable(index, alias, ARGUMENTS)
    }
    unknown = _unknown(names, aliases)
    backends = _backends(index, classes, names, {*names, *aliases, *unknown.values()})
    reading = EngineReading(
        engine="sglang",
        version=tree.version,
        source=tree.source,
        backends=(
            *backends.values(),
            *_named(index, names, aliases, unknown, backends),
            *pair_of(backends.values()),
        ),
        rules=read_rules(index),
        command_line=read_engine_options(index),
        problems=index.problems,
        num_files=len(tree.files),
        num_parsed=index.num_parsed,
    )
    index.close()
    return reading


def _backends(
    index: Index, classes: Classes, names: Mapping[str, Name], taken: Collection[str]
) -> Mapping[ClassDef, Backend]:
    """List a record for each class, called as nothing else is."""
    root = _root(index)
    if root is None:
        index.note_missing(f"class {_ROOT}", _BASE)
        return {}
    flags = _flags(root)
    attributes = Attributes(index, classes, {NEEDS, LONGEST, *flags})
    if attributes.stated(root, NEEDS) is None:
        index.note_missing(f"{NEEDS} in class {_ROOT}", _BASE)
    records = Backends(index, attributes, root, flags)
    placed = _placed(names)
    found = list(_definitions(index, classes, attributes, root, placed))
    named = labels([(each.path, each) for each in found], taken=taken)
    return {
        definition: records.record(
            definition,
            name=label,
            version=index.tree.version,
            registered_as=sorted(placed.get(definition, ())),
            roles=_roles(placed.get(definition, {}).values()),
        )
        for definition, label in zip(found, named, strict=True)
    }


def _root(index: Index) -> ClassDef | None:
    module = index.module(_BASE)
    return next((c for c in module.classes if c.name == _ROOT), None) if module else None


def _roles(places: Iterable[set[Runner]]) -> frozenset[Role]:
    return frozenset(role for each in places for place in each for role, _ in _ROLES[place])


def _flags(root: ClassDef) -> list[str]:
    """List the flags that the base class has, and its methods that answer with a constant.

    What a backend keeps of a step has a default there too, and is no flag.
    """
    found = []
    for statement in root.node.body:
        match statement:
            case ast.AnnAssign(
                target=ast.Name(id=name), annotation=annotation, value=ast.Constant()
            ) if ast.unparse(annotation) in _FLAG_TYPES:
                found.append(name)
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=bool())):
                found.append(name)
            case ast.FunctionDef(
                name=name, body=[*_, ast.Return(value=ast.Constant(value=bool()))]
            ):
                found.append(name)
    return sorted({*found, *_EXTRA_FLAGS} - {NEEDS, LONGEST})


def _placed(names: Mapping[str, Name]) -> dict[ClassDef, dict[str, set[Runner]]]:
    """List, for each class, the names it is made for, and the places."""
    placed: dict[ClassDef, dict[str, set[Runner]]] = {}
    for name in names.values():
        for place, made in name.made.items():
            for definition in {each for _, each in made if each is not None}:
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
    by_base = index.heads.files_below({root.name})
    names = index.heads.names_below({root.name})
    by_flag = {p for p in index.containing(NEEDS.encode()) if _STATES.search(index.tree.files[p])}
    by_name = [definition.module.path for definition in placed]
    for path in sorted({*by_base, *by_flag, *by_name}):
        module = index.parse(path)
        for definition in module.classes if module else ():
            if definition is not root and (
                definition in placed
                or (definition.name in names and classes.descends(definition, root.path))
                or (path in by_flag and _decides(attributes.stated(definition, NEEDS)))
            ):
                yield definition


def _decides(stated: Stated | None) -> bool:
    """Return whether a class states the flag itself, not just keeps an argument of that name."""
    return stated is not None and any(
        not (isinstance(each.value, ast.Name) and each.value.id == NEEDS)
        for each in stated.statements
    )


def _named(
    index: Index,
    names: Mapping[str, Name],
    aliases: Mapping[str, str],
    unknown: Mapping[str, str],
    backends: Mapping[ClassDef, Backend],
) -> Iterator[Backend]:
    """List a record for each name, whose parts are the classes; one for each alias too."""
    for name in names.values():
        yield _name(index, name.name, name, unknown, backends)
        if name.lost is not None:
            yield _lost(index, name, unknown[name.name], name.lost)
    for alias, target in aliases.items():
        yield _name(index, alias, names[target], unknown, backends)


def _name(
    index: Index,
    name: str,
    of: Name,
    unknown: Mapping[str, str],
    backends: Mapping[ClassDef, Backend],
) -> Backend:
    parts = [
        Part(
            unknown[of.name] if made is None else backends[made].name,
            phases=phases,
            roles={role},
            given=given_of(guards),
        )
        for place, all_made in of.made.items()
        for guards, made in all_made
        for role, phases in _ROLES[place]
        if made is None or made in backends
    ]
    return record(name, Source(distribution="sglang", version=index.tree.version), parts)


def _unknown(names: Mapping[str, Name], aliases: Collection[str]) -> dict[str, str]:
    """Call what names make and could not be followed, as nothing else is called."""
    found: dict[str, str] = {}
    for name in names.values():
        if name.lost is not None:
            label = f"{name.name}, not followed"
            while label in {*names, *aliases, *found.values()}:
                label += " here"
            found[name.name] = label
    return found


def _lost(index: Index, name: Name, label: str, function: FunctionDef) -> Backend:
    """Stand for what a name makes and no class was found for: it is undeclared."""
    words = f"what {function.node.name}() makes could not be followed to a class"
    return record(
        label,
        Source(distribution="sglang", version=index.tree.version, declared_at=function.at),
        Declaration(),
        EngineClass(
            path=f"{function.module.name}.{function.node.name}",
            registered_as=(name.name,),
            readings={"host_seq_lens": Reading(origin=Origin.UNDECLARED, words=words)},
        ),
    )


def pair_of(backends: Iterable[Backend]) -> Iterator[Backend]:
    """List a record for SGLang's wrapper of two backends, where it has no rule for their needs.

    So the pair counts as undeclared. Where there is a rule, it joins the two by phase, as the
    resolver does by itself.
    """
    for backend in backends:
        own = backend.engine_class
        if own is None or own.path != _WRAPPER:
            continue
        reading = own.readings.get("host_seq_lens")
        if reading is None or reading.origin is Origin.UNDECLARED:
            yield record(PAIR, backend.source, [Part(backend.name)])
