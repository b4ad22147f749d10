"""Checks that a forward writes to its tokens' slots alone, with padding and without.

Shapes: S slots in the KV cache, T tokens in a batch, Tg with the padding, Hq query heads, Hk key
and value heads, D and Dv their sizes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Self

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from backend_caps.capability.vocabulary import BatchKind, HostSeqLens
from backend_caps.kit import Check, Fault, Rig, Scenario, Subject, draw, on_host, supplied
from backend_caps.kit.check import Case, replayed_forwards, rotated_cases
from backend_caps.kit.probes.graph_probe import with_last_tokens
from backend_caps.kit.process_state import ProcessState
from backend_caps.kit.rig import baseline_of, changed_rows, changed_slots, some
from backend_caps.kit.scenes import Scene, moved
from backend_caps.report.check_catalog import CATALOG
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.graphs.buffers import GraphBuffers
from backend_caps.simulator import Site
from backend_caps.startup.graph_modes import Bucket


@dataclass(frozen=True, slots=True, kw_only=True)
class SceneSnapshot:
    """A scene, and a copy of its earlier contents."""

    scene: Scene
    """The scene, which a forward may change."""
    before: Scene
    """The earlier contents, on the host."""

    @classmethod
    def of(cls, scene: Scene) -> Self:
        """Copy the present contents of a scene. Sync: the host waits."""
        return cls(scene=scene, before=_copied(scene, "cpu"))

    def changes(self, writable: Collection[int]) -> Iterator[str]:
        """Describe all changes, except in `writable` slots. Sync: the host waits."""
        for each in fields(ForwardBatch):
            before, now = (getattr(own.batch, each.name) for own in (self.before, self.scene))
            if not _is_same(before, now):
                yield f"{each.name} of the batch was {_shown(before)}, and is {_shown(now)} now"
        for name in ("q", "k", "v"):
            given, now = getattr(self.before, name), getattr(self.scene, name)
            if tokens := changed_rows(given, on_host(now)):
                yield f"{name} of tokens {some(tokens)} was changed in place"
        rows = changed_rows(self.before.pools.req_to_token, on_host(self.scene.pools.req_to_token))
        if rows:
            yield f"rows {some(rows)} of the page table changed"
        if slots := self.strays(writable):
            yield f"KV of slots {some(sorted(slots))} changed, which {self._owners(slots)}"

    def strays(self, writable: Collection[int]) -> set[int]:
        """List changed slots that are not writable. Sync: the host waits."""
        return changed_slots(self.before.pools, self.scene.pools) - {*writable}

    def _owners(self, slots: Collection[int]) -> str:
        """Describe which requests own slots."""
        table, batch = self.before.pools.req_to_token, self.scene.batch
        rows, lengths = (on_host(t).tolist() for t in (batch.req_pool_indices, batch.seq_lens))
        owners = [
            str(place)
            for place, (row, length) in enumerate(zip(rows, lengths, strict=True))
            if row and not {*slots}.isdisjoint(table[row, :length].tolist())
        ]
        return f"hold the context of request {', '.join(owners)}" if owners else "are no request's"


def changing_line(
    subject: Subject,
    scene: Scene,
    has_changed: Callable[[SceneSnapshot], object],
    run: Callable[[Scene], object],
) -> Site | None:
    """Run a scene, and find the backend's first line whose operator changed something in it.

    Sync: the host waits after each operator.
    """
    watch = _ChangeWatch(subject, partial(has_changed, SceneSnapshot.of(scene)))
    with watch:
        run(scene)
    return watch.site


class _ChangeWatch(TorchDispatchMode):
    """Tests after each operator whether something has changed, until it has."""

    def __init__(self, subject: Subject, has_changed: Callable[[], object]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.site: Site | None = None
        self._subject, self._has_changed = subject, has_changed

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Run an operator, then test for a change."""
        del types
        result = func(*args, **(kwargs or {}))
        if self.site is None and self._has_changed():
            self.site = self._subject.running_line()
        return result


