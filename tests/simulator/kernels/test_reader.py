import math
from collections.abc import Callable

import pytest
import torch

from backend_caps.simulator.allocation import Segment
from backend_caps.simulator.kernels.errors import KernelTextError
from backend_caps.simulator.kernels.locations import moved
from backend_caps.simulator.kernels.memory import Memory
from backend_caps.simulator.kernels.programs import Kernel

MODULE = """#loc = loc("kernel.py":3:0)
#loc1 = loc("kernel.py":5:8)
#loc2 = loc("library/core.py":7:4)
#loc3 = loc(callsite(#loc2 at #loc1))
module {{
  tt.func public @kernel(%x: !tt.ptr<f32> loc("x"(#loc)), %out: !tt.ptr<i32> loc("out"(#loc))) {{
{body}
    tt.return loc(#loc1)
  }} loc(#loc)
}} loc(#loc)
"""
LEFT = [1.0, 2.0, 2.0, math.nan]
RIGHT = [2.0, 2.0, 1.0, 1.0]


def _read(*lines: str) -> Kernel:
    """Read a kernel of some lines."""
    text = MODULE.format(body="\n".join(f"    {line} loc(#loc3)" for line in lines))
    return Kernel.read(text, "kernel", ("library",))


def _run(kernel: Kernel, source: torch.Tensor, out: torch.Tensor) -> list[int]:
    """Run one program, and return what it stores."""
    numbers = kernel.function.arguments
    segments = {
        number: Segment(each.view(torch.uint8), each.nbytes, None)
        for number, each in zip(numbers, (source, out), strict=True)
    }

    def nowhere(address: int, verb: str) -> None:
        raise AssertionError(address, verb)

    addresses = [torch.tensor([each.data_ptr()]) for each in (source, out)]
    kernel.run(addresses, (1, 1, 1), Memory(segments, kernel.function.names, nowhere))
    return out.tolist()


@pytest.mark.parametrize(
    ("predicate", "holds"),
    [
        pytest.param("oeq", lambda a, b: a == b, id="oeq"),
        pytest.param("ogt", lambda a, b: a > b, id="ogt"),
        pytest.param("oge", lambda a, b: a >= b, id="oge"),
        pytest.param("olt", lambda a, b: a < b, id="olt"),
        pytest.param("ole", lambda a, b: a <= b, id="ole"),
        pytest.param("one", lambda a, b: a < b or a > b, id="one"),
        pytest.param("ord", lambda a, b: a == a and b == b, id="ord"),  # noqa: PLR0124 - is it NaN
        pytest.param("ueq", lambda a, b: not (a < b or a > b), id="ueq"),
        pytest.param("ugt", lambda a, b: not a <= b, id="ugt"),
        pytest.param("uge", lambda a, b: not a < b, id="uge"),
        pytest.param("ult", lambda a, b: not a >= b, id="ult"),
        pytest.param("ule", lambda a, b: not a > b, id="ule"),
        pytest.param("une", lambda a, b: a != b, id="une"),
        pytest.param("uno", lambda a, b: a != a or b != b, id="uno"),  # noqa: PLR0124 - as above
    ],
)
def test_comparison_of_every_kind(predicate: str, holds: Callable[[float, float], bool]) -> None:
    """A comparison is ordered, false of NaN, or unordered, and true of it."""
    kernel = _read(
        "%at = tt.make_range {end = 4 : i32, start = 0 : i32} : tensor<4xi32>",
        "%behind = tt.make_range {end = 8 : i32, start = 4 : i32} : tensor<4xi32>",
        "%base = tt.splat %x : !tt.ptr<f32> -> tensor<4x!tt.ptr<f32>>",
        "%p = tt.addptr %base, %at : tensor<4x!tt.ptr<f32>>, tensor<4xi32>",
        "%q = tt.addptr %base, %behind : tensor<4x!tt.ptr<f32>>, tensor<4xi32>",
        "%a = tt.load %p : tensor<4x!tt.ptr<f32>>",
        "%b = tt.load %q : tensor<4x!tt.ptr<f32>>",
        f"%c = arith.cmpf {predicate}, %a, %b : tensor<4xf32>",
        "%d = arith.extui %c : tensor<4xi1> to tensor<4xi32>",
        "%outs = tt.splat %out : !tt.ptr<i32> -> tensor<4x!tt.ptr<i32>>",
        "%r = tt.addptr %outs, %at : tensor<4x!tt.ptr<i32>>, tensor<4xi32>",
        "tt.store %r, %d : tensor<4x!tt.ptr<i32>>",
    )

    found = _run(kernel, torch.tensor(LEFT + RIGHT), torch.zeros(4, dtype=torch.int32))

    assert found == [int(holds(a, b)) for a, b in zip(LEFT, RIGHT, strict=True)]


