from __future__ import annotations

import tomllib
from importlib import import_module
from pathlib import Path

import flex_attention_caps
from backend_caps_flex_attention import FlexAttention
from flex_attention_caps import FLEX_ATTENTION

from backend_caps import AttentionArch, BatchKind, Declaration, Facts, HostSeqLens

PROJECT = Path(flex_attention_caps.__file__).parent


def test_entry_points_name_the_declaration() -> None:
    """The project's entry points are the module's declarations, one for one."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    entry_points = project["entry-points"]["backend_caps.backends"]

    declared = {
        name.lower(): f"flex_attention_caps:{name}"
        for name, value in vars(flex_attention_caps).items()
        if isinstance(value, Declaration)
    }

    assert entry_points == declared


def test_declaration_points_to_its_implementation() -> None:
    """`implementation` is importable, and is the class."""
    assert FLEX_ATTENTION.implementation is not None
    module, _, name = FLEX_ATTENTION.implementation.partition(":")

    found = getattr(import_module(module), name)

    assert found is FlexAttention


def test_declaration_leaves_nothing_unsaid() -> None:
    """Every capability is stated: nothing falls back to the worst value."""
    unsaid = set(type(FLEX_ATTENTION.capabilities).model_fields) - {
        *FLEX_ATTENTION.capabilities.stated(),
        "needs_cpu_seq_lens",
    }

    assert unsaid == set()


def test_declaration_asks_for_upper_bounds() -> None:
    """Upper bounds are what it reads on the host, and it replays every kind of batch."""
    capabilities = FLEX_ATTENTION.capabilities

    said = (capabilities.host_seq_lens, capabilities.graph_replay)

    assert said == (HostSeqLens.UPPER_BOUND, frozenset(BatchKind))


def test_declaration_refuses_what_is_not_computed() -> None:
    """An FP8 cache and latent attention are refused, each with a reason."""
    facts = Facts(kv_cache_dtype="fp8_e4m3", attention_arch=AttentionArch.MLA, page_size=64)

    codes = {reason.code for reason in FLEX_ATTENTION.unsupported_reasons(facts)}

    assert codes == {"kv-cache-dtype-unsupported", "attention-arch-unsupported"}
