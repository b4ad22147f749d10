# mypy: disable-error-code="import-untyped, no-untyped-def, untyped-decorator, no-untyped-call"
# ruff: noqa: ANN001, ANN201, N803 - a kernel's arguments
import struct
from collections import namedtuple
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from backend_caps.simulator import Schedule, SimulatorError, simulate
from backend_caps.simulator.streams import CUDAGraph, graph
from tests.simulator.orders import in_every_order

Pair = namedtuple("Pair", ["source", "scale"])  # noqa: PYI024 - what Triton takes apart


@triton.jit
def places(out, X, Y):
    """Store each program's place, and how many there are."""
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    number = (z * Y + y) * X + x
    sizes = tl.num_programs(0) + 10 * tl.num_programs(1) + 100 * tl.num_programs(2)
    tl.store(out + 2 * number, x + 10 * y + 100 * z)
    tl.store(out + 2 * number + 1, sizes)


@triton.jit
def store(out, value):
    """Store a number."""
    tl.store(out, value)


@triton.jit
def store_bits(out, value: tl.float32, flag):
    """Store a number of a given type, and the bits of a bool."""
    tl.store(out, value.to(tl.int32, bitcast=True))
    tl.store(out + 1, flag)


@triton.jit
def store_unsigned(out, value):
    """Store an unsigned number's half."""
    tl.store(out, value // 2)


@triton.jit
def scaled(source, out, scale, bias, BLOCK: tl.constexpr):
    """Scale a vector, and add a bias where there is one."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(source + at) * scale
    if bias is not None:
        value += tl.load(bias + at)
    tl.store(out + at, value)


@triton.jit
def scaled_pair(pair, outs, BLOCK: tl.constexpr):
    """Scale a vector into two, by arguments in tuples."""
    at = tl.arange(0, BLOCK)
    value = tl.load(pair.source + at) * pair.scale
    tl.store(outs[0] + at, value)
    tl.store(outs[1] + at, -value)


@triton.jit
def printed(source, BLOCK: tl.constexpr):
    """Print a text, a number and a block."""
    tl.device_print("begins: 100% (of {all})")
    tl.device_print("numbers", tl.program_id(0), tl.load(source + tl.arange(0, BLOCK)))


@triton.jit
def doubled(x):
    """Double a number."""
    return x * 2


@triton.jit
def mapped(source, out, BLOCK: tl.constexpr):
    """Map a function over elements, which is not known here."""
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.map_elementwise(doubled, tl.load(source + at)))


@triton.jit
def two_results(source, out):
    """Assume what is true, and wait for the other threads."""
    tl.assume(tl.load(source) > 0)
    tl.debug_barrier()
    tl.store(out, tl.load(source))


@gluon.jit
def of_one_gpu(out):
    """Be written for one GPU."""
    gl.store(out, 1)


def _numbers(size: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.zeros(size, dtype=dtype, device="sim")


@pytest.mark.parametrize("grid", [(3,), (3, 2), (3, 2, 2), [2, 1, 3]], ids=str)
def test_grids_have_up_to_three_axes(grid: Any) -> None:
    """Programs know their place along each axis, and how many there are."""
    x, y, z = [*grid, 1, 1][:3]
    with simulate("lazy"):
        out = _numbers(2 * x * y * z)
        places[grid](out, x, y)

        found = out.tolist()
    assert found[::2] == [
        a + 10 * b + 100 * c for c in range(z) for b in range(y) for a in range(x)
    ]
    assert set(found[1::2]) == {x + 10 * y + 100 * z}


@pytest.mark.parametrize("grid", [(0,), (2, 0), (1, 1, 0)], ids=str)
def test_grid_without_programs_runs_nothing(grid: tuple[int, ...]) -> None:
    """A grid of no programs is no launch."""
    with simulate("lazy") as simulation:
        out = _numbers(2)
        before = simulation.counts
        places[grid](out, 1, 1)

        assert (simulation.counts - before).num_ops == 0
        assert out.tolist() == [0, 0]


def test_grid_may_depend_on_constants() -> None:
    """A callable makes the grid, of what the kernel is compiled for."""
    with simulate("lazy"):
        source, out = torch.ones(8, device="sim"), torch.zeros(8, device="sim")
        scaled[lambda meta: (8 // meta["BLOCK"],)](source, out, 3.0, None, BLOCK=2)

        assert out.tolist() == [3.0] * 8


def test_many_programs_run_in_parts() -> None:
    """More programs than a processor's cache has room for run one part after the other."""
    with simulate("lazy"):
        source, out = torch.arange(2.0**19, device="sim"), torch.zeros(2**19, device="sim")
        scaled[(2**7,)](source, out, 2.0, None, BLOCK=2**12)

        assert out.cpu().equal(2 * torch.arange(2.0**19))


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        pytest.param(1, torch.int32, id="1, which is compiled in"),
        pytest.param(-7, torch.int32, id="negative"),
        pytest.param(16, torch.int32, id="multiple of 16"),
        pytest.param(2**40 + 1, torch.int64, id="64 bits"),
        pytest.param(-(2**40), torch.int64, id="negative of 64 bits"),
        pytest.param(2**63 + 5, torch.uint64, id="unsigned of 64 bits"),
        pytest.param(True, torch.int32, id="bool"),
        pytest.param(False, torch.bool, id="bool as it is"),
        pytest.param(0.5, torch.float32, id="float"),
        pytest.param(float("inf"), torch.float32, id="infinity"),
        pytest.param(1e300, torch.float64, id="beyond float32"),
    ],
)
def test_numbers_are_passed(value: float, dtype: torch.dtype) -> None:
    """A number is passed by its value, in as many bits as it needs."""
    with simulate("lazy"):
        out = _numbers(1, dtype)
        store[(1,)](out, value)

        assert out.tolist() == [float("inf") if value == 1e300 else value]


