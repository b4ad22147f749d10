"""vLLM's linear attention under the kit: its batches, its layers and its runner, without vLLM.

Shapes: B requests and T tokens in a batch, H heads, D a head's size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import cast

import pytest
import torch
from backend_caps_vllm.kit import ADAPTED, VLLM_CHECKS, linear_states
from backend_caps_vllm.kit.classes import AdaptedClass
from backend_caps_vllm.kit.engine_modules import VLLM
from backend_caps_vllm.kit.linear_batches import (
    OrderedTurn,
    blocks_of,
    buffers_of,
    columns_of,
    common_of,
    positions_of,
    prefills_of,
    tensors_of,
)
from backend_caps_vllm.kit.linear_layers import BailingLayers, MinimaxLayers
from backend_caps_vllm.kit.linear_states import STATE_CHECKS
from torch import Tensor

from backend_caps.capability.declaration import Declaration
from backend_caps.capability.vocabulary import Capabilities
from backend_caps.kit import Effort, Finding, Forward, Scenario, Subject, run_checks
from backend_caps.kit.states.recurrences import LAYER_IDS, Tokens
from backend_caps.kit.states.stories import StateTurn, state_story

BY_CODE = {check.code: check for check in STATE_CHECKS}
ASKED = [code for code in BY_CODE if code != "linear-states-other-kernels"]


class SmallLayers(BailingLayers):
    """Lightning attention of small heads, run by `Layer`."""

    num_heads, head_size, value_size = 2, 4, 4
    lengths = (1, 2, 7)

    def make(self, vllm: object, name: str, config: SimpleNamespace) -> SimpleNamespace:
        """Make a layer in plain torch."""
        del vllm
        made = Layer(int(name.split(".")[2]), self, config)
        config.compilation_config.static_forward_context[name] = made
        return made

    def forward(
        self, vllm: object, layer: SimpleNamespace, tokens: Tokens, positions: Tensor
    ) -> Tensor:
        """Run it with what the forward context has."""
        del vllm, positions
        output: Tensor = layer.run(tokens["hidden_states"], CONTEXT.metadata)
        return output


class Layer(SimpleNamespace):
    """A layer that brings each request's tokens into its blocks, token by token."""

    def __init__(self, layer_id: int, layers: SmallLayers, config: SimpleNamespace) -> None:
        super().__init__(slopes=layers.slopes(layer_id), layers=layers, config=config)

    def get_state_shape(self) -> tuple[tuple[int, ...], ...]:
        """Return the one matrix of each head."""
        return (self.layers.sizes.temporal,)

    def get_state_dtype(self) -> tuple[torch.dtype, ...]:
        """Keep states in float32."""
        return (torch.float32,)

    def get_kv_cache_spec(self, _config: object) -> None:
        """Describe nothing that the builder reads."""

    def bind_kv_cache(self, pages: Tensor) -> None:
        """View pages as states."""
        states = pages.flatten(1).view(torch.float32)
        self.kv_cache = (states.view(-1, *self.layers.sizes.temporal),)

    def run(self, hidden: Tensor, metadata: Metadata) -> Tensor:
        """Compute on the host what the recurrence gives: [T, H, D], device."""
        blocks, outputs = self.kv_cache[0], []
        start = 0
        for place, count in enumerate(metadata.counts):
            rows = metadata.blocks[place : place + 1]
            first = rows[0, (metadata.accepted[place : place + 1] - 1).clamp(min=0).long()]
            state = blocks[first.long()][0].double()
            if metadata.fresh[place]:
                state = torch.zeros_like(state)
            for token in range(start, start + count):
                state, output = self._step(state, hidden[token])
                outputs.append(output)
                if metadata.verifies[place]:
                    blocks[rows[0, token - start : token - start + 1].long()] = state[None].float()
            if not metadata.verifies[place]:
                blocks[rows[0, :1].long()] = state[None].float()
            start += count
        return torch.stack(outputs).to(hidden.dtype)

    def _step(self, state: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v, gate = hidden.double().view(4, self.layers.num_heads, self.layers.head_size)
        q, k = (own * torch.rsqrt(own.square().mean(-1, keepdim=True) + 1e-5) for own in (q, k))
        state = state * torch.exp(-self.slopes)[:, None, None] + k[:, :, None] * v[:, None, :]
        output = (q[:, :, None] * self.layers.head_size**-0.5 * state).sum(1)
        normed = output * torch.rsqrt(output.square().mean(-1, keepdim=True) + 1e-5)
        return state, normed * gate.sigmoid()


@dataclass
class Metadata:
    """What the small builder makes of a batch."""

    counts: list[int]
    fresh: list[bool]
    blocks: Tensor
    accepted: Tensor
    verifies: list[bool]


@dataclass
class Context:
    """The metadata of the forward that runs."""

    metadata: Metadata


CONTEXT = Context(Metadata([], [], torch.empty(0), torch.empty(0), []))


class Builder:
    """A builder in vLLM's form."""

    shortest_prefill = 1
    """Tokens from which on a request without context is taken for new."""
    is_stale = False
    """Whether a replay keeps the blocks of its capture."""
    takes_accepted = True
    """Whether the accepted tokens of a verify count."""
    waits = False
    """Whether it waits for the device."""

    def __init__(self, *_words: object) -> None:
        self.static: Metadata | None = None

    def build(
        self,
        _prefix: int,
        common: SimpleNamespace,
        num_accepted_tokens: Tensor | None = None,
        num_decode_draft_tokens_cpu: Tensor | None = None,
    ) -> Metadata:
        """Make the metadata; of a captured size, in the tensors of its capture."""
        counts = common.query_start_loc_cpu.diff()
        olds = common.seq_lens_cpu_upper_bound - counts
        drafts = num_decode_draft_tokens_cpu
        accepted = torch.ones_like(common.seq_lens)
        if num_accepted_tokens is not None and self.takes_accepted:
            accepted = num_accepted_tokens
        made = Metadata(
            counts=counts.tolist(),
            fresh=[
                not old and count >= self.shortest_prefill
                for old, count in zip(olds.tolist(), counts.tolist(), strict=True)
            ],
            blocks=common.block_table_tensor,
            accepted=accepted,
            verifies=[False] * len(counts) if drafts is None else (drafts >= 0).tolist(),
        )
        if self.waits:
            int(common.seq_lens[0])
        return made

    def build_for_cudagraph_capture(self, common: SimpleNamespace) -> Metadata:
        """Make metadata over the buffers, of decodes or verifies without new requests."""
        each = common.max_query_len
        count = torch.diff(common.query_start_loc) if each > 1 else torch.ones_like(common.seq_lens)
        self.accepted = count.clone()
        made = Metadata(
            counts=[each] * common.num_reqs,
            fresh=[False] * common.num_reqs,
            blocks=common.block_table_tensor.clone()
            if self.is_stale
            else common.block_table_tensor,
            accepted=self.accepted,
            verifies=[each > 1] * common.num_reqs,
        )
        self.static = made
        return made


class ReplayedBuilder(Builder):
    """Keeps the accepted tokens of a replay where its graph reads them."""

    def build(
        self,
        _prefix: int,
        common: SimpleNamespace,
        num_accepted_tokens: Tensor | None = None,
        num_decode_draft_tokens_cpu: Tensor | None = None,
    ) -> Metadata:
        """Refill the buffer of a capture of that size."""
        made = super().build(_prefix, common, num_accepted_tokens, num_decode_draft_tokens_cpu)
        static = self.static
        if static is not None and len(static.accepted) == len(made.accepted):
            static.accepted.copy_(made.accepted)
        return made


class Unclear(ReplayedBuilder):
    """Takes a prompt of one token for a decode."""

    shortest_prefill = 2


class Stale(ReplayedBuilder):
    """Replays with the blocks of its capture."""

    is_stale = True


class Rejected(ReplayedBuilder):
    """Begins behind a verify with the state of its first token."""

    takes_accepted = False


class Waiting(ReplayedBuilder):
    """Waits for the device in each build."""

    waits = True


def _backend(builder: type[Builder]) -> SimpleNamespace:
    return SimpleNamespace(get_builder_cls=lambda: builder)


@contextmanager
def _override(metadata: Metadata) -> Iterator[None]:
    before, CONTEXT.metadata = CONTEXT.metadata, metadata
    yield
    CONTEXT.metadata = before


def _forward_context(**named: object) -> Metadata:
    attn_metadata = named["attn_metadata"]
    assert isinstance(attn_metadata, dict)
    made = next(iter(attn_metadata.values()))
    assert isinstance(made, Metadata)
    return made


def _common(**named: object) -> SimpleNamespace:
    return SimpleNamespace(**named)


class SilentBatch(SimpleNamespace):
    """vLLM's batch of states, which tells builders nothing."""

    def __init__(self, is_prefilling: Tensor, **named: object) -> None:
        super().__init__(is_prefilling=is_prefilling, **named)

    def get_extra_attn_kwargs(self, _builder: object, _num_reqs: int) -> dict[str, Tensor]:
        """Return nothing."""
        return {}


_MODULES: dict[str, SimpleNamespace] = {
    "envs": SimpleNamespace(VLLM_USE_V2_MODEL_RUNNER=False),
    "v1.worker.gpu.model_states.mamba_hybrid": SimpleNamespace(MambaHybridAttnMetadata=SilentBatch),
    "utils.torch_utils": SimpleNamespace(set_default_torch_dtype=lambda _: nullcontext()),
    "forward_context": SimpleNamespace(
        ForwardContext=_forward_context, override_forward_context=_override
    ),
}


def _small_vllm() -> SimpleNamespace:
    """Make what the runner imports of vLLM."""
    own = {"_custom_ops": {}, "distributed.parallel_state": {"_TP": None}}
    modules: dict[str, object] = {**_MODULES}
    for name, values in own.items():
        modules[name] = ModuleType(name)
        vars(modules[name]).update(values)
    make: Callable[..., SimpleNamespace] = SimpleNamespace
    return SimpleNamespace(
        module=modules.__getitem__,
        attention=SimpleNamespace(CommonAttentionMetadata=_common),
        config=SimpleNamespace(
            set_current_vllm_config=lambda _: nullcontext(),
            CompilationConfig=lambda **named: make(**named, static_forward_context={}),
            CUDAGraphMode=SimpleNamespace(FULL_AND_PIECEWISE="full"),
            KernelConfig=SimpleNamespace,
        ),
    )


SMALL = cast("VLLM", _small_vllm())


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load vLLM made small, and adapt one class."""
    monkeypatch.setattr(linear_states, "load_vllm", lambda: SMALL)
    adapted = AdaptedClass(tried=Capabilities(), layers=SmallLayers)
    monkeypatch.setattr(linear_states, "ADAPTED", {**ADAPTED, "Small": adapted})


def _subject() -> Subject:
    return Subject(name="Small", declaration=Declaration(implementation=f"{__name__}:Builder"))


def _findings(code: str, builder: type[Builder], monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    monkeypatch.setattr(linear_states, "class_of", lambda _: _backend(builder))
    results = run_checks(_subject(), [BY_CODE[code]], effort=Effort(seeds=range(2)))
    assert results.checks[0].cases
    return list(results.findings)


@pytest.mark.parametrize("code", ASKED)
def test_right_class_is_no_finding(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """States by the recurrence hold eagerly, in graphs, overlapped and without waits."""
    assert _findings(code, ReplayedBuilder, monkeypatch) == []


@pytest.mark.parametrize(
    ("code", "wrong", "words"),
    [
        pytest.param("linear-states-short-prompts", Unclear, "(0, 1)", id="state-of-last-owner"),
        pytest.param("linear-states-graphs", Stale, "turn", id="stale-blocks"),
        pytest.param("linear-states", Rejected, "verify of", id="rejected-drafts"),
        pytest.param("linear-states-waits", Waiting, "build made the host wait", id="waits"),
    ],
)
def test_wrong_class_is_found(
    code: str, wrong: type[Builder], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each fault of a builder is found, by what it did."""
    findings = _findings(code, wrong, monkeypatch)

    assert findings
    assert any(words in finding.fault.what for finding in findings)


def test_runner_that_says_nothing_of_drafts_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the second runner tells a builder is asked of the runner."""
    monkeypatch.setattr(SMALL.module("envs"), "VLLM_USE_V2_MODEL_RUNNER", None)

    findings = _findings("linear-states", ReplayedBuilder, monkeypatch)

    assert findings
    assert all("verify of" in finding.fault.what for finding in findings)


def test_short_prompts_hide_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other checks have prompts that are no decodes."""
    assert _findings("linear-states", Unclear, monkeypatch) == []


def test_plain_checks_are_excused_for_linear_attention() -> None:
    """Of a class whose layers keep states, only the checks of states ask anything."""
    asked = {check.code for check in VLLM_CHECKS if check.excuse(_subject()) is None}

    assert asked == {*ASKED}


def _turn(forward: Forward) -> StateTurn:
    story = state_story(SmallLayers(), Scenario(forward=forward, topk=1), 3)
    return next(own for own in story if own.forward is forward and len({*own.counts}) > 1)


def test_turns_are_put_in_order_and_back() -> None:
    """Requests of a decode's length come first, and their tokens with them."""
    turn = _turn(Forward.MIXED)

    ordered = OrderedTurn.of(turn, 1)

    own = ordered.turn
    assert [*own.counts] == sorted(turn.counts)
    assert sorted(own.slots) == sorted(turn.slots)
    for after, before in zip(own.tokens, turn.tokens, strict=True):
        returned = after["hidden_states"][ordered.returns]
        assert torch.equal(returned, before["hidden_states"])


def test_slots_have_blocks_of_their_own() -> None:
    """The first block is of no slot."""
    blocks = [own for slot in range(1, 5) for own in blocks_of(slot, 3)]

    assert blocks == [*range(1, 13)]


def test_batch_is_described_by_its_turn() -> None:
    """Lengths count the forward's tokens, and each request has its row of blocks."""
    turn = OrderedTurn.of(_turn(Forward.MIXED), 1).turn
    columns = torch.tensor(columns_of(turn, 2, [1] * len(turn.slots)))

    own = tensors_of(columns, torch.tensor(positions_of(turn)))

    assert own.query_start_loc.diff().tolist() == [*turn.counts]
    lengths = [sum(both) for both in zip(turn.prefixes, turn.counts, strict=True)]
    assert own.seq_lens.tolist() == lengths
    assert own.block_table.tolist() == [[*blocks_of(slot, 2)] for slot in turn.slots]
    common = common_of(SMALL, own, turn.counts, turn.prefixes, prefills_of(turn))
    assert common.seq_lens_cpu_upper_bound.tolist() == lengths
    assert common.max_query_len == max(turn.counts)


def test_padding_has_no_tokens_and_the_null_block() -> None:
    """Buffers are loaded whole; a capture has requests of new tokens alone."""
    buffers = buffers_of(4, 12, 3, "cpu")
    assert buffers.seq_lens.tolist() == [3, 3, 3, 3]
    columns = torch.tensor([[3, 6], [9, 5], [2, 3], [1, 4], [2, 5], [3, 6]])

    buffers.load(tensors_of(columns, torch.arange(6)))

    assert buffers.query_start_loc.tolist() == [0, 3, 6, 6, 6]
    assert buffers.seq_lens.tolist() == [9, 5, 0, 0]
    assert buffers.block_table.tolist() == [[1, 2, 3], [4, 5, 6], [0, 0, 0], [0, 0, 0]]
    assert buffers.num_accepted.tolist() == [2, 3, 1, 1]


def test_minimax_norms_all_heads_as_one() -> None:
    """Behind the state a norm and a gate, before it an activation."""
    layers = MinimaxLayers()
    token = {"hidden_states": torch.randn(layers.hidden_size, dtype=torch.float64)}
    state = {"temporal": torch.zeros(layers.sizes.temporal, dtype=torch.float64)}

    after, output = layers.step(LAYER_IDS[0], state, token)

    *heads, gate = token["hidden_states"].chunk(4)
    _, k, v = torch.nn.functional.silu(torch.cat(heads)).view(2, 3, 128).unbind(1)
    assert torch.allclose(after["temporal"], k[:, :, None] * v[:, None])
    ungated = output.flatten() / gate.sigmoid()
    assert torch.allclose(ungated.square().mean(), torch.ones(()).double(), atol=1e-3)
