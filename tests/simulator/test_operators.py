"""Operators of the device beside those of the CPU."""

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from backend_caps.simulator import Schedule, SimulatorError, simulate
from backend_caps.simulator import streams as sim
from backend_caps.simulator.streams import Stream
from tests.simulator.orders import in_every_order

Call = Callable[[torch.device], Tensor]


def _numbers(device: torch.device, *size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    count = torch.Size(size).numel()
    numbers = torch.arange(count).reshape(size)
    return ((numbers * 7919 % 31 - 15) / 8).to(dtype).to(device)


def _rows(device: torch.device) -> Tensor:
    return torch.tensor([2, 0, 3], device=device)


def _attention(device: torch.device, dtype: torch.dtype) -> Tensor:
    q = _numbers(device, 2, 4, 3, 8, dtype=dtype)
    k, v = _numbers(device, 2, 2, 5, 8, dtype=dtype), _numbers(device, 2, 2, 5, 8, dtype=dtype) + 1
    mask = torch.arange(5, device=device) < torch.tensor([[3], [4], [5]], device=device)
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)


def _written(device: torch.device, write: Callable[[Tensor], object]) -> Tensor:
    table = _numbers(device, 4, 3)
    write(table)
    return table


def _set(table: Tensor, index: object, value: Tensor | float) -> None:
    table[index] = value  # type: ignore[index]


CALLS: dict[str, Call] = {
    "arithmetic": lambda d: (_numbers(d, 3, 2) * 2 - 1) / 4 + _numbers(d, 2),
    "host number": lambda d: _numbers(d, 3) + torch.tensor(0.5),
    "attention": lambda d: _attention(d, torch.float32),
    "attention in bf16": lambda d: _attention(d, torch.bfloat16),
    "linear": lambda d: functional.linear(_numbers(d, 2, 3, 4), _numbers(d, 5, 4), _numbers(d, 5)),
    "linear in bf16": lambda d: functional.linear(
        _numbers(d, 3, 4, dtype=torch.bfloat16), _numbers(d, 5, 4, dtype=torch.bfloat16)
    ),
    "matmul": lambda d: _numbers(d, 2, 3, 4) @ _numbers(d, 4, 2),
    "einsum": lambda d: torch.einsum("ij,kj->ik", _numbers(d, 2, 3), _numbers(d, 4, 3)),
    "embedding": lambda d: functional.embedding(_rows(d), _numbers(d, 4, 3)),
    "rms_norm": lambda d: functional.rms_norm(_numbers(d, 2, 8), (8,), _numbers(d, 8), 1e-5),
    "silu": lambda d: functional.silu(_numbers(d, 5)),
    "softmax": lambda d: torch.softmax(_numbers(d, 2, 5), dim=-1),
    "log_softmax": lambda d: torch.log_softmax(_numbers(d, 2, 5), dim=-1),
    "argmax": lambda d: _numbers(d, 3, 5).argmax(-1),
    "max": lambda d: torch.cat([part.float() for part in _numbers(d, 3, 5).max(dim=1)]),
    "topk": lambda d: _numbers(d, 3, 8).topk(2).values,
    "sort": lambda d: _numbers(d, 3, 8).sort(descending=True).indices,
    "cumsum": lambda d: _rows(d).cumsum(0),
    "searchsorted": lambda d: torch.searchsorted(torch.arange(4, device=d), _rows(d), right=True),
    "where": lambda d: torch.where(_numbers(d, 5) > 0, _numbers(d, 5), 0.0),
    "masked_fill": lambda d: _numbers(d, 5).masked_fill(_numbers(d, 5) > 0, -1.0),
    "index_select": lambda d: _numbers(d, 4, 3).index_select(0, _rows(d)),
    "index_select out": lambda d: torch.index_select(
        _numbers(d, 4, 3), 0, _rows(d), out=torch.empty(3, 3, device=d)
    ),
    "gather": lambda d: _numbers(d, 4, 3).gather(0, _rows(d)[None]),
    "scatter": lambda d: _written(d, lambda t: t.scatter_(0, _rows(d)[None], t[:1] + 1)),
    "index_copy": lambda d: _written(d, lambda t: t.index_copy_(0, _rows(d), t[:3] * 2)),
    "index_add": lambda d: _written(d, lambda t: t.index_add_(0, _rows(d), t[:3] * 2)),
    "index_put": lambda d: _written(d, lambda t: t.index_put_((_rows(d),), t[:3] * 2)),
    "set by numbers": lambda d: _written(d, lambda t: _set(t, _rows(d), 7.0)),
    "set by numbers of two": lambda d: _written(d, lambda t: _set(t, (_rows(d), _rows(d) % 3), 7)),
    "set by slice": lambda d: _written(d, lambda t: _set(t, slice(1, 3), t[:2] + 1)),
    "set by place": lambda d: _written(d, lambda t: _set(t, (0, 1), 7)),
    "set by mask": lambda d: _written(d, lambda t: _set(t, t > 0, 0.0)),
    "by numbers": lambda d: _numbers(d, 4, 3)[_rows(d)],
    "by numbers of the host": lambda d: _numbers(d, 4, 3)[torch.tensor([1, 3])],
    "by mask": lambda d: _numbers(d, 4, 3)[_numbers(d, 4, 3) > 0],
    "nonzero": lambda d: (_numbers(d, 4, 3) > 0).nonzero(),
    "unique": lambda d: torch.unique(_rows(d) % 2, sorted=True),
    "repeat_interleave": lambda d: torch.repeat_interleave(_rows(d), _rows(d), output_size=5),
    "cat and stack": lambda d: torch.cat([torch.stack([_rows(d), _rows(d)]), _rows(d)[None]]),
    "split": lambda d: torch.cat(torch.split(_numbers(d, 5, 2), [2, 3])[::-1]),
    "chunk and unbind": lambda d: torch.stack(_numbers(d, 4, 2).chunk(2)[1].unbind()[::-1]),
    "views": lambda d: _numbers(d, 4, 6).view(4, 2, 3).transpose(0, 1)[1, :, ::2].flatten(),
    "view as another dtype": lambda d: _rows(d).view(torch.int32),
    "expand": lambda d: _numbers(d, 3)[:, None].expand(-1, 2).contiguous(),
    "dtypes": lambda d: _numbers(d, 3).to(torch.bfloat16).float().long(),
    "full": lambda d: torch.full((2,), 1.5, device=d) + torch.ones(2, device=d),
    "eye": lambda d: torch.eye(3, device=d) + torch.linspace(0, 1, 3, device=d),
    "like": lambda d: (
        torch.zeros_like(_rows(d)) + _rows(d).new_ones(3) + torch.full_like(_rows(d), 2)
    ),
    "tril": lambda d: torch.ones(3, 3, device=d).tril(),
    "rope": lambda d: torch.polar(torch.ones(3, device=d), _numbers(d, 3)).real.cos(),
    "bitwise": lambda d: _rows(d).bitwise_not(),
    "clone": lambda d: _numbers(d, 2, 3).t().clone(),
    "module": lambda d: torch.nn.LayerNorm(4).to(d)(_numbers(d, 2, 4)).detach(),
}


