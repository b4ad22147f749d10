# mypy: disable-error-code="import-untyped, no-untyped-def, untyped-decorator, no-untyped-call"
# ruff: noqa: ANN001, ANN201 - a kernel's arguments
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import driver

from backend_caps.simulator import simulate

STORE = """
@triton.jit
def store(out, value):
    tl.store(out, value)
"""
IMPORTS = "import triton, triton.language as tl\n"
REGISTER = "import torch\nfrom backend_caps.simulator import register, simulate\nregister()\n"
LAUNCH = """
with simulate("lazy"):
    out = torch.zeros(1, device="sim")
    store[(1,)](out, 2.5)
    print(out.tolist())
"""


@triton.jit
def store(out, value):
    """Store a number."""
    tl.store(out, value)


def _run(program: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own."""
    file = folder / "program.py"
    file.write_text(program)
    return subprocess.run(
        [sys.executable, str(file)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_triton_is_imported_first(tmp_path: Path) -> None:
    """Triton knows the device when a program has imported Triton before."""
    found = _run(IMPORTS + REGISTER + STORE + LAUNCH, tmp_path)

    assert (found.stdout, found.stderr) == ("[2.5]\n", "")


def test_triton_is_imported_later(tmp_path: Path) -> None:
    """The device does not import Triton, which knows it once a program does."""
    is_imported = "import sys\nprint('triton' in sys.modules)\n"

    found = _run(REGISTER + is_imported + IMPORTS + STORE + LAUNCH, tmp_path)

    assert (found.stdout, found.stderr) == ("False\n[2.5]\n", "")


def test_interpreted_kernel_is_refused(tmp_path: Path) -> None:
    """Where Triton was told to interpret, kernels run on the host, and the error says why."""
    on_host = "out = torch.zeros(1)\nstore[(1,)](out, 2.5)\nprint(out.tolist())\n"

    found = _run(IMPORTS + REGISTER + STORE + on_host + LAUNCH, tmp_path, TRITON_INTERPRET="1")

    assert found.stdout == "[2.5]\n"
    assert "kernel 'store', launched at" in found.stderr
    assert "told to interpret kernels, on tensors of the host alone; unset TRITON_INTERPRET" in (
        found.stderr
    )


def test_device_is_chosen_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a simulation kernels run on the device, and after it where they did before."""
    before = driver.active
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with simulate("lazy"):
        inside = driver.active
        out = torch.zeros(1, device="sim")
        store[(1,)](out, 2.5)

        assert out.tolist() == [2.5]
    assert inside is not before
    assert driver.active is before


def test_device_looks_like_a_gpu_to_kernels() -> None:
    """Programs that ask the driver for the device get one with Hopper's numbers."""
    active = driver.active
    target = active.get_current_target()
    properties = active.utils.get_device_properties(active.get_current_device())

    assert (target.backend, target.arch, target.warp_size) == ("sim", 90, 32)
    assert properties["multiprocessor_count"] == 132
    assert active.get_active_torch_device() == torch.device("sim", 0)
    assert active.get_device_interface() is torch.get_device_module("sim")
    active.set_current_device(0)


def test_no_launcher_is_compiled() -> None:
    """Asked for the types of C++, the driver says that it has none."""
    with pytest.raises(NotImplementedError, match="no C\\+\\+ type for i32"):
        driver.active.map_python_to_cpp_type("i32")


def test_triton_keeps_its_own_loader(tmp_path: Path) -> None:
    """What is read of Triton by its loader, as its source, is there after the device is known."""
    source = "import inspect\nprint('jit' in inspect.getsource(triton), triton.__loader__.name)\n"

    found = _run(REGISTER + IMPORTS + source, tmp_path)

    assert (found.stdout, found.stderr) == ("True triton\n", "")


FAULT = """
with simulate("lazy"):
    store[(1,)](torch.zeros(1, device="sim"), 2.5)
    torch.get_device_module("sim").synchronize()
"""


def test_line_of_a_moved_kernel_is_where_it_is_now(tmp_path: Path) -> None:
    """What was compiled in another folder has its lines in the file that is run."""
    for name in ("before", "now"):
        (tmp_path / name).mkdir()
        program = IMPORTS + REGISTER + STORE.replace("tl.store(out", "tl.store(out + 1") + FAULT

        found = _run(program, tmp_path / name, TRITON_CACHE_DIR=str(tmp_path / "cache"))

        assert f"{tmp_path / name / 'program.py'}:8: writes element 1" in found.stderr
    compiled = [*tmp_path.glob("cache/*/store.ttir")]
    assert len(compiled) == 1
