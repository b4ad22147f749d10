"""How calls of torch's operators become work of the device.

A call is brought down to raw memory. Views are taken at once, since they touch no data. Everything
else is put on the current stream as work on raw tensors, which keeps no block from being freed.
What results look like is kept, by operator and the arguments' metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import NoReturn, cast

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from backend_caps.simulator.allocation import Lease
from backend_caps.simulator.errors import SimulatorError, call_site
from backend_caps.simulator.queues import NO_BLOCKS, Blocks, Op, no_dispatch
from backend_caps.simulator.simulation import current
from backend_caps.simulator.tensor import (
    AnyOperator,
    Args,
    Kwargs,
    Metadata,
    Operator,
    SimTensor,
    allocate,
    aten,
    wrap,
)

Results = tuple[Metadata | None, ...]
_PLACES = frozenset({"device", "layout", "pin_memory", "non_blocking"})
_MOST_KEPT = 20_000
_SMALL = 1 << 20
"""Bytes of arguments with which computing takes less time than torch's meta kernels."""
# In the order of its shape on the meta device; in that of its query on the CPU.
_IN_ORDER: tuple[AnyOperator, ...] = (aten.scaled_dot_product_attention.default,)
_kept: dict[Hashable, tuple[type, Results]] = {}
"""What results look like, by the key of a lowered call."""


@dataclass(slots=True)
class Call:
    """A call of an operator, on tensors of the device or lowered to raw memory."""

    operator: Operator
    """What is called."""
    args: Args
    """The arguments in order."""
    kwargs: Kwargs
    """The arguments by name."""
    key: Hashable = None
    """What the results' metadata depend on; set where the call is lowered."""

    def run(self) -> object:
        """Make the call."""
        return self.operator.func(*self.args, **self.kwargs)

    def argument(self, name: str) -> object:
        """Return the argument that the schema has under a name."""
        place = self.operator.positions[name]
        return self.args[place] if place < len(self.args) else self.kwargs[name]

    def without_place(self) -> Call:
        """Drop the options that say where a result is made."""
        kept = {name: value for name, value in self.kwargs.items() if name not in _PLACES}
        return replace(self, kwargs=kept)

    def lowered(self) -> Call:
        """Replace the device's tensors by their raw memory."""
        key: list[Hashable] = [self.operator.func]
        args = _lower(self.operator, self.args, key)
        named: dict[str, object] = {}
        for name, value in self.kwargs.items():
            key.append(name)
            (named[name],) = _lower(self.operator, (value,), key)
        if self.operator.is_random:
            generator = self.kwargs.get("generator")
            named["generator"] = _seeded(cast("torch.Generator | None", generator))
        return Call(self.operator, args, named, tuple(key))

    def results(self) -> tuple[type, Results]:
        """Return what the results of a lowered call come in, and the metadata of each."""
        kept = _kept.get(self.key)
        if kept is None:
            if len(_kept) >= _MOST_KEPT:
                _kept.clear()
            kept = _kept[self.key] = _described(self._tried())
        return kept

    def _tried(self) -> object:
        """Run a lowered call on zeros, or on torch's meta device, for what its results look like.

        Most of torch's meta kernels are Python: the first one imports dynamo, which takes a second,
        and each takes some twenty times as long as the work itself on tensors as small as those of
        cases.
        """
        func = self.operator.func
        if self.operator.is_cheap and self._num_bytes <= _SMALL:
            with suppress(RuntimeError, IndexError), no_dispatch(), _unseeded(func):
                result = self._on_zeros("cpu")
                return cast("Tensor", result).contiguous() if func in _IN_ORDER else result
        try:
            return self._on_zeros("meta")
        except NotImplementedError:
            return self._on_zeros("cpu")

    @property
    def _num_bytes(self) -> int:
        """What tensors among the arguments take."""
        leaves = tree_leaves((self.args, self.kwargs))
        return sum(own.nbytes for own in leaves if isinstance(own, Tensor))

    def _on_zeros(self, device: str) -> object:
        """Make the call on a device, with zeros of the same shapes in place of tensors."""

        def zeros(tensor: Tensor) -> Tensor:
            size, stride, dtype = tensor.shape, tensor.stride(), tensor.dtype
            return torch.empty_strided(size, stride, dtype=dtype, device=device).zero_()

        args: Args = tree_map_only(Tensor, zeros, self.args)
        kwargs: Kwargs = tree_map_only(Tensor, zeros, self.kwargs)
        return self.operator.func(*args, **kwargs)

    def result(self) -> Metadata:
        """Return the metadata of the call's one result, without launching it."""
        _, (result,) = self.lowered().results()
        assert result is not None, f"{self.operator.name} returns a tensor"
        return result

    def accesses(self) -> tuple[Blocks, Blocks]:
        """Return the blocks that it reads and writes; none where races are not looked for."""
        if not current().detector.is_on:
            return NO_BLOCKS, NO_BLOCKS
        reads: set[int] = set()
        writes: set[int] = set()
        named = zip(self.operator.positions, self.args, strict=False)
        for name, value in (*named, *self.kwargs.items()):
            (writes if name in self.operator.written else reads).update(blocks_of(value))
        return frozenset(reads - writes), frozenset(writes)


