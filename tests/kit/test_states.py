"""Recurrences and stories of layers that keep states, without an engine."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from backend_caps.capability.declaration import Declaration
from backend_caps.kit import Case, Effort, Forward, Scenario, Subject
from backend_caps.kit.scenarios import VERIFIED
from backend_caps.kit.states.checks import (
    StateAdapter,
    StateRunner,
    short_prompts_check,
    state_checks,
)
from backend_caps.kit.states.recurrences import (
    LAYER_IDS,
    GatedDelta,
    Lightning,
    Recurrence,
    SelectiveState,
    ShortConvolution,
    State,
)
from backend_caps.kit.states.stories import StateTurn, state_story


class SmallLightning(Lightning):
    """Lightning attention of small heads."""

    num_heads, head_size, value_size = 2, 4, 4
    lengths = (1, 2, 7)


class SmallDelta(GatedDelta):
    """The gated delta rule of small heads."""

    head_size, value_size = 4, 4


class SmallSelection(SelectiveState):
    """A selective state space of small heads."""

    value_size, state_size = 3, 2


class SmallConvolution(ShortConvolution):
    """A short convolution of few channels."""

    value_size = 5


def _empty(recurrence: Recurrence) -> State:
    sizes = recurrence.sizes
    shapes = {"temporal": sizes.temporal, "conv": sizes.conv}
    return {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()}


def _passed(recurrence: Recurrence, count: int) -> tuple[State, list[Tensor]]:
    """Bring drawn tokens into an empty state of the first layer."""
    drawn = recurrence.draw(count, torch.float32, torch.Generator().manual_seed(0))
    state, outputs = _empty(recurrence), []
    for row in range(count):
        token = {name: own[row].double() for name, own in drawn.items()}
        state, output = recurrence.step(LAYER_IDS[0], state, token)
        outputs.append(output)
    return state, outputs


def test_lightning_attention_is_weighted_attention_without_softmax() -> None:
    """A token's weight decays with each token behind it."""
    recurrence = SmallLightning()
    drawn = recurrence.draw(5, torch.float32, torch.Generator().manual_seed(0))["qkv"].double()
    q, k, v = drawn.view(5, 3, 2, 4).unbind(1)
    places = torch.arange(5)
    distance = (places[:, None] - places).clamp(min=0)
    decay = torch.exp(-recurrence.slopes(0)[:, None, None] * distance).tril()
    scores = torch.einsum("qhd,khd->hqk", q, k) * 4**-0.5 * decay

    _, outputs = _passed(recurrence, 5)

    assert torch.allclose(torch.stack(outputs), torch.einsum("hqk,khe->qhe", scores, v))


def test_last_layer_hardly_decays() -> None:
    """Slopes are those of ALiBi in the first layer, and nearly nothing in the last."""
    slopes = Lightning().slopes

    assert torch.allclose(slopes(0), torch.tensor([2.0**-4, 2.0**-8]).double(), rtol=1e-4)
    assert slopes(2).max() < 1e-6