def test_undefined_value_may_be_anything() -> None:
    """A value that the compiler left undefined is read, of any type."""
    kernel = _read(
        "%p = ub.poison : !tt.ptr<f32>",
        "%b = ub.poison : tensor<4x!tt.ptr<f32>>",
        "%f = ub.poison : f32",
        "%n = ub.poison : i32",
        "tt.store %out, %n : !tt.ptr<i32>",
    )

    assert len(_run(kernel, torch.zeros(1), torch.ones(1, dtype=torch.int32))) == 1


def test_site_is_the_innermost_that_is_in_no_library() -> None:
    """What a library's function does is found where it is called."""
    kernel = _read("%v = tt.load %x : !tt.ptr<f32>")

    (access,) = kernel.graph.accesses
    assert str(access.site) == "kernel.py:5"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        pytest.param("%a = arith.addi %b, %b : i32", "%b, which nothing defines", id="value"),
        pytest.param("%a = arith.constant 1 : i4", "values of type 'i4'", id="type"),
        pytest.param(
            "%a = arith.constant dense<[1, 2]> : tensor<2xi32>",
            r"the constant dense<\[1, 2\]>, at kernel.py:5",
            id="constant",
        ),
        pytest.param("what is this", "a line 'what is this'", id="line"),
        pytest.param("%a, %b = tt.load %x : !tt.ptr<f32>", "1 types for the results", id="results"),
        pytest.param("scf.for unsigned %i = %a to %b step %c {", "a loop 'unsigned", id="loop"),
        pytest.param('%a = "tt.reduce"(%x) : f32', "tt.reduce without a region", id="reduction"),
        pytest.param('%a = "tt.other"(%x) ({', "operation 'tt.other'", id="region"),
        pytest.param("tt.other %x : !tt.ptr<f32>", "operation 'tt.other', at k", id="operation"),
        pytest.param(
            "%a = tt.atomic_rmw nand, acq_rel, gpu, %out, %n, %t : (!tt.ptr<i32>, i32, i1) -> i32",
            "the atomic operation 'nand', at kernel.py:5",
            id="atomic operation",
        ),
    ],
)
def test_what_is_not_known_is_named(line: str, words: str) -> None:
    """A line that is not known is an error that shows what it is about."""
    known = ("%n = arith.constant 5 : i32", "%t = arith.constant true")

    with pytest.raises(KernelTextError, match=words):
        _read(*known, line)


def test_arguments_that_do_not_end_are_named() -> None:
    """A function whose arguments are cut off is an error that shows them."""
    with pytest.raises(KernelTextError, match="a line '%x: i32'"):
        Kernel.read("tt.func public @kernel(%x: i32", "kernel")


@pytest.mark.parametrize(
    ("now", "helper"),
    [
        pytest.param("/old/kit/kernel.py", "/old/kit/helper.py", id="not moved"),
        pytest.param("/new/kit/kernel.py", "/new/kit/helper.py", id="another checkout"),
        pytest.param("/new/old/kit/kernel.py", "/old/kit/helper.py", id="below the root's folder"),
    ],
)
def test_files_of_a_moved_kernel_are_renamed(now: str, helper: str) -> None:
    """Files beside the kernel move with it, and none that are in other folders."""
    lines = ("/old/kit/kernel.py", "/old/kit/helper.py", "/usr/library.py")
    text = "\n".join(f'#loc = loc("{file}":3:0)' for file in lines)

    found = moved(text, now)

    expected = (now, helper, "/usr/library.py")
    assert found == "\n".join(f'#loc = loc("{file}":3:0)' for file in expected)
