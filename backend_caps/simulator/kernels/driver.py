"""The simulated device as a driver of Triton, which is how Triton takes devices of others.

Triton's own code does what it does for a GPU: it binds arguments, tunes, compiles and caches. The
compiler ends at the tensor IR, and a launch puts the run of that on the current stream.

There are no times on this device, so of the configurations that a kernel is to be tuned over, the
first that is left after pruning is taken, and none is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from pathlib import Path
from types import ModuleType
from typing import Protocol, cast

import torch
import triton  # type: ignore[import-untyped] # Triton ships no types
from torch import Tensor
from triton.backends import Backend, backends  # type: ignore[import-untyped] # as above
from triton.backends.compiler import GPUTarget, Language  # type: ignore[import-untyped] # as above
from triton.backends.driver import DriverBase  # type: ignore[import-untyped] # as above
from triton.backends.nvidia.compiler import CUDABackend  # type: ignore[import-untyped] # as above
from triton.compiler import ASTSource  # type: ignore[import-untyped] # as above
from triton.runtime.driver import driver  # type: ignore[import-untyped] # as above
from triton.runtime.interpreter import InterpretedFunction  # type: ignore[import-untyped] # as above
from triton.runtime.jit import TensorWrapper  # type: ignore[import-untyped] # as above
from triton.tools.tensor_descriptor import TensorDescriptor  # type: ignore[import-untyped] # as above

from backend_caps.simulator.allocation import PinnedMemory, Segment, segment_at
from backend_caps.simulator.kernels.errors import KernelTextError, refuse_kernel
from backend_caps.simulator.kernels.frames import Grid
from backend_caps.simulator.kernels.locations import moved
from backend_caps.simulator.kernels.memory import Find, Memory
from backend_caps.simulator.kernels.programs import Kernel
from backend_caps.simulator.queues import NO_BLOCKS, Blocks, FoundBlocks, Op
from backend_caps.simulator.simulation import Simulation, current
from backend_caps.simulator.tensor import SimTensor
from backend_caps.simulator.trace_function import untraced

_NAME = "sim"
_ARCHITECTURE = 90
"""Kernels and compiler take the device for one with Hopper's types."""
_LIBRARY = str(Path(triton.__file__).parent)
_MOST_THREADS = 1024
_NO_MEMORY = Segment(torch.empty(0, dtype=torch.uint8), 0, None)
_SHARED_BYTES = 232448
"""What a program may have of shared memory on an H100; nothing is allocated here."""


class SimBackend(CUDABackend):  # type: ignore[misc] # its base has no types
    """Triton's compiler for CUDA up to the tensor IR, which has nothing of a device yet."""

    def __init__(self, target: GPUTarget) -> None:
        super().__init__(target)
        self.binary_ext = "ttir"

    @staticmethod
    def supports_target(target: GPUTarget) -> bool:
        """Return whether a target is the simulated device."""
        return bool(target.backend == _NAME)

    def hash(self) -> str:
        """Name what compiles, for the cache on disk."""
        return f"{triton.__version__}-{_NAME}-{_ARCHITECTURE}"

    def add_stages(self, stages: dict[str, object], options: object, language: Language) -> None:
        """Add the only stage."""
        if language is not Language.TRITON:
            refuse_kernel(str(language), "only kernels of triton.jit do; Gluon's are for one GPU")

        def lower(module: object, metadata: dict[str, object]) -> object:
            # An older GPU's compiler makes pointers of tensor descriptors.
            lowered = CUDABackend.make_ttir(module, metadata, options, 80)
            metadata["name"] = lowered.get_entry_func_name()
            metadata["shared"] = 0
            return lowered

        stages["ttir"] = lower

    def pack_metadata(self, metadata: object) -> None:
        """Return nothing: a launch needs none."""


class _Benchmarker(Protocol):
    """Measures a call, in milliseconds."""

    def __call__(
        self, call: Callable[[], object], *, quantiles: Sequence[float]
    ) -> Sequence[float]:
        """Return the `quantiles` of its times."""


def equal_times(call: Callable[[], object], *, quantiles: Sequence[float]) -> list[float]:
    """Return the same time for every call, and make none."""
    del call
    return [1.0] * len(quantiles)


