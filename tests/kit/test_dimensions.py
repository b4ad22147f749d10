from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from backend_caps.kit import Effort, Forward, Scenario, draw
from backend_caps.kit.check import Check
from backend_caps.kit.checks import CHECKS
from backend_caps.kit.dimensions import rotated, values_of
from backend_caps.kit.scenarios import dice_for, draw_requests, dtypes_of
from backend_caps.kit.scenes import Layout, Numbers
from tests.kit.made import HONEST, claiming

MIXED = [Scenario(forward=Forward.MIXED)] * 60


def _values(check: Check) -> dict[str, set[str]]:
    cases = check.cases(HONEST, Effort.quick())
    counts = values_of(case.scenario for case in cases if case.scenario is not None)
    return {name: set(counted) for name, counted in counts.items()}


def test_quick_numerics_has_every_value_of_rotating_dimensions() -> None:
    """Two seeds are enough for each number of layers, heads and requests, and each magnitude."""
    values = _values(next(own for own in CHECKS if own.code == "numerics"))

    assert values["layers that run"] == {"0", "0+1", "2", "1+3", "0+1+2"}
    assert values["numbers"] == {own.value for own in Numbers}
    assert values["new tokens of the longest chunk"] == {"9", "17", "33", "65"}
    assert {"32:8", "16:16", "28:4", "8:1"} <= values["query heads : KV heads"]
    assert values["requests of the largest batch"] >= {"4", "5", "8"}


def test_first_case_has_usual_values() -> None:
    """What a check begins with is plain, so that a fault everywhere is told by a plain case."""
    usual = Scenario(forward=Forward.DECODE)

    assert next(rotated([usual], 0, HONEST)) == usual


def test_stated_value_stays() -> None:
    """A check that says how many layers run gets them in each case."""
    stated = replace(MIXED[0], layer_ids=(5,))

    assert {own.layer_ids for own in rotated([stated] * 9, 1, HONEST)} == {(5,)}


def test_class_of_an_engine_gets_its_page_table() -> None:
    """SGLang's page table has 32 bits, so its classes get no other."""
    adapted = replace(claiming(), builder=lambda site: site)  # type: ignore[arg-type,return-value]

    assert {own.index_dtype for own in rotated(MIXED, 0, adapted)} == {"int32"}
    assert {own.index_dtype for own in rotated(MIXED, 0, HONEST)} == {"int32", "int64"}


@pytest.mark.parametrize("scenario", list(dict.fromkeys(rotated(MIXED, 1, HONEST)))[:12], ids=str)
def test_drawn_batches_have_what_their_scenario_says(scenario: Scenario) -> None:
    """Layers, heads, dtypes and layouts of a batch are those of its name."""
    scene = draw(scenario, 1)

    layers = len(scenario.layer_ids)
    assert [own.layer_id for own in scene.pools.layers] == [*scenario.layer_ids]
    assert scene.q.shape[1] == layers * scenario.num_heads
    assert scene.k.shape[1] == layers * scenario.num_kv_heads
    assert str(scene.pools.req_to_token.dtype) == f"torch.{scenario.index_dtype}"
    assert int(scene.batch.seq_lens.max()) <= scenario.max_context_len
    assert dtypes_of(HONEST)[0] == scenario.dtype


@pytest.mark.parametrize("layout", Layout)
def test_layers_get_their_own_tokens(layout: Layout) -> None:
    """Each layer's part is a view of one tensor, or stands alone."""
    scenario = Scenario(forward=Forward.DECODE, layer_ids=(0, 2), layout=layout)
    scene = draw(scenario, 1).on("cpu")

    (q, k, _), (later, _, _) = scene.inputs()

    storages = {own.untyped_storage().data_ptr() for own in (q, k, later)}
    assert torch.equal(torch.stack([q, later], 1).view(scene.q.shape), scene.q)
    assert len(storages) == (1 if layout is Layout.PACKED else 3)


def test_layers_that_do_not_run_hold_poison() -> None:
    """A backend that reads one gets no number."""
    pools = draw(Scenario(forward=Forward.DECODE, layer_ids=(1, 3)), 1).pools

    assert bool(pools.key_buffers[[0, 2]].isnan().all())
    assert not bool(pools.key_buffers[1].isnan().all())


@pytest.mark.parametrize("forward", [Forward.DECODE, Forward.VERIFY, Forward.TREE])
@pytest.mark.parametrize("page_size", [1, 16])
def test_requests_that_share_tokens_have_no_room_apart(forward: Forward, page_size: int) -> None:
    """Their first tokens have the same slots, and the cache has fewer slots than tokens."""
    scenario = Scenario(forward=forward, page_size=page_size, is_shared=True)
    scene = draw_requests(scenario, dice_for(scenario, 0), 4, setting_seed=0)

    rows = scene.pools.req_to_token[scene.batch.req_pool_indices]
    keys = [own for own, _ in scene.contexts]
    count = scenario.num_shared
    assert count > 0
    assert count % page_size == 0
    assert torch.equal(rows[:, :count], rows[:1, :count].expand(4, count))
    assert all(torch.equal(own[:count], keys[0][:count]) for own in keys)
    own_slots = [row[count:length] for row, length in zip(rows, scene.batch.seq_lens, strict=True)]
    assert len({*torch.cat(own_slots).tolist()}) == sum(map(len, own_slots))
    if forward is Forward.DECODE:
        assert int(scene.batch.seq_lens.sum()) > len(scene.pools.keys) - page_size
