# mypy: disable-error-code="import-untyped, no-untyped-def, untyped-decorator, no-untyped-call"
# ruff: noqa: ANN001, ANN201, N803 - a kernel's arguments
import pytest
import torch
import triton
import triton.language as tl

from backend_caps.simulator import SimDeviceError, simulate
from backend_caps.simulator.kernels import control


@triton.jit
def read(source, out, offset, BLOCK: tl.constexpr):
    """Read from an offset on."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(source + offset + at))


@triton.jit
def write(out, offset, BLOCK: tl.constexpr):
    """Write from an offset on."""
    tl.store(out + offset + tl.arange(0, BLOCK), 1.0)


@triton.jit
def read_columns(source, out, rows, stride, BLOCK: tl.constexpr):
    """Read the first column of a matrix, by its stride."""
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(source + at * stride, mask=at < rows), mask=at < rows)


@triton.jit
def count_up(numbers, place):
    """Add to a number."""
    tl.atomic_add(numbers + place, 1)


@triton.jit
def gather(source, index, out, BLOCK: tl.constexpr):
    """Read at places that are in memory."""
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(source + tl.load(index + at)))


@triton.jit
def read_by_table(table, out, offset, BLOCK: tl.constexpr):
    """Read from an address that is in memory."""
    at = tl.arange(0, BLOCK)
    vector = tl.load(table).to(tl.pointer_type(tl.float32))
    tl.store(out + at, tl.load(vector + offset + at))


@triton.jit
def read_between(source, out, BLOCK: tl.constexpr):
    """Read numbers from the third byte on."""
    numbers = (source + 3).to(tl.pointer_type(tl.float32), bitcast=True)
    tl.store(out + tl.arange(0, BLOCK), tl.load(numbers + tl.arange(0, BLOCK)))


@triton.jit
def sum_of_many(counts, out):
    """Take as many turns as memory says."""
    total = 0
    for number in range(tl.load(counts)):
        total += number
    tl.store(out, total)


@triton.jit
def never(out):
    """Wait for another program."""
    while tl.atomic_add(out, 0.0) == 0:
        pass


@triton.jit
def step_of(out, step):
    """Loop with a step that is given."""
    for number in range(0, 4, step):
        tl.store(out, number)


@triton.jit
def checked(numbers, BLOCK: tl.constexpr):
    """Assert that no number is negative."""
    number = tl.load(numbers + tl.arange(0, BLOCK))
    tl.device_assert(number >= 0, "100% of all: numbers (>= 0)")


@triton.jit
def gather_block(index, out, BLOCK: tl.constexpr):
    """Read a block's elements at places that are in memory."""
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.gather(at + 1, tl.load(index + at), axis=0))


@triton.jit
def helper(source, offset):
    """Read a number."""
    return tl.load(source + offset)


@triton.jit
def read_by_helper(source, out):
    """Read a number by a helper."""
    tl.store(out, helper(source, 100))


def _line(kernel: object, words: str) -> int:
    """Return the line of a kernel that has some words."""
    source = kernel.raw_src  # type: ignore[attr-defined]
    first = kernel.starting_line_number  # type: ignore[attr-defined]
    return int(first + next(place for place, line in enumerate(source) if words in line))


def _finding(error: SimDeviceError, kernel: object, words: str) -> str:
    """Return what an error says of a kernel's line."""
    where = f"{__file__}:{_line(kernel, words)}: "
    assert error.reason.startswith(where), error.reason
    return error.reason.removeprefix(where)


@pytest.mark.parametrize(
    ("offset", "text"),
    [
        pytest.param(-1, "reads element -1 of 'source', whose memory has 8", id="below"),
        pytest.param(1, "reads element 8 of 'source', whose memory has 8", id="above"),
        pytest.param(100, "reads element 100 of 'source', whose memory has 8", id="far above"),
    ],
)
def test_read_out_of_bounds_is_found(offset: int, text: str) -> None:
    """A read beside a tensor's memory names the line, the argument and the element."""
    with simulate("lazy"):
        source, out = torch.zeros(8, device="sim"), torch.zeros(8, device="sim")
        read[(1,)](source, out, offset, BLOCK=8)
        with pytest.raises(SimDeviceError) as raised:
            out.tolist()

    assert raised.value.operator == "read"
    assert _finding(raised.value, read, "tl.load") == text


def test_write_out_of_bounds_is_found() -> None:
    """A write behind a tensor's memory writes nothing, and is found."""
    with simulate("lazy"):
        out, behind = torch.zeros(8, device="sim"), torch.zeros(8, device="sim")
        write[(1,)](out, 8, BLOCK=4)
        with pytest.raises(SimDeviceError) as raised:
            out.tolist()

        assert behind.tolist() == [0.0] * 8
    text = "writes element 8 of 'out', whose memory has 8"
    assert _finding(raised.value, write, "tl.store") == text


