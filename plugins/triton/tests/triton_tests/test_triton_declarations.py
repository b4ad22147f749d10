from __future__ import annotations

import tomllib
from importlib import import_module
from pathlib import Path

import triton_caps
from backend_caps_triton import TritonAttention
from triton_caps import TRITON

from backend_caps import AttentionArch, Facts

PROJECT = Path(triton_caps.__file__).parent


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
