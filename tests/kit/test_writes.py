from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from backend_caps.capability.vocabulary import BatchKind, HostSeqLens
from backend_caps.kit import Effort, Forward, Scenario, cases_on, draw, supplied
from backend_caps.kit.checks.writes import PADDING_HARMLESS, SceneSnapshot, changing_line
from backend_caps.kit.rig import changed_rows
from backend_caps.kit.scenes import Scene
from tests.kit.made import HONEST, claiming


def _scene() -> Scene:
    return supplied(draw(Scenario(forward=Forward.DECODE), 1), HostSeqLens.EXACT)


def _longer(scene: Scene) -> None:
    scene.batch.seq_lens.add_(1)


def _other_mirror(scene: Scene) -> None:
    scene.batch.seq_lens_cpu = None


def _other_sum(scene: Scene) -> None:
    scene.batch.seq_lens_sum = 0


def _other_table(scene: Scene) -> None:
    scene.pools.req_to_token[2, 3] += 1


def _first_value(scene: Scene) -> None:
    scene.pools.values[scene.pools.req_to_token[scene.batch.req_pool_indices[1], 0]] = 0


def _nobodys_slot(scene: Scene) -> None:
    scene.pools.keys[0] = 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param(_longer, "seq_lens of the batch was", id="in-place"),
        pytest.param(_other_mirror, "seq_lens_cpu of the batch was", id="put-away"),
        pytest.param(_other_sum, "seq_lens_sum of the batch was", id="number"),
        pytest.param(_other_table, "rows 2 of the page table changed", id="table"),
        pytest.param(_first_value, "which hold the context of request 1", id="kv"),
        pytest.param(_nobodys_slot, "KV of slots 0 changed, which are no request's", id="nobodys"),
    ],
)
def test_change_is_reported(change: Callable[[Scene], None], words: str) -> None:
    """Whatever changes is found, and said with what it was."""
    scene = _scene()
    held = SceneSnapshot.of(scene)

    change(scene)

    (told,) = held.changes(writable=())
    assert words in told


def test_writable_slots_may_change() -> None:
    """Slots that a forward has to write to are no change, and NaN is as it was."""
    scene = _scene()
    held = SceneSnapshot.of(scene)

    scene.pools.keys[0] = 0

    assert list(held.changes(writable={0})) == []
    assert held.strays(()) == {0}


def test_bits_are_compared() -> None:
    """Minus zero is not zero, and NaN is NaN."""
    before = torch.tensor([0.0, torch.nan, 1.0])

    assert changed_rows(before, torch.tensor([-0.0, torch.nan, 1.0])) == [0]


def test_line_is_that_of_the_change() -> None:
    """Of the backend's lines the one is found behind which something is not as it was."""
    site = changing_line(
        HONEST, _scene(), lambda held: any(held.changes(())), lambda own: own.run(HONEST.build)
    )

    assert site is not None
    assert site.file.endswith("paged.py")


def test_line_of_others_is_none() -> None:
    """A change that no line of the backend brings about has no line."""
    site = changing_line(HONEST, _scene(), lambda held: any(held.changes(())), _longer)

    assert site is None
    assert HONEST.running_line() is None


def test_only_what_is_replayed_is_padded() -> None:
    """Of kinds of batches those that are claimed are tried."""
    single = claiming(graph_replay=frozenset({BatchKind.SINGLE_TOKEN_DECODE}))

    tried = {own.scenario for own in cases_on("sim", PADDING_HARMLESS, single, Effort.quick())}

    assert {own.forward for own in tried if own is not None} == {Forward.DECODE}
