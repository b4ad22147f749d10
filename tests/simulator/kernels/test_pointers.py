# mypy: disable-error-code="import-untyped, no-untyped-def, untyped-decorator, no-untyped-call"
# ruff: noqa: ANN001, ANN201, N803, SIM108 - a kernel's arguments
import pytest
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from backend_caps.simulator import simulate


@triton.jit
def copy(source, out, count, BLOCK: tl.constexpr):
    """Copy a vector."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(source + at, mask=at < count), mask=at < count)


@triton.jit
def copy_with(source, out, count, other, BLOCK: tl.constexpr):
    """Copy a vector, and put a number behind it."""
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(source + at, mask=at < count, other=other))


@triton.jit
def copy_block(
    source, out, rows, columns, row_stride, column_stride, PADDING: tl.constexpr, N: tl.constexpr
):
    """Copy a matrix by pointers to blocks, in blocks of N by N."""
    block = tl.make_block_ptr(
        source, (rows, columns), (row_stride, column_stride), (0, 0), (N, N), (1, 0)
    )
    target = tl.make_block_ptr(out, (N, 2 * N), (2 * N, 1), (0, 0), (N, N), (1, 0))
    for _ in range(2):
        values = tl.load(block, boundary_check=(0, 1), padding_option=PADDING)
        tl.store(target, values)
        block, target = tl.advance(block, (0, N)), tl.advance(target, (0, N))


@triton.jit
def copy_described(source, out, rows, columns, N: tl.constexpr):
    """Copy a matrix by descriptors that the kernel makes."""
    read = tl.make_tensor_descriptor(source, [rows, columns], [columns, 1], [N, N])
    write = tl.make_tensor_descriptor(out, [rows, columns], [columns, 1], [N, N])
    row, column = tl.program_id(0) * N, tl.program_id(1) * N
    write.store([row, column], read.load([row, column]) + 1)


@triton.jit
def copy_by_descriptors(read, write, N: tl.constexpr):
    """Copy a matrix by descriptors that the host made."""
    row, column = tl.program_id(0) * N, tl.program_id(1) * N
    write.store([row, column], read.load([row, column]) + 1)


@triton.jit
def gather_rows(source, index, out, rows, columns, N: tl.constexpr, C: tl.constexpr):
    """Gather rows by a descriptor."""
    read = tl.make_tensor_descriptor(source, [rows, columns], [columns, 1], [1, C])
    found = read.gather(tl.load(index + tl.arange(0, N)), 0)
    tl.store(out + tl.arange(0, N)[:, None] * C + tl.arange(0, C)[None, :], found)


@triton.jit
def choose_pointer(left, right, flags, out):
    """Read from one of two tensors, as a number says."""
    place = tl.program_id(0)
    if tl.load(flags + place) != 0:
        source = left
    else:
        source = right
    tl.store(out + place, tl.load(source + place))


@triton.jit
def choose_each(left, right, out, N: tl.constexpr):
    """Read each element from one of two tensors."""
    at = tl.arange(0, N)
    tl.store(out + at, tl.load(tl.where(at % 2 == 0, left + at, right + at)))


@triton.jit
def store_each(left, right, N: tl.constexpr):
    """Write each element to one of two tensors."""
    at = tl.arange(0, N)
    tl.store(tl.where(at % 2 == 0, left + at, right + at), at * 10)


@triton.jit
def sum_by_table(table, out, count, N: tl.constexpr):
    """Add up vectors whose addresses are in memory."""
    at = tl.arange(0, N)
    total = tl.zeros((N,), tl.float32)
    for place in range(count):
        vector = tl.load(table + place).to(tl.pointer_type(tl.float32))
        total += tl.load(vector + at)
    tl.store(out + at, total)


@triton.jit
def write_by_table(table, N: tl.constexpr):
    """Write to vectors whose addresses are in memory, one for each program."""
    vector = tl.load(table + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    tl.store(vector + tl.arange(0, N), tl.program_id(0).to(tl.float32))


@triton.jit
def follow_twice(table, out):
    """Read an address, where there is another one."""
    inner = tl.load(table).to(tl.pointer_type(tl.pointer_type(tl.float32)))
    tl.store(out, tl.load(tl.load(inner)))


@triton.jit
def differ(first, second, out):
    """Store how many bytes are between two pointers."""
    tl.store(out, second.to(tl.int64) - first.to(tl.int64))


@triton.jit
def read_bytes(source, out, N: tl.constexpr):
    """Read bytes for numbers."""
    numbers = source.to(tl.pointer_type(tl.float32), bitcast=True)
    tl.store(out + tl.arange(0, N), tl.load(numbers + tl.arange(0, N)))


def test_mask_keeps_a_block_within_its_tensor() -> None:
    """Lanes behind the end are neither read nor written."""
    with simulate("lazy"):
        source, out = torch.arange(10.0, device="sim"), torch.zeros(10, device="sim")
        copy[(3,)](source, out, 10, BLOCK=4)

        assert out.tolist() == list(range(10))


def test_lanes_that_are_not_read_get_another_value() -> None:
    """A masked lane holds `other`."""
    with simulate("lazy"):
        source, out = torch.ones(3, device="sim"), torch.empty(8, device="sim")
        copy_with[(1,)](source, out, 3, 7.5, BLOCK=8)

        assert out.tolist() == [1.0] * 3 + [7.5] * 5


def test_empty_tensor_may_be_given_where_nothing_is_read() -> None:
    """A tensor of no elements has an address that no lane uses."""
    with simulate("lazy"):
        empty, out = torch.empty(0, device="sim"), torch.empty(4, device="sim")
        copy_with[(1,)](empty, out, 0, 1.0, BLOCK=4)
        copy[(1,)](out, empty, 0, BLOCK=4)

        assert out.tolist() == [1.0] * 4


@pytest.mark.filterwarnings("ignore:tl.make_block_ptr is deprecated")
@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize(
    ("padding", "outside"),
    [pytest.param("zero", 0.0, id="zero"), pytest.param("nan", None, id="nan")],
)
def test_block_pointer_pads(is_transposed: bool, padding: str, outside: float | None) -> None:
    """A pointer to a block reads what is outside of the matrix as padding."""
    with simulate("lazy"):
        matrix = torch.arange(30.0).reshape(5, 6)
        source = matrix.T.contiguous().T.to("sim") if is_transposed else matrix.to("sim")
        out = torch.empty(4, 8, device="sim")
        copy_block[(1,)](source, out, 3, 6, *source.stride(), PADDING=padding, N=4)

        expected = torch.full((4, 8), float("nan") if outside is None else outside)
        expected[:3, :6] = matrix[:3]
        torch.testing.assert_close(out.cpu(), expected, equal_nan=True)


def test_descriptor_of_the_device_copies() -> None:
    """A descriptor that a kernel makes stays within its matrix."""
    with simulate("lazy"):
        source, out = torch.arange(48.0).reshape(6, 8).to("sim"), torch.zeros(6, 8, device="sim")
        copy_described[(2, 2)](source, out, 6, 8, N=4)

        assert out.cpu().equal(torch.arange(48.0).reshape(6, 8) + 1)


def test_descriptor_of_the_host_copies() -> None:
    """A descriptor that the host makes stays within its matrix."""
    with simulate("lazy"):
        source, out = torch.arange(48.0).reshape(6, 8).to("sim"), torch.zeros(6, 8, device="sim")
        read, write = (TensorDescriptor.from_tensor(each, [4, 4]) for each in (source, out))
        copy_by_descriptors[(2, 2)](read, write, N=4)

        assert out.cpu().equal(torch.arange(48.0).reshape(6, 8) + 1)


def test_descriptor_gathers_rows() -> None:
    """A descriptor reads rows in any order."""
    with simulate("lazy"):
        source = torch.arange(128.0).reshape(8, 16).to("sim")
        index = torch.tensor([3, 0, 7, 7, 1, 2, 4, 5], dtype=torch.int32, device="sim")
        out = torch.empty(8, 16, device="sim")
        gather_rows[(1,)](source, index, out, 8, 16, N=8, C=16)

        assert out.cpu().equal(source.cpu()[index.cpu()])


def test_pointer_is_chosen_by_a_branch() -> None:
    """Programs part over which tensor they read."""
    with simulate("lazy"):
        left, right = torch.zeros(4, device="sim"), torch.ones(4, device="sim")
        flags, out = torch.tensor([1, 0, 0, 1], device="sim"), torch.empty(4, device="sim")
        choose_pointer[(4,)](left, right, flags, out)

        assert out.tolist() == [0.0, 1.0, 1.0, 0.0]


def test_pointers_are_chosen_one_by_one() -> None:
    """Elements of one block may lie in several tensors."""
    with simulate("lazy"):
        left, right = torch.zeros(4, device="sim"), torch.ones(4, device="sim")
        out = torch.empty(4, device="sim")
        choose_each[(1,)](left, right, out, N=4)
        store_each[(1,)](left, right, N=4)

        assert out.tolist() == [0.0, 1.0, 0.0, 1.0]
        assert (left.tolist(), right.tolist()) == ([0, 0, 20, 0], [1, 10, 1, 30])


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint64], ids=str)
def test_addresses_are_read_from_memory(dtype: torch.dtype) -> None:
    """A pointer from a table of addresses reads the tensor there."""
    with simulate("lazy"):
        vectors = [torch.full((4,), float(number), device="sim") for number in range(3)]
        table = torch.tensor([each.data_ptr() for each in vectors]).to(dtype).to("sim")
        out = torch.empty(4, device="sim")
        sum_by_table[(1,)](table, out, 3, N=4)

        assert out.tolist() == [3.0] * 4


def test_addresses_from_memory_are_written_to() -> None:
    """A pointer from a table of addresses writes to the tensor there, or to pinned memory."""
    with simulate("lazy"):
        vectors = [torch.zeros(4, device="sim"), torch.zeros(4).pin_memory()]
        table = torch.tensor([each.data_ptr() for each in vectors], device="sim")
        write_by_table[(2,)](table, N=4)
        torch.get_device_module("sim").synchronize()

        assert [each.tolist() for each in vectors] == [[0.0] * 4, [1.0] * 4]


def test_addresses_lead_to_addresses() -> None:
    """A table may hold the address of another one."""
    with simulate("lazy"):
        number, out = torch.tensor([2.5], device="sim"), torch.empty(1, device="sim")
        inner = torch.tensor([number.data_ptr()], device="sim")
        outer = torch.tensor([inner.data_ptr()], device="sim")
        follow_twice[(1,)](outer, out)

        assert out.tolist() == [2.5]


def test_pinned_memory_is_read_and_written() -> None:
    """A kernel accesses pinned memory of the host in place, when it runs."""
    with simulate("lazy"):
        source, out = torch.zeros(4).pin_memory(), torch.zeros(4).pin_memory()
        copy[(1,)](source, out, 4, BLOCK=4)
        source.fill_(3)
        torch.get_device_module("sim").synchronize()

        assert out.tolist() == [3.0] * 4


def test_views_start_where_they_do() -> None:
    """A view's pointer is that of its first element."""
    with simulate("lazy"):
        whole, out = torch.arange(16.0, device="sim"), torch.zeros(8, device="sim")
        copy[(1,)](whole[5:], out[2:], 4, BLOCK=4)
        difference = torch.empty(1, dtype=torch.int64, device="sim")
        differ[(1,)](whole, whole[5:], difference)

        assert out.tolist() == [0, 0, 5, 6, 7, 8, 0, 0]
        assert difference.item() == 20


def test_bytes_are_read_for_numbers() -> None:
    """A pointer to bytes may be taken for one to numbers."""
    with simulate("lazy"):
        numbers = torch.tensor([1.5, -2.0, 0.25, 8.0], device="sim")
        out = torch.empty(4, device="sim")
        read_bytes[(1,)](numbers.view(torch.uint8), out, N=4)

        assert out.tolist() == [1.5, -2.0, 0.25, 8.0]


def test_tensor_is_taken_for_another_type() -> None:
    """`triton.reinterpret` gives a kernel a tensor's bits."""
    with simulate("lazy"):
        numbers = torch.tensor([1.5, -2.0, 0.25, 8.0], device="sim")
        out = torch.empty(4, dtype=torch.int32, device="sim")
        copy[(1,)](triton.reinterpret(numbers, tl.int32), out, 4, BLOCK=4)

        assert out.view(torch.float32).tolist() == [1.5, -2.0, 0.25, 8.0]
