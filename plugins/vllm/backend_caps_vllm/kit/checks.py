"""The check that only vLLM's backends have: sliding windows.

The kit's own backends have no windows. vLLM's implementations are built with theirs, and it is
vLLM's rule that is held here: of a window of W, a token sees itself and the W - 1 before it.

Shapes: N new tokens of one request, C tokens of its context, T tokens in a batch, Hq query heads,
Dv the values' size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.kit import Case, Check, Fault, Forward, Rig
from backend_caps.kit.check import cases_of, unless_claimed
from backend_caps.kit.rig import on_host, supplied
from backend_caps.kit.scenarios import draw, scenarios_of
from backend_caps.kit.scenes import Scene, reference_attention
from backend_caps.report.check_catalog import CheckDescription
from backend_caps_vllm.kit.subjects import windowed

WINDOW = 5
"""Tokens that a token sees, itself included: few, so that most contexts are longer."""
FORWARDS = (Forward.PREFILL, Forward.CHUNK, Forward.MIXED, Forward.DECODE, Forward.VERIFY)


def _run(rig: Rig, case: Case) -> Iterator[Fault]:
    scenario = case.batch_scenario
    scene = draw(scenario, case.seed)
    found = _output(rig, scene)
    differs = rig.difference(found, _expected(scene, WINDOW), scenario)
    if differs is not None:
        wider = rig.difference(found, _expected(scene, WINDOW + 1), scenario)
        seen = "" if wider else f"; it is that of itself and the {WINDOW} before it"
        yield Fault(
            what=f"each token sees itself and the {WINDOW - 1} before it; beside float64 {differs}"
            f"{seen}; contexts of {scene.batch.seq_lens.tolist()} tokens"
        )


def _output(rig: Rig, scene: Scene) -> Tensor:
    """Run a scene eagerly in a new backend whose layer has the window: [T, Hq, Dv], host."""
    with rig.running():
        there = supplied(scene, HostSeqLens.EXACT).on(rig.device)
        return on_host(there.run(lambda pools: windowed(rig.subject, pools, WINDOW)))


def _expected(scene: Scene, window: int) -> Tensor:
    """Attend by the definition: [T, Hq, Dv] float64, host."""
    visible = [_narrowed(own, window) for own in scene.visible]
    return reference_attention(replace(scene, visible=visible))


def _narrowed(visible: Tensor, window: int) -> Tensor:
    """Hide what is further back than the window: [N, C] bool, host."""
    count, length = visible.shape
    return visible.triu(length - count - window + 1)


SLIDING_WINDOW = Check(
    about=CheckDescription(
        code="sliding-window",
        claims=["sliding_window"],
        title="A layer's window is as wide as it says.",
        proves="Eager prompts, chunks, mixed batches, decodes and verified chains of a layer with "
        f"a window of {WINDOW} are within the tolerance of float64, where each token sees itself "
        f"and the {WINDOW - 1} before it.",
        cannot="Windows of other widths, and windows over a cache whose old blocks are freed.",
        after=["numerics"],
    ),
    excuse=unless_claimed("sliding_window"),
    cases=lambda subject, effort: cases_of(
        "sliding-window", scenarios_of(subject, FORWARDS), effort
    ),
    run=_run,
)
