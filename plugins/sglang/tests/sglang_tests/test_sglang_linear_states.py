"""The checks of linear attention, over an SGLang made small.

Shapes: B requests and T tokens in a batch, H heads, D a head's size.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from backend_caps_sglang.kit import SGLANG_CHECKS, linear_states
from backend_caps_sglang.kit.classes import ADAPTED, AdaptedClass
from backend_caps_sglang.kit.linear_layers import LightningLayers
from backend_caps_sglang.kit.linear_states import STATE_CHECKS
from torch import Tensor

from backend_caps.capability.declaration import Declaration
from backend_caps.capability.vocabulary import Capabilities
from backend_caps.kit import Effort, Finding, Forward, Scenario, Subject, run_checks
from backend_caps.kit.scenarios import VERIFIED
from backend_caps.kit.states.recurrences import LAYER_IDS
from backend_caps.kit.states.stories import state_story

from .small_sglang import ForwardBatch, ForwardMode, RadixAttention, small_sglang

SGLANG = small_sglang()
BY_CODE = {check.code: check for check in STATE_CHECKS}


class SmallLayers(LightningLayers):
    """Lightning attention of small heads."""

    num_heads, head_size, value_size = 2, 4, 4
    lengths = (1, 2, 7)


class Lightning:
    """A linear backend in SGLang's form, in plain torch.

    Args:
        runner: what stands in for SGLang's model runner.
    """

    decays = 1
    """How often a token decays the state."""
    padding_writes = 0
    """The slot that a request of padding writes to."""
    is_stale = False
    """Whether a replay keeps the slots of its capture."""
    chunks_keep = True
    """Whether a chunk begins with the state of the chunk before."""
    slots_off = 0
    """How many slots beside its own a decode reads."""
    waits = False
    """Whether preparation waits for the device."""

    def __init__(self, runner: SimpleNamespace) -> None:
        self.pool = runner.req_to_token_pool
        slopes = [SmallLayers().slopes(layer_id) for layer_id in LAYER_IDS]
        decays = torch.exp(-torch.stack(slopes) * self.decays)[:, :, None, None]
        self.decayed_by = decays.to(runner.device)
        self.slots: Tensor
        self.counts: list[int]
        self.fresh: list[bool]

    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        """Look up the requests' slots, and count their tokens."""
        self.slots = self.pool.req_index_to_mamba_index_mapping[batch.req_pool_indices].long()
        self._count(batch)

    def _count(self, batch: ForwardBatch) -> None:
        each = 1 if batch.spec_info is None else batch.spec_info.draft_token_num
        self.counts, self.fresh = [each] * batch.batch_size, [False] * batch.batch_size
        news, olds = batch.extend_seq_lens_cpu, batch.extend_prefix_lens_cpu
        if news is not None and olds is not None:
            self.counts, self.fresh = news, [not own for own in olds]
        if self.waits:
            int(batch.req_pool_indices[0])

    def init_cuda_graph_state(self, max_bs: int, _max_num_tokens: int) -> None:
        """Make static slots."""
        self.static = self.pool.req_index_to_mamba_index_mapping.new_zeros(max_bs).long()

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        """Give a request of padding one token."""
        return 1

    def init_forward_metadata_out_graph(
        self, batch: ForwardBatch, in_capture: bool = False
    ) -> None:
        """Fill the static slots."""
        if in_capture or not self.is_stale:
            slots = self.pool.req_index_to_mamba_index_mapping[batch.req_pool_indices].long()
            padding = torch.full_like(slots, self.padding_writes)
            self.static.copy_(torch.where(batch.req_pool_indices > 0, slots, padding))
        self.slots = self.static
        self._count(batch)

    def init_forward_metadata_in_graph(self, _batch: ForwardBatch) -> None:
        """Do nothing: it was all done before."""

    def forward_decode(self, **named: object) -> Tensor:
        """Bring one token into each state: [B, H * D]."""
        return self._forward(**named)  # type: ignore[arg-type]

    def forward_extend(self, **named: object) -> Tensor:
        """Bring each request's tokens into its state: [T, H * D]."""
        return self._forward(**named)  # type: ignore[arg-type]

    def _forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layer: RadixAttention,
        forward_batch: ForwardBatch,
        **_others: object,
    ) -> Tensor:
        place, cache = LAYER_IDS.index(layer.layer_id), self.pool.mamba_pool.mamba_cache
        states, is_verify = cache.temporal[place], forward_batch.spec_info is not None
        is_decode = forward_batch.forward_mode is ForwardMode.DECODE
        queries, keys, values = q.double() * layer.scaling, k.double(), v.double()
        outputs, start = [], 0
        for request, count in enumerate(self.counts):
            slot = self.slots[request : request + 1]
            read = (slot + self.slots_off) % len(states) if is_decode else slot
            state = states[read][0].double()
            if not self.chunks_keep and not is_decode and not is_verify:
                state = torch.zeros_like(state)
            for token in range(start, start + count):
                added = keys[token][:, :, None] * values[token][:, None, :]
                state = state * self.decayed_by[place] + added
                outputs.append((queries[token][:, :, None] * state).sum(1))
                if is_verify:
                    cache.intermediate_ssm[place, request, token - start] = state
            if not is_verify:
                states[slot] = state[None].float()
            start += count
        return torch.stack(outputs).to(q.dtype).flatten(1)


