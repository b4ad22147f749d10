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
from backend_caps.kit.check import cases_of, rotated_cases, spread_cases
from backend_caps.kit.checks.replay import REPLAY, replayed_of, unreplayed
from backend_caps.kit.layer_variants import FLOAT8_TOLERANCE, float8_scenario, latent_scenario
from backend_caps.kit.rig import on_host, supplied
from backend_caps.kit.scenarios import draw, scenarios_of
from backend_caps.kit.scenes import Scene
from backend_caps.report.check_catalog import CheckDescription
from backend_caps_sglang.kit.subjects import with_variant
from backend_caps_sglang.kit.variants import ServedVariant

WINDOW = 5
"""Tokens before itself that a token sees: few, so that most contexts are longer."""
_CHAINS = (Forward.PREFILL, Forward.CHUNK, Forward.MIXED, Forward.DECODE, Forward.VERIFY)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Statement:
    """A statement about layers of a variant, which one or two checks test."""

    code: str
    """The check's code."""
    title: str
    """The statement, as a statement."""
    variant: ServedVariant
    forwards: Sequence[Forward] = (*_CHAINS, Forward.TREE)
    """The forwards that layers of this kind run."""
    in_graphs: bool = True
    """Whether replays are compared with eager forwards too."""
    note: str = ""
    """What a finding says first; empty, or with a semicolon behind it."""


STATEMENTS = (
    _Statement(
        code="sliding-window",
        title="A layer's window is as wide as it says.",
        variant=ServedVariant(num_before=WINDOW),
        forwards=_CHAINS,
        note=f"each token sees itself and the {WINDOW} before it; ",
    ),
    _Statement(
        code="mixed-windows",
        title="Layers with a window and layers without attend each in their way.",
        variant=ServedVariant(num_before=WINDOW, is_mixed=True),
        forwards=_CHAINS,
    ),
    _Statement(
        code="window-pools",
        title="Layers with a window attend to memory of their own.",
        variant=ServedVariant(num_before=WINDOW, is_mixed=True, has_window_pool=True),
        forwards=_CHAINS,
    ),
    _Statement(
        code="soft-cap",
        title="Scores stay below a layer's cap.",
        variant=ServedVariant(logit_cap=1.5),
    ),
    _Statement(
        code="sinks",
        title="A layer's sinks take the weight that they say.",
        variant=ServedVariant(has_sinks=True),
    ),
    _Statement(
        code="windowed-sinks",
        title="Sinks hold beside a window.",
        variant=ServedVariant(num_before=WINDOW, has_sinks=True),
        forwards=_CHAINS,
    ),
    _Statement(
        code="kv-scales",
        title="Keys and values of a float8 cache have their layer's scales.",
        variant=ServedVariant(kv_scales=(0.5, 2.0)),
        in_graphs=False,
    ),
    _Statement(
        code="latent-attention",
        title="A model's latents are attended to as its keys and its values.",
        variant=ServedVariant(is_latent=True),
    ),
    _Statement(
        code="encoder",
        title="In an encoder each token of a prompt sees all of them.",
        variant=ServedVariant(is_encoder=True),
        forwards=(Forward.PREFILL,),
        in_graphs=False,
    ),
    _Statement(
        code="few-kv-splits",
        title="A decode is right whatever number of parts contexts are split in.",
        variant=ServedVariant(configuration={"kernel": {"triton_attention_num_kv_splits": 3}}),
        forwards=(Forward.DECODE,),
    ),
    _Statement(
        code="kv-split-tiles",
        title="A decode is right where contexts are split in parts of a fixed size.",
        variant=ServedVariant(configuration={"kernel": {"triton_attention_split_tile_size": 16}}),
        forwards=(Forward.DECODE,),
    ),
    _Statement(
        code="deterministic-inference",
        title="Attention is right with --enable-deterministic-inference.",
        variant=ServedVariant(
            configuration={"deterministic": {"enable_deterministic_inference": True}}
        ),
    ),
)
"""The variants that servers have."""


def eager_output(rig: Rig, scene: Scene) -> Tensor:
    """Run a scene eagerly in a new backend, with every host length: [T, Hq, Dv], host."""
    with rig.running():
        return on_host(supplied(scene, HostSeqLens.EXACT).on(rig.device).run(rig.build))


