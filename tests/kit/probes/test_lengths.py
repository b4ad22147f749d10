from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from backend_caps import Given, HostSeqLens, Phase, Role, When
from backend_caps.capability.vocabulary import Capabilities
from backend_caps.kit import Case, Effort, Forward, Rig, Scenario, draw
from backend_caps.kit.probes.lengths import (
    RELAYED,
    level_of,
    loose_bounds,
    prompts_of,
    relayed_cases,
    relayed_scenarios,
    run_told,
    scenes_of,
)
from backend_caps.kit.scenes import reference_attention
from tests.kit.made import HONEST, SCENARIO, claiming

RIG = Rig(subject=HONEST, device="cpu")
EXACT_IN_VERIFY = When(
    given=Given(phase={Phase.VERIFY}),
    capabilities=Capabilities(host_seq_lens=HostSeqLens.EXACT),
    reason="trees are planned on the host",
)


def test_level_is_that_of_the_forward() -> None:
    """What a condition claims of one phase is not claimed of another."""
    declaration = HONEST.declaration.model_copy(update={"conditions": (EXACT_IN_VERIFY,)})
    subject = replace(HONEST, declaration=declaration)

    levels = {own.value: level_of(subject, Scenario(forward=own)) for own in RELAYED}

    assert [name for name, level in levels.items() if level is HostSeqLens.NONE] == [
        "decode",
        "draft",
    ]


def test_scenarios_of_a_level_have_no_prompts() -> None:
    """The scheduler knows the lengths of prompts, whatever is claimed."""
    forwards = {own.forward for own in relayed_scenarios(HONEST, HostSeqLens.NONE)}

    assert forwards == set(RELAYED)
    assert not any(relayed_scenarios(HONEST, HostSeqLens.EXACT))


def test_each_forward_comes_before_any_comes_again() -> None:
    """The first cases are of all forwards, so that the first findings are."""
    cases = [*relayed_cases("made", HONEST, Effort(seeds=(0, 1)), HostSeqLens.NONE)]

    first = [own.scenario.forward for own in cases[: len(RELAYED)] if own.scenario]
    assert set(first) == set(RELAYED)


@pytest.mark.parametrize("forward", RELAYED, ids=lambda own: own.value)
def test_prompts_bring_what_is_cached(forward: Forward) -> None:
    """Prompts write what the cache holds already, so a run behind them is the same."""
    scene = draw(Scenario(forward=forward, page_size=16), 3)
    prompts = prompts_of(scene)
    assert prompts is not None

    found = run_told(RIG, (scene, prompts), HostSeqLens.NONE)

    torch.testing.assert_close(found.double(), reference_attention(scene), atol=2e-5, rtol=2e-5)


def test_prompts_are_a_batch_of_their_own() -> None:
    """A backend gives their outputs, as those of any prefill."""
    prompts = prompts_of(draw(SCENARIO, 3))
    assert prompts is not None

    found = run_told(RIG, (prompts, None), HostSeqLens.NONE)

    torch.testing.assert_close(found.double(), reference_attention(prompts), atol=2e-5, rtol=2e-5)


def test_batch_without_cached_tokens_has_no_prompts() -> None:
    """Of nothing there is no prefill."""
    scenes = [draw(SCENARIO, seed) for seed in range(0, 40, 4)]
    fresh = [scene for scene in scenes if int(scene.batch.seq_lens) == 1]

    assert [prompts_of(scene) for scene in fresh] == [None] * len(fresh)
    assert fresh


def test_only_who_takes_prompts_gets_them() -> None:
    """A backend for draft steps alone never sees a prefill."""
    case = Case(check="made", scenario=SCENARIO, seed=1)

    assert scenes_of(HONEST, case)[1] is not None
    assert scenes_of(claiming(roles=frozenset({Role.DRAFT})), case)[1] is None


def test_bounds_are_valid_and_loose() -> None:
    """None is below its length or past the longest context, and one is not the length."""
    for seed in range(40):
        scene = draw(SCENARIO, seed)
        bounds = loose_bounds(scene, Case(check="made", scenario=SCENARIO, seed=seed))

        assert bool((bounds >= scene.batch.seq_lens).all())
        assert int(bounds.max()) <= SCENARIO.max_context_len
        assert not torch.equal(bounds, scene.batch.seq_lens) or int(bounds.min()) == 24


def test_bounds_of_the_longest_contexts_are_exact() -> None:
    """Nothing is looser than the longest there may be."""
    scene = draw(SCENARIO, 1)
    longest = torch.full_like(scene.batch.seq_lens, SCENARIO.max_context_len)
    full = replace(scene, batch=replace(scene.batch, seq_lens=longest))

    bounds = loose_bounds(full, Case(check="made", scenario=SCENARIO, seed=1))

    assert torch.equal(bounds, longest)
