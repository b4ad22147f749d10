from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import triton_caps
from backend_caps_triton import TritonAttention
from triton_caps import TRITON

from backend_caps import AttentionArch, Declaration, Facts

PROJECT = Path(triton_caps.__file__).parent


def test_declaration_loads_no_torch() -> None:
    """A report imports the declaration, and with it neither torch, Triton nor the backend."""
    code = "import sys, triton_caps; print(*sys.modules)"
    search_path = [str(PROJECT), *sys.path]

    run = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", f"import sys; sys.path[:0] = {search_path!r}; {code}"],
        capture_output=True,
        check=True,
        text=True,
    )

    assert {"torch", "triton", "backend_caps_triton"}.isdisjoint(run.stdout.split())


def test_entry_point_names_the_declaration() -> None:
    """The project has one entry point, which is the declaration."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    entry_points = project["entry-points"]["backend_caps.backends"]

    assert entry_points == {"triton": "triton_caps:TRITON"}


def test_declaration_points_to_its_implementation() -> None:
    """`implementation` is importable, and is the class."""
    assert TRITON.implementation is not None
    module, _, name = TRITON.implementation.partition(":")

    found = vars(import_module(module))[name]

    assert found is TritonAttention


def test_declaration_survives_json() -> None:
    """What crosses from the loading process is what was declared."""
    document = TRITON.model_dump_json()

    read = Declaration.model_validate_json(document)

    assert read == TRITON


def test_declaration_leaves_nothing_unsaid() -> None:
    """Every capability is stated: nothing falls back to the worst value."""
    unsaid = set(type(TRITON.capabilities).model_fields) - {*TRITON.capabilities.stated()}

    assert unsaid == {"needs_cpu_seq_lens"}


def test_declaration_refuses_what_is_not_computed() -> None:
    """A CPU, an old GPU, a wide head, an FP8 cache and latent attention have a reason each."""
    facts = Facts(
        device="cpu",
        compute_capability=(7, 5),
        head_size=512,
        kv_cache_dtype="fp8_e4m3",
        attention_arch=AttentionArch.MLA,
    )

    codes = {reason.code for reason in TRITON.unsupported_reasons(facts)}

    assert codes == {
        "device-unsupported",
        "compute-capability-unsupported",
        "head-size-unsupported",
        "kv-cache-dtype-unsupported",
        "attention-arch-unsupported",
    }
