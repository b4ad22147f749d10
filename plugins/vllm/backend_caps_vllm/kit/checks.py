"""The checks that only vLLM's backends have: of layers that are not plain, and of trimmed drafts.

The kit's own backends have no windows, caps or sinks. vLLM's implementations are built with theirs,
and it is vLLM's rules that are held here: of a window of W, a token sees itself and the W - 1
before it.

Adaptive verification trims drafts on the device; the host then knows how many tokens there are in
all, and not whose.

Shapes: T tokens in a batch, Hq query heads, Dv the values' size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import cast

from torch import Tensor

from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.kit import Case, Check, Effort, Fault, Forward, Rig, Subject, difference
from backend_caps.kit.check import cases_of, spread_cases, unless_claimed
from backend_caps.kit.checks.mirror import MIRROR_BOUND
from backend_caps.kit.layer_variants import FLOAT8_TOLERANCE, LayerVariant, float8_scenario
from backend_caps.kit.probes.seq_lens import relayed_cases, relayed_scenarios
from backend_caps.kit.rig import on_host, supplied
from backend_caps.kit.scenarios import MOST_REQUESTS, VERIFIED, dice_for, draw, scenarios_of
from backend_caps.kit.scenes import Scene, reference_attention, scene
from backend_caps.report.check_catalog import CheckDescription
from backend_caps.runtime.batch import ForwardMode
from backend_caps_vllm.kit.classes import ADAPTED
from backend_caps_vllm.kit.mla import AdaptedLatent
from backend_caps_vllm.kit.servers import FLOAT8
from backend_caps_vllm.kit.subjects import built, class_of

_WINDOW, _CAP = 5, 0.5
"""A window that most contexts are longer than, and a bound that most scores are near to."""
_WINDOWED, _CAPPED = LayerVariant(num_before=_WINDOW - 1), LayerVariant(logit_cap=_CAP)
_WITH_SINKS, _SCALED = LayerVariant(has_sinks=True), LayerVariant(kv_scales=(0.5, 2.0))
_FORWARDS = (Forward.PREFILL, Forward.CHUNK, Forward.MIXED, Forward.DECODE, Forward.VERIFY)


def _run(variant: LayerVariant, rig: Rig, case: Case) -> Iterator[Fault]:
    scenario = case.batch_scenario
    scene = variant.prepared(draw(scenario, case.seed))
    tolerance = rig.tolerance(scenario) if variant.kv_scales is None else FLOAT8_TOLERANCE
    differs = difference(_output(variant, rig, scene), variant.expected(scene), tolerance)
    if differs is not None:
        lengths = scene.batch.seq_lens.tolist()
        yield Fault(what=f"beside float64 {differs}; contexts of {lengths} tokens")


def _output(variant: LayerVariant, rig: Rig, scene: Scene) -> Tensor:
    """Run a scene eagerly in a new backend of the variant: [T, Hq, Dv], host."""
    with rig.running():
        there = supplied(scene, HostSeqLens.EXACT).on(rig.device)
        return on_host(there.run(partial(built, rig.subject, variant=variant)))


def _cases(code: str, subject: Subject, effort: Effort) -> Iterator[Case]:
    return spread_cases(code, scenarios_of(subject, _FORWARDS), subject, effort)


def _check(code: str, claim: str, variant: LayerVariant, *, title: str, proves: str) -> Check:
    return Check(
        about=CheckDescription(
            code=code,
            claims=[claim],
            title=title,
            proves="Eager prompts, chunks, mixed batches, decodes and verified chains of such a "
            f"layer are within the tolerance of float64, where {proves}.",
            cannot="Other sizes of it, two of them together, and graphs.",
            after=["numerics"],
        ),
        excuse=unless_claimed(claim),
        cases=partial(_cases, code),
        run=partial(_run, variant),
    )


SLIDING_WINDOW = _check(
    "sliding-window",
    "sliding_window",
    _WINDOWED,
    title="A layer's window is as wide as it says.",
    proves=f"each token sees itself and the {_WINDOW - 1} before it",
)
LOGIT_CAP = _check(
    "logit-cap",
    "logit_soft_cap",
    _CAPPED,
    title="Scores stay within a layer's bound.",
    proves=f"the hyperbolic tangent keeps scores below {_CAP}",
)
SINKS = _check(
    "sinks",
    "attention_sinks",
    _WITH_SINKS,
    title="A layer's sinks take their weight.",
    proves="a score of each head takes weight and gives no value",
)


def _excuse_scales(subject: Subject) -> str | None:
    if ADAPTED[subject.name].adapter is AdaptedLatent:
        return "a latent has one scale for keys and values, and the kit's have two"
    dtypes = subject.claim_as(frozenset, "kv_cache_dtypes")
    return None if FLOAT8 in dtypes else f"it claims no {FLOAT8} cache"


KV_SCALES = Check(
    about=CheckDescription(
        code="kv-scales",
        claims=["kv_cache_dtypes"],
        title="Keys and values of a float8 cache have their layer's scales.",
        proves=f"Eager forwards of two layers with other scales, over a cache in {FLOAT8}, are "
        "within the tolerance of float64.",
        cannot="Other dtypes of the cache, scales of tokens or heads, and graphs.",
        after=["numerics"],
    ),
    excuse=_excuse_scales,
    cases=lambda subject, effort: cases_of(
        "kv-scales", map(float8_scenario, scenarios_of(subject, _FORWARDS)), effort
    ),
    run=partial(_run, _SCALED),
)


def trimmed_scene(case: Case) -> tuple[Scene, tuple[int, ...]]:
    """Draw verifies of other lengths, and spread their tokens evenly, as the host does."""
    scenario = case.batch_scenario
    dice = dice_for(scenario, case.seed)
    counts = [1, VERIFIED, *(dice.randint(1, VERIFIED) for _ in range(MOST_REQUESTS - 2))]
    requests = [(dice.randint(0, scenario.max_context_len - VERIFIED), count) for count in counts]
    drawn = scene(requests, setting=scenario.setting(case.seed))
    return drawn, _evenly(sum(counts), len(counts))


def _run_trimmed(rig: Rig, case: Case) -> Iterator[Fault]:
    scenario = case.batch_scenario
    drawn, spread = trimmed_scene(case)
    batch = replace(drawn.batch, mode=ForwardMode.VERIFY, extend_seq_lens_cpu=spread)
    output = rig.plain(replace(drawn, batch=batch))
    if (differs := rig.difference(output, reference_attention(drawn), scenario)) is not None:
        yield Fault(
            what=f"beside float64 {differs}; requests bring {drawn.counts} tokens on the device, "
            f"and {[*spread]} by the host's lengths"
        )


def _evenly(total: int, num_requests: int) -> tuple[int, ...]:
    """Spread tokens over requests as evenly as can be; the last have one more."""
    each, more = divmod(total, num_requests)
    return (each,) * (num_requests - more) + (each + 1,) * more


def _excuse_trimmed(subject: Subject) -> str | None:
    """Excuse what vLLM refuses to trim drafts for."""
    own = cast("SimpleNamespace", class_of(subject.declaration))
    builder = own.get_builder_cls()
    if not own.supports_device_cpu_query_lens_mismatch():
        return "it opts out of adaptive verification"
    takes_any = builder.get_cudagraph_support(None, None).name == "ALWAYS"
    if takes_any or builder.get_varlen_cudagraph_max_query_len(None, None):
        return None
    return "its graphs take verifies of one length, so vLLM refuses to trim drafts"


TRIMMED_DRAFTS = Check(
    about=CheckDescription(
        code="trimmed-drafts",
        claims=[],
        title="The device's query lengths count where the host's are others.",
        proves="Verifies of one to three tokens a request are within the tolerance of float64, "
        "where the host spreads the same tokens evenly, as adaptive verification does: "
        "`supports_device_cpu_query_lens_mismatch` promises it.",
        cannot="Graphs, and prompts beside the verifies.",
        after=["numerics"],
    ),
    excuse=_excuse_trimmed,
    cases=lambda subject, effort: cases_of(
        "trimmed-drafts", scenarios_of(subject, (Forward.VERIFY,)), effort
    ),
    run=_run_trimmed,
)


def _excuse_bounds(subject: Subject) -> str | None:
    claimed = any(relayed_scenarios(subject, HostSeqLens.UPPER_BOUND))
    return "it claims UPPER_BOUND, and mirror-bound gives loose bounds" if claimed else None


LOOSE_BOUNDS = Check(
    about=CheckDescription(
        code="loose-bounds",
        claims=[],
        title="A loose bound of the lengths changes nothing.",
        proves="Outputs are the same where the host's bounds are above the lengths, as vLLM's "
        "runner has them while a step before is still running.",
        cannot="Graphs.",
        after=["numerics"],
    ),
    excuse=_excuse_bounds,
    cases=lambda subject, effort: relayed_cases("loose-bounds", subject, effort, *HostSeqLens),
    run=MIRROR_BOUND.run,
)
VARIANTS: Mapping[str, LayerVariant] = {
    "sliding-window": _WINDOWED,
    "logit-cap": _CAPPED,
    "sinks": _WITH_SINKS,
    "kv-scales": _SCALED,
}
"""The layers that checks run which are not plain, by the check's code."""
OWN_CHECKS = (SLIDING_WINDOW, LOGIT_CAP, SINKS, KV_SCALES, TRIMMED_DRAFTS, LOOSE_BOUNDS)
"""All of them."""
