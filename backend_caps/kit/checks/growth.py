"""However many steps a backend runs, it holds no more than after the first ones."""

from __future__ import annotations

import gc
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice, pairwise, starmap
from operator import lt
from types import CellType, FunctionType, MethodType, ModuleType

import torch

from backend_caps.kit import Case, Check, Effort, Fault, Forward, Rig, Subject, scenarios_of
from backend_caps.kit.check import scenario_of
from backend_caps.kit.probes.playback import SteadyRun
from backend_caps.report.check_catalog import CATALOG
from backend_caps.simulator import Simulation

_OBJECT_BYTES, _ENTRY_BYTES = 64, 16
"""What an object counts, and each entry of a container: Python's own sizes grow by leaps."""
_CONTAINERS = (list, tuple, set, frozenset, dict, deque, defaultdict, OrderedDict)
_CALLABLES = (MethodType, CellType, partial)
_TEXTS = (str, bytes, bytearray)
_CACHED = type(lru_cache(int))


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldMemory:
    """What is held at one moment."""

    device: int
    """Blocks of the simulated device, or bytes of a real one; 0 of the CPU."""
    host: Counter[str]
    """Bytes, by the attribute of the object, a class or a module that leads to them."""


def growth(moments: Sequence[HeldMemory]) -> tuple[int, int]:
    """Return what device and host hold more, each where it grew from moment to moment; else 0."""
    sizes = zip(*((own.device, own.host.total()) for own in moments), strict=True)
    device, host = (own[-1] - own[0] if all(starmap(lt, pairwise(own))) else 0 for own in sizes)
    return device, host


def grown_place(moments: Sequence[HeldMemory]) -> str | None:
    """Return what leads to the most that is more; None where nothing does."""
    more = moments[-1].host - moments[0].host
    return max(more, key=lambda name: (more[name], name)) if more else None


def held_memory(
    subject: Subject, backend: object, simulation: Simulation | None, device: str
) -> HeldMemory:
    """Measure what a backend holds, after a garbage collection. Sync: the device.

    Args:
        subject: whose modules and classes count.
        backend: the object that runs.
        simulation: the simulated device; None on a real one.
        device: where it runs.
    """
    gc.collect()
    on_device = 0 if simulation is None else simulation.num_live_blocks
    if simulation is None and device == "cuda":
        torch.cuda.synchronize()
        on_device = torch.cuda.memory_allocated()
    modules, met = _modules_of(subject), set[int]()
    host: Counter[str] = Counter()
    for name, value in _names_of(backend, modules):
        host[name] += _size_of(value, modules, met)
    return HeldMemory(device=on_device, host=host)


@contextmanager
def quickly_collected() -> Iterator[None]:
    """Leave what is there out of garbage collections, for as long as a `with` block runs.

    Python has one frozen generation: objects that are frozen already stay so, and none is added,
    since both could not be told apart afterwards.
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
    """List the modules that are the backend's own code."""
    # Lazy modules are of another type: looking at one would load it.
    plain = {name: own for name, own in sorted(sys.modules.items()) if type(own) is ModuleType}
    files = {name: vars(module).get("__file__") for name, module in plain.items()}
    return {name: plain[name] for name, file in files.items() if file and subject.owns(file)}


def _names_of(backend: object, modules: Mapping[str, ModuleType]) -> Iterator[tuple[str, object]]:
    """List all that the backend can keep something under: in itself, its classes and modules."""
    own = type(backend).__name__
    try:
        yield from ((f"{own}.{name}", value) for name, value in sorted(vars(backend).items()))
    except TypeError:  # it has slots alone
        yield from ((own, value) for value in gc.get_referents(backend))
    for owner, module in modules.items():
        for name, value in sorted(vars(module).items()):
            if name == "__builtins__":
                continue
            if not isinstance(value, type):
                yield f"{owner}.{name}", value
            elif value.__module__ == owner:
                yield from ((f"{name}.{each}", kept) for each, kept in sorted(vars(value).items()))