class SimLauncher:
    """Launches a compiled kernel.

    Args:
        src: what it was compiled from.
        metadata: what the compiler says of it.
    """

    def __init__(self, src: ASTSource, metadata: object) -> None:
        del metadata
        self._types = tuple(src.signature.values())
        self._file = src.fn.fn.__code__.co_filename
        self._kernel: Kernel | None = None

    def __call__(
        self,
        x: int,
        y: int,
        z: int,
        stream: int,
        compiled: tuple[str, bytes],
        packed: None,
        metadata: object,
        enter: Callable[[object], object] | None,
        leave: Callable[[object], object] | None,
        *args: object,
    ) -> None:
        """Put the run of a grid of programs on the current stream."""
        del stream, packed
        if x * y * z <= 0:
            return
        if enter is not None:
            enter(metadata)
        given: list[object] = []
        for kind, value in zip(self._types, args, strict=True):
            _flatten(kind, value, given)
        if self._kernel is None:
            self._kernel = _read(*compiled, self._file)
        self.launch(self._kernel, given, (x, y, z))
        if leave is not None:
            leave(metadata)

    def launch(self, kernel: Kernel, given: Sequence[object], grid: Grid) -> None:
        """Launch a kernel with what it takes."""
        launch(kernel, given, grid)


def _read(name: str, text: bytes, file: str) -> Kernel:
    """Make compiled IR ready to run; the kernel's file may have moved since."""
    try:
        return Kernel.read(moved(text.decode(), file), name, (_LIBRARY,))
    except KernelTextError as error:
        refuse_kernel(name, f"it has {error}, which is not known here")


def _flatten(kind: object, value: object, given: list[object]) -> None:
    """Append what the compiled kernel takes for an argument: nothing for what is compiled in."""
    if kind == "constexpr":
        return
    if isinstance(kind, tuple):
        assert isinstance(value, tuple), f"{value!r} for {kind}"
        for own, entry in zip(kind, value, strict=True):
            _flatten(own, entry, given)
    elif isinstance(value, TensorWrapper):
        given.append(value.base)
    elif isinstance(value, TensorDescriptor):
        shape = (*value.shape, *value.strides)
        given += [value.base, *shape, value.padding == "nan", value.round_f32_to_tf32, *shape]
    else:
        given.append(value)


def _nowhere(address: int, verb: str) -> Segment | None:
    raise AssertionError(f"{verb} at {address:#x}, by a kernel that reads no address from memory")


def launch(kernel: Kernel, given: Sequence[object], grid: Grid) -> None:
    """Put a kernel on the current stream.

    Args:
        kernel: the kernel.
        given: its arguments; tensors lie on the device, or in pinned memory of the host.
        grid: the programs along each axis.

    Raises:
        SimulatorError: a tensor is in pageable memory of the host.
    """
    simulation = current()
    segments: dict[int, Segment] = {}
    values: list[object] = []
    for number, value in zip(kernel.function.arguments, given, strict=True):
        if isinstance(value, Tensor):
            segments[number], address = _pointed(kernel, number, value, simulation)
            values.append(address)
        else:
            values.append(value)
    reads = writes = NO_BLOCKS
    if simulation.detector.is_on:
        reads, writes = (_blocks(kernel, verb, segments) for verb in ("reads", "writes"))
    work: Callable[..., None] = partial(run_on_segments, kernel, values, grid, segments)
    if kernel.finds_memory:
        work = partial(_search, work, simulation.pinned)
    op = Op(kernel.function.name, work, reads, writes, finds_blocks=kernel.finds_memory)
    simulation.launch(op)


def _pointed(
    kernel: Kernel, number: int, tensor: Tensor, simulation: Simulation
) -> tuple[Segment, int]:
    """Return a tensor's memory, and the address of its first element."""
    if isinstance(tensor, SimTensor):
        segment = tensor.lease.block.segment
        assert segment is not None, "a leased block has a segment"
        return segment, tensor.raw.data_ptr()
    pinned = simulation.pinned.segment(tensor)
    if pinned is None and tensor.numel():
        name = kernel.function.names[number]
        refuse_kernel(
            kernel.function.name,
            f"argument {name!r} is a tensor in pageable memory of the host; copy it to 'sim' first",
        )
    return pinned or _NO_MEMORY, tensor.data_ptr()


def _blocks(kernel: Kernel, verb: str, segments: Mapping[int, Segment]) -> Blocks:
    """Return the blocks that a kernel reads, or writes, by the pointers that it was given."""
    serials = (segments[each].serial for each in kernel.accessed[verb] if each in segments)
    return frozenset(serial for serial in serials if serial is not None)


@untraced
def run_on_segments(
    kernel: Kernel,
    values: Sequence[object],
    grid: Grid,
    segments: Mapping[int, Segment],
    find: Find = _nowhere,
) -> None:
    """Run a kernel, at once.

    Args:
        kernel: the kernel.
        values: its arguments; a pointer is an address.
        grid: the programs along each axis.
        segments: what the pointers point to, by the arguments' values in the function.
        find: looks up an address that the kernel reads from memory.
    """
    function = kernel.function
    arguments = [
        _number(value, function.kinds[number].held)
        for number, value in zip(function.arguments, values, strict=True)
    ]
    kernel.run(arguments, grid, Memory(segments, function.names, find))


