"""A backend beside the definition of attention, in float64."""

from __future__ import annotations

from collections.abc import Iterator

from backend_caps.kit.check import Case, Fault
from backend_caps.kit.rig import Rig, difference
from backend_caps.kit.scenarios import draw
from backend_caps.kit.scenes import Scene, reference_attention, sharing


def fault_beside_float64(rig: Rig, case: Case) -> Iterator[Fault]:
    """Run a case's scene plainly, and compare it with float64.

    Every other seed has contexts share their first pages, where all are that long.
    """
    assert case.scenario is not None, "each case has batches"
    scene = draw(case.scenario, case.seed)
    told = ""
    if case.seed % 2:
        scene, told = _shared(scene)
    tolerance = rig.subject.tolerance(case.scenario.dtype)
    output = rig.plain(scene)
    if output.dtype != scene.q.dtype:
        yield Fault(what=f"its output is {output.dtype}, of queries of {scene.q.dtype}")
    differs = difference(output, reference_attention(scene), tolerance)
    if differs is not None:
        lengths = scene.batch.seq_lens.tolist()
        new = list(scene.counts)
        yield Fault(
            what=f"beside float64 {differs}; contexts of {lengths} tokens, {new} of them new{told}"
        )


def _shared(scene: Scene) -> tuple[Scene, str]:
    """Let contexts begin alike by as many whole pages as all have cached, and say by how much."""
    cached = (scene.batch.seq_lens.cpu() - scene.batch.seq_lens.new_tensor(scene.counts)).min()
    size = scene.pools.page_size
    num_tokens = int(cached) // size * size
    if num_tokens == 0 or len(scene.counts) == 1:
        return scene, ""
    return sharing(scene, num_tokens), f", the first {num_tokens} shared"