@pytest.mark.parametrize("inference", [False, True], ids=["no_grad", "inference_mode"])
@pytest.mark.parametrize("word", ["eager", "lazy"])
@pytest.mark.parametrize("call", [pytest.param(call, id=name) for name, call in CALLS.items()])
def test_operator_equals_the_cpus(call: Call, word: str, inference: bool) -> None:
    """An operator gives the bits that it gives on the CPU, in the same shape and strides."""
    with torch.inference_mode(inference), torch.no_grad():
        expected = call(torch.device("cpu"))

        with simulate(word):
            actual = call(torch.device("sim"))
            found = actual.cpu()

    assert actual.device == torch.device("sim", 0)
    assert (found.dtype, found.stride()) == (expected.dtype, expected.stride())
    assert torch.equal(found, expected)


def _layer(device: torch.device) -> torch.nn.Linear:
    layer = torch.nn.Linear(4, 2, bias=False).requires_grad_(requires_grad=False)
    layer.weight.copy_(_numbers(torch.device("cpu"), 2, 4))
    return layer.to(device)


@in_every_order(1)
def test_module_converts_on_the_device(schedule: Schedule) -> None:
    """A module's parameters change their dtype on the device, and their memory with it."""
    numbers = _numbers(torch.device("cpu"), 3, 4, dtype=torch.bfloat16)
    expected = _layer(torch.device("cpu")).to(torch.bfloat16)(numbers)
    with simulate(schedule):
        layer = _layer(torch.device("sim")).to(torch.bfloat16)
        found = layer(numbers.to("sim")).cpu()

    assert torch.equal(found, expected)


def test_module_is_copied_deeply() -> None:
    """A copy of a module has memory of its own."""
    with simulate():
        layer = _layer(torch.device("sim"))
        copied = deepcopy(layer)
        layer.weight.zero_()

        assert isinstance(copied.weight, torch.nn.Parameter)
        assert copied.weight.any().item()


@in_every_order(1)
def test_equal_waits_for_its_answer(schedule: Schedule) -> None:
    """A comparison that the host reads is of values that were computed."""
    with simulate(schedule):
        numbers = torch.arange(3, device="sim")

        assert torch.equal(numbers + 1, numbers.add(1))
        assert not torch.equal(numbers + 1, numbers)