class Twice(Lightning):
    """Decays by each token twice."""

    decays = 2


class Neighbour(Lightning):
    """Lets padding write beside the padding's slot."""

    padding_writes = 1


class Stale(Lightning):
    """Replays with the slots of its capture."""

    is_stale = True


class Forgetful(Lightning):
    """Begins each chunk with no state."""

    chunks_keep = False


class Crossed(Lightning):
    """Decodes from the state of another slot."""

    slots_off = 1


class Waiting(Lightning):
    """Waits for the device in preparation."""

    waits = True


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load SGLang made small, and adapt one class."""
    monkeypatch.setattr(linear_states, "load_sglang", lambda: SGLANG)
    adapted = AdaptedClass(tried=Capabilities(), layers=SmallLayers, other_layers=SmallLayers)
    monkeypatch.setattr(linear_states, "ADAPTED", {**ADAPTED, "Small": adapted})


def _findings(code: str, implementation: type[Lightning]) -> list[Finding]:
    name = f"{__name__}:{implementation.__name__}"
    subject = Subject(name="Small", declaration=Declaration(implementation=name))
    results = run_checks(subject, [BY_CODE[code]], effort=Effort(seeds=range(2)))
    assert results.checks[0].cases
    return list(results.findings)


@pytest.mark.parametrize("code", BY_CODE)
def test_right_linear_backend_is_no_finding(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """States by the recurrence hold eagerly, in graphs, overlapped and without waits."""
    monkeypatch.setattr(Subject, "load", lambda _: Lightning)

    assert _findings(code, Lightning) == []


@pytest.mark.parametrize(
    ("code", "wrong", "words"),
    [
        pytest.param("linear-states", Twice, "differ", id="decayed-twice"),
        pytest.param("linear-states", Forgetful, "chunk of", id="chunk-without-its-state"),
        pytest.param("linear-states", Crossed, "decode of", id="state-of-another-slot"),
        pytest.param("linear-states-graphs", Neighbour, "slot", id="padding-beside-its-slot"),
        pytest.param("linear-states-graphs", Stale, "differ", id="stale-slots"),
        pytest.param("linear-states-races", Crossed, "overlapped", id="overlapped"),
        pytest.param("linear-states-waits", Waiting, "made the host wait", id="waits"),
    ],
)
def test_wrong_linear_backend_is_found(
    code: str, wrong: type[Lightning], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each fault of a linear backend is found, by what it did."""
    monkeypatch.setattr(Subject, "load", lambda _: wrong)

    findings = _findings(code, wrong)

    assert findings
    assert any(words in finding.fault.what for finding in findings)


def _story(forward: Forward) -> Iterator[tuple[str, int]]:
    for seed in range(4):
        for turn in state_story(SmallLayers(), Scenario(forward=forward, topk=1), seed):
            yield turn.forward.value, max(turn.counts)


def test_stories_run_forwards_of_several_kinds() -> None:
    """A story of verifies prefills prompts between them, and each verifies as many tokens."""
    counts = [count for forward, count in _story(Forward.VERIFY) if forward == "verify"]

    assert {forward for forward, _ in _story(Forward.VERIFY)} == {"prefill", "verify"}
    assert {*counts} == {VERIFIED}


def test_plain_checks_are_excused_for_linear_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a class whose layers keep states, only the checks of states ask anything."""
    monkeypatch.setattr(Subject, "load", lambda _: Lightning)
    subject = Subject(name="Small", declaration=Declaration(implementation=f"{__name__}:Lightning"))

    asked = {check.code for check in SGLANG_CHECKS if check.excuse(subject) is None}

    assert asked == {*BY_CODE}
