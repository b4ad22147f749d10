"""What a backend holds: memory of the device, and what its own names lead to on the host."""

from __future__ import annotations

import gc
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from types import CellType, FunctionType, MethodType, ModuleType

import torch

from backend_caps.kit.subject import Subject
from backend_caps.simulator import Simulation

_OBJECT_BYTES, _ENTRY_BYTES = 64, 16
"""What an object counts, and each entry of a container: Python's own sizes grow by leaps."""
_CONTAINERS = (list, tuple, set, frozenset, dict, deque, defaultdict, OrderedDict)
_CALLABLES = (MethodType, CellType, partial)
_TEXTS = (str, bytes, bytearray)
_CACHED = type(lru_cache(int))


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What is held at one moment."""

    device: int
    """Blocks of the simulated device, or bytes of a real one; 0 of the CPU."""
    host: Counter[str]
    """Bytes, by the attribute of the object, a class or a module that leads to them."""


@dataclass(frozen=True, slots=True)
class Growth:
    """What was held at some moments, each as many steps behind the one before."""

    moments: Sequence[Held]

    @property
    def of_device(self) -> int:
        """What the device holds more, where it grew from each moment to the next; else 0."""
        return _steady([own.device for own in self.moments])

    @property
    def of_host(self) -> int:
        """Bytes that the host holds more, where it grew from each moment to the next; else 0."""
        return _steady([own.host.total() for own in self.moments])

    @property
    def place(self) -> str | None:
        """What leads to the most that is more; None where nothing does."""
        more = self.moments[-1].host - self.moments[0].host
        return max(more, key=lambda name: (more[name], name)) if more else None


def _steady(sizes: Sequence[int]) -> int:
    grew = all(later > earlier for earlier, later in pairwise(sizes))
    return sizes[-1] - sizes[0] if grew else 0


class Gauge:
    """Measure what a backend holds.

    Args:
        subject: whose modules and classes count.
        backend: the object that runs.
        simulation: the simulated device; None on a real one.
        device: where it runs.
    """

    def __init__(
        self, subject: Subject, backend: object, simulation: Simulation | None, device: str
    ) -> None:
        self._subject, self._backend = subject, backend
        self._simulation = simulation
        self._has_gpu = device == "cuda"

    def read(self) -> Held:
        """Say what is held now; what nobody refers to is freed first. Sync: the device."""
        gc.collect()
        return Held(device=self._of_device(), host=self._of_host())

    def _of_device(self) -> int:
        if self._simulation is not None:
            return self._simulation.num_live_blocks
        if not self._has_gpu:
            return 0
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()

    def _of_host(self) -> Counter[str]:
        modules = _modules_of(self._subject)
        walk = _Walk(frozenset(modules))
        held: Counter[str] = Counter()
        for name, value in _names_of(self._backend, modules):
            held[name] += walk.size_of(value)
        return held


@contextmanager
def quickly_collected() -> Iterator[None]:
    """Leave what is there out of garbage collections, for as long as a `with` block runs.

    Python has one frozen generation: where somebody left objects out before, they stay out, and
    nothing is added to them, for they could not be told apart afterwards.
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
    # Of another type are those that load what they stand for as soon as they are looked at.
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


def _size_of(value: object) -> int:
    """Say what an object counts itself."""
    if isinstance(value, _TEXTS):
        return _OBJECT_BYTES + len(value)
    return _OBJECT_BYTES + (_ENTRY_BYTES * len(value) if isinstance(value, _CONTAINERS) else 0)


class _Walk:
    """Sum up sizes of what names lead to; what was met before counts no more.

    Args:
        modules: the names of those whose instances and functions are looked into.
    """

    def __init__(self, modules: frozenset[str]) -> None:
        self._modules = modules
        self._met: set[int] = set()

    def size_of(self, root: object) -> int:
        """Sum up what has not been met."""
        size, left = 0, [root]
        while left:
            value = left.pop()
            if id(value) in self._met or isinstance(value, (type, ModuleType)):
                continue
            self._met.add(id(value))
            size += _size_of(value)
            left.extend(self._within(value))
        return size

    def _within(self, value: object) -> Iterable[object]:
        """List what an object leads to; nothing where it is neither plain nor the backend's."""
        if isinstance(value, FunctionType):  # never its globals
            return (value.__closure__, value.__defaults__, value.__kwdefaults__, vars(value))
        is_cache = isinstance(value, _CACHED) and value.__module__ in self._modules
        if is_cache or isinstance(value, _CONTAINERS + _CALLABLES):
            return gc.get_referents(value)
        return gc.get_referents(value) if type(value).__module__ in self._modules else ()
