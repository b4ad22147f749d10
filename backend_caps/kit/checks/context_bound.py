"""Buffers are sized by the longest context that there can be, where the backend says it knows it.

An opt-out from the mirror counts only with `max_context_len_known`: what the mirror would have
sized is then sized by the page table's width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import count

import torch
from torch import Tensor

from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.kit.check import Case, Check, Effort, Fault, cases_of, raised
from backend_caps.kit.probes.lengths import level_of, relayed_scenarios, scenario_of
from backend_caps.kit.rig import Rig, baseline_of, difference, on_host, supplied
from backend_caps.kit.scenarios import Scenario, draw
from backend_caps.kit.scenes import Scene
from backend_caps.kit.subject import Subject
from backend_caps.runtime.attention import AttentionBackend
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.simulator import Site

_CODE = "context-bound"
_WITHOUT = HostSeqLens.NONE, HostSeqLens.UPPER_BOUND
_WIDE = 300
"""Width of the page table, in tokens: above the 256 that guesses are made of."""


def _excuse(subject: Subject) -> str | None:
    if subject.claim("max_context_len_known") is not True:
        return "it does not claim max_context_len_known"
    if not any(relayed_scenarios(subject, *_WITHOUT)):
        return "it claims EXACT: buffers may be sized by the mirror"
    return None


def _cases(subject: Subject, effort: Effort) -> Iterable[Case]:
    wide = (replace(own, min_context_len=_WIDE) for own in relayed_scenarios(subject, *_WITHOUT))
    return cases_of(_CODE, wide, effort)


def _run(rig: Rig, case: Case) -> Iterator[Fault]:
    scenario = scenario_of(case)
    scene = _full_scene(scenario, case.seed)
    expected = baseline_of(lambda: _outputs(rig, scene, HostSeqLens.EXACT))
    site: Site | None = None
    try:
        found = _outputs(rig, scene, level_of(rig.subject, scenario))
    except Exception as error:  # noqa: BLE001 - a plugin raises what it likes
        what: str | None = f"it {raised(error)}"
        site = rig.subject.line_in(error.__traceback__)
    else:
        what = difference(found, expected, rig.subject.tolerance(scenario.dtype))
    if what is not None:
        width = scene.pools.req_to_token.shape[1]
        first = int(scene.batch.seq_lens.min())
        yield Fault(
            what=f"behind a forward of {first} tokens, with a context of {width}, which is the "
            f"page table's width, {what}",
            site=site,
        )


def _full_scene(scenario: Scenario, seed: int) -> Scene:
    """Draw a batch of which one context is as long as the page table is wide."""
    most = scenario.max_context_len
    drawn = (draw(scenario, 4 * number + max(1, seed % 4)) for number in count(seed))
    return next(own for own in drawn if int(own.batch.seq_lens.max()) == most)


def _outputs(rig: Rig, scene: Scene, level: HostSeqLens) -> Tensor:
    """Run the shortest request alone, then the whole batch, in one new backend.

    returns  [T, Hq, Dv], host  of the whole batch

    Raises:
        Exception: whatever the backend raises.
    """
    with rig.running():
        whole = supplied(scene, level).on(rig.device)
        build: Callable[..., AttentionBackend] = rig.subject.build
        backend = build(whole.pools)
        shortest = int(scene.batch.seq_lens.argmin())
        alone = supplied(scene.select([shortest]), level).on(rig.device)
        for own in (replace(alone, pools=whole.pools), whole):
            sized = replace(own, batch=_sized(own.batch, level, whole.pools.req_to_token.shape[1]))
            backend.init_forward_metadata(sized.batch)
            output = sized.forward(backend)
        return on_host(output)


def _sized(batch: ForwardBatch, level: HostSeqLens, width: int) -> ForwardBatch:
    """Make the tree mask as large as an engine does that does not know the lengths."""
    if batch.tree_mask is None or level is HostSeqLens.EXACT:
        return batch
    most = batch.num_tokens * width
    spare = batch.tree_mask.new_ones(most - len(batch.tree_mask))
    return replace(batch, tree_mask=torch.cat([batch.tree_mask, spare]))


CHECK = Check(
    code=_CODE,
    claims=("max_context_len_known",),
    title="The longest context needs no length on the host.",
    proves="Decode, verify, draft and draft-extend forwards with a context as long as the page "
    f"table is wide ({_WIDE} tokens and more) give without the mirror what they give with it, "
    "behind a forward of a short context, and with a tree mask of the largest size there can be.",
    cannot=f"A limit above {_WIDE} tokens. A buffer that is sized only within a capture.",
    excuse=_excuse,
    cases=_cases,
    run=_run,
    after=("mirror-absent",),
)
