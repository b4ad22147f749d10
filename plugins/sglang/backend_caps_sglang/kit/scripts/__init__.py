"""Scripts that show a finding in one of SGLang's classes with torch and SGLang alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from backend_caps.capability.kind import Phase
from backend_caps.kit import Case, Finding, Forward, KitError, Subject, draw
from backend_caps.kit.issue import IssueScript, script_templates
from backend_caps.kit.layer_variants import FLOAT8_TOLERANCE
from backend_caps_sglang.kit.checks import STATEMENTS
from backend_caps_sglang.kit.engine_modules import load_sglang
from backend_caps_sglang.kit.variants import PLAIN

_TEMPLATES = script_templates(Path(__file__).parent)
_MODES = {
    Forward.PREFILL: "EXTEND",
    Forward.CHUNK: "EXTEND",
    Forward.MIXED: "MIXED",
    Forward.DECODE: "DECODE",
    Forward.VERIFY: "TARGET_VERIFY",
}
"""The forwards that a script runs, and SGLang's names of their modes."""
_MODULES = {
    "TorchFlexAttnBackend": "torch_flex_backend",
    "TorchNativeAttnBackend": "torch_native_backend",
    "TritonAttnBackend": "triton_backend",
}
"""The classes that a script builds, and their modules."""
_VARIANTS = {
    own.code: own.variant
    for own in STATEMENTS
    if not own.variant.configuration and not own.variant.is_latent
}
_CHECKS = {"numerics": PLAIN, "sync-free-prepare": PLAIN, **_VARIANTS}
"""The checks of one eager forward, and the layers that they run."""
_KERNELS = {
    ("LightningAttentionBackend", "linear-states-other-kernels"): "lightning.py.jinja",
    ("GDNAttnBackend", "linear-states-waits"): "gated_delta.py.jinja",
}
"""Scripts of kernels that a class calls, by the class and the check."""

_SCALED_TOLERANCE = 2 * FLOAT8_TOLERANCE
"""A script draws its own numbers, and larger ones than a case does."""


def script_of(subject: Subject, finding: Finding) -> IssueScript:
    """Write the script of a finding.

    Raises:
        KitError: there is none for its class, its check or its forward.
    """
    case = finding.case
    template = _KERNELS.get((subject.name, case.check), "attention.py.jinja")
    if template == "attention.py.jinja":
        _require_attention(subject, case)
        values = _attention(subject, finding)
    else:
        values = {}
    head = {"check": case.check, "backend": subject.name, "version": load_sglang().version}
    named = {**head, "scenario": case.scenario, **values}
    return IssueScript(
        text=_TEMPLATES.get_template(template).render(named), variables={"TRITON_INTERPRET": "1"}
    )


def _require_attention(subject: Subject, case: Case) -> None:
    """Raise a KitError where no script runs a case of plain attention."""
    if case.check not in _CHECKS:
        problem = f"{case.check} is more than an eager forward over keys and values"
        raise KitError.no_script(subject.name, problem)
    if case.scenario is None or case.scenario.forward not in _MODES:
        raise KitError.no_script(subject.name, "its batches have trees, or are a draft model's")
    if _part_of(subject.name, case.scenario.forward) not in _MODULES:
        raise KitError.no_script(subject.name, "it is no class of plain attention")


def _part_of(name: str, forward: Forward) -> str:
    """Return the class that runs a forward: a pair's part, and for halves of a batch Triton's."""
    if name == "HybridAttnBackend" and forward.phase is Phase.PREFILL:
        return "TorchNativeAttnBackend"
    return "TritonAttnBackend" if name in {"HybridAttnBackend", "TboAttnBackend"} else name


def _attention(subject: Subject, finding: Finding) -> Mapping[str, object]:
    """Return what stands in a script of attention."""
    case = finding.case
    scenario, variant = case.batch_scenario, _CHECKS[case.check]
    layer_id = scenario.layer_ids[0]
    scene = draw(scenario, case.seed)
    old, new = [cached for cached, _ in scene.requests], [*scene.counts]
    window, scales = variant.window_of(layer_id), variant.scales_of(layer_id)
    class_name = _part_of(subject.name, scenario.forward)
    waits = ""
    if case.check == "sync-free-prepare":
        waits = "prepare" if subject.claim("sync_free_prepare") is True else "forward"
    tolerance = subject.tolerance(scenario.dtype) if scales is None else _SCALED_TOLERANCE
    is_triton = class_name == "TritonAttnBackend"
    # Triton's interpreter, which runs it where there is no GPU, has no bfloat16.
    dtype = "float16" if is_triton and scenario.dtype == "bfloat16" else scenario.dtype
    return {
        "backend": class_name,
        "dtype": dtype,
        "forward": scenario.forward.value,
        "variant": variant,
        "module": _MODULES[class_name],
        "plans": is_triton,
        "eager_flex": class_name == "TorchFlexAttnBackend" and scales is not None,
        "mode": _MODES[scenario.forward],
        "verifies": scenario.forward is Forward.VERIFY,
        "extends": _MODES[scenario.forward] in {"EXTEND", "MIXED"},
        "waits": waits,
        "compares": not waits and finding.fault.site is None,
        "old": old,
        "count": new[0],
        "groups": scenario.num_heads // scenario.num_kv_heads,
        "new": new if {*new} != {1} else f"[1] * {len(new)}",
        "layer_id": layer_id,
        "scaling": f"{scene.layers[0].scaling:.6g}",
        "layer_words": _layer_words(variant.logit_cap, window, is_encoder=variant.is_encoder),
        "window": window,
        "window_pool": variant.has_window_pool,
        "scales": scales,
        "sinks": variant.has_sinks,
        "tolerance": tolerance,
    }


def _layer_words(cap: float | None, window: int | None, *, is_encoder: bool) -> str:
    """Write the arguments of SGLang's layer that plain ones do not have."""
    words = {
        "logit_cap": cap,
        "sliding_window_size": window,
        "attn_type": "AttentionType.ENCODER_ONLY" if is_encoder else None,
    }
    return "".join(f", {name}={value}" for name, value in words.items() if value is not None)