def test_numbers_of_given_types_are_passed() -> None:
    """An annotated argument has the type that the kernel says."""
    with simulate("lazy"):
        out = _numbers(2)
        store_bits[(1,)](out, 1.5, flag=True)

        assert out.tolist() == [struct.unpack("i", struct.pack("f", 1.5))[0], 1]


def test_unsigned_numbers_are_passed() -> None:
    """A number beyond int64 has no sign in the kernel."""
    with simulate("lazy"):
        out = _numbers(1, torch.int64)
        store_unsigned[(1,)](out, 2**64 - 2)

        assert out.tolist() == [2**63 - 1]


@pytest.mark.parametrize("has_bias", [False, True])
def test_none_is_passed(has_bias: bool) -> None:
    """A kernel is compiled without an argument that is None."""
    with simulate("lazy"):
        source, out = torch.ones(4, device="sim"), torch.empty(4, device="sim")
        scaled[(1,)](source, out, 2.0, source if has_bias else None, BLOCK=4)

        assert out.tolist() == [3.0 if has_bias else 2.0] * 4


@pytest.mark.parametrize("make", [Pair, lambda source, scale: Pair(scale=scale, source=source)])
def test_tuples_are_passed(make: Any) -> None:
    """Arguments in tuples are passed one by one."""
    with simulate("lazy", check_races=True):
        source = torch.arange(4.0, device="sim")
        outs = torch.empty(4, device="sim"), torch.empty(4, device="sim")
        scaled_pair[(1,)](make(source, 3.0), outs, BLOCK=4)

        assert [each.tolist() for each in outs] == [[0, 3, 6, 9], [0, -3, -6, -9]]


def test_parameters_are_passed() -> None:
    """A parameter of a module is a tensor."""
    with simulate("lazy"):
        weight = torch.nn.Parameter(torch.ones(4, device="sim"))
        out = torch.empty(4, device="sim")
        scaled[(1,)](weight, out, 2.0, None, BLOCK=4)

        assert out.tolist() == [2.0] * 4


