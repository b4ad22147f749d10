"""Padding changes nothing for the real tokens, and is written to nobody's slots.

Shapes: T tokens in a batch, Tg with the padding, Hq query heads, Dv the values' size.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from backend_caps.capability.vocabulary import BatchKind, HostSeqLens
from backend_caps.kit.check import Case, Check, Effort, Fault
from backend_caps.kit.probes.held import Held, line_that_changes, some
from backend_caps.kit.rig import Rig, baseline_of, difference, on_host, supplied
from backend_caps.kit.rotating import replayed_forwards, rotated_cases
from backend_caps.kit.scenarios import draw
from backend_caps.kit.scenes import Scene
from backend_caps.kit.subject import Subject
from backend_caps.runtime.attention import AttentionBackend
from backend_caps.runtime.graphs import Bucket, GraphBuffers

_CODE = "padding-harmless"
_MOST_ROWS = 3
_SPARE_ENTRIES = 7
"""Of the buffer of tree masks, behind the last request's."""


_NAN = -torch.nan
"""Of another sign than the poison of nobody's slots, so that it shows where it is written there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Padding:
    """How much larger a graph is than its batch."""

    rows: int = 0
    tokens: int = 0

    def __str__(self) -> str:
        return f"{self.rows} requests and {self.tokens} tokens"


def _excuse(subject: Subject) -> str | None:
    if not replayed_forwards(subject):
        return "it claims no graph_replay, and only what is replayed is padded"
    return None


def _cases(subject: Subject, effort: Effort) -> Iterable[Case]:
    return rotated_cases(_CODE, subject, replayed_forwards(subject), effort)


def _run(rig: Rig, case: Case) -> Iterator[Fault]:
    assert case.scenario is not None, "each case has batches"
    kind = case.scenario.forward.batch_kind
    drawn = supplied(draw(case.scenario, case.seed), HostSeqLens.EXACT)
    padding = _drawn_padding(case, drawn)
    tolerance = rig.subject.tolerance(case.scenario.dtype)
    with rig.running():
        alone = _as_graph(rig, drawn, kind, _Padding())
        expected = baseline_of(lambda: _output(rig, alone, len(drawn.q)))
        scene = _as_graph(rig, drawn, kind, padding)
        held = Held.of(scene)
        differs = difference(_output(rig, scene, len(drawn.q)), expected, tolerance)
        if differs is not None:
            yield Fault(
                what=f"padded by {padding}, {differs}; what it gives without padding was expected"
            )
        yield from _strays(rig, drawn, held, partial(_as_graph, rig, drawn, kind, padding))


def _strays(rig: Rig, drawn: Scene, held: Held, make_again: Callable[[], Scene]) -> Iterator[Fault]:
    """Say which slots were written that are neither the tokens' nor the padding's."""
    writable = {*drawn.batch.out_cache_loc.tolist(), *range(drawn.pools.page_size)}
    strays = held.slots_changed() - writable
    if strays:
        again = make_again()
        before = Held.of(again)
        site = line_that_changes(
            rig.subject,
            lambda: bool(before.slots_changed() - writable),
            lambda: _output(rig, again, len(drawn.q)),
        )
        what = f"a padded batch wrote to slots {some(sorted(strays))}, which are not the padding's"
        yield Fault(what=what, site=site)


def _drawn_padding(case: Case, drawn: Scene) -> _Padding:
    """Draw how much is padded: of a mixed batch rows and tokens each by itself."""
    dice = random.Random(f"padding of {case.name}")  # noqa: S311 - no secrets
    rows = dice.randint(1, _MOST_ROWS)
    if drawn.batch.extend_seq_lens is not None:
        return _Padding(rows=rows, tokens=dice.randint(1, 2 * rows))
    return _Padding(rows=rows, tokens=rows * len(drawn.q) // len(drawn.counts))


def _as_graph(rig: Rig, drawn: Scene, kind: BatchKind, padding: _Padding) -> Scene:
    """Load a batch to where a graph of this size reads it, with tokens of NaN behind its own."""
    extends, mask = drawn.batch.extend_seq_lens, drawn.batch.tree_mask
    last = None if extends is None else extends.cumsum(0) - 1
    scene = replace(drawn, batch=replace(drawn.batch, last_token_indices=last)).on(rig.device)
    bucket = Bucket(
        kind=kind,
        batch_size=drawn.batch.batch_size + padding.rows,
        num_tokens=drawn.batch.num_tokens + padding.tokens,
    )
    mask_size = 0 if mask is None else len(mask) + _SPARE_ENTRIES
    buffers = GraphBuffers([bucket], scene.q.device, mask_size)
    q, k, v = (
        torch.cat([own, own.new_full((padding.tokens, *own.shape[1:]), _NAN)])
        for own in (scene.q, scene.k, scene.v)
    )
    batch = buffers.share_of(bucket, HostSeqLens.EXACT).load(scene.batch)
    return replace(scene, batch=batch, q=q, k=k, v=v)


def _output(rig: Rig, scene: Scene, num_tokens: int) -> Tensor:
    """Run it as in front of a capture, and return what its own tokens have: [T, Hq, Dv], host."""
    build: Callable[..., AttentionBackend] = rig.subject.build
    backend, batch = build(scene.pools), scene.batch
    backend.init_cuda_graph_state(batch.batch_size, batch.num_tokens)
    backend.init_forward_metadata_out_graph(batch)
    backend.init_forward_metadata_in_graph(batch)
    return on_host(scene.forward(backend)[:num_tokens])


CHECK = Check(
    code=_CODE,
    claims=("graph_replay",),
    title="Padding is harmless.",
    proves="Batches of each kind that may be replayed, padded as for a larger graph by requests of "
    "row 0 and tokens of NaN, give what they give without, and write to nobody's slots but those "
    "of the padding's page. They are run as in front of a capture, without one.",
    cannot="What only a replay does; `replay` runs those.",
    excuse=_excuse,
    cases=_cases,
    run=_run,
)
