# mypy: disable-error-code="import-untyped, no-untyped-def, untyped-decorator, no-untyped-call"
# ruff: noqa: ANN001, ANN201, N803 - a kernel's arguments
import pytest
import torch
import triton
import triton.language as tl

from backend_caps.simulator import Schedule, SimTensor, simulate
from backend_caps.simulator.streams import CUDAGraph, Event, Stream, current_stream, graph, stream
from tests.simulator.orders import in_every_order


@triton.jit
def add_one(source, out, BLOCK: tl.constexpr):
    """Add 1 to a vector."""
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(source + at) + 1)


@triton.jit
def count_up(numbers):
    """Add to a number."""
    tl.atomic_add(numbers, 1.0)


@triton.jit
def add_by_table(table, out, BLOCK: tl.constexpr):
    """Add 1 to a vector whose address is in memory."""
    at = tl.arange(0, BLOCK)
    vector = tl.load(table).to(tl.pointer_type(tl.float32))
    tl.store(out + at, tl.load(vector + at) + 1)


@triton.jit
def write_by_table(table, BLOCK: tl.constexpr):
    """Write to a vector whose address is in memory."""
    vector = tl.load(table).to(tl.pointer_type(tl.float32))
    tl.store(vector + tl.arange(0, BLOCK), 2.0)


every_order = in_every_order(2)


def _table(*tensors: torch.Tensor) -> torch.Tensor:
    return torch.tensor([each.data_ptr() for each in tensors], device="sim")


def _block(tensor: torch.Tensor) -> int:
    """Return the serial number of a tensor's memory."""
    assert isinstance(tensor, SimTensor)
    return tensor.lease.block.serial


@every_order
def test_kernels_run_in_every_order(schedule: Schedule) -> None:
    """Kernels and operators that are ordered give one result in every order, and no race."""
    with simulate(schedule, check_races=True) as simulation:
        side, done = Stream(), Event()
        numbers = torch.zeros(4, device="sim")
        side.wait_stream(current_stream())
        with stream(side):
            add_one[(1,)](numbers, numbers, BLOCK=4)
            more = numbers * 2
            done.record()
        done.wait()
        add_one[(1,)](more, more, BLOCK=4)
        side.wait_stream(current_stream())

        assert more.tolist() == [3.0] * 4
    assert simulation.races == ()


@pytest.mark.parametrize("reader_is_kernel", [False, True], ids=["operator", "kernel"])
def test_read_of_what_a_kernel_writes_is_a_race(reader_is_kernel: bool) -> None:
    """A read on another stream that does not wait for the kernel is reported with both lines."""
    with simulate("lazy", check_races=True) as simulation:
        source, out = torch.zeros(4, device="sim"), torch.zeros(4, device="sim")
        torch.get_device_module("sim").synchronize()
        add_one[(1,)](source, out, BLOCK=4)
        with stream(Stream()):
            if reader_is_kernel:
                other = torch.empty(4, device="sim")
                add_one[(1,)](out, other, BLOCK=4)
            else:
                other = out + 1
            current_stream().synchronize()

    (race,) = simulation.races
    assert (race.first.operator, race.first.is_write) == ("add_one", True)
    assert race.first.site.file == race.second.site.file == __file__
    assert race.second.operator == ("add_one" if reader_is_kernel else "aten::add.Tensor")
    assert not race.second.is_write


def test_write_of_what_a_kernel_reads_is_a_race() -> None:
    """An operator that writes what a kernel may still read is reported."""
    with simulate("lazy", check_races=True) as simulation:
        source, out = torch.zeros(4, device="sim"), torch.zeros(4, device="sim")
        torch.get_device_module("sim").synchronize()
        add_one[(1,)](source, out, BLOCK=4)
        with stream(Stream()):
            source.fill_(9)

    (race,) = simulation.races
    assert (race.first.operator, race.first.is_write) == ("add_one", False)
    assert (race.second.operator, race.second.is_write) == ("aten::fill_.Scalar", True)


def test_kernels_that_only_read_are_no_race() -> None:
    """Two kernels may read one tensor at once."""
    with simulate("lazy", check_races=True) as simulation:
        source = torch.zeros(4, device="sim")
        outs = [torch.zeros(4, device="sim") for _ in range(2)]
        torch.get_device_module("sim").synchronize()
        for out in outs:
            with stream(Stream()):
                add_one[(1,)](source, out, BLOCK=4)

    assert simulation.races == ()


def test_atomic_operations_write() -> None:
    """Atomic operations of two streams on one number have no order."""
    with simulate("lazy", check_races=True) as simulation:
        numbers = torch.zeros(1, device="sim")
        torch.get_device_module("sim").synchronize()
        count_up[(2,)](numbers)
        with stream(Stream()):
            count_up[(2,)](numbers)

    (race,) = simulation.races
    assert race.first.is_write
    assert race.second.is_write


