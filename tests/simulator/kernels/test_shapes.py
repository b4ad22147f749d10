import pytest
import torch
from torch import Tensor

from tests.simulator.kernels.expressions import computed

NUMBERS = torch.tensor([5.0, -1.0, 7.0, 3.0, 2.0, 8.0, -4.0, 6.0])
BLOCK = "tl.reshape(a, (2, 4))"
MATRIX = NUMBERS.reshape(2, 4)
CUBE = NUMBERS.reshape(2, 2, 2)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        pytest.param("tl.ravel(tl.trans(tl.reshape(a, (2, 4))))", MATRIX.T, id="trans"),
        pytest.param(
            "tl.ravel(tl.permute(tl.reshape(a, (2, 2, 2)), (2, 0, 1)))",
            CUBE.permute(2, 0, 1),
            id="permute",
        ),
        pytest.param("tl.ravel(tl.reshape(a, (2, 4)) * 2)", 2 * MATRIX, id="reshape"),
        pytest.param("tl.flip(a, 0)", NUMBERS.flip(0), id="flip"),
        pytest.param(f"tl.ravel(tl.flip({BLOCK}, 1))", MATRIX.flip(1), id="flip of rows"),
        pytest.param("tl.sort(a)", NUMBERS.sort().values, id="sort"),
        pytest.param(
            "tl.sort(a, descending=True)", NUMBERS.sort(descending=True).values, id="sort downwards"
        ),
        pytest.param(f"tl.ravel(tl.sort({BLOCK}))", MATRIX.sort().values, id="sort of rows"),
        pytest.param("tl.ravel(tl.expand_dims(a, 1))", NUMBERS, id="expand_dims"),
        pytest.param("tl.ravel(a[None, :, None])", NUMBERS, id="new axes"),
        pytest.param(
            "tl.gather(a, 7 - tl.arange(0, 8), axis=0)", NUMBERS.flip(0), id="gather backwards"
        ),
        pytest.param(
            f"tl.ravel(tl.gather({BLOCK}, 1 - tl.arange(0, 2)[:, None] + tl.zeros((2, 4), tl.int32)"
            ", axis=0))",
            MATRIX.flip(0),
            id="gather of rows",
        ),
    ],
)
def test_shape_changes(expression: str, expected: Tensor) -> None:
    """A block takes another shape, or its elements another order."""
    assert computed(expression, NUMBERS).tolist() == expected.flatten().tolist()


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        pytest.param(
            "tl.ravel(tl.join(a, 2 * a))", torch.stack([NUMBERS, 2 * NUMBERS], -1), id="join"
        ),
        pytest.param("tl.interleave(a, -a)", torch.stack([NUMBERS, -NUMBERS], -1), id="interleave"),
        pytest.param(
            "tl.ravel(tl.join(a, 0.0 * a + 3.0))",
            torch.stack([NUMBERS, torch.full((8,), 3.0)], -1),
            id="join with the same everywhere",
        ),
        pytest.param(
            "tl.cat(a, a + 1, can_reorder=True)", torch.cat([NUMBERS, NUMBERS + 1]), id="cat"
        ),
        pytest.param(
            "tl.cat(a, tl.zeros((8,), tl.float32), can_reorder=True)",
            torch.cat([NUMBERS, torch.zeros(8)]),
            id="cat with the same everywhere",
        ),
        pytest.param(
            "tl.ravel(tl.broadcast_to(a[None, :], (2, 8)))", NUMBERS.repeat(2), id="broadcast"
        ),
        pytest.param(
            "tl.ravel(tl.reshape(tl.broadcast_to(a[:, None], (8, 2)), (2, 8)))",
            NUMBERS.repeat_interleave(2),
            id="reshape of a broadcast",
        ),
    ],
)
def test_blocks_are_put_together(expression: str, expected: Tensor) -> None:
    """Two blocks, or one twice, make a larger one."""
    found = computed(expression, NUMBERS, size=16)

    assert found.tolist() == expected.flatten().tolist()


@pytest.mark.parametrize("side", [0, 1])
def test_split_takes_a_block_apart(side: int) -> None:
    """A split gives the two sides of the last axis."""
    found = computed(f"tl.split(tl.reshape(a, (4, 2)))[{side}]", NUMBERS, size=4)

    assert found.tolist() == NUMBERS.reshape(4, 2)[:, side].tolist()


def test_split_of_the_same_everywhere() -> None:
    """A block that is the same everywhere has two sides too."""
    found = computed("tl.split(tl.full((4, 2), 3.0, tl.float32))[1] + 0 * a", NUMBERS[:4])

    assert found.tolist() == [3.0] * 4


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        pytest.param("tl.topk(a, 4)", [8.0, 7.0, 6.0, 5.0], id="topk"),
        pytest.param("tl.ravel(tl.topk(tl.reshape(a, (2, 4)), 2))", [7, 5, 8, 6], id="of rows"),
    ],
)
def test_top_values(expression: str, expected: list[float]) -> None:
    """The largest elements come in their order."""
    assert computed(expression, NUMBERS, size=4).tolist() == expected


def test_histogram_counts() -> None:
    """A histogram counts what each bin has, and drops what is in none."""
    numbers = torch.tensor([0, 1, 1, 3, 3, 3, 9, -1], dtype=torch.int32)

    found = computed("tl.histogram(a, 4)", numbers, size=4)
    masked = computed("tl.histogram(a, 4, mask=tl.arange(0, 8) < 4)", numbers, size=4)

    assert found.tolist() == [1, 2, 0, 3]
    assert masked.tolist() == [1, 2, 0, 1]


def test_histogram_of_the_same_everywhere() -> None:
    """A block that is the same everywhere counts as often as it has elements."""
    found = computed("tl.histogram(tl.full((8,), 2, tl.int32), 4)", torch.zeros(4).int())

    assert found.tolist() == [0, 0, 8, 0]


def test_range_starts_where_it_says() -> None:
    """A range has both its ends."""
    found = computed("a + tl.arange(8, 16)", torch.zeros(8, dtype=torch.int32))

    assert found.tolist() == list(range(8, 16))


def test_swizzle_is_a_permutation() -> None:
    """The library's own functions on indices are compiled in."""
    found = computed("tl.swizzle2d(a // 4, a % 4, 4, 4, 2)[0]", torch.arange(16).int())

    assert sorted(found.tolist()) == [row for row in range(4) for _ in range(4)]
