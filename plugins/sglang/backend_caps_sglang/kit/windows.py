"""Layers with a sliding window: a token sees itself and so many before it.

The kit's own backends have no windows; SGLang's layers say theirs, and it is SGLang's rule that is
held here: of a window of W, a token sees itself and the W before it.

Shapes: N new tokens of one request, C tokens of its context, T tokens in a batch, Hq query heads,
Dv the values' size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from torch import Tensor

from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.kit import Case, Check, Effort, Fault, Forward, Rig, Scenario, Subject
from backend_caps.kit.check import cases_of
from backend_caps.kit.rig import difference, on_host, supplied
from backend_caps.kit.scenarios import draw, scenarios_of
from backend_caps.kit.scenes import Scene, reference_attention
from backend_caps_sglang.kit.subjects import windowed

WINDOW = 5
"""Tokens before itself that a token sees: few, so that most contexts are longer."""
FORWARDS = (Forward.PREFILL, Forward.CHUNK, Forward.MIXED, Forward.DECODE, Forward.VERIFY)


def excuse(subject: Subject) -> str | None:
    """Excuse whatever is not built by an adapter, which knows what a window is."""
    return "its layers have no window" if subject.builder is None else None


def _cases(subject: Subject, effort: Effort) -> Iterable[Case]:
    return cases_of("sliding-window", scenarios_of(subject, FORWARDS), effort)


def _run(rig: Rig, case: Case) -> Iterator[Fault]:
    assert case.scenario is not None, "each case has batches"
    scene, tolerance = draw(case.scenario, case.seed), rig.subject.tolerance(case.scenario.dtype)
    found = output_of(rig, case.scenario, scene)
    differs = difference(found, _expected(scene, WINDOW), tolerance)
    if differs is not None:
        narrower = difference(found, _expected(scene, WINDOW - 1), tolerance)
        seen = "" if narrower else f"; it is that of itself and the {WINDOW - 1} before it"
        yield Fault(
            what=f"each token sees itself and the {WINDOW} before it; beside float64 {differs}"
            f"{seen}; contexts of {scene.batch.seq_lens.tolist()} tokens"
        )


def output_of(rig: Rig, scenario: Scenario, scene: Scene) -> Tensor:
    """Run a scene eagerly in a new backend whose layers have the window: [T, Hq, Dv], host."""
    assert scenario.forward in FORWARDS, "what is not adapted is not tried"
    with rig.running():
        there = supplied(scene, HostSeqLens.EXACT).on(rig.device)
        return on_host(there.run(lambda pools: windowed(rig.subject, pools, WINDOW)))


def _expected(scene: Scene, window: int) -> Tensor:
    """Attend by the definition: [T, Hq, Dv] float64, host."""
    return reference_attention(
        replace(scene, visible=[_narrowed(own, window) for own in scene.visible])
    )


def _narrowed(visible: Tensor, window: int) -> Tensor:
    """Hide what is further back than the window: [N, C] bool, host."""
    count, length = visible.shape
    return visible.triu(length - count - window)


CHECK = Check(
    code="sliding-window",
    claims=(),
    title="A layer's window is as wide as it says.",
    proves="Eager prompts, chunks, mixed batches, decodes and verified chains of layers with a "
    f"window of {WINDOW} are within the tolerance of float64, where each token sees itself and the "
    f"{WINDOW} before it.",
    cannot="Windows of other widths, windows over pools of their own, and windowed trees.",
    excuse=excuse,
    cases=_cases,
    run=_run,
    after=("numerics",),
)
