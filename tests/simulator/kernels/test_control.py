# mypy: disable-error-code="import-untyped, no-untyped-def, untyped-decorator, no-untyped-call"
# ruff: noqa: ANN001, ANN201, N803, SIM108 - a kernel's arguments
import pytest
import torch
import triton
import triton.language as tl

from backend_caps.simulator import simulate


@triton.jit
def branches(numbers, out):
    """Part in two, with and without a second side, and within a side."""
    place = tl.program_id(0)
    number = tl.load(numbers + place)
    result = number
    if number > 2:
        result = number * 10
    if number % 2 == 0:
        result += 1
        if number == 0:
            result -= 5
    else:
        result -= 1
    tl.store(out + place, result)


@triton.jit
def branch_of_blocks(numbers, out, N: tl.constexpr):
    """Give a block and a number on each side."""
    place, at = tl.program_id(0), tl.arange(0, N)
    if tl.load(numbers + place) > 1:
        block, number = at.to(tl.float32) * 2, 0.5
    else:
        block, number = tl.zeros((N,), tl.float32), 0.25
    tl.store(out + place * N + at, block + number)


@triton.jit
def returns(numbers, out):
    """Leave at several places."""
    place = tl.program_id(0)
    number = tl.load(numbers + place)
    if number == 0:
        return
    tl.store(out + place, 1)
    if number > 2:
        if number == 3:
            tl.store(out + place, 3)
            return
        tl.store(out + place, 4)
        return
    tl.store(out + place, 2)


@triton.jit
def ragged_sums(counts, out):
    """Take as many turns as each program's number says."""
    place = tl.program_id(0)
    total, product = 0, 1
    for number in range(tl.load(counts + place)):
        total += number
        product *= number + 1
    tl.store(out + 2 * place, total)
    tl.store(out + 2 * place + 1, product)


@triton.jit
def bounded_sums(starts, ends, steps, out):
    """Loop between each program's bounds."""
    place = tl.program_id(0)
    low, high = tl.load(starts + place), tl.load(ends + place)
    total = low * 0
    for number in range(low, high, tl.load(steps + place)):
        total = total * 10 + number
    tl.store(out + place, total)


@triton.jit
def carried(source, out, counts, N: tl.constexpr):
    """Carry a block, a pointer and a pair through a loop."""
    place, at = tl.program_id(0), tl.arange(0, N)
    block = tl.zeros((N,), tl.float32)
    pointer = source + at
    pair = (0, 1)
    for _ in range(tl.load(counts + place)):
        block += tl.load(pointer)
        pointer += N
        pair = (pair[1], pair[0] + pair[1])
    tl.store(out + place * N + at, block + pair[0])


@triton.jit
def steps_to_one(numbers, out):
    """Count how often a number is halved or tripled."""
    place = tl.program_id(0)
    number, count = tl.load(numbers + place), 0
    while number != 1:
        if number % 2 == 0:
            number = number // 2
        else:
            number = 3 * number + 1
        count += 1
    tl.store(out + place, count)


@triton.jit
def halvings(number, out):
    """Count how often a number is halved, the same in all programs."""
    count = 0
    while number > 1:
        number = number // 2
        count += 1
    tl.store(out + tl.program_id(0), count)


@triton.jit
def pages(table, out, N: tl.constexpr):
    """Walk a list whose links are in memory, with a loop in a loop."""
    place = tl.program_id(0)
    page, total = tl.load(table + place), 0
    while page >= 0:
        for number in range(page):
            total += number + 1
        page = tl.load(table + page + N)
    tl.store(out + place, total)


@triton.jit
def static_loops(out, COUNT: tl.constexpr, FLAG: tl.constexpr):
    """Be compiled for constants."""
    total = 0
    for number in tl.static_range(COUNT):
        total += number
    if FLAG:
        total += 100
    elif COUNT > 3:
        total += 200
    for number in tl.range(0, 4, num_stages=2, loop_unroll_factor=2):
        total += number * 1000
    tl.store(out, total)


@triton.jit
def loop_backwards(out):
    """Count down."""
    total = 0
    for number in range(5, 0, -2):
        total = total * 10 + number
    tl.store(out, total)


@triton.jit
def long_loop(low, high, step, out):
    """Loop between bounds of 64 bits."""
    total = tl.zeros((), tl.int32)
    for _ in range(low, high, step):
        total += 1
    tl.store(out, total)


def _run(kernel: object, numbers: list[int], *, size: int | None = None) -> list[int]:
    """Run a program for each number, on tensors of int32."""
    with simulate("lazy"):
        given = torch.tensor(numbers, dtype=torch.int32).to("sim")
        out = torch.zeros(size or len(numbers), dtype=torch.int32, device="sim")
        kernel[(len(numbers),)](given, out)  # type: ignore[index]
        return out.tolist()


@pytest.mark.parametrize(
    "numbers",
    [
        pytest.param([0, 1, 2, 3, 4, 5], id="all ways"),
        pytest.param([4, 6], id="one way"),
        pytest.param([3], id="one program"),
    ],
)
def test_programs_part_at_branches(numbers: list[int]) -> None:
    """Each program takes its own way through branches, with their results."""
    ways = {0: -4, 1: 0, 2: 3, 3: 29, 4: 41, 5: 49, 6: 61}

    assert _run(branches, numbers) == [ways[number] for number in numbers]