def _unseeded(func: AnyOperator) -> AbstractContextManager[None]:
    """Leave the host's generator as it is, where an operator may draw from it."""
    is_random = torch.Tag.nondeterministic_seeded in func.tags
    return torch.random.fork_rng(devices=()) if is_random else nullcontext()


def _described(result: object) -> tuple[type, Results]:
    """Return what an operator's results come in, and the metadata of each."""
    if isinstance(result, Tensor):
        return Tensor, (Metadata.of(result),)
    if isinstance(result, list | tuple):
        entries = (Metadata.of(entry) if isinstance(entry, Tensor) else None for entry in result)
        return type(result), tuple(entries)
    return type(result), ()


def _lower(operator: Operator, values: Args, key: list[Hashable]) -> list[object]:
    lowered: list[object] = []
    for value in values:
        kind = value.__class__
        if kind is SimTensor:
            tensor = cast("SimTensor", value)
            key.append(tensor.key)
            lowered.append(tensor.raw)
        elif kind is list or kind is tuple:
            nested: list[Hashable] = []
            lowered.append(_lower(operator, cast("Args", value), nested))
            key.append(tuple(nested))
        elif isinstance(value, Tensor):
            key.append((value.dtype, value.shape, value.stride()))
            lowered.append(_host_argument(operator, value))
        else:
            # 1, 1.0 and True are equal, and give results of three dtypes.
            key.append((kind, value))
            lowered.append(value)
    return lowered


_INDEXED: tuple[AnyOperator, ...] = (
    aten.index.Tensor,
    aten.index_put_.default,
    aten._index_put_impl_.default,
)


def _host_argument(operator: Operator, tensor: Tensor) -> Tensor:
    """Take a host tensor's value now: a number goes with the launch, an index is copied."""
    if tensor.dim() and operator.func in _INDEXED:
        current().count_copy(to_device=tensor.nbytes)
        current().wait_for_current(operator.name)
    elif tensor.dim():
        reason = f"a host tensor of shape {tuple(tensor.shape)} is among its arguments; copy it"
        refuse(operator, f"{reason} to 'sim' first")
    return tensor.clone()


def _seeded(generator: torch.Generator | None) -> torch.Generator:
    """Draw now what the work will draw when it runs."""
    seed = torch.randint(2**62, (), generator=generator, device="cpu")
    return torch.Generator().manual_seed(int(seed))


def refuse(operator: Operator, reason: str) -> NoReturn:
    """Raise for an operator that cannot run.

    Raises:
        SimulatorError: always.
    """
    raise SimulatorError(
        "unsupported-operator",
        f"operator {operator.name!r}, called at {call_site()}, cannot run on the simulated "
        f"device: {reason}.",
    )


def blocks_of(value: object) -> Blocks:
    """Return the blocks that a value's data lie in; host memory counts where it is pinned.

    There are none where races are not looked for.
    """
    if not current().detector.is_on:
        return NO_BLOCKS
    if isinstance(value, list | tuple):
        return NO_BLOCKS.union(*map(blocks_of, value))
    if not isinstance(value, Tensor) or not value.numel():
        return NO_BLOCKS
    if isinstance(value, SimTensor):
        return frozenset((value.lease.block.serial,))
    serial = current().pinned.serial(value)
    return NO_BLOCKS if serial is None else frozenset((serial,))