@every_order
def test_memory_found_by_its_address_takes_part(schedule: Schedule) -> None:
    """A kernel that reads a tensor by a table races with an operator that writes it."""
    with simulate(schedule, check_races=True) as simulation:
        vector, out, side = torch.zeros(4, device="sim"), torch.zeros(4, device="sim"), Stream()
        table = _table(vector)
        torch.get_device_module("sim").synchronize()
        add_by_table[(1,)](table, out, BLOCK=4)
        with stream(side):
            vector.fill_(9)

    (race,) = simulation.races
    assert race.block == _block(vector)
    assert (race.first.operator, race.first.is_write) == ("add_by_table", False)
    assert (race.second.operator, race.second.is_write) == ("aten::fill_.Scalar", True)


@every_order
def test_memory_found_by_its_address_may_be_written_first(schedule: Schedule) -> None:
    """A kernel that writes a tensor by a table races with an earlier read."""
    with simulate(schedule, check_races=True) as simulation:
        vector, side = torch.zeros(4, device="sim"), Stream()
        table = _table(vector)
        torch.get_device_module("sim").synchronize()
        with stream(side):
            copied = vector + 1
        write_by_table[(1,)](table, BLOCK=4)
        side.synchronize()
        del copied

    (race,) = simulation.races
    assert (race.first.operator, race.second.operator) == ("aten::add.Tensor", "write_by_table")
    assert race.second.is_write


@every_order
def test_memory_found_by_its_address_is_no_race_where_it_is_ordered(schedule: Schedule) -> None:
    """Work that waits for the kernel, or for which it waits, is in order."""
    with simulate(schedule, check_races=True) as simulation:
        side = Stream()
        vector, out = torch.zeros(4, device="sim"), torch.zeros(4, device="sim")
        table = _table(vector)
        side.wait_stream(current_stream())
        with stream(side):
            vector.fill_(3)
        current_stream().wait_stream(side)
        add_by_table[(1,)](table, out, BLOCK=4)
        write_by_table[(1,)](table, BLOCK=4)
        side.wait_stream(current_stream())
        with stream(side):
            vector.add_(1)
        side.synchronize()

        assert (out.tolist(), vector.tolist()) == ([4.0] * 4, [3.0] * 4)
    assert simulation.races == ()


def test_races_are_listed_while_a_kernel_has_yet_to_find_memory() -> None:
    """Races that are known are listed, and those of a kernel that has not run come later."""
    with simulate("lazy", check_races=True) as simulation:
        vector, other = torch.zeros(4, device="sim"), torch.zeros(4, device="sim")
        table = _table(vector)
        torch.get_device_module("sim").synchronize()
        write_by_table[(1,)](table, BLOCK=4)
        other.fill_(2)
        with stream(Stream()):
            other.fill_(3)
            vector.fill_(3)
        before, again = simulation.races, simulation.races

    assert [race.block for race in before] == [_block(other)]
    assert again == before
    assert {race.block for race in simulation.races} == {_block(other), _block(vector)}


def test_memory_is_found_at_each_replay() -> None:
    """A replay reads the addresses that are in the table by then."""
    with simulate("lazy", check_races=True) as simulation:
        vectors, side = [torch.zeros(4, device="sim") for _ in range(2)], Stream()
        table, captured = _table(vectors[0]), CUDAGraph()
        torch.get_device_module("sim").synchronize()
        with graph(captured):
            write_by_table[(1,)](table, BLOCK=4)
        captured.replay()
        table.copy_(_table(vectors[1]))
        captured.replay()
        with stream(side):
            vectors[1].fill_(3)

    (race,) = simulation.races
    assert race.block == _block(vectors[1])


def test_free_of_memory_found_by_its_address_is_a_race() -> None:
    """A tensor that is read by a table on another stream must outlive the kernel."""
    with simulate("lazy", check_races=True) as simulation:
        vector, out = torch.zeros(4, device="sim"), torch.zeros(4, device="sim")
        table = _table(vector)
        torch.get_device_module("sim").synchronize()
        with stream(Stream()):
            add_by_table[(1,)](table, out, BLOCK=4)
        del vector

    (race,) = simulation.races
    assert (race.first.operator, race.second.operator) == ("add_by_table", "free")


def test_pinned_memory_found_by_its_address_takes_part() -> None:
    """The host must wait before it writes what a kernel reads by a table."""
    with simulate("lazy", check_races=True) as simulation:
        pinned, out = torch.zeros(4).pin_memory(), torch.zeros(4, device="sim")
        table = _table(pinned)
        pinned.fill_(1)
        add_by_table[(1,)](table, out, BLOCK=4)
        torch.get_device_module("sim").synchronize()
        pinned.fill_(2)
        add_by_table[(1,)](table, out, BLOCK=4)
        pinned.fill_(3)

    (race,) = simulation.races
    assert (race.first.operator, race.second.operator) == ("add_by_table", "aten::fill_.Scalar")


def test_pinned_memory_of_an_argument_takes_part() -> None:
    """The host must wait before it reads what a kernel writes."""
    with simulate("lazy", check_races=True) as simulation:
        source, pinned = torch.zeros(4, device="sim"), torch.zeros(4).pin_memory()
        add_one[(1,)](source, pinned, BLOCK=4)
        pinned.tolist()

    (race,) = simulation.races
    assert (race.first.operator, race.second.operator) == ("add_one", "Tensor.tolist")