def _drawn(word: str) -> tuple[float, ...]:
    """Draw on two streams, of which the schedule may run the second one first."""
    torch.manual_seed(1)
    with simulate(word):
        first, side = torch.rand(2, device="sim"), Stream()
        with sim.stream(side):
            second = torch.multinomial(torch.ones(9, device="sim"), 2).tolist()
        return (*second, *first.tolist())


def test_random_numbers_do_not_depend_on_order() -> None:
    """Random numbers are drawn in the order of the launches, whatever order they run in."""
    drawn = {_drawn(word) for word in ("eager", "starve:0", "random:4")}

    assert len(drawn) == 1


def _dropped() -> list[float]:
    torch.manual_seed(1)
    with simulate("eager"):
        return functional.dropout(torch.ones(33, device="sim")).tolist()


def test_random_numbers_do_not_depend_on_what_was_seen_before() -> None:
    """A first call of a shape draws what a second one does."""
    first, second = _dropped(), _dropped()

    assert first == second


def test_forked_generator_leaves_later_draws_as_they_were() -> None:
    """`fork_rng` saves and restores the host's generator, which the device draws from."""
    torch.manual_seed(1)
    with simulate("eager"):
        with torch.random.fork_rng(device_type="sim"):
            forked = torch.rand(3, device="sim").tolist()

        assert torch.rand(3, device="sim").tolist() == forked


def test_attention_is_in_the_order_of_its_shape() -> None:
    """Whatever the query's is: the CPU's own follows the query."""
    with simulate("eager"):
        query = torch.ones(1, 5, 2, 16, device="sim").transpose(1, 2)

        assert functional.scaled_dot_product_attention(query, query, query).is_contiguous()


def test_large_operators_are_asked_on_the_meta_device() -> None:
    """What would take long to compute twice looks as it does there."""
    with simulate("eager"):
        large = torch.ones(1 << 19, device="sim")

        assert (large[:, None] + 1).shape == (1 << 19, 1)


def test_host_number_goes_with_the_launch() -> None:
    """A number of the host is the one that it was at the launch."""
    with simulate("lazy"):
        number = torch.tensor(1.0)
        result = torch.ones(2, device="sim") + number
        number.fill_(9)

        assert result.tolist() == [2, 2]


def test_equal_numbers_of_other_types_give_other_dtypes() -> None:
    """1, 1.0 and True are equal, and make results of different dtypes."""
    with simulate():
        numbers = torch.ones(2, dtype=torch.bool, device="sim")
        dtypes = [(numbers + number).dtype for number in (1, 1.0, True)]

    assert dtypes == [torch.int64, torch.float32, torch.bool]


def test_tensor_of_before_is_viewed_in_inference_mode() -> None:
    """In inference mode a view of a tensor from outside can be written to, and shows in it."""
    with simulate():
        table = torch.zeros(2, 3, device="sim")
        with torch.inference_mode():
            table[1].fill_(4)
        table[0].fill_(2)

        assert table.tolist() == [[2] * 3, [4] * 3]


def test_operator_refuses_host_tensor() -> None:
    """A host tensor that is no number is not taken for one of the device."""
    with simulate(), pytest.raises(SimulatorError) as raised:
        torch.ones(2, device="sim") + torch.ones(2)

    assert "operator 'aten::add.Tensor', called at" in str(raised.value)
    assert "a host tensor of shape (2,) is among its arguments" in str(raised.value)


def test_operator_refuses_to_resize_out() -> None:
    """An out= argument of another shape is refused where torch would resize it."""
    with simulate(), pytest.raises(SimulatorError, match=r"out= has shape \(0,\)"):
        torch.add(
            torch.ones(2, device="sim"),
            torch.ones(2, device="sim"),
            out=torch.empty(0, device="sim"),
        )


def test_operator_checks_shapes_at_the_launch() -> None:
    """Shapes that do not fit are torch's error, raised where the operator is launched."""
    with simulate("lazy"), pytest.raises(RuntimeError, match="broadcast"):
        torch.ones(2, device="sim") + torch.ones(3, device="sim")


def test_numpy_view_is_refused() -> None:
    """Device memory has no numpy view; a copy is made by force."""
    with simulate():
        numbers = torch.ones(2, device="sim")

        assert numbers.numpy(force=True).tolist() == [1, 1]
        with pytest.raises(TypeError, match=r"by \.cpu\(\) first"):
            numbers.numpy()


def test_number_is_formatted() -> None:
    """A tensor of one number prints as that number where a format is asked for."""
    with simulate("lazy"):
        numbers = torch.full((2,), 0.5, device="sim")

        assert f"{numbers.sum():.2f}" == "1.00"
        assert repr(numbers) == "sim tensor([0.5000, 0.5000])"


def test_operator_refuses_to_change_a_shape() -> None:
    """A view that is taken in place is refused, and another operator named."""
    with simulate(), pytest.raises(SimulatorError, match="use the one that returns"):
        torch.ones(1, 2, device="sim").squeeze_()