def _is_same(before: object, now: object) -> bool:
    """Compare a batch's earlier value, on the host, with its present value."""
    if isinstance(before, Tensor) and isinstance(now, Tensor):
        has_same_form = before.shape == now.shape and before.dtype == now.dtype
        return has_same_form and not changed_rows(before, on_host(now))
    return type(before) is type(now) and before == now


def _shown(value: object) -> str:
    return f"[{some(value.flatten().tolist())}]" if isinstance(value, Tensor) else str(value)


def _run_inputs(rig: Rig, case: Case) -> Iterator[Fault]:
    scenario = case.batch_scenario
    drawn = supplied(draw(scenario, case.seed), HostSeqLens.EXACT)
    with rig.running():
        scene = _copied(drawn, rig.device)
        snapshot = SceneSnapshot.of(scene)
        before = ProcessState.fresh(rig.streams())
        output = baseline_of(lambda: _forward(rig, scene))
        changes = before.changes(ProcessState.now(rig.streams()))
        yield from (Fault(what=f"{what}; the process is not the backend's own") for what in changes)
        yield from _changes(rig, drawn, snapshot)
        yield from _not_stored(drawn, scene)
        yield from _unsaved(rig, scenario, drawn, output)


def _forward(rig: Rig, scene: Scene, *, save_kv_cache: bool = True) -> Tensor:
    """Run a batch in a new backend: [T, Hq, Dv], host."""
    return on_host(scene.run(rig.build, save_kv_cache=save_kv_cache))


def _changes(
    rig: Rig, drawn: Scene, snapshot: SceneSnapshot, *, save_kv_cache: bool = True
) -> Iterator[Fault]:
    """List changes that a forward may not make, with the line of the first."""
    saved = drawn.batch.out_cache_loc.tolist() if save_kv_cache else ()
    writable = {*saved, *range(drawn.pools.page_size)}
    if changes := list(snapshot.changes(writable)):
        # Watching each operator is slow, so only a second run of a failed case does it.
        run = partial(_forward, rig, save_kv_cache=save_kv_cache)
        again = _copied(drawn, rig.device)
        site = changing_line(rig.subject, again, lambda kept: any(kept.changes(writable)), run)
        saving = "" if save_kv_cache else "with save_kv_cache=False "
        yield from (Fault(what=f"{saving}{what}", site=site) for what in changes)


def _not_stored(drawn: Scene, scene: Scene) -> Iterator[Fault]:
    """List new tokens whose keys or values differ in the cache."""
    stored = moved(scene.pools, on_host).tokens(drawn.batch.out_cache_loc)
    for name, given, kept in zip(("keys", "values"), (drawn.k, drawn.v), stored, strict=True):
        if wrong := changed_rows(given.to(kept.dtype), kept):
            what = f"{name} of new tokens {some(wrong)} are not stored as they were given"
            yield Fault(what=what)


def _unsaved(rig: Rig, scenario: Scenario, drawn: Scene, expected: Tensor) -> Iterator[Fault]:
    """Run a scene twice with save_kv_cache=False.

    The first run has its tokens not in the cache, and must not store them. The second run has them
    there, and must give the expected output.
    """
    scene = _copied(drawn, rig.device)
    snapshot = SceneSnapshot.of(scene)
    _forward(rig, scene, save_kv_cache=False)
    yield from _changes(rig, drawn, snapshot, save_kv_cache=False)
    scene = _copied(drawn, rig.device)
    scene.pools.store(scene.batch.out_cache_loc, scene.k, scene.v)
    output = _forward(rig, scene, save_kv_cache=False)
    if (differs := rig.difference(output, expected, scenario)) is not None:
        saving = "with save_kv_cache=False, where its tokens are stored"
        yield Fault(what=f"{saving}, {differs}; what comes out with it was expected")


def _copied(drawn: Scene, device: str) -> Scene:
    """Copy all tensors of a scene, the device tensors to a device."""
    scene = moved(drawn, lambda tensor: tensor.to(device, copy=True))
    batch = scene.batch
    batch.seq_lens_cpu, batch.seq_lens_cpu_upper_bound = (
        None if lengths is None else lengths.clone()
        for lengths in (batch.seq_lens_cpu, batch.seq_lens_cpu_upper_bound)
    )
    return scene


