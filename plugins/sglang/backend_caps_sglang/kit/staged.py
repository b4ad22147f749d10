"""Graph-style metadata without a device graph.

A server captures a forward over static buffers once, and then fills the buffers and lets the
backend refresh its metadata before each replay. Here what a replay repeats, the in-graph share and
the layers, is run again by hand, over the same buffers and with the metadata of the capture.

Shapes: Tg tokens in the largest graph, Hq query heads, Hk key and value heads, D and Dv their
sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.kit import Case, Check, Effort, Fault, Forward, Rig, Subject
from backend_caps.kit.probes.captured import BATCH_SIZES, buckets_of
from backend_caps.kit.probes.replays import replayed_of, story
from backend_caps.kit.rig import baseline_of, difference, on_host, supplied
from backend_caps.kit.rotating import rotated_cases
from backend_caps.kit.scenarios import MOST_REQUESTS, Scenario, dice_for, draw_requests
from backend_caps.kit.scenes import Scene
from backend_caps.runtime.attention import AttentionBackend
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.graphs import Bucket, GraphBuffers
from backend_caps.runtime.graphs.buffers import StaticBatch
from backend_caps_sglang.kit import windows
from backend_caps_sglang.kit.subjects import windowed

_CODE = "graph-metadata"
_WINDOWED = "graph-metadata-window"


class _Staged:
    """Static buffers of a scenario's batches, and a backend that was captured over them.

    Args:
        rig: where.
        scenario: what the batches are made of.
        build: makes the backend of the static pools.
    """

    def __init__(
        self, rig: Rig, scenario: Scenario, build: Callable[..., AttentionBackend]
    ) -> None:
        whole = draw_requests(scenario, dice_for(scenario, 0), MOST_REQUESTS, setting_seed=0)
        self._device = rig.device
        self._static = whole.on(rig.device)
        buckets = buckets_of(scenario, BATCH_SIZES)
        longest = whole.pools.req_to_token.shape[1]
        mask = buckets[-1].num_tokens * longest if scenario.forward.is_tree else 0
        buffers = GraphBuffers(buckets, self._static.q.device, mask)
        self._tokens = [_poison(own, buckets[-1]) for own in (whole.q, whole.k, whole.v)]
        self.backend = build(self._static.pools)
        self.backend.init_cuda_graph_state(buffers.max_batch_size, buffers.max_num_tokens)
        level = rig.subject.claim("host_seq_lens", phase=scenario.forward.phase)
        assert isinstance(level, HostSeqLens), "a level is one of the scale"
        self._level = level
        self._shares = [self._captured(buffers.share_of(own, level)) for own in reversed(buckets)]

    def _captured(self, share: StaticBatch) -> StaticBatch:
        share.clear()
        self._run(share.forward, share.bucket.num_tokens)
        return share

    def replayed(self, scene: Scene) -> Tensor:
        """Fill the buffers with a scene, refresh, and run again: [T, Hq, Dv], host."""
        there = supplied(scene, self._level).on(self._device)
        held, new = self._static.pools, there.pools
        held.req_to_token.copy_(new.req_to_token)
        held.keys.copy_(new.keys)
        held.values.copy_(new.values)
        share = [own for own in self._shares if own.holds(there.batch)][-1]
        for static, own in zip(self._tokens, (there.q, there.k, there.v), strict=True):
            static.fill_(torch.nan)
            static[: len(own)].copy_(own.flatten(1))
        output = self._run(share.load(there.batch), share.bucket.num_tokens)[: len(scene.q)]
        layer = scene.layer
        return on_host(output.reshape(len(output), layer.tp_q_head_num, layer.v_head_dim))

    def _run(self, batch: ForwardBatch, num_tokens: int) -> Tensor:
        self.backend.init_forward_metadata_out_graph(batch)
        self.backend.init_forward_metadata_in_graph(batch)
        q, k, v = (own[:num_tokens] for own in self._tokens)
        return self.backend.forward(q, k, v, self._static.layer, batch)


def _poison(tokens: Tensor, bucket: Bucket) -> Tensor:
    """Make static tokens of NaN: [Tg, Hq * D], and alike for keys and values."""
    return tokens.new_full((bucket.num_tokens, tokens[0].numel()), torch.nan)


def _excuse(subject: Subject) -> str | None:
    return None if replayed_of(subject) else "no batch of it is captured"


def _cases(
    code: str, without: Sequence[Forward], subject: Subject, effort: Effort
) -> Iterable[Case]:
    forwards = [own for own in replayed_of(subject) if own not in without]
    return rotated_cases(code, subject, forwards, effort)


def _run(rig: Rig, case: Case) -> Iterator[Fault]:
    assert case.scenario is not None, "each case has batches"
    return _faults(rig, case, rig.subject.build, rig.baseline)


def _run_windowed(rig: Rig, case: Case) -> Iterator[Fault]:
    assert case.scenario is not None, "each case has batches"
    build = partial(windowed, rig.subject, window=windows.WINDOW)
    output_of = partial(windows.output_of, rig, case.scenario)
    return _faults(rig, case, build, lambda scene: baseline_of(lambda: output_of(scene)))


def _faults(
    rig: Rig,
    case: Case,
    build: Callable[..., AttentionBackend],
    eager: Callable[[Scene], Tensor],
) -> Iterator[Fault]:
    assert case.scenario is not None, "each case has batches"
    scenes = story(case.scenario, case.seed)
    expected = [eager(scene) for scene in scenes]
    tolerance = rig.subject.tolerance(case.scenario.dtype)
    with rig.running():
        staged = _Staged(rig, case.scenario, build)
        for number, (scene, right) in enumerate(zip(scenes, expected, strict=True), 1):
            differs = difference(staged.replayed(scene), right, tolerance)
            if differs is not None:
                size = f"of {scene.batch.batch_size} requests"
                lengths = scene.batch.seq_lens.tolist()
                yield Fault(
                    what=f"replay {number}, {size}, is not what its eager run is: {differs}; "
                    f"contexts of {lengths} tokens"
                )
                return


CHECK = Check(
    code=_CODE,
    claims=("graph_replay",),
    title="Metadata that is refreshed for a replay gives what an eager forward gives.",
    proves="Batch after batch, full and padded, over static buffers: the metadata of the capture, "
    "filled anew out of the graph, gives what an eager forward of a new backend gives. What a "
    "graph repeats is run by hand.",
    cannot="Whether a device can capture it, and what a graph reads at addresses of the capture.",
    excuse=_excuse,
    cases=partial(_cases, _CODE, ()),
    run=_run,
    after=("numerics", "padding-harmless"),
)
WINDOWED_CHECK = replace(
    CHECK,
    code=_WINDOWED,
    claims=(),
    title="Metadata of sliding windows is refreshed for a replay.",
    proves="The same, of layers with a sliding window, beside eager forwards of such layers.",
    cases=partial(_cases, _WINDOWED, (Forward.TREE,)),
    run=_run_windowed,
    after=(_CODE,),
)
