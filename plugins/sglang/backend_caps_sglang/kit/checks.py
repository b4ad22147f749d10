"""Checks of what SGLang's layers have beside plain attention: windows, caps, sinks, encoders.

The kit's own backends have none of it. Each variant of a layer is compared with its definition in
eager forwards, and its graphs with its eager forwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor

from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.kit import Case, Check, Effort, Fault, Forward, Rig, Subject, difference
from backend_caps.kit.check import cases_of, rotated_cases
from backend_caps.kit.checks.replay import REPLAY, replayed_of, unreplayed
from backend_caps.kit.rig import on_host, supplied
from backend_caps.kit.scenarios import draw, scenarios_of
from backend_caps.kit.scenes import Scene
from backend_caps.report.check_catalog import CheckDescription
from backend_caps_sglang.kit.subjects import with_variant
from backend_caps_sglang.kit.variants import LayerVariant

WINDOW = 5
"""Tokens before itself that a token sees: few, so that most contexts are longer."""
_FLOAT8_TOLERANCE = 0.12
"""Absolute and relative: weights of cached values are rounded to float8, by a sixteenth."""
_CHAINS = (Forward.PREFILL, Forward.CHUNK, Forward.MIXED, Forward.DECODE, Forward.VERIFY)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """What is asked about a variant of layers."""

    code: str
    """The check's code."""
    title: str
    """The question, as a statement."""
    variant: LayerVariant
    forwards: Sequence[Forward] = (*_CHAINS, Forward.TREE)
    """The forwards that layers of this kind run."""
    in_graphs: bool = True
    """Whether replays are compared with eager forwards too."""
    note: str = ""
    """What a finding says first; empty, or with a semicolon behind it."""


QUESTIONS = (
    _Question(
        code="sliding-window",
        title="A layer's window is as wide as it says.",
        variant=LayerVariant(window=WINDOW),
        forwards=_CHAINS,
        note=f"each token sees itself and the {WINDOW} before it; ",
    ),
    _Question(
        code="soft-cap",
        title="Scores stay below a layer's cap.",
        variant=LayerVariant(logit_cap=1.5),
    ),
    _Question(
        code="sinks",
        title="A layer's sinks take the weight that they say.",
        variant=LayerVariant(has_sinks=True),
    ),
    _Question(
        code="windowed-sinks",
        title="Sinks hold beside a window.",
        variant=LayerVariant(window=WINDOW, has_sinks=True),
        forwards=_CHAINS,
    ),
    _Question(
        code="kv-scales",
        title="Keys and values of a float8 cache have their layer's scales.",
        variant=LayerVariant(kv_scales=(0.5, 2.0)),
        in_graphs=False,
    ),
    _Question(
        code="encoder",
        title="In an encoder each token of a prompt sees all of them.",
        variant=LayerVariant(is_encoder=True),
        forwards=(Forward.PREFILL,),
        in_graphs=False,
    ),
    _Question(
        code="few-kv-splits",
        title="A decode is right whatever number of parts contexts are split in.",
        variant=LayerVariant(configuration={"kernel": {"triton_attention_num_kv_splits": 3}}),
        forwards=(Forward.DECODE,),
    ),
    _Question(
        code="kv-split-tiles",
        title="A decode is right where contexts are split in parts of a fixed size.",
        variant=LayerVariant(configuration={"kernel": {"triton_attention_split_tile_size": 16}}),
        forwards=(Forward.DECODE,),
    ),
    _Question(
        code="deterministic-inference",
        title="Attention is right with --enable-deterministic-inference.",
        variant=LayerVariant(
            configuration={"deterministic": {"enable_deterministic_inference": True}}
        ),
    ),
)
"""The variants that servers have."""


def eager_output(rig: Rig, scene: Scene) -> Tensor:
    """Run a scene eagerly in a new backend, with every host length: [T, Hq, Dv], host."""
    with rig.running():
        return on_host(supplied(scene, HostSeqLens.EXACT).on(rig.device).run(rig.build))


