"""Check that the memory that a backend holds stops growing after its first steps."""

from __future__ import annotations

import gc
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import islice, pairwise, starmap
from operator import lt
from types import CellType, FunctionType, MethodType, ModuleType
from typing import NamedTuple, TypeGuard

import torch

from backend_caps.kit import Case, Check, Effort, Fault, Forward, Rig, Subject, scenarios_of
from backend_caps.kit.probes.playback import SteadyRun
from backend_caps.report.check_catalog import CATALOG
from backend_caps.simulator import Simulation

_OBJECT_BYTES, _ENTRY_BYTES = 64, 16
"""Bytes counted for an object, and for each entry of a container. `sys.getsizeof` would jump, as
containers allocate ahead."""
_CONTAINERS = (list, tuple, set, frozenset, dict, deque, defaultdict, OrderedDict)
_CALLABLES = (MethodType, CellType, partial)
_TEXTS = (str, bytes, bytearray)
_CACHED = type(lru_cache(int))


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldMemory:
    """The memory that a backend holds at one moment."""

    device: int
    """Bytes of the simulated or of a CUDA device; 0 on the CPU."""
    host: Counter[str]
    """Bytes by the attribute of the object, a class or a module that references them."""
    elsewhere: Counter[str] = field(default_factory=Counter)
    """Entries of each container that a module or class of another package names."""


class Growth(NamedTuple):
    """How much grew; each is 0 unless it grew at every moment."""

    device: int
    """Bytes on the device."""
    host: int
    """Bytes that the backend's own names lead to."""
    elsewhere: int
    """Entries of containers of other packages, of those that grew at every moment."""


def growth(moments: Sequence[HeldMemory]) -> Growth:
    """Return how much memory grew over some moments."""
    device, host = (
        _steady_growth(sizes)
        for sizes in ([each.device for each in moments], [each.host.total() for each in moments])
    )
    return Growth(device, host, _grown_elsewhere(moments).total())


def _steady_growth(sizes: Sequence[int]) -> int:
    """Return how much a size grew; 0 unless it grew at every moment."""
    return sizes[-1] - sizes[0] if all(starmap(lt, pairwise(sizes))) else 0


def _grown_elsewhere(moments: Sequence[HeldMemory]) -> Counter[str]:
    """Return by how many entries containers of other packages grew at every moment."""
    names = moments[-1].elsewhere
    grown = {name: _steady_growth([own.elsewhere[name] for own in moments]) for name in names}
    return Counter({name: entries for name, entries in grown.items() if entries})


def grown_place(moments: Sequence[HeldMemory]) -> str | None:
    """Return the attribute whose host memory grew most; None where none grew."""
    more = moments[-1].host - moments[0].host
    return max(more, key=lambda name: (more[name], name)) if more else None


def held_memory(
    subject: Subject, backend: object, simulation: Simulation | None, device: str
) -> HeldMemory:
    """Measure what a backend holds, after a garbage collection. Sync: the device.

    Args:
        subject: the backend, whose modules and classes count.
        backend: its object.
        simulation: the simulated device; None on a real one.
        device: the device's name.
    """
    gc.collect()
    on_device = 0 if simulation is None else simulation.num_live_bytes
    if simulation is None and device == "cuda":
        torch.cuda.synchronize()
        on_device = torch.cuda.memory_allocated()
    modules, counted = _modules_of(subject), set[int]()
    host: Counter[str] = Counter()
    for name, value in _names_of(backend, modules):
        host[name] += _size_of(value, modules, counted)
    return HeldMemory(device=on_device, host=host, elsewhere=_entries_elsewhere(modules))


@contextmanager
def quickly_collected() -> Iterator[None]:
    """Exclude all existing objects from garbage collections in a `with` block.

    Python has one frozen generation, which `gc.unfreeze` empties. So where it holds objects
    already, the block runs without a freeze.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _modules_of(subject: Subject) -> Mapping[str, ModuleType]:
    """Return the modules of the backend's code, by name."""
    # Lazy modules are of a subclass, and `vars` would load them.
    plain = {name: each for name, each in sorted(sys.modules.items()) if type(each) is ModuleType}
    files = {name: vars(module).get("__file__") for name, module in plain.items()}
    return {name: plain[name] for name, file in files.items() if file and subject.owns(file)}


def _names_of(backend: object, modules: Mapping[str, ModuleType]) -> Iterator[tuple[str, object]]:
    """List the attributes of the backend, its classes and modules, with their values."""
    kind = type(backend).__name__
    try:
        yield from ((f"{kind}.{name}", value) for name, value in sorted(vars(backend).items()))
    except TypeError:  # an object with `__slots__` has no `__dict__`
        yield from ((kind, value) for value in gc.get_referents(backend))
    for owner, module in modules.items():
        for name, value in sorted(vars(module).items()):
            if name == "__builtins__":
                continue
            if not isinstance(value, type):
                yield f"{owner}.{name}", value
            elif value.__module__ == owner:
                yield from ((f"{name}.{each}", held) for each, held in sorted(vars(value).items()))