def test_delta_rule_replaces_what_a_key_finds() -> None:
    """A state that does not forget gives a value back to its key, whatever it gave before."""
    recurrence = SmallDelta()
    key = torch.tensor([0.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    state = {**_empty(recurrence), "temporal": torch.randn(2, 4, 4).double()}
    weights = recurrence.weights(0)["conv_weights"][:, -1].double()
    mixed = torch.cat([key, key * 1e6, torch.ones(8).double()]) * torch.sign(weights)

    token = {
        "mixed_qkv": mixed,
        "a": torch.full((2,), -1e3).double(),
        "b": torch.full((2,), 1e3).double(),
    }
    after, _ = recurrence.step(0, state, token)

    found = torch.nn.functional.silu((mixed * weights)[8:]).view(2, 4)
    assert torch.allclose(after["temporal"][:, :, 1], found, atol=1e-5)
    assert torch.equal(after["temporal"][:, :, 0], state["temporal"][:, :, 0])


def test_convolution_keeps_the_last_tokens() -> None:
    """A state has what the next token's convolution looks back at."""
    recurrence = SmallDelta()
    drawn = recurrence.draw(5, torch.float32, torch.Generator().manual_seed(0))

    state, _ = _passed(recurrence, 5)

    assert torch.equal(state["conv"], drawn["mixed_qkv"][2:].double().T)


def test_selective_state_is_attention_weighted_by_steps() -> None:
    """A token's weight is its step, what reads and writes it, and the decays behind it."""
    recurrence = SmallSelection()
    weights = {name: own.double() for name, own in recurrence.weights(0).items()}
    generator = torch.Generator().manual_seed(0)
    drawn = {k: v.double() for k, v in recurrence.draw(5, torch.float32, generator).items()}
    convolved = torch.nn.functional.conv1d(
        torch.nn.functional.pad(drawn["mixed_xbc"].T, (3, 0)),
        weights["conv_weights"][:, None],
        weights["conv_bias"],
        groups=len(weights["conv_bias"]),
    )
    x, b, c = torch.split(torch.nn.functional.silu(convolved.T), [12, 4, 4], dim=1)
    x, b, c = x.view(5, 4, 3), *(own.view(5, 2, 2)[:, [0, 0, 1, 1]] for own in (b, c))
    steps = torch.nn.functional.softplus(drawn["dt"] + weights["dt_bias"])
    passed = (-weights["A_log"].exp() * steps).cumsum(0)
    decays = torch.exp(passed[:, None] - passed[None]).permute(2, 0, 1)
    scores = torch.einsum("qhn,khn->hqk", c, b) * decays.tril() * steps.T[:, None]

    _, outputs = _passed(recurrence, 5)

    expected = torch.einsum("hqk,khe->qhe", scores, x) + weights["D"][:, None] * x
    assert torch.allclose(torch.stack(outputs), expected)


def test_short_convolution_gates_before_and_behind() -> None:
    """A channel convolves `B * x` over three tokens, and multiplies by `C`."""
    recurrence = SmallConvolution()
    weights = recurrence.weights(0)["conv_weights"].double()
    drawn = recurrence.draw(4, torch.float32, torch.Generator().manual_seed(0))
    gated = (drawn["B"].double() * drawn["x"].double()).T

    state, outputs = _passed(recurrence, 4)

    assert torch.equal(state["conv"], gated[:, 2:])
    expected = drawn["C"][3].double() * (gated[:, 1:] * weights).sum(1)
    assert torch.allclose(outputs[3][0], expected)


@pytest.mark.parametrize("own", [SmallDelta(), SmallSelection(), SmallConvolution()])
def test_weights_are_the_same_under_other_defaults(
    own: GatedDelta | SelectiveState | ShortConvolution,
) -> None:
    """An engine may make its layers while torch's default dtype is another."""
    usual = own.weights(0)
    torch.set_default_dtype(torch.bfloat16)
    try:
        others = own.weights(0)
    finally:
        torch.set_default_dtype(torch.float32)

    assert all(torch.equal(usual[name], others[name]) for name in usual)


def _turns(recurrence: Recurrence, forward: Forward) -> list[StateTurn]:
    scenario = Scenario(forward=forward, topk=1)
    return [turn for seed in range(6) for turn in state_story(recurrence, scenario, seed)]


@pytest.mark.parametrize("shortest", [1, 4])
def test_prompts_are_as_long_as_a_class_needs(shortest: int) -> None:
    """New requests bring no fewer tokens than is said; later chunks may."""
    recurrence = SmallLightning()
    recurrence.shortest_prompt = shortest
    turns = _turns(recurrence, Forward.CHUNK)

    news = [own for turn in turns if turn.cleared for own in turn.counts]
    chunks = [own for turn in turns if not turn.cleared for own in turn.counts]

    assert min(news) == shortest
    assert min(chunks) == 1


def test_verifies_keep_a_part_of_their_tokens() -> None:
    """The state behind a verify is that behind the last accepted token."""
    turns = [own for own in _turns(SmallLightning(), Forward.VERIFY) if own.drafts]

    assert {own for turn in turns for own in turn.accepted} == {*range(1, VERIFIED + 1)}
    for turn in turns:
        for place, accepted in enumerate(turn.accepted):
            assert turn.states[0][place] is turn.drafts[0][place][accepted - 1]


def test_prompts_are_beside_verifies_where_an_engine_has_them() -> None:
    """A request within its prompt keeps all of its tokens, and has no drafts."""
    recurrence = SmallLightning()
    assert not any(any(own.verifies) and own.cleared for own in _turns(recurrence, Forward.VERIFY))
    recurrence.mixes_verifies = True

    mixed = [own for own in _turns(recurrence, Forward.VERIFY) if any(own.verifies) and own.cleared]

    assert mixed
    for turn in mixed:
        for place, is_verified in enumerate(turn.verifies):
            assert bool(turn.drafts[0][place]) == is_verified
            assert is_verified or turn.accepted[place] == turn.counts[place]


def _unused(*_words: object, **_named: object) -> StateRunner:
    raise AssertionError("no case is run")


def test_cases_are_those_of_the_forwards_that_an_engine_has() -> None:
    """An engine without drafts verifies nothing, and graphs are of what it captures."""
    subject = Subject(name="small", declaration=Declaration())
    adapter = StateAdapter(
        excuse=lambda _subject, _code: None,
        dtypes=lambda _subject, _code: ("float32",),
        recurrence=lambda _subject, _case: SmallLightning(),
        runner=_unused,
        forwards=lambda _subject: (Forward.PREFILL, Forward.DECODE),
        captured=lambda _subject: (Forward.DECODE,),
    )
    checks = {own.code: own for own in (*state_checks(adapter), short_prompts_check(adapter))}
    asked = {
        code: _forwards([*own.cases(subject, Effort(seeds=range(1)))])
        for code, own in checks.items()
    }

    assert asked["linear-states"] == asked["linear-states-short-prompts"] == ["prefill", "decode"]
    assert asked["linear-states-graphs"] == asked["linear-states-races"] == ["decode"]


def _forwards(cases: Sequence[Case]) -> list[str]:
    return [*dict.fromkeys(case.batch_scenario.forward.value for case in cases)]
