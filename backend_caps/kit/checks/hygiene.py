"""Check that a declaration is cheap data, the same everywhere, stated by its own plugin."""

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
"""CPU seconds of the import, without that of backend_caps. Declarations take milliseconds."""
_ADAPTED = "its class is an engine's, which declares otherwise"
_METHODS: Mapping[str, Sequence[str]] = {
    "init_forward_metadata": ("batch",),
    "init_cuda_graph_state": ("max_bs", "max_num_tokens"),
    "init_forward_metadata_out_graph": ("batch",),
    "init_forward_metadata_in_graph": ("batch",),
    "forward": ("q", "k", "v", "layer", "batch"),
}
"""The methods that the runtime calls, with their positional arguments; `forward` gets
`save_kv_cache` too."""


_NEEDED = frozenset({"init_forward_metadata", "forward"})
"""Methods of every forward; others are of graphs."""


def _run(rig: Rig, _case: Case) -> Iterator[Fault]:
    subject = rig.subject
    yield from _faults_of_methods(rig)
    if subject.source.declared_at is None:
        return
    found = import_declaration(subject)
    if found["seconds"] > _MOST_SECONDS:  # the first import may compile or read cold files
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
    """List missing and misshapen methods of a built object, which may get methods at run time."""
    try:
        with rig.running():
            backend = rig.build(draw(Scenario(forward=Forward.DECODE), seed=0).on(rig.device).pools)
    except Exception:  # noqa: BLE001 - every other check reports a backend that cannot be built
        return
    for name, arguments in _METHODS.items():
        try:
            method = attrgetter(name)(backend)
        except AttributeError:
            kind = type(backend)
            what = f"{kind.__name__} has no {name}"
            yield Fault(what=what, site=_site_of(kind), stops=name in _NEEDED)
            continue
        keywords = {"save_kv_cache": False} if name == "forward" else {}
        try:
            inspect.signature(method).bind(*arguments, **keywords)
        except TypeError as error:
            what = f"{name} is not called as the runtime calls it: {error}"
            yield Fault(what=what, site=_site_of(method))
        except ValueError:  # some builtins have no signature
            continue


def _site_of(code: object) -> Site | None:
    """Return the first line of a class or method; None where its source is not known."""
    if not isinstance(code, type | FunctionType | MethodType):
        return None
    with suppress(OSError, TypeError):  # built in, or without its source
        return Site(inspect.getfile(code), inspect.getsourcelines(code)[1])
    return None


def _site(place: str) -> Site:
    file, _, line = place.rpartition(":")
    return Site(file, int(line))


HYGIENE = Check(
    about=CATALOG["declaration-hygiene"],
    excuse=lambda subject: None if subject.builder is None else _ADAPTED,
    cases=lambda _subject, _effort: [Case(check="declaration-hygiene")],
    run=_run,
)