def test_branches_give_blocks() -> None:
    """Sides of a branch give whole blocks, also ones that are the same everywhere."""
    with simulate("lazy"):
        numbers, out = torch.tensor([1, 2, 0, 3], device="sim"), torch.empty(4, 2, device="sim")
        branch_of_blocks[(4,)](numbers, out, N=2)

        assert out.tolist() == [[0.25, 0.25], [0.5, 2.5]] * 2


@pytest.mark.parametrize(
    "numbers",
    [
        pytest.param([0, 1, 2, 3, 4], id="all ways"),
        pytest.param([0, 0], id="all at once"),
        pytest.param([3], id="one program"),
    ],
)
def test_programs_return_early(numbers: list[int]) -> None:
    """A program that returns does nothing that comes later."""
    ways = {0: 0, 1: 2, 2: 2, 3: 3, 4: 4}

    assert _run(returns, numbers) == [ways[number] for number in numbers]


@pytest.mark.parametrize(
    "counts",
    [
        pytest.param([0, 3, 1, 5], id="ragged"),
        pytest.param([4, 4], id="equal"),
        pytest.param([0, 0], id="none"),
        pytest.param([-2, 2], id="negative"),
        pytest.param([3], id="one program"),
    ],
)
def test_loops_take_each_programs_turns(counts: list[int]) -> None:
    """Programs leave a loop when their own turns are over."""
    found = _run(ragged_sums, counts, size=2 * len(counts))

    products = {-2: 1, 0: 1, 1: 1, 2: 2, 3: 6, 4: 24, 5: 120}
    sums = [max(count, 0) * (max(count, 0) - 1) // 2 for count in counts]
    assert found[::2] == sums
    assert found[1::2] == [products[count] for count in counts]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint32, torch.uint64], ids=str)
def test_loops_have_bounds_of_their_own(dtype: torch.dtype) -> None:
    """A loop begins, ends and steps where each program says."""
    bounds = ([1, 0, 3, 2], [4, 7, 3, 9], [1, 3, 1, 2])
    with simulate("lazy"):
        given = [torch.tensor(each).to(dtype).to("sim") for each in bounds]
        out = torch.empty(4, dtype=torch.int64, device="sim")
        bounded_sums[(4,)](*given, out)

        assert out.tolist() == [123, 36, 0, 2468]


def test_loops_carry_blocks_and_pointers() -> None:
    """What a loop carries ends with each program's last turn."""
    with simulate("lazy"):
        source, out = torch.arange(8.0, device="sim"), torch.empty(3, 2, device="sim")
        carried[(3,)](source, out, torch.tensor([0, 1, 4], device="sim"), N=2)

        assert out.tolist() == [[0.0, 0.0], [1.0, 2.0], [15.0, 19.0]]


@pytest.mark.parametrize(
    "numbers",
    [
        pytest.param([1, 6, 7, 2], id="ragged"),
        pytest.param([6, 6], id="equal"),
        pytest.param([1, 1], id="none"),
        pytest.param([7], id="one program"),
    ],
)
def test_conditional_loops(numbers: list[int]) -> None:
    """A loop with a condition goes on with the programs that meet it."""
    turns = {1: 0, 2: 1, 6: 8, 7: 16}

    assert _run(steps_to_one, numbers) == [turns[number] for number in numbers]


def test_conditional_loop_of_an_argument() -> None:
    """Programs that have the same condition leave a loop together."""
    with simulate("lazy"):
        out = torch.zeros(3, dtype=torch.int32, device="sim")
        halvings[(3,)](100, out)

        assert out.tolist() == [6, 6, 6]


def test_loops_in_loops() -> None:
    """Programs part in a loop within another one."""
    links = [2, -1, 1, 0, -1, 0, 1, -1]  # four programs' first pages, and what follows each page
    with simulate("lazy"):
        table = torch.tensor(links, dtype=torch.int32, device="sim")
        out = torch.empty(4, dtype=torch.int32, device="sim")
        pages[(4,)](table, out, N=4)

        assert out.tolist() == [4, 0, 1, 0]


@pytest.mark.parametrize(
    ("count", "flag", "expected"),
    [
        pytest.param(3, True, 6103, id="flag"),
        pytest.param(4, False, 6206, id="second branch"),
        pytest.param(2, False, 6001, id="neither"),
    ],
)
def test_constants_are_compiled_in(count: int, flag: bool, expected: int) -> None:
    """Loops and branches over constants are none when the kernel runs."""
    with simulate("lazy"):
        out = torch.empty(1, dtype=torch.int32, device="sim")
        static_loops[(1,)](out, count, flag)

        assert out.tolist() == [expected]


def test_loops_run_backwards() -> None:
    """A loop may count down."""
    with simulate("lazy"):
        out = torch.empty(1, dtype=torch.int32, device="sim")
        loop_backwards[(1,)](out)

        assert out.tolist() == [531]


@pytest.mark.parametrize(
    ("low", "high", "step", "turns"),
    [
        pytest.param(2**40, 2**40 + 10, 3, 4, id="signed"),
        pytest.param(2**63, 2**63 + 10, 3, 4, id="unsigned"),
    ],
)
def test_loops_of_64_bits(low: int, high: int, step: int, turns: int) -> None:
    """Bounds may need 64 bits, or all of them."""
    with simulate("lazy"):
        out = torch.empty(1, dtype=torch.int32, device="sim")
        long_loop[(1,)](low, high, step, out)

        assert out.tolist() == [turns]
