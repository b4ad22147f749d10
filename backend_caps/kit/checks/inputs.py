"""A forward writes its tokens' keys and values where it was told to, and nothing else.

Shapes: T tokens in a batch, Hq query heads, Dv the values' size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from torch import Tensor

from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.kit.check import Case, Check, Effort, Fault, always
from backend_caps.kit.probes.held import Held, changed_rows, line_that_changes, some
from backend_caps.kit.rig import Rig, baseline_of, difference, on_host, supplied
from backend_caps.kit.rotating import rotated_cases
from backend_caps.kit.scenarios import Forward, Scenario, draw
from backend_caps.kit.scenes import Scene, moved
from backend_caps.kit.subject import Subject
from backend_caps.runtime.attention import AttentionBackend

_CODE = "inputs-untouched"


def _cases(subject: Subject, effort: Effort) -> Iterable[Case]:
    return rotated_cases(_CODE, subject, list(Forward), effort)


def _run(rig: Rig, case: Case) -> Iterator[Fault]:
    assert case.scenario is not None, "each case has batches"
    drawn = supplied(draw(case.scenario, case.seed), HostSeqLens.EXACT)
    with rig.running():
        scene = _apart(drawn, rig.device)
        held = Held.of(scene)
        output = baseline_of(lambda: _forward(rig, scene))
        yield from _changes(rig, drawn, held)
        yield from _not_stored(drawn, scene)
        yield from _without_saving(rig, case.scenario, drawn, output)


def _forward(rig: Rig, scene: Scene, *, save_kv_cache: bool = True) -> Tensor:
    """Run a batch in a new backend: [T, Hq, Dv], host."""
    build: Callable[..., AttentionBackend] = rig.subject.build
    backend = build(scene.pools)
    backend.init_forward_metadata(scene.batch)
    return on_host(scene.forward(backend, save_kv_cache=save_kv_cache))


def _changes(rig: Rig, drawn: Scene, held: Held, *, save_kv_cache: bool = True) -> Iterator[Fault]:
    """Say what changed that a forward may not change, and by which line."""
    writable = _writable(drawn, save_kv_cache=save_kv_cache)
    changes = list(held.changes(writable))
    if changes:
        again = _apart(drawn, rig.device)
        before = Held.of(again)
        site = line_that_changes(
            rig.subject,
            lambda: any(before.changes(writable)),
            lambda: _forward(rig, again, save_kv_cache=save_kv_cache),
        )
        saving = "" if save_kv_cache else "with save_kv_cache=False "
        yield from (Fault(what=f"{saving}{what}", site=site) for what in changes)


def _writable(scene: Scene, *, save_kv_cache: bool) -> set[int]:
    """List the slots that a forward may write to: those of padding, and where it saves its own."""
    own = scene.batch.out_cache_loc.tolist() if save_kv_cache else ()
    return {*own, *range(scene.pools.page_size)}


def _not_stored(drawn: Scene, scene: Scene) -> Iterator[Fault]:
    """Say which new tokens are not in the cache as they were given."""
    slots = drawn.batch.out_cache_loc
    for name, given, cache in (
        ("keys", drawn.k, scene.pools.keys),
        ("values", drawn.v, scene.pools.values),
    ):
        wrong = changed_rows(given.to(cache.dtype), on_host(cache)[slots])
        if wrong:
            what = f"{name} of new tokens {some(wrong)} are not stored as they were given"
            yield Fault(what=what)


def _without_saving(
    rig: Rig, scenario: Scenario, drawn: Scene, expected: Tensor
) -> Iterator[Fault]:
    """Run it twice with save_kv_cache=False: where its tokens are not stored, and where they are.

    In the first one it is seen whether they are stored all the same, in the other what comes out.
    """
    scene = _apart(drawn, rig.device)
    held = Held.of(scene)
    _forward(rig, scene, save_kv_cache=False)
    yield from _changes(rig, drawn, held, save_kv_cache=False)
    scene = _apart(drawn, rig.device)
    slots = scene.batch.out_cache_loc
    scene.pools.set_kv_buffer(drawn.layer, slots, scene.k, scene.v)
    output = _forward(rig, scene, save_kv_cache=False)
    differs = difference(output, expected, rig.subject.tolerance(scenario.dtype))
    if differs is not None:
        yield Fault(
            what=f"with save_kv_cache=False, where its tokens are stored, {differs}; what comes "
            "out with it was expected"
        )


def _apart(drawn: Scene, device: str) -> Scene:
    """Bring a scene to a device, in memory of its own there and on the host."""

    def bring(tensor: Tensor) -> Tensor:
        return tensor.to(device, copy=True)

    batch = moved(drawn.batch, bring)
    batch.seq_lens_cpu, batch.seq_lens_cpu_upper_bound = (
        None if own is None else own.clone()
        for own in (batch.seq_lens_cpu, batch.seq_lens_cpu_upper_bound)
    )
    return replace(drawn.on(device), pools=moved(drawn.pools, bring), batch=batch)


CHECK = Check(
    code=_CODE,
    claims=(),
    title="What a forward was given stays as it was.",
    proves="An eager forward leaves each bit of the batch, of the host's lengths, of the page "
    "table and of the KV cache as it was, but for its tokens' slots and the padding's page; it "
    "stores their keys and values as they were given, and with save_kv_cache=False none of them.",
    cannot="What is written and put back before the forward ends.",
    excuse=always,
    cases=_cases,
    run=_run,
)
