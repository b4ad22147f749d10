"""The device `sim` as torch knows it, the host beside it, and `simulate`, which runs both.

torch's way to a Python device is experimental: only this file uses it.

Of the host's accesses only those to pinned memory matter, which device work reads and writes when
it runs. A dispatch mode intercepts operators; `tolist` and `numpy` read memory without an operator,
so they are replaced while a simulation runs. Reads through a numpy view that was made before are
not detected.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, partial, wraps
from types import ModuleType
from typing import cast

import torch
from torch import Tensor
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from backend_caps.simulator import streams
from backend_caps.simulator.dispatch import KERNELS, device_type, dispatch, is_composite
from backend_caps.simulator.errors import SimulatorError, StarvationWarning, call_site
from backend_caps.simulator.kernels import import_hook
from backend_caps.simulator.operators import WHOLE, Call, Effect, blocks_of, operator_of
from backend_caps.simulator.queues import NO_BLOCKS, Blocks, Schedule
from backend_caps.simulator.records import HOST
from backend_caps.simulator.simulation import DEVICE, Simulation, current
from backend_caps.simulator.tensor import AnyOperator, Args, Kwargs, SimTensor, aten
from backend_caps.simulator.trace_function import untraced

DEVICE_NAME = "sim"
"""What torch calls the device."""


class SimModule(ModuleType):
    """The module `torch.get_device_module("sim")`: the part of `torch.cuda` that engines use."""

    @property
    def synchronize(self) -> Callable[..., None]:
        """A host wait for all work of the simulation that runs when the attribute is read.

        It is bound early for finalizers: an engine in a reference cycle is finalized by the garbage
        collector, when another simulation may run.
        """
        return partial(streams.synchronize, of=current())

    @staticmethod
    def is_available() -> bool:
        """Return True."""
        return True

    is_initialized = is_available

    @staticmethod
    def device_count() -> int:
        """Return 1: there is one device."""
        return 1

    @staticmethod
    def current_device() -> int:
        """Return 0: there is one device."""
        return 0

    @staticmethod
    def set_device(device: streams.DeviceLike) -> None:
        """Accept the only device."""
        assert device in {0, DEVICE_NAME, torch.device(DEVICE_NAME), torch.device(DEVICE_NAME, 0)}

    @classmethod
    @contextmanager
    def device(cls, device: streams.DeviceLike) -> Iterator[None]:
        """Work on the only device within a `with` block, as ever."""
        cls.set_device(device)
        yield

    @staticmethod
    def manual_seed_all(seed: int) -> None:
        """Do nothing: random numbers come from the host's generator."""

    @staticmethod
    def get_rng_state(device: streams.DeviceLike = 0) -> Tensor:  # noqa: ARG004 - there is one
        """Return the state of the host's generator, for `torch.random.fork_rng`."""
        return torch.get_rng_state()

    @staticmethod
    def set_rng_state(state: Tensor, device: streams.DeviceLike = 0) -> None:  # noqa: ARG004
        """Set the state of the host's generator."""
        torch.set_rng_state(state)

    @staticmethod
    def _is_in_bad_fork() -> bool:
        return False


def is_simulated(device: str) -> bool:
    """Return whether a device's name is the simulated one's; torch may not know it yet."""
    return device.partition(":")[0] == DEVICE_NAME


@cache
def register() -> torch.device:
    """Make torch know the device `sim`, once in a process, and return it.

    Torch then takes it for the accelerator of the process, and no pinned memory of a CUDA device
    is known as pinned any more: register it only where it is run on.

    Raises:
        RuntimeError: torch's, where another device has the name of PrivateUse1 already.
    """
    module = SimModule(f"torch.{DEVICE_NAME}")
    for name, own in vars(streams).items():
        if getattr(own, "__module__", None) == streams.__name__ and own is not streams.synchronize:
            setattr(module, name, own)
    _setup_privateuseone_for_python_backend(DEVICE_NAME, module)
    SimTensor.dispatch = dispatch
    for name, kernel in KERNELS.items():
        torch.library.impl(name, "PrivateUse1", kernel, lib=_library())
    import_hook.install()
    for func in WHOLE:  # which autograd would take apart
        whole = partial(_dispatched, func)
        torch.library.impl(operator_of(func).name, "AutogradPrivateUse1", whole, lib=_library())
    return torch.device(DEVICE_NAME, 0)


@untraced
def _dispatched(func: AnyOperator, *args: object, **kwargs: object) -> object:
    return dispatch(func, args, kwargs)


@cache
def _library() -> torch.library.Library:
    """Return the library of the kernels; they end when it is deleted."""
    return torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]


Method = Callable[..., object]


class HostMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Intercept every operator: provide pinned memory, and record the host's accesses to it."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep torch from wrapping the dispatch: that would import dynamo, which takes 3 s."""
        return False

    @untraced
    def __torch_dispatch__(
        self,
        func: AnyOperator,
        types: Sequence[type],
        args: Args = (),
        kwargs: Kwargs | None = None,
    ) -> object:
        """Run an operator of the host, or of the device."""
        kwargs, pinned = kwargs or {}, current().pinned
        if SimTensor in types:
            if not is_composite(func):
                return dispatch(func, args, kwargs)
            with self:
                return dispatch(func, args, kwargs)
        if func in _PINS:
            return pinned.copy(cast("Tensor", args[0]))
        if func is aten.is_pinned.default:
            return pinned.has(cast("Tensor", args[0]))
        if device_type(kwargs) == DEVICE_NAME and _is_composed(func):
            with self:
                return func._op_dk(_COMPOSED, *args, **kwargs)  # noqa: SLF001 - as `decompose` does
        if kwargs.get("pin_memory"):
            made = cast("Tensor", func(*args, **{**kwargs, "pin_memory": False}))
            # Uninitialized memory stays poisoned, so that a read before a write is found.
            is_empty = func.overloadpacket in _EMPTY
            return pinned.empty(made.shape, made.dtype) if is_empty else pinned.copy(made)
        operator = operator_of(func)
        if operator.effect is Effect.COMPOSITE:
            with self:
                return func.decompose(*args, **kwargs)
        if operator.effect is not Effect.VIEW and device_type(kwargs) in {None, "cpu"}:
            accesses = Call(operator, args, kwargs).accesses()
            note_host_access(operator.name, *accesses)
        return func(*args, **kwargs)


