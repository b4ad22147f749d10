"""Verify, draft steps and draft-extend through the bridge, beside attention computed by hand.

SGLang's classes are out of the wheel of 0.5.23; `test_sglang_steps` runs the same in SGLang itself.

Shapes: B requests with W branches of K draft steps, N tokens of a verified tree.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from types import ModuleType, SimpleNamespace

import pytest
import torch
from backend_caps_sglang.adapters import Adapter
from backend_caps_sglang.errors import AdapterError, BridgeError
from backend_caps_sglang.hooks import DraftBackends, capture_draft_extend, drop_unused_copy
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch_native_caps import TORCH_NATIVE, TORCH_PADDED

from backend_caps import Declaration, HostSeqLens
from backend_caps.simulator import simulate
from backend_caps.simulator.streams import CUDAGraph, graph
from tests.upstream.bridged import CLOSE, HEAD_DIM, Case, Drawn, Parts, draw, runner_of
from tests.upstream.bridged_wheel import (
    Pool,
    batch_of,
    bridged,
    bridged_on_device,
    layer_of,
    on_device,
    wheel_parts,
)
from tests.upstream.sglang_wheel import RuntimeContext

pytestmark = pytest.mark.upstream

PREFIXES = (7, 1, 30)
VERIFY = Case("verify", "TARGET_VERIFY", tuple((own, 4) for own in PREFIXES), num_k_heads=2)
EXTEND = replace(VERIFY, name="draft-extend", mode="DRAFT_EXTEND_V2")
TREE = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]], dtype=torch.bool)
"""[N, N]: a root, two children, and a child of the first."""


def speculating(topk: int, num_tokens: int = 4) -> RuntimeContext:
    """Say what SGLang's context says of a server that speculates."""
    return RuntimeContext(
        speculative_algorithm="EAGLE",
        speculative_num_steps=3,
        speculative_eagle_topk=topk,
        speculative_num_draft_tokens=num_tokens,
    )


@pytest.fixture(params=[1, 2], ids=["chain", "tree"])
def topk(request: pytest.FixtureRequest) -> int:
    """W."""
    found: int = request.param
    return found


@pytest.fixture
def parts(topk: int) -> Iterator[Parts]:
    """SGLang's classes, where it speculates."""
    with wheel_parts(speculating(topk)) as made:
        yield made


def verified(drawn: Drawn, topk: int) -> SimpleNamespace:
    """Make SGLang's batch of a verify: lengths without the tree, and its mask where it is one."""
    prefixes = torch.tensor(drawn.prefixes)
    rows = [torch.cat([torch.ones(4, own, dtype=torch.bool), TREE], 1) for own in drawn.prefixes]
    mask = torch.cat([own.flatten() for own in rows]) if topk > 1 else torch.zeros(1).bool()
    spec_info = SimpleNamespace(draft_token_num=4, custom_mask=mask)
    lengths = {"seq_lens": prefixes, "seq_lens_cpu": prefixes, "spec_info": spec_info}
    return batch_of(drawn, **lengths)


def seen(drawn: Drawn, topk: int) -> list[Tensor]:
    """List the slots that each token of a verify sees, by hand."""
    pattern = TREE if topk > 1 else torch.ones(4, 4).tril().bool()
    slots = drawn.req_to_token[drawn.rows].long()
    return [
        torch.cat([own[:before], own[before : before + 4][row]])
        for own, before in zip(slots, drawn.prefixes, strict=True)
        for row in pattern
    ]


def expected(drawn: Drawn, pool: Pool, q: Tensor, slots: Sequence[Tensor]) -> Tensor:
    """Attend from each token to its slots."""
    heads = q.view(len(q), -1, 1, HEAD_DIM)
    rows = [
        scaled_dot_product_attention(
            own, pool.keys[some].transpose(0, 1), pool.values[some].transpose(0, 1), enable_gqa=True
        )
        for own, some in zip(heads, slots, strict=True)
    ]
    assert len(rows) == len(drawn.out_cache_loc), "each token attends once"
    return torch.stack(rows).flatten(1)


def test_verify_sees_context_and_tree(parts: Parts, topk: int) -> None:
    """SGLang's lengths stop before the tree; a chain is causal, a tree as its mask says."""
    drawn = draw(VERIFY)
    backend, batch = bridged(parts, drawn), verified(drawn, topk)

    backend.init_forward_metadata(batch)
    output = backend.forward(drawn.q, *drawn.new, layer_of(VERIFY), batch)

    right = expected(drawn, backend.token_to_kv_pool, drawn.q, seen(drawn, topk))
    assert (output - right).abs().max() < CLOSE