INPUTS_UNTOUCHED = Check(
    about=CATALOG["inputs-untouched"],
    cases=lambda subject, effort: rotated_cases("inputs-untouched", subject, effort),
    run=_run_inputs,
)


_MOST_ROWS = 3
_SPARE_ENTRIES = 7
"""Entries of the buffer of tree masks behind the last request's mask."""


_NAN = -torch.nan
"""A NaN of another sign than the poison of free slots, so that writing it there is a change."""


def _run_padding(rig: Rig, case: Case) -> Iterator[Fault]:
    scenario = case.batch_scenario
    drawn = supplied(draw(scenario, case.seed), HostSeqLens.EXACT)
    pad = partial(_padded, rig, drawn, scenario.forward.batch_kind)
    run, (rows, tokens) = partial(_output, rig, len(drawn.q)), _drawn_padding(case, drawn)
    writable = {*drawn.batch.out_cache_loc.tolist(), *range(drawn.pools.page_size)}
    with rig.running():
        expected = baseline_of(lambda: run(pad(0, 0)))
        scene = pad(rows, tokens)
        snapshot = SceneSnapshot.of(scene)
        if (differs := rig.difference(run(scene), expected, scenario)) is not None:
            padded = f"padded by {rows} requests and {tokens} tokens"
            yield Fault(what=f"{padded}, {differs}; what it gives without padding was expected")
        if strays := snapshot.strays(writable):
            again = pad(rows, tokens)
            site = changing_line(rig.subject, again, lambda kept: kept.strays(writable), run)
            slots = some(sorted(strays))
            what = f"a padded batch wrote to slots {slots}, which are not the padding's"
            yield Fault(what=what, site=site)


def _drawn_padding(case: Case, drawn: Scene) -> tuple[int, int]:
    """Draw rows and tokens of padding; only a mixed batch's are independent."""
    dice = random.Random(f"padding of {case.name}")  # noqa: S311 - no secrets
    rows = dice.randint(1, _MOST_ROWS)
    if drawn.batch.extend_seq_lens is not None:
        return rows, dice.randint(1, 2 * rows)
    return rows, rows * len(drawn.q) // len(drawn.counts)


def _padded(rig: Rig, drawn: Scene, kind: BatchKind, rows: int, tokens: int) -> Scene:
    """Load a batch to the static tensors of a larger graph; the padding tokens are NaN."""
    scene, mask = with_last_tokens(drawn).on(rig.device), drawn.batch.tree_mask
    bucket = Bucket(
        kind=kind,
        batch_size=drawn.batch.batch_size + rows,
        num_tokens=drawn.batch.num_tokens + tokens,
    )
    mask_size = 0 if mask is None else len(mask) + _SPARE_ENTRIES
    buffers = GraphBuffers([bucket], scene.q.device, mask_size)
    q, k, v = (
        torch.cat([tensor, tensor.new_full((tokens, *tensor.shape[1:]), _NAN)])
        for tensor in (scene.q, scene.k, scene.v)
    )
    batch = buffers.share_of(bucket, HostSeqLens.EXACT).load(scene.batch)
    return replace(scene, batch=batch, q=q, k=k, v=v).laid_out()


def _output(rig: Rig, num_tokens: int, scene: Scene) -> Tensor:
    """Run a scene as before a capture; return the output without padding, [T, Hq, Dv], host."""
    backend, batch = rig.build(scene.pools), scene.batch
    backend.init_cuda_graph_state(batch.batch_size, batch.num_tokens)
    backend.init_forward_metadata_out_graph(batch)
    backend.init_forward_metadata_in_graph(batch)
    return on_host(scene.forward(backend)[:num_tokens])


_NOT_REPLAYED = "it claims no graph_replay, and only what is replayed is padded"
PADDING_HARMLESS = Check(
    about=CATALOG["padding-harmless"],
    excuse=lambda subject: None if replayed_forwards(subject) else _NOT_REPLAYED,
    cases=lambda subject, effort: rotated_cases(
        "padding-harmless", subject, effort, replayed_forwards(subject)
    ),
    run=_run_padding,
)