_COMPOSED = torch._C.DispatchKey.CompositeExplicitAutograd  # noqa: SLF001
_PINS: tuple[AnyOperator, ...] = (aten.pin_memory.default, aten._pin_memory.default)  # noqa: SLF001
_EMPTY = (aten.empty, aten.empty_strided, aten.empty_like, aten.new_empty)


@cache
def _is_composed(func: AnyOperator) -> bool:
    """Return whether torch makes a tensor of the device by other operators, such as a copy to it.

    The mode intercepts these too: where torch dispatches on a tensor's class instead, it imports
    DTensor, which takes a second.
    """
    private_use = torch._C.DispatchKey.PrivateUse1  # noqa: SLF001
    has = func.has_kernel_for_dispatch_key
    return has(_COMPOSED) and not has(private_use)


def note_host_access(name: str, reads: Blocks, writes: Blocks) -> None:
    """Pass the host's reads and writes to the race detector."""
    if reads or writes:
        current().detector.launch(HOST, name, call_site(), reads, writes)


@contextmanager
def watched_host() -> Iterator[None]:
    """Record the host's accesses to pinned memory within a `with` block."""
    # Torch notes once which functions take the device of a `with torch.device(...)` block: had it
    # noted the replaced `torch.tensor`, the block would never reach torch's own again.
    _device_constructors()
    with ExitStack() as replaced:
        for name in ("tolist", "numpy", "__array__"):
            method = cast("Method", getattr(torch.Tensor, name))
            replacement = _reader(name, method)
            replaced.enter_context(_replaced(torch.Tensor, name, replacement))
        replaced.enter_context(_replaced(torch, "tensor", _tensor_maker(torch.tensor)))
        replaced.enter_context(HostMode())  # type: ignore[no-untyped-call]
        yield


@contextmanager
def _replaced(owner: object, name: str, replacement: Method) -> Iterator[None]:
    """Replace an attribute, and restore it afterwards, also where it was inherited."""
    before = vars(owner).get(name)
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        if before is None:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


def _reader(name: str, original: Method) -> Method:
    """Wrap a method so that it records its read."""

    @wraps(original)
    def read(self: Tensor, *args: object, **kwargs: object) -> object:
        note_host_access(f"Tensor.{name}", blocks_of(self), NO_BLOCKS)
        return original(self, *args, **kwargs)

    return read


def _tensor_maker(original: Method) -> Method:
    """Make a `torch.tensor` that can pin: torch's pins without an operator for the mode."""

    @wraps(original)
    def tensor(data: object, *, pin_memory: bool = False, **options: object) -> object:
        created = original(data, **options)
        return current().pinned.copy(cast("Tensor", created)) if pin_memory else created

    return tensor


@contextmanager
def simulate(
    schedule: Schedule | str = "eager", *, check_races: bool = False
) -> Iterator[Simulation]:
    """Run device work in the order of a schedule, and collect the findings.

    Pinned memory exists only within the block, and only the calling thread is watched, because
    torch's modes are thread-local. Earlier tensors keep their values. At the end all launched work
    runs. An exception gets a note that names the schedule, so that the run can be repeated; work
    that has not run by then is dropped, and a later wait for an event of that run returns at once.

    Where no stream has the number that the schedule starves, the run was an eager one, and gives a
    StarvationWarning. It is no error: the findings hold, and one list of schedules may be used for
    programs with different numbers of streams.

    Args:
        schedule: the order, or the word that `str` gives for it.
        check_races: look for races by torch's stream sanitizer; freed memory is then not reused.

    Raises:
        SimulatorError: another simulation runs.
        SimDeviceError: work failed when it ran at the end.
    """
    register()
    order = Schedule.parse(schedule) if isinstance(schedule, str) else schedule
    if DEVICE.simulation is not DEVICE.default:
        raise SimulatorError(
            "nested-simulation",
            f"simulate({order}) was entered while simulate({DEVICE.simulation.schedule}) runs; one "
            f"at a time was expected, there being one device. Leave the first one before.",
        )
    DEVICE.default.drain()
    simulation = DEVICE.simulation = Simulation(order, check_races=check_races)
    try:
        with watched_host(), import_hook.launched_on_device():
            yield simulation
            simulation.drain()
    except BaseException as error:
        error.add_note(f"schedule {order}: replay by simulate({str(order)!r})")
        raise
    else:
        _require_starved(simulation)
    finally:
        simulation.close()
        DEVICE.simulation = DEVICE.default


def _require_starved(simulation: Simulation) -> None:
    """Warn where the run has no stream with the number to starve."""
    starved, streams = simulation.schedule.starved, sorted(simulation.engine.queues)
    if starved is not None and starved not in streams:
        message = (
            f"schedule {simulation.schedule} starved no stream; the number of one that the run has "
            f"was expected: {', '.join(map(str, streams))}. Starve one of these, or run it eager, "
            f"which is the same order."
        )
        # The caller's `with` block: below it are contextlib and the function above.
        warnings.warn(message, StarvationWarning, stacklevel=4)
