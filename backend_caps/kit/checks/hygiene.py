"""A declaration is data: cheap to read, the same everywhere, and this plugin's own words."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter, itemgetter
from types import FunctionType, MethodType

from backend_caps.kit import Case, Check, Fault, Forward, Rig, Scenario, draw
from backend_caps.kit.probes.declaration_import import import_declaration
from backend_caps.report.check_catalog import CATALOG
from backend_caps.simulator import Site

_MOST_SECONDS = 1.0
"""Of the processor, beyond a bare Python with backend_caps. Declarations take milliseconds."""
_ADAPTED = "its class is an engine's, which declares otherwise"
_METHODS: Mapping[str, Sequence[str]] = {
    "init_forward_metadata": ("batch",),
    "init_cuda_graph_state": ("max_bs", "max_num_tokens"),
    "init_forward_metadata_out_graph": ("batch",),
    "init_forward_metadata_in_graph": ("batch",),
    "forward": ("q", "k", "v", "layer", "batch"),
}
"""What the runtime calls, and by how many arguments; `forward` gets `save_kv_cache` too."""


def _run(rig: Rig, _case: Case) -> Iterator[Fault]:
    subject = rig.subject
    yield from _faults_of_methods(rig)
    if subject.source.declared_at is None:
        return
    found = import_declaration(subject)
    if found["seconds"] > _MOST_SECONDS:  # once more: the machine may have been at something else
        found = min(found, import_declaration(subject), key=itemgetter("seconds"))
    for what, at in found["faults"]:
        yield Fault(what=what, site=_site(at))
    if found["seconds"] > _MOST_SECONDS:
        yield Fault(
            what=f"importing the declaration takes {found['seconds']:.1f} s of the processor, "
            f"allowed is {_MOST_SECONDS:.1f}",
            site=_site(subject.source.declared_at),
        )


def _faults_of_methods(rig: Rig) -> Iterator[Fault]:
    """Look for what the runtime calls, in an object: it may have another's methods for its own."""
    try:
        with rig.running():
            backend = rig.build(draw(Scenario(forward=Forward.DECODE), seed=0).on(rig.device).pools)
    except Exception:  # noqa: BLE001 - what cannot be built is every other check's
        return
    for name, arguments in _METHODS.items():
        try:
            method = attrgetter(name)(backend)
        except AttributeError:
            kind = type(backend)
            yield Fault(what=f"{kind.__name__} has no {name}", site=_site_of(kind))
            continue
        called = {"save_kv_cache": False} if name == "forward" else {}
        try:
            inspect.signature(method).bind(*arguments, **called)
        except TypeError as error:
            told = f"{name} is not called as the runtime calls it: {error}"
            yield Fault(what=told, site=_site_of(method))
        except ValueError:  # it does not say
            continue


def _site_of(code: object) -> Site | None:
    """Find where a class or a method begins."""
    if not isinstance(code, type | FunctionType | MethodType):
        return None
    with suppress(OSError, TypeError):  # its source is not there
        return Site(inspect.getfile(code), inspect.getsourcelines(code)[1])
    return None


def _site(place: str) -> Site:
    file, _, line = place.rpartition(":")
    return Site(file, int(line))


HYGIENE = Check(
    about=CATALOG["declaration-hygiene"],
    excuse=lambda own: None if own.builder is None else _ADAPTED,
    cases=lambda _subject, _effort: [Case(check="declaration-hygiene")],
    run=_run,
)
