"""The checks that only SGLang's backends have: sliding windows, and metadata without a graph.

The kit's own backends have no windows; SGLang's layers say theirs, and it is SGLang's rule that is
held here: of a window of W, a token sees itself and the W before it.

A server captures a forward over static buffers once, and then fills the buffers and lets the
backend refresh its metadata before each replay. Here what a replay repeats, the in-graph share and
the layers, is run again by hand, over the same buffers and with the metadata of the capture.

Shapes: N new tokens of one request, C tokens of its context, T tokens in a batch, Tg in the largest
graph, Hq query heads, Hk key and value heads, D and Dv their sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.kit import Case, Check, Effort, Fault, Forward, Rig, Scenario, Subject
from backend_caps.kit.check import cases_of, rotated_cases
from backend_caps.kit.checks.replay import replayed_of, story
from backend_caps.kit.probes.graph_probe import BATCH_SIZES, buckets_of
from backend_caps.kit.rig import baseline_of, on_host, supplied
from backend_caps.kit.scenarios import MOST_REQUESTS, dice_for, draw, draw_requests, scenarios_of
from backend_caps.kit.scenes import Scene, reference_attention
from backend_caps.report.check_catalog import CheckDescription
from backend_caps.runtime.attention import AttentionBackend
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.graphs.buffers import GraphBuffers
from backend_caps.startup.graph_modes import Bucket
from backend_caps_sglang.kit.subjects import windowed

WINDOW = 5
"""Tokens before itself that a token sees: few, so that most contexts are longer."""
FORWARDS = (Forward.PREFILL, Forward.CHUNK, Forward.MIXED, Forward.DECODE, Forward.VERIFY)


def _run_window(rig: Rig, case: Case) -> Iterator[Fault]:
    scenario = case.batch_scenario
    scene = draw(scenario, case.seed)
    found = windowed_output(rig, scene)
    differs = rig.difference(found, _expected(scene, WINDOW), scenario)
    if differs is not None:
        narrower = rig.difference(found, _expected(scene, WINDOW - 1), scenario)
        seen = "" if narrower else f"; it is that of itself and the {WINDOW - 1} before it"
        yield Fault(
            what=f"each token sees itself and the {WINDOW} before it; beside float64 {differs}"
            f"{seen}; contexts of {scene.batch.seq_lens.tolist()} tokens"
        )


def windowed_output(rig: Rig, scene: Scene) -> Tensor:
    """Run a scene eagerly in a new backend whose layers have the window: [T, Hq, Dv], host."""
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


SLIDING_WINDOW = Check(
    about=CheckDescription(
        code="sliding-window",
        claims=[],
        title="A layer's window is as wide as it says.",
        proves="Eager prompts, chunks, mixed batches, decodes and verified chains of layers with a "
        f"window of {WINDOW} are within the tolerance of float64, where each token sees itself and "
        f"the {WINDOW} before it.",
        cannot="Windows of other widths, windows over pools of their own, and windowed trees.",
        after=["numerics"],
    ),
    excuse=lambda own: "its layers have no window" if own.builder is None else None,
    cases=lambda subject, effort: cases_of(
        "sliding-window", scenarios_of(subject, FORWARDS), effort
    ),
    run=_run_window,
)


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
        phase = scenario.forward.phase
        level = self._level = rig.subject.claim_as(HostSeqLens, "host_seq_lens", phase=phase)
        self._shares = [buffers.share_of(own, level) for own in reversed(buckets)]
        for share in self._shares:  # what stands for a capture
            share.clear()
            self._run(share.forward, share.bucket.num_tokens)

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
    return rotated_cases(code, subject, effort, forwards)


def _run(rig: Rig, case: Case) -> Iterator[Fault]:
    return _faults(rig, case, rig.subject.build, rig.baseline)


def _run_windowed(rig: Rig, case: Case) -> Iterator[Fault]:
    build = partial(windowed, rig.subject, window=WINDOW)
    return _faults(
        rig, case, build, lambda scene: baseline_of(partial(windowed_output, rig, scene))
    )


def _faults(
    rig: Rig, case: Case, build: Callable[..., AttentionBackend], eager: Callable[[Scene], Tensor]
) -> Iterator[Fault]:
    scenario = case.batch_scenario
    scenes = story(scenario, case.seed)
    expected = [eager(scene) for scene in scenes]
    with rig.running():
        staged = _Staged(rig, scenario, build)
        for number, (scene, right) in enumerate(zip(scenes, expected, strict=True), 1):
            differs = rig.difference(staged.replayed(scene), right, scenario)
            if differs is not None:
                size = f"of {scene.batch.batch_size} requests"
                lengths = scene.batch.seq_lens.tolist()
                yield Fault(
                    what=f"replay {number}, {size}, is not what its eager run is: {differs}; "
                    f"contexts of {lengths} tokens"
                )
                return


GRAPH_METADATA = Check(
    about=CheckDescription(
        code="graph-metadata",
        claims=["graph_replay"],
        title="Metadata that is refreshed for a replay gives what an eager forward gives.",
        proves="Batch after batch, full and padded, over static buffers: the metadata of the "
        "capture, filled anew out of the graph, gives what an eager forward of a new backend "
        "gives. What a graph repeats is run by hand.",
        cannot="Whether a device can capture it, and what a graph reads at addresses of the "
        "capture.",
        after=["numerics", "padding-harmless"],
    ),
    excuse=_excuse,
    cases=partial(_cases, "graph-metadata", ()),
    run=_run,
)
WINDOWED_GRAPH_METADATA = replace(
    GRAPH_METADATA,
    about=CheckDescription(
        code="graph-metadata-window",
        claims=[],
        title="Metadata of sliding windows is refreshed for a replay.",
        proves="The same, of layers with a sliding window, beside eager forwards of such layers.",
        cannot=GRAPH_METADATA.about.cannot,
        after=["graph-metadata"],
    ),
    cases=partial(_cases, "graph-metadata-window", (Forward.TREE,)),
    run=_run_windowed,
)