def test_text_and_values_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """What a kernel prints is printed when it runs, for all programs at once."""
    with simulate("lazy"):
        source = torch.tensor([1.0, 2.5], device="sim")
        printed[(2,)](source, BLOCK=2)
        source.tolist()

    lines = capsys.readouterr().out
    assert lines.startswith("begins: 100% (of {all})\nnumbers: tensor([0, 1], dtype=torch.int32)")
    assert "tensor([[1.0000, 2.5000]])" in lines


def test_hints_to_the_compiler_do_nothing() -> None:
    """Assumptions and barriers are passed over."""
    with simulate("lazy"):
        source, out = torch.ones(1, device="sim"), torch.zeros(1, device="sim")
        two_results[(1,)](source, out)

        assert out.tolist() == [1.0]


def test_kernel_may_be_compiled_ahead() -> None:
    """`warmup` compiles, and launches nothing."""
    with simulate("lazy") as simulation:
        out = _numbers(1)
        before = simulation.counts
        kernel = store.warmup(out, 5, grid=(1,))
        assert (simulation.counts - before).num_ops == 0
        kernel[(1, 1, 1)](out, 5)

        assert out.tolist() == [5]


@in_every_order(1)
def test_kernels_are_captured(schedule: Schedule) -> None:
    """A graph's replay runs its kernels with the arguments of the capture."""
    with simulate(schedule, check_races=True) as simulation:
        source, out, captured = (
            torch.ones(4, device="sim"),
            torch.zeros(4, device="sim"),
            CUDAGraph(),
        )
        with graph(captured):
            scaled[(1,)](source, out, 2.0, None, BLOCK=4)
            scaled[(1,)](out, source, 1.0, None, BLOCK=4)
        assert source.tolist() == [1.0] * 4
        captured.replay()
        captured.replay()

        assert source.tolist() == [4.0] * 4
    assert simulation.races == ()


def test_launch_hooks_are_called() -> None:
    """Triton's hooks around a launch get its metadata."""
    seen: list[tuple[str, str]] = []
    hooks = triton.knobs.runtime
    enter, leave = (lambda data, n=name: seen.append((n, data.get()["name"])) for name in "ab")
    hooks.launch_enter_hook.add(enter)
    hooks.launch_exit_hook.add(leave)
    try:
        with simulate("lazy"):
            store[(1,)](_numbers(1), 5)
    finally:
        hooks.launch_enter_hook.remove(enter)
        hooks.launch_exit_hook.remove(leave)

    assert seen == [("a", "store"), ("b", "store")]


def test_kernel_runs_outside_of_a_simulation() -> None:
    """Models are built outside of a simulation, by kernels too."""
    out = _numbers(1)
    store[(1,)](out, 5)

    assert out.tolist() == [5]


def test_pageable_memory_is_refused() -> None:
    """A tensor of the host that is not pinned is named, as a GPU cannot read it."""
    words = (
        rf"kernel 'store', launched at {__file__}:\d+, .* argument 'out' is a tensor in pageable"
    )
    with simulate("lazy"), pytest.raises(SimulatorError, match=words):
        store[(1,)](torch.zeros(1), 5.0)


@pytest.mark.parametrize("turn", [1, 2])
def test_unknown_operation_is_refused_at_each_launch(turn: int) -> None:
    """A kernel with an operation that is not known is refused, the second time too."""
    words = r"kernel 'mapped', launched at .*: it has operation 'tt.map_elementwise', which is not"
    with simulate("lazy"):
        source, out = torch.ones(4, device="sim"), torch.zeros(4, device="sim")
        for _ in range(turn):
            with pytest.raises(SimulatorError, match=words) as raised:
                mapped[(1,)](source, out, BLOCK=4)
    assert raised.value.code == "unsupported-kernel"


def test_kernel_of_one_gpu_is_refused() -> None:
    """A kernel of Gluon is written for one GPU's threads."""
    with simulate("lazy"), pytest.raises(SimulatorError, match=r"only kernels of triton\.jit do"):
        of_one_gpu[(1,)](_numbers(1))