def test_memory_of_another_tensor_is_out_of_bounds() -> None:
    """An offset that leads into another tensor is found, though it is memory of the device."""
    with simulate("lazy"):
        first, second = torch.zeros(8, device="sim"), torch.zeros(8, device="sim")
        write[(1,)](first, (second.data_ptr() - first.data_ptr()) // 4, BLOCK=4)
        with pytest.raises(SimDeviceError, match=r"writes element .* of 'out', whose memory has 8"):
            second.tolist()

        assert second.tolist() == [0.0] * 8


def test_wrong_stride_is_out_of_bounds() -> None:
    """A stride of another layout leads out of the tensor."""
    with simulate("lazy"):
        source, out = torch.zeros(4, 2, device="sim"), torch.zeros(4, device="sim")
        read_columns[(1,)](source, out, 4, 2, BLOCK=4)
        out.tolist()
        read_columns[(1,)](source, out, 4, 4, BLOCK=4)
        with pytest.raises(SimDeviceError) as raised:
            out.tolist()

    assert "of 'source', whose memory has 8" in _finding(raised.value, read_columns, "tl.load")


def test_view_has_the_memory_of_what_it_shows() -> None:
    """A view's pointer may reach whatever memory its tensor has, and no more."""
    with simulate("lazy"):
        whole, out = torch.arange(8.0, device="sim"), torch.zeros(4, device="sim")
        read[(1,)](whole[4:6], out, -2, BLOCK=4)
        assert out.tolist() == [2, 3, 4, 5]
        read[(1,)](whole[4:6], out, 2, BLOCK=4)
        with pytest.raises(SimDeviceError, match="of 'source', whose memory has 8"):
            out.tolist()


def test_atomic_operation_out_of_bounds_is_found() -> None:
    """An atomic operation beside a tensor's memory is found."""
    with simulate("lazy"):
        numbers = torch.zeros(4, dtype=torch.int32, device="sim")
        count_up[(1,)](numbers, 4)
        with pytest.raises(SimDeviceError) as raised:
            numbers.tolist()

    text = "writes element 4 of 'numbers', whose memory has 4"
    assert _finding(raised.value, count_up, "tl.atomic_add") == text


def test_index_from_memory_that_nothing_wrote_is_found() -> None:
    """An index that was never written leads so far away that the finding says so."""
    with simulate("lazy"):
        source, out = torch.zeros(8, device="sim"), torch.zeros(4, device="sim")
        index = torch.empty(4, dtype=torch.int64, device="sim")
        gather[(1,)](source, index, out, BLOCK=4)
        with pytest.raises(SimDeviceError) as raised:
            out.tolist()

    found = _finding(raised.value, gather, "tl.load(source")
    assert "of 'source', whose memory has 8; an index from memory that nothing has written" in found


def test_early_read_of_an_index_is_found() -> None:
    """A kernel that does not wait for its index finds poison, and the race is named."""
    device = torch.get_device_module("sim")
    with simulate("lazy", check_races=True):
        source, out = torch.zeros(8, device="sim"), torch.zeros(4, device="sim")
        index = torch.empty(4, dtype=torch.int32, device="sim")
        device.synchronize()
        with device.stream(device.Stream()):
            index.fill_(3)
        gather[(1,)](source, index, out, BLOCK=4)
        with pytest.raises(SimDeviceError) as raised:
            out.tolist()

    assert "read by gather on stream 0" in str(raised.value.races)


def test_use_of_freed_memory_is_found() -> None:
    """An address of a tensor that died before the launch is one that no tensor has."""
    with simulate("lazy"):
        vector, out = torch.zeros(4, device="sim"), torch.zeros(4, device="sim")
        table = torch.tensor([vector.data_ptr()], device="sim")
        del vector
        read_by_table[(1,)](table, out, 0, BLOCK=4)
        with pytest.raises(SimDeviceError) as raised:
            out.tolist()

    found = _finding(raised.value, read_by_table, "tl.load(vector")
    assert found.startswith("reads memory at 0x")
    assert found.endswith(", which no tensor has any more")


def test_use_of_memory_that_is_freed_before_a_replay_is_found() -> None:
    """A replay is a launch: what was freed between it and the capture is gone."""
    device = torch.get_device_module("sim")
    with simulate("lazy"):
        vector, out = torch.zeros(4, device="sim"), torch.zeros(4, device="sim")
        table = torch.tensor([vector.data_ptr()], device="sim")
        graph = device.CUDAGraph()
        with device.graph(graph):
            read_by_table[(1,)](table, out, 0, BLOCK=4)
        graph.replay()
        assert out.tolist() == [0.0] * 4
        del vector
        graph.replay()

        with pytest.raises(SimDeviceError, match="which no tensor has any more"):
            out.tolist()


@pytest.mark.parametrize(
    ("offset", "text"),
    [
        pytest.param(126, "reads at 0x[0-9a-f]+, where no tensor is", id="beyond its block"),
        pytest.param(2, "reads at 0x[0-9a-f]+, where no tensor is", id="beyond its end"),
    ],
)
def test_address_from_memory_is_checked(offset: int, text: str) -> None:
    """A pointer from a table leads no further than the tensor that it is of."""
    with simulate("lazy"):
        vector, out = torch.zeros(4, device="sim"), torch.zeros(4, device="sim")
        table = torch.tensor([vector.data_ptr()], device="sim")
        read_by_table[(1,)](table, out, offset, BLOCK=4)

        with pytest.raises(SimDeviceError, match=text):
            out.tolist()


def test_number_for_an_address_is_found() -> None:
    """A table that holds no addresses leads nowhere."""
    with simulate("lazy"):
        table, out = torch.tensor([12345], device="sim"), torch.zeros(4, device="sim")
        read_by_table[(1,)](table, out, 0, BLOCK=4)

        with pytest.raises(SimDeviceError, match="reads at 0x3039, where no tensor is"):
            out.tolist()


def test_misaligned_access_is_found() -> None:
    """A number that begins between two is no number's address."""
    with simulate("lazy"):
        source = torch.zeros(32, dtype=torch.uint8, device="sim")
        out = torch.zeros(4, device="sim")
        read_between[(1,)](source, out, BLOCK=4)
        with pytest.raises(SimDeviceError) as raised:
            out.tolist()

    found = _finding(raised.value, read_between, "tl.load(numbers")
    assert found.startswith("reads 4 bytes at 0x")
    assert found.endswith("where no element begins")


def test_loop_that_runs_away_is_found() -> None:
    """A bound that nothing wrote is found before the first turn."""
    with simulate("lazy"):
        counts, out = torch.empty(1, dtype=torch.int32, device="sim"), torch.zeros(1, device="sim")
        sum_of_many[(1,)](counts, out)
        with pytest.raises(SimDeviceError) as raised:
            out.tolist()

    found = _finding(raised.value, sum_of_many, "for number")
    assert found.startswith("would take 2,147,450,879 turns of a loop; a bound from memory")


def test_loop_without_an_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that waits for another one never leaves its loop."""
    monkeypatch.setattr(control, "_MOST_TURNS", 100)
    with simulate("lazy"):
        out = torch.zeros(1, device="sim")
        never[(1,)](out)
        with pytest.raises(SimDeviceError) as raised:
            out.tolist()

    found = _finding(raised.value, never, "while")
    assert found == "has not left a loop after 100 turns; it may wait for another program"


def test_loop_that_does_not_move_is_found() -> None:
    """A step of 0 is a loop without an end."""
    with simulate("lazy"):
        out = torch.zeros(1, device="sim")
        step_of[(1,)](out, 0)
        with pytest.raises(SimDeviceError) as raised:
            out.tolist()

    assert _finding(raised.value, step_of, "for number") == "steps a loop by 0"


@pytest.mark.parametrize("debug", [True, False], ids=["debug", "as it is"])
def test_assertion_is_checked_where_it_is_compiled_in(debug: bool) -> None:
    """An assertion is found with its message, where the kernel is compiled for debugging."""
    with simulate("lazy"):
        numbers = torch.tensor([1.0, -1.0], device="sim")
        checked[(1,)](numbers, BLOCK=2, debug=debug)
        if not debug:
            assert numbers.tolist() == [1.0, -1.0]
            return
        with pytest.raises(SimDeviceError) as raised:
            numbers.tolist()

    found = _finding(raised.value, checked, "device_assert")
    assert found == "asserts what is false: 100% of all: numbers (>= 0)"


def test_assertion_that_holds_is_no_finding() -> None:
    """An assertion that holds stops nothing."""
    with simulate("lazy"):
        numbers = torch.tensor([1.0, 0.0], device="sim")
        checked[(1,)](numbers, BLOCK=2, debug=True)

        assert numbers.tolist() == [1.0, 0.0]


@pytest.mark.parametrize("place", [-1, 2])
def test_gather_beyond_a_block_is_found(place: int) -> None:
    """A gather of an element that the block does not have is found."""
    with simulate("lazy"):
        index = torch.tensor([0, place], dtype=torch.int32, device="sim")
        gather_block[(1,)](index, index, BLOCK=2)
        with pytest.raises(SimDeviceError) as raised:
            index.tolist()

    found = _finding(raised.value, gather_block, "tl.gather")
    assert found == "gathers from a block of 2 elements beyond its ends"


def test_finding_in_a_helper_names_its_line() -> None:
    """What a helper does is found in the helper."""
    with simulate("lazy"):
        source, out = torch.zeros(8, device="sim"), torch.zeros(1, device="sim")
        read_by_helper[(1,)](source, out)
        with pytest.raises(SimDeviceError) as raised:
            out.tolist()

    text = "reads element 100 of 'source', whose memory has 8"
    assert _finding(raised.value, helper, "tl.load") == text
