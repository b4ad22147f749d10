"""Read vLLM's attention backends out of its source.

A name of vLLM's registries, such as `FLASH_ATTN`, is a record whose parts are classes; each class
below vLLM's `AttentionBackend` is a record of its own, also where no name is registered for it
and a model asks for it by itself.

vLLM declares nothing about `host_seq_lens`: a builder takes from the batch what it needs. So that
stays undeclared for every class, and counts as a need. Nothing is known of vLLM's rules or of its
command line either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from backend_caps.capability.backend import Backend
from backend_caps.capability.declaration import Declaration, Part
from backend_caps.capability.facts import Given
from backend_caps.capability.provenance import Source
from backend_caps.capability.status import Status
from backend_caps.engines import problems
from backend_caps.engines.reading import EngineReading
from backend_caps.engines.source.classes import Classes
from backend_caps.engines.source.guards import Guards, condition
from backend_caps.engines.source.index import Index
from backend_caps.engines.source.tree import Tree
from backend_caps.engines.vllm.classes import ClassReader, Roots, names_of
from backend_caps.engines.vllm.registry import Made, Member, classes_of, members

KNOWN_VERSIONS = ("0.33.0",)
"""The versions that the reader was compared with, row by row."""


def _within(path: str) -> bool:
    return path.startswith("vllm/")


WITHIN: Callable[[str], bool] = _within
"""Which files `read_vllm` wants: all, for models bring backends of their own."""


def read_vllm(tree: Tree) -> EngineReading:
    """Read the backends of one vLLM; what is not where it is expected becomes a problem."""
    index = Index(tree)
    version = tree.version or "of no stated version"
    if tree.version not in KNOWN_VERSIONS:
        index.tell(problems.unknown_version("vllm", version, KNOWN_VERSIONS))
    backends = _backends(index, version)
    return EngineReading(
        engine="vllm",
        version=tree.version,
        source=tree.source,
        backends=backends,
        rules=None,
        command_line=None,
        problems=index.problems,
        num_files=len(tree.files),
        num_parsed=index.num_parsed,
    )


_Registered = Mapping[Member, list[tuple[Guards, Made]]]


def _backends(index: Index, version: str) -> tuple[Backend, ...]:
    classes = Classes(index)
    roots = Roots.of(index, version)
    registered = {member: classes_of(index, member) for member in members(index, version)}
    made = [each for found in registered.values() for _, each in found]
    known = {each.definition for each in made}
    others = [each for each in roots.backends(index, classes) if each not in known]
    every = list(dict.fromkeys([*made, *(Made(each.path, each) for each in others)]))
    labels = _labels(registered)
    names = names_of(every, list(labels.values()))
    reader = ClassReader(index, classes, roots)
    return (
        *(_of_name(index, labels[member], member, registered[member], names) for member in labels),
        *(reader.record(names[each], each, _labels_of(each, registered, labels)) for each in every),
    )


def _labels(registered: _Registered) -> dict[Member, str]:
    """Name each member; one whose name another registry has too is named with its own."""
    names = [member.name for member in registered]
    return {
        member: member.name if names.count(member.name) == 1 else f"{member.enum}.{member.name}"
        for member in registered
    }


def _labels_of(made: Made, registered: _Registered, labels: Mapping[Member, str]) -> list[str]:
    return [
        labels[member]
        for member, found in registered.items()
        if made in [each for _, each in found]
    ]


def _of_name(
    index: Index,
    label: str,
    member: Member,
    found: list[tuple[Guards, Made]],
    names: Mapping[Made, str],
) -> Backend:
    """Make the record of a name; it is broken where its class is not in the source."""
    source = Source(distribution="vllm", version=index.tree.version, declared_at=member.at)
    if not found:
        missing = problems.name_not_made("vllm", member.name, member.at)
        return Backend(name=label, status=Status.BROKEN, source=source, problems=(missing,))
    parts = [_part(names[made], condition(guards)) for guards, made in found]
    return Backend(
        name=label, status=Status.OK, source=source, declaration=Declaration(parts=parts)
    )


def _part(name: str, when: str) -> Part:
    return Part(name, given=Given(expression=when) if when else None)