def _size_of(root: object, modules: Collection[str], met: set[int]) -> int:
    """Sum up sizes of what an object leads to; what was met before counts no more.

    Args:
        root: the object.
        modules: the names of those whose instances and functions are looked into.
        met: the ids of what counts no more, to which others are added.
    """
    size, left = 0, [root]
    while left:
        value = left.pop()
        if id(value) in met or isinstance(value, (type, ModuleType)):
            continue
        met.add(id(value))
        size += _OBJECT_BYTES
        if isinstance(value, _TEXTS):
            size += len(value)
        elif isinstance(value, _CONTAINERS):
            size += _ENTRY_BYTES * len(value)
        left.extend(_within(value, modules))
    return size


def _within(value: object, modules: Collection[str]) -> Iterable[object]:
    """List what an object leads to; nothing where it is neither plain nor the backend's."""
    if isinstance(value, FunctionType):  # never its globals
        return (value.__closure__, value.__defaults__, value.__kwdefaults__, vars(value))
    is_plain = isinstance(value, _CONTAINERS + _CALLABLES)
    owner = value.__module__ if isinstance(value, _CACHED) else type(value).__module__
    return gc.get_referents(value) if is_plain or owner in modules else ()


_FORWARDS = (Forward.DECODE, Forward.DRAFT_EXTEND)
"""The first that is taken names the case; its steps decode and verify."""
_ENOUGH = 1000
"""Steps by whose half all is full that has a bound."""
_FEW, _MANY = 2, 8
"""Parts of the second half, each of which has to leave more: few raise a suspicion, many show it,
as what is kept of changing batches is now more and now less."""


def _cases(subject: Subject, effort: Effort) -> Iterable[Case]:
    for scenario in islice(scenarios_of(subject, _FORWARDS), 1):
        for seed in effort.seeds[:1]:
            yield Case(check="memory", scenario=scenario, seed=seed, num_steps=effort.num_steps)


def _run(rig: Rig, case: Case) -> Iterator[Fault]:
    with quickly_collected(), rig.running(case.schedule) as simulation:
        steady = SteadyRun(rig, scenario_of(case), case.seed)
        measure = partial(held_memory, rig.subject, steady.backend, simulation, rig.device)
        num_steps = case.num_steps
        if num_steps < _ENOUGH:
            if not any(growth(_measured(steady, measure, num_steps, _FEW))):
                return
            # What is kept for the latest batches grows at first, too.
            num_steps = _ENOUGH
        moments = _measured(steady, measure, num_steps, _MANY)
    yield from _faults(moments, num_steps, rig.device)


def _measured(
    steady: SteadyRun, measure: Callable[[], HeldMemory], num_steps: int, num_parts: int
) -> Sequence[HeldMemory]:
    """Run so many steps in all, and measure several times in the second half."""
    steady.run(max(0, num_steps // 2 - steady.num_steps))
    moments = []
    for num_more in (0, *[num_steps // 2 // num_parts] * num_parts):
        steady.run(num_more)
        steady.settle()
        moments.append(measure())
    return moments


def _faults(moments: Sequence[HeldMemory], num_steps: int, device: str) -> Iterator[Fault]:
    first, last = moments[0], moments[-1]
    (of_device, of_host), place = growth(moments), grown_place(moments)
    most = "" if place is None else f", most of it kept by {place}"
    expected = f"by the end of {num_steps} steps{most}; what the first half of them left was enough"
    if of_device:
        unit = "bytes" if device == "cuda" else "blocks"
        what = f"device memory grew from {first.device} to {last.device} {unit} {expected}"
        yield Fault(what=what)
    elif of_host:
        held = f"from {first.host.total()} to {last.host.total()} bytes"
        yield Fault(what=f"host memory grew {held} {expected}")


MEMORY = Check(about=CATALOG["memory"], cases=_cases, run=_run)
