from __future__ import annotations

import warnings
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from backend_caps import Capabilities, Given, HostSeqLens, Phase, Role, When
from backend_caps.kit import Case, Effort, Forward, Rig, Scenario, draw
from backend_caps.kit.probes.seq_lens import (
    BOUND,
    MIRROR,
    RELAYED,
    PromptedBatch,
    Read,
    Reads,
    describe_reads,
    host_waits,
    level_of,
    loose_bounds,
    prompts_of,
    relayed_cases,
    relayed_scenarios,
)
from backend_caps.kit.scenes import reference_attention
from backend_caps.relay import DeviceStreams
from backend_caps.runtime import ForwardBatch
from backend_caps.simulator import Site, simulate
from tests.kit.liars.mirror import LongestOnHost
from tests.kit.made import HONEST, SCENARIO, claiming
from tests.kit.specimen import subject_of

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

    found = PromptedBatch(rig=RIG, batch=scene, prompts=prompts).run(HostSeqLens.NONE)

    torch.testing.assert_close(found.double(), reference_attention(scene), atol=2e-5, rtol=2e-5)


def test_prompts_are_a_batch_of_their_own() -> None:
    """A backend gives their outputs, as those of any prefill."""
    prompts = prompts_of(draw(SCENARIO, 3))
    assert prompts is not None

    found = PromptedBatch(rig=RIG, batch=prompts).run(HostSeqLens.NONE)

    torch.testing.assert_close(found.double(), reference_attention(prompts), atol=2e-5, rtol=2e-5)


def test_batch_without_cached_tokens_has_no_prompts() -> None:
    """Of nothing there is no prefill."""
    scenes = [draw(SCENARIO, seed) for seed in range(0, 40, 4)]
    fresh = [scene for scene in scenes if int(scene.batch.seq_lens) == 1]

    assert [prompts_of(scene) for scene in fresh] == [None] * len(fresh)
    assert fresh


def test_only_backends_with_prefills_get_prompts() -> None:
    """A backend for draft steps alone never sees a prefill."""
    case = Case(check="made", scenario=SCENARIO, seed=1)

    draft = Rig(subject=claiming(roles=frozenset({Role.DRAFT})), device="cpu")
    assert PromptedBatch.of(RIG, case).prompts is not None
    assert PromptedBatch.of(draft, case).prompts is None


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


BATCH = draw(SCENARIO, 1).batch
ROOT = Path("/plugins/own")


def test_watched_batch_is_as_before() -> None:
    """Who watches changes no value, and no kind."""
    watched = Reads(HONEST).watch(BATCH)

    assert isinstance(watched, ForwardBatch)
    assert watched.seq_lens_sum == BATCH.seq_lens_sum
    assert torch.equal(watched.seq_lens, BATCH.seq_lens)


def test_read_names_the_field_and_the_line() -> None:
    """Where no line of the backend runs, it is the line that looked."""
    reads = Reads(HONEST)

    _ = reads.watch(BATCH).seq_lens_sum

    assert [own.name for own in reads.seen] == ["seq_lens_sum"]
    assert reads.seen[0].site.file == __file__


def test_read_is_of_the_backend_that_asked() -> None:
    """A line of the backend's own counts, also where another's code looks in its stead."""
    reads = Reads(subject_of(LongestOnHost))

    LongestOnHost(draw(SCENARIO, 1).pools).seen(reads.watch(BATCH))

    assert {Path(each.site.file).name for each in reads.seen} == {"mirror.py"}


@pytest.mark.parametrize(
    "look",
    [
        pytest.param(lambda batch: batch.seq_lens, id="of-the-device"),
        pytest.param(lambda batch: replace(batch, seq_lens_cpu=None).seq_lens_cpu, id="absent"),
        pytest.param(copy, id="copied"),
        pytest.param(replace, id="replaced"),
    ],
)
def test_what_is_no_read_tells_nothing(look: Callable[[ForwardBatch], object]) -> None:
    """Device lengths may be read, what is not there is not read, and a copy passes all on."""
    reads = Reads(HONEST)

    look(reads.watch(BATCH))

    assert reads.seen == []


@pytest.mark.parametrize("duplicate", [copy, replace], ids=["copied", "replaced"])
def test_copy_is_watched(duplicate: Callable[[ForwardBatch], ForwardBatch]) -> None:
    """A backend that reads a copy reads."""
    reads = Reads(HONEST)

    _ = duplicate(reads.watch(BATCH)).seq_lens_cpu

    assert [own.name for own in reads.seen] == ["seq_lens_cpu"]


def test_reads_are_listed_once_a_line() -> None:
    """A line in a loop is one line; fields that are not asked for are left out."""
    reads = Reads(HONEST)
    watched = reads.watch(replace(BATCH, seq_lens_cpu_upper_bound=BATCH.seq_lens_cpu))

    for _ in range(3):
        _ = watched.seq_lens_cpu, watched.seq_lens_cpu_upper_bound

    assert [own.name for own in reads.of(MIRROR)] == ["seq_lens_cpu"]
    assert [own.name for own in reads.of(BOUND)] == ["seq_lens_cpu_upper_bound"]


def test_reads_are_reported_by_field() -> None:
    """Lines stand as seen from the backend's folder; one elsewhere by its name alone."""
    places = [("seq_lens_cpu", "a.py"), ("seq_lens_sum", "b/c.py"), ("seq_lens_cpu", "../d.py")]
    reads = [Read(name, Site(str(ROOT / file), 7)) for name, file in places]

    assert describe_reads(reads, ROOT) == "seq_lens_cpu (a.py:7, d.py:7) and seq_lens_sum (c.py:7)"


_WORDS = "called a synchronizing CUDA operation (Triggered internally)"
_ON, _OFF = 1, 0


@pytest.fixture
def modes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Take down which modes torch's watch is set to, where there may be no GPU to watch."""
    told: list[int] = []
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", told.append)
    return told


def test_operators_and_calls_that_wait_are_listed_with_their_lines() -> None:
    """A value that is read and a stream that is waited for are two waits, of this file."""
    with simulate() as simulation, host_waits(simulation) as found:
        torch.ones(1, device="sim").item()
        DeviceStreams("sim").current_stream().synchronize()

    assert [own.cause for own in found] == ["aten::_local_scalar_dense", "Stream.synchronize"]
    assert {Path(own.site.file).name for own in found} == {Path(__file__).name}


def test_waits_before_and_behind_the_block_are_not_its_own() -> None:
    """Only what waits within the block is listed, and once it has ended."""
    with simulate() as simulation:
        value = torch.ones(1, device="sim")
        value.item()
        with host_waits(simulation) as found:
            value.add_(1)
        value.item()

    assert found == []


def test_warnings_of_torch_on_cuda_are_waits(modes: list[int]) -> None:
    """Without a simulation torch's own watch tells, by a warning for each operator that blocks."""
    with host_waits(None) as found:
        warnings.warn(_WORDS, stacklevel=1)
        warnings.warn("something else", stacklevel=1)

    assert [own.cause for own in found] == ["an operator or a stream"]
    assert Path(found[0].site.file).name == Path(__file__).name
    assert modes == [_ON, _OFF]


def test_the_watch_on_cuda_ends_with_the_block_that_raises(modes: list[int]) -> None:
    """A backend that raises leaves no watch behind."""
    with pytest.raises(ZeroDivisionError), host_waits(None):
        raise ZeroDivisionError

    assert modes == [_ON, _OFF]