def _run_eager(question: _Question, rig: Rig, case: Case) -> Iterator[Fault]:
    scenario = case.batch_scenario
    scene = question.variant.prepared(draw(scenario, case.seed))
    own = replace(rig, subject=with_variant(rig.subject, question.variant))
    found = eager_output(own, scene)
    tolerance = rig.subject.tolerance(scenario.dtype)
    if question.variant.kv_scales is not None:
        tolerance = _FLOAT8_TOLERANCE
    differs = difference(found, question.variant.expected(scene), tolerance)
    if differs is not None:
        lengths = scene.batch.seq_lens.tolist()
        seen = _narrower(question.variant, rig, case, found, scene)
        yield Fault(
            what=f"{question.note}beside float64 {differs}{seen}; contexts of {lengths} tokens"
        )


def _narrower(variant: LayerVariant, rig: Rig, case: Case, found: Tensor, scene: Scene) -> str:
    """Say where an output is that of a window which is one token narrower."""
    if variant.window is None:
        return ""
    narrower = replace(variant, window=variant.window - 1).expected(scene)
    is_it = rig.difference(found, narrower, case.batch_scenario) is None
    return f"; it is that of itself and the {variant.window - 1} before it" if is_it else ""


def _run_graphs(question: _Question, rig: Rig, case: Case) -> Iterator[Fault]:
    own = replace(rig, subject=with_variant(rig.subject, question.variant))
    yield from REPLAY.run(own, case)


def _excuse(question: _Question, subject: Subject) -> str | None:
    if subject.builder is None:
        return "it is no class of SGLang's"
    left_out = _LEFT_OUT.get(subject.name, {})
    return left_out.get(question.code)


def _excuse_graphs(question: _Question, subject: Subject) -> str | None:
    excuse = _excuse(question, subject) or unreplayed(subject)
    replays = {*replayed_of(subject)} & {*question.forwards}
    return excuse or (None if replays else "no batch of its forwards is replayed")


def _eager_cases(question: _Question, subject: Subject, effort: Effort) -> Iterator[Case]:
    scenarios = scenarios_of(subject, question.forwards)
    if question.variant.kv_scales is not None:
        # Products of float8 take 32 numbers at least.
        scenarios = (replace(own, dtype="bfloat16", head_size=64) for own in scenarios)
    yield from cases_of(question.code, scenarios, effort)


def _graph_cases(question: _Question, subject: Subject, effort: Effort) -> Iterator[Case]:
    forwards = [each for each in replayed_of(subject) if each in question.forwards]
    yield from rotated_cases(f"{question.code}-graphs", subject, effort, forwards)


_NO_SINKS = "its forwards take no sinks"
_LEFT_OUT: Mapping[str, Mapping[str, str]] = {
    "TorchNativeAttnBackend": {"sinks": _NO_SINKS, "windowed-sinks": _NO_SINKS}
}
"""What a class has no argument for."""


def _eager(question: _Question) -> Check:
    return Check(
        about=CheckDescription(
            code=question.code,
            claims=[],
            title=question.title,
            proves="Eager forwards of such layers are within the tolerance of float64.",
            cannot="Other numbers than those of the cases.",
            after=["numerics"],
        ),
        excuse=partial(_excuse, question),
        cases=partial(_eager_cases, question),
        run=partial(_run_eager, question),
    )


def _graphs(question: _Question) -> Check:
    return Check(
        about=CheckDescription(
            code=f"{question.code}-graphs",
            claims=[],
            title=f"{question.title.removesuffix('.')}, in graphs too.",
            proves="Replays of such layers, full and padded, give what their eager forwards give.",
            cannot="Whether those are right.",
            after=["replay"],
        ),
        excuse=partial(_excuse_graphs, question),
        cases=partial(_graph_cases, question),
        run=partial(_run_graphs, question),
        unfit=REPLAY.unfit,
    )


def _checks(question: _Question) -> tuple[Check, ...]:
    return (_eager(question), _graphs(question)) if question.in_graphs else (_eager(question),)


VARIANT_CHECKS: tuple[Check, ...] = tuple(
    check for question in QUESTIONS for check in _checks(question)
)
"""An eager check of each variant, and one of graphs."""