def _search(run: Callable[[Find], None], pinned: PinnedMemory, found: FoundBlocks) -> None:
    """Run a kernel that reads addresses from memory, and note which blocks they are in."""

    def find(address: int, verb: str) -> Segment | None:
        segment = segment_at(address, found.launched_at) or pinned.segment_at(address)
        if segment is not None and segment.serial is not None:
            (found.writes if verb == "writes" else found.reads).add(segment.serial)
        return segment

    try:
        run(find)
    finally:
        found.is_complete = True


def _number(value: object, dtype: torch.dtype) -> Tensor:
    """Return an argument as a value of all programs; one without a sign has its bits."""
    assert isinstance(value, int | float), f"an argument {value!r}"
    if isinstance(value, int) and not isinstance(value, bool) and not dtype.is_floating_point:
        bits = 8 * dtype.itemsize
        value = (value + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))
    if dtype.is_floating_point:  # what lies beyond a narrower type is infinite
        return torch.full((1,), value, dtype=torch.float64).to(dtype)
    return torch.full((1,), value, dtype=dtype)


class SimUtilities:
    """What Triton calls of a driver's own library."""

    @staticmethod
    def get_device_properties(device: object) -> dict[str, int]:
        """Return what kernels ask of a device: an H100's numbers."""
        del device
        return {
            "max_shared_mem": _SHARED_BYTES,
            "max_num_regs": 65536,
            "multiprocessor_count": 132,
            "warpSize": 32,
            "sm_clock_rate": 1_980_000,
            "mem_clock_rate": 2_619_000,
            "mem_bus_width": 5120,
        }

    @staticmethod
    def load_binary(
        name: str, text: bytes, shared: int, device: object
    ) -> tuple[bytes, tuple[str, bytes], int, int, int]:
        """Keep a kernel's IR, which its launcher reads; its registers are not counted."""
        del shared, device
        return text, (name, text), 0, 0, _MOST_THREADS


class SimDriver(DriverBase):  # type: ignore[misc] # its base has no types
    """The simulated device, as Triton sees devices."""

    launcher_cls = SimLauncher
    utils = SimUtilities

    @classmethod
    def is_active(cls) -> bool:
        """Return whether Triton takes it by itself: where there is no GPU."""
        return not torch.cuda.is_available()

    def get_current_device(self) -> str:
        """Return what kernels are kept by: no number, as a GPU's may be used in one process."""
        return _NAME

    def set_current_device(self, device: object) -> None:
        """Accept the only device."""

    def get_current_stream(self, device: object = None) -> int:
        """Return the handle of the current stream."""
        del device
        return current().current_stream

    def get_current_target(self) -> GPUTarget:
        """Return what is compiled for."""
        return GPUTarget(_NAME, _ARCHITECTURE, 32)

    def get_active_torch_device(self) -> torch.device:
        """Return the device as torch knows it."""
        return torch.device(_NAME, 0)

    def get_device_interface(self) -> ModuleType:
        """Return the device's module, with its events."""
        return cast("ModuleType", torch.get_device_module(_NAME))

    def get_benchmarker(self) -> _Benchmarker:
        """Return what tuning measures by, where the kernel brings nothing."""
        return equal_times

    def get_empty_cache_for_benchmark(self) -> Tensor:
        """Return memory for `clear_cache`, of which the device has none."""
        return torch.empty(0, device=_NAME)

    def clear_cache(self, cache: Tensor) -> None:
        """Do nothing."""

    def map_python_to_cpp_type(self, ty: str) -> str:
        """Refuse: no launcher is compiled.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(f"no C++ type for {ty}: kernels are not launched from C++")


def install() -> None:
    """Let Triton compile for the simulated device, and launch on it where there is no GPU."""
    backends.setdefault(_NAME, Backend(SimBackend, SimDriver))
    InterpretedFunction.run = _run_on_host(InterpretedFunction.run)


def _run_on_host(run: Callable[..., object]) -> Callable[..., object]:
    """Make a run by Triton's interpreter refuse tensors of the device, which have no storage."""

    @wraps(run)
    def run_on_host(function: InterpretedFunction, *args: object, **kwargs: object) -> object:
        if any(isinstance(value, SimTensor) for value in (*args, *kwargs.values())):
            reason = "Triton was told to interpret kernels, on tensors of the host alone"
            refuse_kernel(function.__name__, f"{reason}; unset TRITON_INTERPRET")
        return run(function, *args, **kwargs)

    return run_on_host


@contextmanager
def launched_by(own: DriverBase) -> Iterator[None]:
    """Launch kernels by a driver within a `with` block."""
    before = driver._active  # noqa: SLF001 - `active` would make one
    driver.set_active(own)
    try:
        yield
    finally:
        driver.set_active(before)