def test_verify_replays_with_another_mask_and_other_lengths(parts: Parts, topk: int) -> None:
    """A graph that was captured over SGLang's buffers reads what they hold when it is replayed."""
    drawn = draw(VERIFY)
    with simulate():
        backend = bridged_on_device(parts, drawn)
        backend.init_cuda_graph_state(3, 12)
        first = on_device(verified(drawn, topk))
        first.seq_lens.fill_(1)
        first.spec_info.custom_mask = torch.zeros(1, dtype=torch.bool, device="sim")
        q, new = drawn.q.to("sim"), [own.to("sim") for own in drawn.new]
        backend.init_forward_metadata_out_graph(first, in_capture=True)
        captured = CUDAGraph()
        with graph(captured):
            backend.init_forward_metadata_in_graph(first)
            output = backend.forward(q, *new, layer_of(VERIFY), first)
        replayed = on_device(verified(drawn, topk))
        first.seq_lens.copy_(replayed.seq_lens)  # what SGLang's runner does with its buffers
        backend.init_forward_metadata_out_graph(replayed)
        captured.replay()
        replay = output.cpu()
    eager = bridged(parts, drawn)
    eager.init_forward_metadata(verified(drawn, topk))

    right = eager.forward(drawn.q, *drawn.new, layer_of(VERIFY), verified(drawn, topk))

    assert torch.equal(replay, right)


def test_padded_tokens_of_a_replay_go_to_slot_0(parts: Parts) -> None:
    """SGLang's replays hand over the slots of its requests, and a batch as large as the graph's."""
    drawn = draw(VERIFY)
    batch = verified(drawn, 1)
    batch.out_cache_loc = batch.out_cache_loc[:8]

    slots = bridged(parts, drawn)._view(batch).out_cache_loc  # noqa: SLF001

    assert slots.tolist() == [*drawn.out_cache_loc[:8].tolist(), 0, 0, 0, 0]


def test_masks_are_built_without_lengths_on_the_host(parts: Parts, topk: int) -> None:
    """A chain's mask is SGLang's small one, unread; a tree's has a buffer once graphs have."""
    backend = bridged(parts, draw(VERIFY))
    before = backend.verify_mask

    backend.init_cuda_graph_state(3, 12)

    found = backend.verify_mask
    if topk == 1:
        assert (before.is_read, before.mode.name, before.fits(3)) == (False, "QLEN_ONLY", True)
        assert found is before
    else:
        assert before is None
        assert (found.is_read, found.mode.name, found.max_bs) == (True, "FULL_MASK", 3)
        assert found.buffer.numel() == 3 * 4 * (64 + 4)


def test_draft_extend_is_causal_over_lengths_that_count_it(parts: Parts) -> None:
    """SGLang's lengths include its tokens, and its buffers are those of the largest batch."""
    drawn = draw(EXTEND)
    backend = bridged(parts, drawn, runner={"is_draft_worker": True})
    batch = batch_of(drawn)
    for name in ("req_pool_indices", "seq_lens"):
        vars(batch)[name] = torch.nn.functional.pad(vars(batch)[name], (0, 2))

    backend.init_forward_metadata(batch)
    output = backend.forward(drawn.q, *drawn.new, layer_of(EXTEND), batch)

    right = expected(drawn, backend.token_to_kv_pool, drawn.q, seen(drawn, 1))
    assert (output - right).abs().max() < CLOSE
    assert backend.verify_mask is None
    assert backend.replays_draft_extend


def drafted(drawn: Drawn, topk: int, *, num_steps: int = 3) -> tuple[SimpleNamespace, Tensor]:
    """Make SGLang's batch of a draft, with all steps' slots, and these slots by branch and step."""
    table = drawn.req_to_token[drawn.rows].long()
    places = torch.arange(topk * num_steps)
    slots = torch.stack(
        [own[before + places] for own, before in zip(table, drawn.prefixes, strict=True)]
    )
    prefixes = torch.tensor(drawn.prefixes)
    lengths = {"seq_lens": prefixes, "seq_lens_cpu": prefixes, "out_cache_loc": slots.flatten()}
    made = batch_of(replace(drawn, case=replace(drawn.case, mode="DECODE")), **lengths)
    return made, slots.view(len(slots), topk, num_steps)


