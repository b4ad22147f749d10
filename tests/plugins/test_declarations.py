"""Every shipped declaration is installed under its name, importable and whole; `auto` ranks it."""

from __future__ import annotations

import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from backend_caps_flashinfer import FlashInfer
from backend_caps_flex_attention import FlexAttention
from backend_caps_torch_native import TorchNative, TorchPadded
from backend_caps_triton import TritonAttention
from flashinfer_caps import FLASHINFER
from flex_attention_caps import FLEX_ATTENTION
from torch_native_caps import TORCH_NATIVE, TORCH_PADDED
from triton_caps import TRITON

from backend_caps import (
    AttentionArch,
    BatchKind,
    Declaration,
    Facts,
    HostSeqLens,
    ServerFlags,
    discover,
    select,
)
from backend_caps.resolution.rules import RuleSet

DECLARED = {
    FlashInfer: FLASHINFER,
    FlexAttention: FLEX_ATTENTION,
    TorchNative: TORCH_NATIVE,
    TorchPadded: TORCH_PADDED,
    TritonAttention: TRITON,
}
every_declaration = pytest.mark.parametrize(
    ("kind", "declaration"), DECLARED.items(), ids=lambda own: getattr(own, "__name__", "")
)


@pytest.mark.parametrize("plugin", ["flashinfer", "flex_attention", "torch_native", "triton"])
def test_entry_points_name_every_declaration(plugin: str) -> None:
    """A project's entry points are its module's declarations, one for one."""
    module = import_module(f"{plugin}_caps")
    assert module.__file__ is not None
    project = Path(module.__file__).with_name("pyproject.toml")
    entry_points = tomllib.loads(project.read_text("utf-8"))["project"]["entry-points"]

    declared = {
        name.lower(): f"{plugin}_caps:{name}"
        for name, value in vars(module).items()
        if isinstance(value, Declaration)
    }

    assert entry_points["backend_caps.backends"] == declared


@every_declaration
def test_declaration_points_to_its_implementation(kind: type, declaration: Declaration) -> None:
    """`implementation` is importable, and is the class."""
    assert declaration.implementation is not None
    module, _, name = declaration.implementation.partition(":")

    assert vars(import_module(module))[name] is kind


@every_declaration
def test_declaration_leaves_nothing_unsaid(kind: type, declaration: Declaration) -> None:
    """Every capability is stated: nothing falls back to the worst value."""
    fields = set(type(declaration.capabilities).model_fields)

    assert fields - {*declaration.capabilities.stated()} == {"needs_cpu_seq_lens"}, kind


def test_declarations_say_what_they_read_of_lengths() -> None:
    """Two read exact lengths, in SGLang's spelling too, one their bounds, and two nothing."""
    said = [own.capabilities for own in DECLARED.values()]

    assert [(own.host_seq_lens, own.needs_cpu_seq_lens) for own in said] == [
        (HostSeqLens.EXACT, True),
        (HostSeqLens.UPPER_BOUND, False),
        (HostSeqLens.EXACT, True),
        (HostSeqLens.NONE, False),
        (HostSeqLens.NONE, False),
    ]
    assert FLEX_ATTENTION.capabilities.graph_replay == frozenset(BatchKind)


@pytest.mark.parametrize("declaration", [FLEX_ATTENTION, TORCH_NATIVE, TORCH_PADDED, TRITON])
def test_declaration_refuses_what_is_not_computed(declaration: Declaration) -> None:
    """An FP8 cache and latent attention are refused, each with a reason."""
    facts = Facts(kv_cache_dtype="fp8_e4m3", attention_arch=AttentionArch.MLA, page_size=64)

    codes = {reason.code for reason in declaration.unsupported_reasons(facts)}

    assert codes == {"kv-cache-dtype-unsupported", "attention-arch-unsupported"}


PLAIN = ("--attention-backend", "auto")
TREES = (*PLAIN, "--speculative-algorithm", "NGRAM", "--speculative-eagle-topk", "4")


@pytest.mark.parametrize(
    ("facts", "arguments", "expected"),
    [
        pytest.param(Facts(device="cpu"), PLAIN, "torch_native", id="a CPU"),
        pytest.param(Facts(device="cpu"), TREES, "flex_attention", id="trees on a CPU"),
        pytest.param(Facts(device="xpu"), PLAIN, "flex_attention", id="another device"),
        pytest.param(Facts(device="sim"), PLAIN, "flex_attention", id="the simulated device"),
        pytest.param(
            Facts(device="cuda", compute_capability=(9, 0)), PLAIN, "triton", id="a new GPU"
        ),
        pytest.param(
            Facts(device="cuda", compute_capability=(7, 0)),
            PLAIN,
            "flex_attention",
            id="an old GPU",
        ),
    ],
)
def test_auto_goes_by_the_device(facts: Facts, arguments: tuple[str, ...], expected: str) -> None:
    """Each device gets what was made for it; a CPU what starts without compiling."""
    flags = ServerFlags.from_argv(arguments)

    selection = select(discover(), flags, facts=facts, rules=RuleSet.builtin("sglang-0.5.13"))

    assert selection.flags.attention_backend == expected