Handler = Callable[[Call], object]
"""A way to run an operator."""


def run_view(call: Call) -> object:
    """View memory in another way, at once."""
    base = call.args[0]
    if not isinstance(base, SimTensor):
        refuse(call.operator, "its first argument is no tensor of the device")
    result = call.operator.func(base.raw, *call.args[1:], **call.kwargs)
    if torch.is_inference_mode_enabled() and not base.is_inference():
        with torch._C._InferenceMode(False):  # noqa: FBT003, SLF001 - a view is what its base is
            return _wrapped(result, base.lease)
    return _wrapped(result, base.lease)


def _wrapped(result: object, lease: Lease) -> object:
    if isinstance(result, Tensor):
        return wrap(result, lease)
    assert isinstance(result, list | tuple), f"a view is {type(result)}"
    return type(result)(wrap(entry, lease) for entry in result)


def run_fresh(call: Call) -> object:
    """Compute into new memory."""
    lowered = call.lowered()
    kind, results = lowered.results()
    reads, _ = call.accesses()
    return _launch(call.operator.name, kind, results, lowered.run, reads)


def _launch(
    name: str,
    kind: type,
    results: Sequence[Metadata | None],
    compute: Callable[[], object],
    reads: Blocks = NO_BLOCKS,
) -> object:
    """Compute one result, or several in a tuple or a list, into new memory."""
    tensors = [None if result is None else allocate(result) for result in results]
    raws = [None if tensor is None else tensor.raw for tensor in tensors]
    current().launch(Op(name, partial(_compute, raws, compute), reads, blocks_of(tensors)))
    if kind is Tensor:
        return tensors[0]
    return tensors if kind is list else tuple(tensors)


def _compute(outs: Sequence[Tensor | None], compute: Callable[[], object]) -> None:
    found = compute()
    results = (found,) if isinstance(found, Tensor) else cast("Sequence[Tensor]", found)
    for out, result in zip(outs, results, strict=True):
        if out is not None:
            out.copy_(result)


def run_write(call: Call) -> object:
    """Write to arguments."""
    operator = call.operator
    if torch.Tag.inplace_view in operator.func.tags:
        refuse(operator, "it changes a shape in place; use the one that returns a new view")
    lowered = call.lowered()
    if operator.is_out or not operator.has_one_tensor:
        _, results = lowered.results()
        if operator.is_out:
            _require_sizes(call, results)
    current().launch(Op(operator.name, lowered.run, *call.accesses()))
    written = tuple(map(call.argument, operator.written))
    if not operator.func._schema.returns:  # noqa: SLF001
        return None
    return written[0] if len(written) == 1 else written


def _require_sizes(call: Call, results: Sequence[Metadata | None]) -> None:
    """Refuse what torch would resize: a block's memory has a size."""
    for name, result in zip(call.operator.written, results, strict=True):
        size = tuple(cast("Tensor", call.argument(name)).shape)
        if result is not None and result.size != size:
            expected = f"{name}= has shape {size}, and the result {result.size}; make it so"
            refuse(call.operator, expected)


def run_read(call: Call) -> object:
    """Compute what the host has to wait for: a number, or results of unknown shapes."""
    name, simulation = call.operator.name, current()
    simulation.refuse_in_capture(name)
    lowered = call.lowered()
    reads, _ = call.accesses()
    found: list[object] = []
    answer = Op(name, lambda: found.append(lowered.run()), reads, bytes_to_host=answer_bytes(call))
    simulation.launch(answer)
    simulation.wait_for_current(name)
    (result,) = found
    if isinstance(result, Tensor | list | tuple):
        return _launch(name, *_described(result), lambda: result)
    return result


def answer_bytes(call: Call) -> int:
    """Return the bytes that the host reads: a number, or the results' size as one int64."""
    func = call.operator.func
    if func is aten._local_scalar_dense.default:  # noqa: SLF001 - what item() is
        return cast("SimTensor", call.args[0]).itemsize
    return torch.bool.itemsize if func is aten.equal.default else torch.int64.itemsize
