"""vLLM's linear attention under the kit: its batches, its layers and its runner, without vLLM.

Shapes: B requests and T tokens in a batch, H heads, D a head's size.
"""

from __future__ import annotations

import pytest
import torch
from backend_caps_vllm.kit import ADAPTED, VLLM_CHECKS, linear_states
from backend_caps_vllm.kit.classes import AdaptedClass
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
from backend_caps_vllm.kit.linear_layers import MinimaxLayers
from backend_caps_vllm.kit.linear_states import STATE_CHECKS
from backend_caps_vllm.kit.mamba_layers import ShortConvolutionLayers

from backend_caps.capability.declaration import Declaration
from backend_caps.capability.vocabulary import Capabilities
from backend_caps.kit import Effort, Finding, Forward, Scenario, Subject, run_checks
from backend_caps.kit.states.recurrences import LAYER_IDS
from backend_caps.kit.states.stories import StateTurn, state_story

from .small_linear_vllm import (
    SMALL,
    Builder,
    Rejected,
    ReplayedBuilder,
    SmallLayers,
    Stale,
    Unclear,
    Waiting,
    backend_of,
)

BY_CODE = {check.code: check for check in STATE_CHECKS}
ASKED = [code for code in BY_CODE if code != "linear-states-other-kernels"]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load vLLM made small, and adapt one class."""
    monkeypatch.setattr(linear_states, "load_vllm", lambda: SMALL)
    adapted = AdaptedClass(tried=Capabilities(), layers=SmallLayers)
    monkeypatch.setattr(linear_states, "ADAPTED", {**ADAPTED, "Small": adapted})


def _subject() -> Subject:
    return Subject(
        name="Small", declaration=Declaration(implementation=f"{Builder.__module__}:Builder")
    )


def _findings(code: str, builder: type[Builder], monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    monkeypatch.setattr(linear_states, "class_of", lambda _: backend_of(builder))
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


def test_short_convolution_selects_its_gates() -> None:
    """`B`, `C` and `x` of a channel are entries of the hidden state one behind the other."""
    layers = ShortConvolutionLayers()
    (hidden,) = layers.draw(1, torch.float64, torch.Generator().manual_seed(0))["hidden_states"]
    state = {"conv": torch.zeros(layers.sizes.conv, dtype=torch.float64)}

    after, output = layers.step(LAYER_IDS[0], state, {"hidden_states": hidden})

    last = layers.weights(LAYER_IDS[0])["conv_weights"][0, -1].double()
    assert torch.equal(after["conv"][0, -1], hidden[0] * hidden[2])
    assert torch.allclose(output[0, 0], hidden[1] * hidden[0] * hidden[2] * last)