def _entries_elsewhere(own: Collection[str]) -> Counter[str]:
    """Count the entries of containers that modules and classes of other packages name."""
    entries: Counter[str] = Counter()
    for owner, module in [*sys.modules.items()]:
        # The kit and the simulator keep caches of their own.
        is_ours = owner.partition(".")[0] == "backend_caps"
        if type(module) is not ModuleType or owner in own or is_ours:
            continue
        for name, value in [*vars(module).items()]:
            if _is_container(value):
                entries[f"{owner}.{name}"] = len(value)
            elif type(value) is type and value.__module__ == owner:
                for each, held in [*vars(value).items()]:
                    if _is_container(held):
                        entries[f"{owner}.{name}.{each}"] = len(held)
    return entries


def _is_container(value: object) -> TypeGuard[Sized]:
    # By the type, as proxies of other packages may load what they stand for.
    return issubclass(type(value), _CONTAINERS)


def _size_of(root: object, modules: Collection[str], counted: set[int]) -> int:
    """Sum up the sizes of the objects that are reachable from one, each counted once.

    Args:
        root: the object.
        modules: the names of modules whose instances and functions are followed.
        counted: ids of objects that were counted before; this call adds its own.
    """
    size, pending = 0, [root]
    while pending:
        value = pending.pop()
        if id(value) in counted or isinstance(value, (type, ModuleType)):
            continue
        counted.add(id(value))
        size += _OBJECT_BYTES
        if isinstance(value, _TEXTS):
            size += len(value)
        elif isinstance(value, _CONTAINERS):
            size += _ENTRY_BYTES * len(value)
        elif isinstance(value, torch.Tensor) and value.device.type == "cpu":
            size += value.untyped_storage().nbytes()
        pending.extend(_referents(value, modules))
    return size


def _referents(value: object, modules: Collection[str]) -> Iterable[object]:
    """List the objects that one references; none of objects of other packages."""
    if isinstance(value, FunctionType):  # without its globals, which reach the whole module
        return (value.__closure__, value.__defaults__, value.__kwdefaults__, vars(value))
    is_plain = isinstance(value, _CONTAINERS + _CALLABLES)
    owner = value.__module__ if isinstance(value, _CACHED) else type(value).__module__
    return gc.get_referents(value) if is_plain or owner in modules else ()


_FORWARDS = (Forward.DECODE, Forward.DRAFT_EXTEND)
"""Forwards of the case's scenario: the first supported one. Its steps decode and verify."""
_ENOUGH = 1000
"""Steps by whose half each bounded cache is full."""
_FEW, _MANY = 2, 8
"""Parts of the second half, in each of which memory has to grow. Few parts give a suspicion, many
prove it: what is kept of changing batches goes up and down."""


def _cases(subject: Subject, effort: Effort) -> Iterable[Case]:
    for scenario in islice(scenarios_of(subject, _FORWARDS), 1):
        for seed in effort.seeds[:1]:
            yield Case(check="memory", scenario=scenario, seed=seed, num_steps=effort.num_steps)


def _run(rig: Rig, case: Case) -> Iterator[Fault]:
    with quickly_collected(), rig.running(case.schedule) as simulation:
        steady = SteadyRun(rig, case.batch_scenario, case.seed)
        measure = partial(held_memory, rig.subject, steady.backend, simulation, rig.device)
        num_steps = case.num_steps
        if num_steps < _ENOUGH:
            if not any(growth(_measured(steady, measure, num_steps, _FEW))):
                return
            # A bounded cache of recent batches grows at first, too, so more steps have to decide.
            num_steps = _ENOUGH
        moments = _measured(steady, measure, num_steps, _MANY)
    yield from _faults(moments, num_steps)


def _measured(
    steady: SteadyRun, measure: Callable[[], HeldMemory], num_steps: int, num_parts: int
) -> Sequence[HeldMemory]:
    """Run up to a total of `num_steps`, and measure after each part of the second half."""
    steady.run(max(0, num_steps // 2 - steady.num_steps))
    moments = []
    for num_more in (0, *[num_steps // 2 // num_parts] * num_parts):
        steady.run(num_more)
        steady.settle()
        moments.append(measure())
    return moments


def _faults(moments: Sequence[HeldMemory], num_steps: int) -> Iterator[Fault]:
    first, last = moments[0], moments[-1]
    grown, place = growth(moments), grown_place(moments)
    most = "" if place is None else f", most of it kept by {place}"
    expected = f"by the end of {num_steps} steps{most}; what the first half of them left was enough"
    if grown.device:
        what = f"device memory grew from {first.device} to {last.device} bytes {expected}"
        yield Fault(what=what)
    elif grown.host:
        held = f"from {first.host.total()} to {last.host.total()} bytes"
        yield Fault(what=f"host memory grew {held} {expected}")
    elif grown.elsewhere:
        ((name, entries),) = _grown_elsewhere(moments).most_common(1)
        steps = f"by the end of {num_steps} steps; what the first half of them left was enough"
        yield Fault(what=f"{name}, of another package, grew by {entries} entries {steps}")


MEMORY = Check(about=CATALOG["memory"], cases=_cases, run=_run)