@pytest.mark.parametrize(
    ("declaration", "topk"),
    [
        pytest.param(TORCH_PADDED, 1, id="padded-chain"),
        pytest.param(TORCH_PADDED, 2, id="padded-tree"),
        pytest.param(TORCH_NATIVE, 1, id="native-chain"),  # it declares no wider tree
    ],
    indirect=["topk"],
)
def test_draft_step_sees_context_and_its_branch(
    declaration: Declaration, parts: Parts, topk: int
) -> None:
    """Each branch attends to its request's context and to its own tokens, in every step."""
    drawn = draw(VERIFY)
    runner = runner_of(drawn, parts)
    runner.is_draft_worker = True
    adapter = import_module("backend_caps_sglang.bridge").bridge("own", declaration)
    container = adapter.draft_steps(runner, topk, 3)
    batch, slots = drafted(drawn, topk)
    before = [
        own[:n].long() for own, n in zip(drawn.req_to_token[drawn.rows], PREFIXES, strict=True)
    ]
    dice = torch.Generator().manual_seed(1)

    container.init_forward_metadata(batch)

    assert [type(own).__name__ for own in container.attn_backends] == ["own", "own"]
    for step, backend in enumerate(container.attn_backends):
        batch.out_cache_loc = slots[:, :, step].flatten()  # as SGLang's draft worker does
        shape = (len(batch.out_cache_loc), 4 * HEAD_DIM)
        q = torch.randn(shape, generator=dice)
        new = [torch.randn(shape[0], 2, HEAD_DIM, generator=dice) for _ in range(2)]
        output = backend.forward(q, *new, layer_of(VERIFY), batch)
        visible = [
            torch.cat([own, branch[: step + 1]])
            for own, branches in zip(before, slots, strict=True)
            for branch in branches
        ]
        right = expected(replace(drawn, out_cache_loc=q), runner.token_to_kv_pool, q, visible)
        assert (output - right).abs().max() < CLOSE


def test_draft_step_pads_with_the_padding_row(parts: Parts, topk: int) -> None:
    """Branches of a padded request are of row 0, in which a backend reads nothing."""
    drawn = draw(VERIFY)
    adapter = import_module("backend_caps_sglang.bridge").bridge("own", TORCH_PADDED)
    container = adapter.draft_steps(runner_of(drawn, parts), topk, 3)
    batch, _ = drafted(drawn, topk)
    batch.req_pool_indices[1] = 0

    view = container.attn_backends[0]._view(batch)  # noqa: SLF001

    assert (view.req_pool_indices.view(3, topk) == 0).all(1).tolist() == [False, True, False]


@pytest.mark.parametrize("topk", [2], indirect=True)
def test_tree_over_larger_pages_is_refused(parts: Parts) -> None:
    """SGLang then leaves gaps between branches, which the branches' table does not know of."""
    runner = runner_of(draw(VERIFY), parts)
    runner.page_size = 16
    adapter = import_module("backend_caps_sglang.bridge").bridge("own", TORCH_PADDED)

    with pytest.raises(BridgeError, match="trees of drafts over pages of 16 tokens"):
        adapter.draft_steps(runner, 2, 3)


@pytest.mark.parametrize("topk", [1], indirect=True)
def test_container_states_its_need(parts: Parts) -> None:
    """SGLang's decision reads the flag off the container, and the metrics its plan."""
    runner = runner_of(draw(VERIFY), parts)
    module = import_module("backend_caps_sglang.bridge")
    containers = [
        module.bridge("own", declaration).draft_steps(runner, 1, 3)
        for declaration in (TORCH_PADDED, TORCH_NATIVE)
    ]

    assert [vars(type(own))["needs_cpu_seq_lens"] for own in containers] == [False, True]
    levels = [own.plan["host_seq_lens"].value for own in containers]
    assert levels == [HostSeqLens.NONE, HostSeqLens.EXACT]


def adapter_of(place: str) -> Adapter:
    """Register `acme` by the adapter at a place."""
    return Adapter(
        backend="acme",
        owner="acme-caps 1",
        place=place,
        is_deterministic=False,
        is_drafting=True,
        declaration=TORCH_PADDED,
    )


