# mypy: disable-error-code="import-untyped, no-untyped-def, untyped-decorator, no-untyped-call"
# ruff: noqa: ANN001, ANN202, N803 - a kernel's arguments
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.testing import do_bench

from backend_caps.simulator import simulate


def _config(block: int, **options: Any) -> triton.Config:
    return triton.Config({"BLOCK": block}, **options)


def _seen(log: list[str], name: str) -> Any:
    return lambda *_, **__: log.append(name)


def _kernel(**options: Any) -> Any:
    """Make a kernel that is tuned over blocks of 8, 4 and 2."""

    @triton.autotune(configs=[_config(8), _config(4), _config(2)], key=["count"], **options)
    @triton.jit
    def tuned(numbers, count, BLOCK: tl.constexpr):
        """Add 1 to each number, and to the last one what it is compiled for."""
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(numbers + at, tl.load(numbers + at, mask=at < count) + 1, mask=at < count)
        tl.store(numbers + count, BLOCK)

    return tuned


def _grid(meta: Any) -> tuple[int]:
    return (triton.cdiv(meta["count"], meta["BLOCK"]),)


@pytest.mark.parametrize(
    ("options", "block"),
    [
        pytest.param({}, 8, id="as it is"),
        pytest.param({"restore_value": ["numbers"]}, 8, id="restore_value"),
        pytest.param(
            {"prune_configs_by": {"early_config_prune": lambda c, *_, **__: c[1:]}}, 4, id="prune"
        ),
    ],
)
def test_first_configuration_is_taken(options: dict[str, Any], block: int) -> None:
    """There are no times, so the first configuration that is left runs, and runs once."""
    with simulate("lazy"):
        numbers = torch.zeros(9, dtype=torch.int32, device="sim")
        kernel = _kernel(**options)
        kernel[_grid](numbers, 8)

        assert numbers.tolist() == [1] * 8 + [block]
        assert kernel.best_config.kwargs == {"BLOCK": block}


def test_tuned_kernel_may_reset_what_it_adds_to() -> None:
    """Memory that tuning resets is reset before the kernel runs, as Triton does."""
    with simulate("lazy"):
        numbers = torch.full((9,), 5, dtype=torch.int32, device="sim")
        _kernel(reset_to_zero=["numbers"])[_grid](numbers, 8)

        assert numbers.tolist() == [1] * 8 + [8]


def test_configuration_may_prepare_a_launch() -> None:
    """A configuration's own hook runs before the kernel, once."""
    seen: list[str] = []
    config = _config(4, pre_hook=lambda arguments: seen.append(type(arguments["numbers"]).__name__))

    @triton.autotune(configs=[config, _config(2)], key=[])
    @triton.jit
    def hooked(numbers, BLOCK: tl.constexpr):
        """Store a number."""
        tl.store(numbers, BLOCK)

    with simulate("lazy"):
        numbers = torch.zeros(1, dtype=torch.int32, device="sim")
        hooked[(1,)](numbers)

        assert numbers.tolist() == [4]
    assert seen == ["SimTensor"]


def test_heuristics_choose_constants() -> None:
    """A heuristic computes a constant of the arguments."""

    @triton.heuristics({"IS_LARGE": lambda arguments: arguments["count"] > 10})
    @triton.jit
    def sized(out, count, IS_LARGE: tl.constexpr):
        """Store whether the count is large."""
        tl.store(out, 2 * count if IS_LARGE else count)

    with simulate("lazy"):
        out = torch.zeros(2, dtype=torch.int32, device="sim")
        sized[(1,)](out, 20)
        sized[(1,)](out[1:], 7)

        assert out.tolist() == [40, 7]


def test_kernel_may_be_timed() -> None:
    """`do_bench` runs a kernel, and its times are those of the simulated clock."""
    with simulate("lazy"):
        numbers = torch.zeros(9, dtype=torch.int32, device="sim")
        kernel = _kernel()

        milliseconds = do_bench(lambda: kernel[_grid](numbers, 8), warmup=1, rep=2)

        assert milliseconds >= 0
        assert numbers.tolist()[0] > 1


def test_tuning_may_bring_its_own_clock() -> None:
    """A kernel that measures by itself is measured, and its fastest configuration taken."""
    times = iter([[3.0] * 3, [1.0] * 3, [2.0] * 3])

    def measure(call: Any, quantiles: Any) -> list[float]:
        del quantiles
        call()
        return next(times)

    with simulate("lazy"):
        numbers = torch.zeros(9, dtype=torch.int32, device="sim")
        kernel = _kernel(do_bench=measure)
        kernel[_grid](numbers, 8)

        assert kernel.best_config.kwargs == {"BLOCK": 4}
        assert numbers.tolist() == [4] * 8 + [4]
