"""The checks that only vLLM's backends have: of layers that are not plain.

The kit's own backends have no windows, caps or sinks. vLLM's implementations are built with theirs,
and it is vLLM's rules that are held here: of a window of W, a token sees itself and the W - 1
before it.

Shapes: T tokens in a batch, Hq query heads, Dv the values' size.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from torch import Tensor

from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.kit import Case, Check, Fault, Forward, Rig
from backend_caps.kit.check import cases_of, unless_claimed
from backend_caps.kit.rig import on_host, supplied
from backend_caps.kit.scenarios import draw, scenarios_of
from backend_caps.kit.scenes import Scene
from backend_caps.report.check_catalog import CheckDescription
from backend_caps_vllm.kit.subjects import built
from backend_caps_vllm.kit.variants import LayerVariant

_WINDOW, _CAP = 5, 0.5
"""A window that most contexts are longer than, and a bound that most scores are near to."""
_FORWARDS = (Forward.PREFILL, Forward.CHUNK, Forward.MIXED, Forward.DECODE, Forward.VERIFY)


def _run(variant: LayerVariant, rig: Rig, case: Case) -> Iterator[Fault]:
    scenario = case.batch_scenario
    scene = draw(scenario, case.seed)
    differs = rig.difference(_output(variant, rig, scene), variant.expected(scene), scenario)
    if differs is not None:
        lengths = scene.batch.seq_lens.tolist()
        yield Fault(what=f"beside float64 {differs}; contexts of {lengths} tokens")


def _output(variant: LayerVariant, rig: Rig, scene: Scene) -> Tensor:
    """Run a scene eagerly in a new backend of the variant: [T, Hq, Dv], host."""
    with rig.running():
        there = supplied(scene, HostSeqLens.EXACT).on(rig.device)
        return on_host(there.run(partial(built, rig.subject, variant=variant)))


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
        cases=lambda subject, effort: cases_of(code, scenarios_of(subject, _FORWARDS), effort),
        run=partial(_run, variant),
    )


SLIDING_WINDOW = _check(
    "sliding-window",
    "sliding_window",
    LayerVariant(window=_WINDOW),
    title="A layer's window is as wide as it says.",
    proves=f"each token sees itself and the {_WINDOW - 1} before it",
)
LOGIT_CAP = _check(
    "logit-cap",
    "logit_soft_cap",
    LayerVariant(logit_cap=_CAP),
    title="Scores stay within a layer's bound.",
    proves=f"the hyperbolic tangent keeps scores below {_CAP}",
)
SINKS = _check(
    "sinks",
    "attention_sinks",
    LayerVariant(has_sinks=True),
    title="A layer's sinks take their weight.",
    proves="a score of each head takes weight and gives no value",
)
LAYER_CHECKS = (SLIDING_WINDOW, LOGIT_CAP, SINKS)
"""All of them."""
