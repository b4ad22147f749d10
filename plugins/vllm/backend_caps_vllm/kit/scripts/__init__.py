"""Scripts that show a finding in one of vLLM's classes with torch and vLLM alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from backend_caps.kit import Case, Finding, Forward, KitError, Subject, draw
from backend_caps.kit.issue import IssueScript, script_templates
from backend_caps.kit.layer_variants import FLOAT8_TOLERANCE, LayerVariant
from backend_caps.kit.scenarios import VERIFIED
from backend_caps.kit.scene import Scene
from backend_caps.kit.states.checks import SHORT_PROMPTS
from backend_caps_vllm.kit.checks import VARIANTS, trimmed_scene
from backend_caps_vllm.kit.engine_modules import load_vllm
from backend_caps_vllm.kit.flex import attend_blocks
from backend_caps_vllm.kit.linear_layers import CAPABILITY_OPERATORS
from backend_caps_vllm.kit.servers import FLOAT8

_TEMPLATES = script_templates(Path(__file__).parent)
_MODULES = {
    "FlexAttentionBackend": "flex_attention",
    "TritonAttentionBackend": "triton_attn",
    "TritonAttentionDiffKVBackend": "triton_attn_diffkv",
}
"""The classes that a script builds, and their modules."""
_CHAINS = {Forward.PREFILL, Forward.CHUNK, Forward.MIXED, Forward.DECODE, Forward.VERIFY}
_LIGHTNING = {
    "BailingLinearAttentionBackend": "bailing_linear_attn",
    "LinearAttentionBackend": "minimax_linear_attn",
}
"""The classes whose layers run the kernels of lightning attention, and the layers' modules."""
_CHUNKED = {Forward.CHUNK, Forward.MIXED}
"""The forwards whose prompts begin with a state."""
_TRIMMED = "trimmed-drafts"
_CHECKS: Mapping[str, LayerVariant] = {
    "numerics": LayerVariant(),
    _TRIMMED: LayerVariant(),
    **VARIANTS,
}
"""The checks of one eager forward, and the layers that they run."""

_SCALED_TOLERANCE = 2 * FLOAT8_TOLERANCE
"""A script draws its own numbers, and larger ones than a case does."""


def prepare_vllm() -> None:
    """Stand in for what vLLM imports, pins and compiles for GPUs alone."""
    vllm = load_vllm()
    answers = dict.fromkeys(CAPABILITY_OPERATORS, lambda _capability: False)
    vars(vllm.module("_custom_ops")).update(answers)
    vars(vllm.module("utils.torch_utils"))["PIN_MEMORY"] = False
    flex = vllm.module("v1.attention.backends.flex_attention")
    vars(flex)["flex_attention_compiled"] = attend_blocks


def script_of(subject: Subject, finding: Finding) -> IssueScript:
    """Write the script of a finding.

    Raises:
        KitError: there is none for its class, its check or its forward.
    """
    case = finding.case
    values: Mapping[str, object] = {"num_verified": VERIFIED}
    template = _template_of(subject, case)
    if template == "attention.py.jinja":
        _require_attention(subject, case)
        values = _attention(subject, finding)
    elif case.scenario is not None:
        values = {
            **values,
            "num_heads": case.scenario.num_heads,
            "head_size": case.scenario.head_size,
            "module": _LIGHTNING.get(subject.name, ""),
        }
    head = {"check": case.check, "backend": subject.name, "version": load_vllm().version}
    text = _TEMPLATES.get_template(template).render({**head, **values})
    return IssueScript(text=text, variables={"TRITON_INTERPRET": "1"})


def _template_of(subject: Subject, case: Case) -> str:
    """Name the template of a case's script."""
    if (subject.name, case.check) == ("TritonMLABackend", "batch-invariance"):
        return "mla_invariance.py.jinja"
    forward = None if case.scenario is None else case.scenario.forward
    if subject.name in _LIGHTNING:
        if case.check == "linear-states-graphs" and forward is Forward.VERIFY:
            return "drafts.py.jinja"
        if case.check == "linear-states" and forward in _CHUNKED:
            return "lightning.py.jinja"
        return _OF_LIGHTNING.get(case.check, "attention.py.jinja")
    return "attention.py.jinja"


_OF_LIGHTNING = {SHORT_PROMPTS: "short_prompt.py.jinja", "linear-states-waits": "clearing.py.jinja"}
"""Scripts of what layers of lightning attention do, by the check."""


def _require_attention(subject: Subject, case: Case) -> None:
    """Raise a KitError where no script runs a case of plain attention."""
    if case.check not in _CHECKS:
        raise KitError.no_script(subject.name, f"{case.check} is more than an eager forward")
    if case.scenario is None or case.scenario.forward not in _CHAINS:
        raise KitError.no_script(subject.name, "its batches have trees, or are a draft model's")
    if subject.name not in _MODULES:
        raise KitError.no_script(subject.name, "it is no class of plain attention")


def _attention(subject: Subject, finding: Finding) -> Mapping[str, object]:
    """Return what stands in a script of attention."""
    case = finding.case
    scenario, variant = case.batch_scenario, _CHECKS[case.check]
    scene, spread = _drawn(case)
    scales = variant.scales_of(scenario.layer_ids[0])
    words = {"logits_soft_cap": variant.logit_cap, "sinks": "sinks" if variant.has_sinks else None}
    return {
        # Triton's interpreter, which runs it where there is no GPU, has no bfloat16.
        "dtype": "float16" if scenario.dtype == "bfloat16" else scenario.dtype,
        "forward": scenario.forward.value,
        "scenario": scenario,
        "variant": variant,
        "module": _MODULES[subject.name],
        "flex": subject.name == "FlexAttentionBackend",
        "sets_value_size": subject.name == "TritonAttentionDiffKVBackend",
        "verifies": scenario.forward is Forward.VERIFY,
        "old": [cached for cached, _ in scene.requests],
        "new": scene.counts if {*scene.counts} != {1} else f"[1] * {len(scene.counts)}",
        "spread": spread,
        "scaling": f"{scene.layers[0].scaling:.6g}",
        # vLLM's windows count the token itself.
        "window": None if variant.num_before is None else variant.num_before + 1,
        "cache_dtype": FLOAT8 if scales else "auto",
        "scales": scales,
        "sinks": variant.has_sinks,
        "more_words": "".join(f", {name}={own}" for name, own in words.items() if own is not None),
        "groups": scenario.num_heads // scenario.num_kv_heads,
        "compares": finding.fault.site is None,
        "tolerance": _SCALED_TOLERANCE if scales else subject.tolerance(scenario.dtype),
    }


def _drawn(case: Case) -> tuple[Scene, list[int] | None]:
    """Draw the batch of a case, and how the host spreads its tokens where it knows no better."""
    if case.check == _TRIMMED:
        scene, spread = trimmed_scene(case)
        return scene, [*spread]
    return draw(case.batch_scenario, case.seed), None