def _run_eager(statement: _Statement, rig: Rig, case: Case) -> Iterator[Fault]:
    scenario = case.batch_scenario
    scene = statement.variant.prepared(draw(scenario, case.seed))
    own = replace(rig, subject=with_variant(rig.subject, statement.variant))
    found = eager_output(own, scene)
    tolerance = rig.tolerance(scenario)
    if statement.variant.kv_scales is not None:
        tolerance = FLOAT8_TOLERANCE
    differs = difference(found, statement.variant.expected(scene), tolerance)
    if differs is not None:
        lengths = scene.batch.seq_lens.tolist()
        seen = _narrower(statement.variant, rig, case, found, scene)
        yield Fault(
            what=f"{statement.note}beside float64 {differs}{seen}; contexts of {lengths} tokens"
        )


def _narrower(variant: ServedVariant, rig: Rig, case: Case, found: Tensor, scene: Scene) -> str:
    """Say where an output is that of a window which is one token narrower."""
    if variant.num_before is None:
        return ""
    narrower = replace(variant, num_before=variant.num_before - 1).expected(scene)
    is_it = rig.difference(found, narrower, case.batch_scenario) is None
    return f"; it is that of itself and the {variant.num_before - 1} before it" if is_it else ""


def _run_graphs(statement: _Statement, rig: Rig, case: Case) -> Iterator[Fault]:
    own = replace(rig, subject=with_variant(rig.subject, statement.variant))
    yield from REPLAY.run(own, case)


def _excuse(statement: _Statement, subject: Subject) -> str | None:
    if subject.builder is None:
        return "it is no class of SGLang's"
    return _REFUSED.get(subject.name, {}).get(statement.code)


def _excuse_graphs(statement: _Statement, subject: Subject) -> str | None:
    excuse = _excuse(statement, subject) or unreplayed(subject)
    replays = {*replayed_of(subject)} & {*statement.forwards}
    return excuse or (None if replays else "no batch of its forwards is replayed")


def _eager_cases(statement: _Statement, subject: Subject, effort: Effort) -> Iterator[Case]:
    scenarios = scenarios_of(subject, statement.forwards)
    if statement.variant.kv_scales is not None:
        yield from cases_of(statement.code, map(float8_scenario, scenarios), effort)
        return
    if statement.variant.is_latent:
        scenarios = map(latent_scenario, scenarios)
    if statement.variant.is_mixed:
        scenarios = (replace(own, layer_ids=(0, 1)) for own in scenarios)
    yield from spread_cases(statement.code, scenarios, subject, effort)


def _graph_cases(statement: _Statement, subject: Subject, effort: Effort) -> Iterator[Case]:
    forwards = [each for each in replayed_of(subject) if each in statement.forwards]
    cases = rotated_cases(f"{statement.code}-graphs", subject, effort, forwards)
    for case in cases:
        scenario = case.batch_scenario
        is_latent = statement.variant.is_latent
        yield replace(case, scenario=latent_scenario(scenario)) if is_latent else case


_NO_SINKS = dict.fromkeys(("sinks", "windowed-sinks"), "its forwards take no sinks")
_REFUSED: Mapping[str, Mapping[str, str]] = {
    "TorchFlexAttnBackend": {**_NO_SINKS, "encoder": "it refuses layers of an encoder"},
    "TorchNativeAttnBackend": _NO_SINKS,
}
"""Variants that a class refuses by an error of its own, or has no argument for."""


def _eager(statement: _Statement) -> Check:
    return Check(
        about=CheckDescription(
            code=statement.code,
            claims=[],
            title=statement.title,
            proves="Eager forwards of such layers are within the tolerance of float64.",
            cannot="Other numbers than those of the cases.",
            after=["numerics"],
        ),
        excuse=partial(_excuse, statement),
        cases=partial(_eager_cases, statement),
        run=partial(_run_eager, statement),
    )


def _graphs(statement: _Statement) -> Check:
    return Check(
        about=CheckDescription(
            code=f"{statement.code}-graphs",
            claims=[],
            title=f"{statement.title.removesuffix('.')}, in graphs too.",
            proves="Replays of such layers, full and padded, give what their eager forwards give.",
            cannot="Whether those are right.",
            after=["replay"],
        ),
        excuse=partial(_excuse_graphs, statement),
        cases=partial(_graph_cases, statement),
        run=partial(_run_graphs, statement),
        unfit=REPLAY.unfit,
    )


def _checks(statement: _Statement) -> tuple[Check, ...]:
    return (_eager(statement), _graphs(statement)) if statement.in_graphs else (_eager(statement),)


VARIANT_CHECKS: tuple[Check, ...] = tuple(
    check for statement in STATEMENTS for check in _checks(statement)
)
"""An eager check of each variant, and one of graphs."""
