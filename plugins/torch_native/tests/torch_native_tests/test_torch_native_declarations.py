from __future__ import annotations

import tomllib
from importlib import import_module
from pathlib import Path

import pytest
import torch_native_caps
from backend_caps_torch_native import TorchNative, TorchPadded
from torch_native_caps import TORCH_NATIVE, TORCH_PADDED

from backend_caps import AttentionArch, Declaration, Facts, HostSeqLens

PROJECT = Path(torch_native_caps.__file__).parent
every_declaration = pytest.mark.parametrize(
    "declaration",
    [pytest.param(TORCH_NATIVE, id="torch_native"), pytest.param(TORCH_PADDED, id="torch_padded")],
)


def test_entry_points_name_every_declaration() -> None:
    """The project's entry points are the module's declarations, one for one."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    entry_points = project["entry-points"]["backend_caps.backends"]

    declared = {
        name.lower(): f"torch_native_caps:{name}"
        for name, value in vars(torch_native_caps).items()
        if isinstance(value, Declaration)
    }

    assert entry_points == declared


@pytest.mark.parametrize(
    ("declaration", "kind"), [(TORCH_NATIVE, TorchNative), (TORCH_PADDED, TorchPadded)]
)
def test_declarations_point_to_their_implementation(declaration: Declaration, kind: type) -> None:
    """`implementation` is importable, and is the class."""
    assert declaration.implementation is not None
    module, _, name = declaration.implementation.partition(":")

    found = getattr(import_module(module), name)

    assert found is kind


@every_declaration
def test_declarations_leave_nothing_unsaid(declaration: Declaration) -> None:
    """Every capability is stated: nothing falls back to the worst value."""
    unsaid = set(type(declaration.capabilities).model_fields) - {
        *declaration.capabilities.stated(),
        "needs_cpu_seq_lens",
    }

    assert unsaid == set()


def test_declarations_differ_in_the_host_lengths() -> None:
    """One reads exact lengths, the other none; and each says so in SGLang's spelling too."""
    levels = [d.capabilities.host_seq_lens for d in (TORCH_NATIVE, TORCH_PADDED)]
    spelled = [d.capabilities.needs_cpu_seq_lens for d in (TORCH_NATIVE, TORCH_PADDED)]

    assert levels == [HostSeqLens.EXACT, HostSeqLens.NONE]
    assert spelled == [True, False]


@every_declaration
def test_declarations_refuse_what_is_not_computed(declaration: Declaration) -> None:
    """An FP8 cache and latent attention are refused, each with a reason."""
    facts = Facts(kv_cache_dtype="fp8_e4m3", attention_arch=AttentionArch.MLA, page_size=64)

    codes = {reason.code for reason in declaration.unsupported_reasons(facts)}

    assert codes == {"kv-cache-dtype-unsupported", "attention-arch-unsupported"}
