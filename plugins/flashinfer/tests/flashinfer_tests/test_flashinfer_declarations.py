from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import flashinfer_caps
import pytest
from backend_caps_flashinfer import FlashInfer, MissingFlashInferError
from flashinfer_caps import FLASHINFER

from backend_caps import Facts
from backend_caps.kit.scenes import DECODE, scene

PROJECT = Path(flashinfer_caps.__file__).parent


def test_implementation_loads_no_flashinfer() -> None:
    """Whoever imports the package, to look at its class, needs no FlashInfer for it."""
    code = "import sys, backend_caps_flashinfer; print(*sys.modules)"
    search_path = [str(PROJECT), *sys.path]

    run = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", f"import sys; sys.path[:0] = {search_path!r}; {code}"],
        capture_output=True,
        check=True,
        text=True,
    )

    assert "flashinfer" not in run.stdout.split()


@pytest.mark.parametrize(
    ("facts", "code", "remedy"),
    [
        pytest.param(
            Facts(device="cpu"),
            "device-unsupported",
            "Use another backend, or device cuda.",
            id="no CUDA device",
        ),
        pytest.param(
            Facts(device="cuda", compute_capability=(7, 5)),
            "compute-capability-unsupported",
            "Use another backend, or compute_capability >= 8.0.",
            id="an old one",
        ),
        pytest.param(
            Facts(device="cuda", head_size=80),
            "head-size-unsupported",
            "Use another backend, or head_size one of 64, 128, 256.",
            id="an uneven head size",
        ),
        pytest.param(
            Facts(dtype="float32"),
            "dtype-unsupported",
            "Use another backend, or dtype bfloat16, float16.",
            id="float32",
        ),
    ],
)
def test_declaration_refuses_what_is_not_computed(facts: Facts, code: str, remedy: str) -> None:
    """Where FlashInfer does not run, the reason and a remedy are named."""
    reasons = FLASHINFER.unsupported_reasons(facts)

    assert [(own.code, own.remedy) for own in reasons] == [(code, remedy)]


def test_declaration_fits_the_machines_it_is_for() -> None:
    """An H200 that serves a Llama in bfloat16 is refused nothing."""
    machine = Facts(device="cuda", compute_capability=(9, 0), dtype="bfloat16", head_size=128)

    reasons = FLASHINFER.unsupported_reasons(machine)

    assert reasons == ()


def test_backend_without_flashinfer_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the package, why it is not there, and the command that installs it."""
    monkeypatch.setitem(sys.modules, "flashinfer", None)

    with pytest.raises(MissingFlashInferError) as caught:
        FlashInfer(scene(DECODE, uniform=True).pools)

    assert str(caught.value) == (
        "backend 'flashinfer' cannot import flashinfer: ModuleNotFoundError: import of flashinfer "
        "halted; None in sys.modules; flashinfer-python 0.7.2 or newer was expected, on a machine "
        "with a CUDA device and with nvcc, CUDA's compiler. Install it: pip install "
        "'backend-caps-flashinfer[cuda]'."
    )


def test_flashinfer_that_fails_to_load_is_reported_alike(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without a driver the package may raise anything: the error keeps what it said."""
    (tmp_path / "flashinfer.py").write_text("raise OSError('libcuda.so.1: not found')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "flashinfer", raising=False)

    with pytest.raises(MissingFlashInferError, match=r"OSError: libcuda\.so\.1: not found"):
        FlashInfer(scene(DECODE, uniform=True).pools)


def test_extra_installs_what_the_error_asks_for() -> None:
    """The extra of the error's command is there, and brings FlashInfer."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    extras = project["optional-dependencies"]

    assert extras["cuda"] == ["backend-caps-flashinfer[backend]", "flashinfer-python>=0.7.2,<0.8"]
