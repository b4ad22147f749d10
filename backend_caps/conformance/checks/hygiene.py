"""A declaration is data: cheap to read, the same everywhere, and this plugin's own words."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence

from backend_caps.conformance.kit.check import Case, Check, Effort, Fault
from backend_caps.conformance.kit.declaring import see
from backend_caps.conformance.kit.declaring_child import Seen
from backend_caps.conformance.kit.rig import Rig
from backend_caps.conformance.kit.subject import Subject
from backend_caps.conformance.simulator import Site

_CODE = "declaration-hygiene"
_MOST_SECONDS = 1.0
"""Of the processor, beyond a bare Python with backend_caps. Declarations take milliseconds."""
_METHODS: Mapping[str, Sequence[str]] = {
    "init_forward_metadata": ("batch",),
    "init_cuda_graph_state": ("max_bs", "max_num_tokens"),
    "init_forward_metadata_out_graph": ("batch",),
    "init_forward_metadata_in_graph": ("batch",),
    "forward": ("q", "k", "v", "layer", "batch"),
}
"""What the runtime calls, and by how many arguments; `forward` gets `save_kv_cache` too."""


def _excuse(subject: Subject) -> str | None:
    return None if subject.builder is None else "its class is an engine's, which declares otherwise"


def _cases(_subject: Subject, _effort: Effort) -> Iterable[Case]:
    yield Case(check=_CODE)


def _run(rig: Rig, _case: Case) -> Iterator[Fault]:
    subject = rig.subject
    yield from _faults_of_methods(subject.load())
    if subject.source.declared_at is None:
        return
    found = see(subject)
    if isinstance(found, str):
        yield Fault(what=f"its declaration {found}", site=_site(subject.source.declared_at))
        return
    if found["seconds"] > _MOST_SECONDS:  # once more: the machine may have been at something else
        again = see(subject)
        found = found if isinstance(again, str) else min(found, again, key=_seconds)
    yield from _faults_of_declaration(found, subject.source.declared_at)


def _seconds(found: Seen) -> float:
    return found["seconds"]


def _faults_of_methods(implementation: object) -> Iterator[Fault]:
    """Look for what the runtime calls; a factory's objects, and stand-ins, are known by running."""
    if not isinstance(implementation, type):
        return
    named = {
        name: value for kind in implementation.__mro__[::-1] for name, value in vars(kind).items()
    }
    if "__getattr__" in named:
        return
    site = Site(inspect.getfile(implementation), inspect.getsourcelines(implementation)[1])
    for name, arguments in _METHODS.items():
        method = named.get(name)
        if method is None:
            yield Fault(what=f"{implementation.__name__} has no {name}", site=site)
        elif inspect.isfunction(method):
            called = {"save_kv_cache": False} if name == "forward" else {}
            try:
                inspect.signature(method).bind(None, *arguments, **called)
            except TypeError as error:
                place = Site(method.__code__.co_filename, method.__code__.co_firstlineno)
                yield Fault(what=f"{name} is called otherwise than it says: {error}", site=place)


def _faults_of_declaration(found: Seen, declared_at: str) -> Iterator[Fault]:
    for each in found["loaded"]:
        yield Fault(
            what=f"importing the declaration imports {each['package']}", site=_site(each["at"])
        )
    if found["has_implementation"]:
        yield Fault(
            what="importing the declaration imports the implementation", site=_site(declared_at)
        )
    if found["seconds"] > _MOST_SECONDS and not found["loaded"]:
        yield Fault(
            what=f"importing the declaration takes {found['seconds']:.1f} s of the processor, "
            f"allowed is {_MOST_SECONDS:.1f}",
            site=_site(declared_at),
        )
    for fault in found["faults"]:
        yield Fault(what=f"the declaration {fault}", site=_site(declared_at))
    for own in found["borrowed"]:
        names = ", ".join(own["names"])
        yield Fault(what=f"{names}: stated by {own['owner']}, and not here", site=_site(own["at"]))
    for twin in found["twins"]:
        yield Fault(what=f"it is the very object of {twin}", site=_site(declared_at))


def _site(place: str) -> Site:
    file, _, line = place.rpartition(":")
    return Site(file, int(line))


CHECK = Check(
    code=_CODE,
    claims=(),
    title="The declaration is data, and its author's own.",
    proves="A new process imports the declaration without torch, a kernel library or the "
    "implementation, in less than a second; gets the same one, through pickle and JSON too; and "
    "its claims are stated by this plugin, not taken from another's. The implementation has the "
    "methods that the runtime calls.",
    cannot="Another environment, where a declaration that looks about may say something else; and "
    "a claim that was copied by hand. Of a declaration that stands in no file it sees the methods "
    "alone.",
    excuse=_excuse,
    cases=_cases,
    run=_run,
)