@pytest.mark.parametrize("topk", [1], indirect=True)
def test_sglangs_factory_finds_registered_adapters(parts: Parts) -> None:
    """Its lists of draft backends are its own; behind them come those that are registered."""
    adapter = adapter_of("torch_native_sglang:torch_padded")
    called: list[str] = []
    hook = DraftBackends({"acme": adapter}, lambda: called.append("graphs"))
    factory = SimpleNamespace(
        draft_model_runner=runner_of(draw(VERIFY), parts), topk=1, speculative_num_steps=3
    )

    def look_up(_factory: object, _slot: str, makers: dict[str, object], *_: object) -> object:
        return {name: made() for name, made in makers.items() if callable(made)}

    one = hook(look_up, factory, "prefill", {"triton": lambda: ("triton", "SGLang's")}, "")
    several = hook(
        look_up, factory, "decode", {"acme": lambda: ("acme", "SGLang's")}, "", stamps_children=True
    )

    assert isinstance(one, dict)
    assert one["triton"] == ("triton", "SGLang's")
    assert [type(own).__name__ for own in one["acme"]] == ["str", "torch_padded"]
    assert called == ["graphs"]
    assert several == {"acme": ("acme", "SGLang's")}, "a name of SGLang's stays its own"


@pytest.mark.parametrize("topk", [1], indirect=True)
@pytest.mark.parametrize(
    ("declaration", "is_disabled", "captured"),
    [(TORCH_PADDED, False, True), (TORCH_NATIVE, False, False), (TORCH_PADDED, True, False)],
    ids=["declared", "not-declared", "switched-off"],
)
def test_draft_extend_is_captured_where_the_backend_declares_it(
    declaration: Declaration,
    is_disabled: bool,
    captured: bool,
    parts: Parts,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On CUDA SGLang leaves it to classes of its own; behind it we capture what is declared."""
    backend = bridged(parts, draw(VERIFY), declaration, runner={"is_draft_worker": True})
    off = SimpleNamespace(get=lambda: False)
    modules: dict[str, dict[str, object]] = {
        "sglang.srt.environ": {"envs": SimpleNamespace(SGLANG_DISABLE_DRAFT_EXTEND_CUDA_GRAPH=off)},
        "sglang.srt.model_executor.cuda_graph_config": {
            "Backend": SimpleNamespace(DISABLED="disabled"),
            "Phase": SimpleNamespace(DECODE="decode"),
            "check_cuda_graph_backend": lambda *_: is_disabled,
        },
        "sglang.srt.platforms": {"current_platform": SimpleNamespace(is_out_of_tree=lambda: False)},
        "sglang.srt.speculative.eagle_draft_extend_cuda_graph_runner": {
            "EAGLEDraftExtendCudaGraphRunner": lambda worker: ("graphs of", worker)
        },
        "sglang.srt.speculative.eagle_worker_v2": {"EagleDraftWorker": object},
        "sglang.srt.utils": {"is_cuda": lambda: True},
    }
    for name, values in modules.items():
        module = ModuleType(name)
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, name, module)
    worker = SimpleNamespace(
        draft_extend_attn_backend=backend, cuda_graph_runner_for_draft_extend=None
    )

    capture_draft_extend(None, worker)

    made = worker.cuda_graph_runner_for_draft_extend
    assert made == (("graphs of", worker) if captured else None)


def test_adapter_that_makes_no_draft_steps_is_reported() -> None:
    """The error names the backend, its distribution and what it lacks."""
    adapter = adapter_of("builtins:dict")

    with pytest.raises(AdapterError, match=r"'acme' of acme-caps 1 .*has no draft_steps"):
        adapter.draft_steps(SimpleNamespace(), 1, 3)


@pytest.mark.parametrize(
    ("needs", "relays", "keeps"),
    [(False, False, False), (True, False, True), (False, True, True)],
    ids=["nobody", "mirror", "confidences"],
)
def test_map_keeps_pinned_buffer_and_stream_where_something_reads_them(
    needs: bool, relays: bool, keeps: bool
) -> None:
    """SGLang makes both on every CUDA device; where nothing is copied they go."""
    made = SimpleNamespace(
        needs_cpu_seq_lens=needs,
        needs_confidence_relay=relays,
        new_seq_lens_cpu_pinned=1,
        fwd_prepare_d2h_stream=2,
    )

    drop_unused_copy(None, made)

    kept = (made.new_seq_lens_cpu_pinned, made.fwd_prepare_d2h_stream)
    assert kept == ((1, 2) if keeps else (None, None))
