"""The checks of containers of draft steps, over an SGLang made small.

Shapes: B requests, K beams, S steps, L the widest context, Hq query heads, Dv the values' size.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from backend_caps_sglang.kit import draft_steps
from backend_caps_sglang.kit.draft_steps import DRAFT_CHECKS, NUM_STEPS, draw_drafts
from torch import Tensor

from backend_caps.capability.declaration import Declaration
from backend_caps.kit import Effort, Finding, Forward, Scenario, Subject, run_checks

from .small_sglang import RadixAttention, attended, small_sglang

SGLANG = small_sglang()
BY_CODE = {check.code: check for check in DRAFT_CHECKS}


class Steps:
    """A container in SGLang's form, in plain torch.

    Args:
        runner: what stands in for SGLang's model runner.
        num_beams: K.
        num_steps: S.
    """

    others_seen = 0
    """Beams beside its own whose tokens a beam sees."""
    keeps_lengths = False
    """Whether a replay keeps the capture's lengths."""

    def __init__(self, runner: SimpleNamespace, num_beams: int, num_steps: int) -> None:
        self.pool, self.table = runner.token_to_kv_pool, runner.req_to_token_pool.req_to_token
        self.num_beams, self.num_steps = num_beams, num_steps
        self.attn_backends = [Step(self, step) for step in range(num_steps - 1)]

    def init_forward_metadata(self, batch: SimpleNamespace) -> None:
        """Keep what the steps read."""
        self.rows, self.lengths = batch.req_pool_indices, batch.seq_lens
        self.slots = batch.out_cache_loc.view(-1, self.num_beams, self.num_steps)

    def init_cuda_graph_state(self, max_bs: int, _max_num_tokens: int) -> None:
        """Make static buffers."""
        new = self.table.new_zeros
        self.static_rows = new(max_bs, dtype=torch.int64)
        self.static_lengths = new(max_bs, dtype=torch.int64)
        self.static_slots = new(max_bs, self.num_beams, self.num_steps, dtype=torch.int64)

    def init_forward_metadata_out_graph(
        self, batch: SimpleNamespace, in_capture: bool = False
    ) -> None:
        """Fill the buffers."""
        self.static_rows.copy_(batch.req_pool_indices)
        if in_capture or not self.keeps_lengths:
            self.static_lengths.copy_(batch.seq_lens)
        self.static_slots.copy_(batch.out_cache_loc.view(-1, self.num_beams, self.num_steps))
        self.rows, self.lengths, self.slots = (
            self.static_rows,
            self.static_lengths,
            self.static_slots,
        )

    def init_forward_metadata_in_graph(self, _batch: SimpleNamespace) -> None:
        """Do nothing: it was all done before."""


class Step:
    """One step's backend."""

    def __init__(self, steps: Steps, number: int) -> None:
        self.steps, self.number = steps, number

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        """Give a request of padding one token."""
        return 1

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, layer: RadixAttention, batch: SimpleNamespace
    ) -> Tensor:
        """Attend to the cached tokens, and to the beam's own: [B * K, Hq * Dv]."""
        steps = self.steps
        steps.pool.set_kv_buffer(layer, batch.out_cache_loc, k, v)
        keys, values = steps.pool.get_kv_buffer(layer.layer_id)
        width = steps.table.shape[1]
        owners = torch.arange(len(q), device=q.device) // steps.num_beams
        cached = steps.table[steps.rows[owners]].long()
        seen = torch.arange(width, device=q.device) < steps.lengths[owners, None]
        own = steps.slots[:, :, : self.number + 1].flatten(0, 1)
        others = own.roll(1, 0)[:, : steps.others_seen]
        slots = torch.cat([cached, own, others], dim=1)
        visible = torch.cat([seen, seen.new_ones(len(q), slots.shape[1] - width)], dim=1)
        queries = q.view(len(q), layer.num_heads, -1)
        return attended(
            queries, keys[slots], values[slots], visible, layer.scaling, 0.0, None
        ).flatten(1)


class Curious(Steps):
    """Lets a beam see another one's first token."""

    others_seen = 1


class Late(Steps):
    """Replays with the lengths of its capture."""

    keeps_lengths = True


def _findings(code: str, container: type[Steps], monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    monkeypatch.setattr(draft_steps, "load_sglang", lambda: SGLANG)
    declaration = Declaration(implementation=f"{__name__}:{container.__name__}")
    monkeypatch.setattr(Subject, "load", lambda _: container)
    subject = Subject(name="SmallMultiStep", declaration=declaration)
    results = run_checks(subject, [BY_CODE[code]], effort=Effort(seeds=range(4)))
    assert results.checks[0].cases
    return list(results.findings)


@pytest.mark.parametrize("code", BY_CODE)
def test_right_steps_are_no_finding(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container whose beams see what they should holds, eagerly and in a graph."""
    assert _findings(code, Steps, monkeypatch) == []


@pytest.mark.parametrize(
    ("code", "container"),
    [
        pytest.param("draft-steps", Curious, id="another-beam"),
        pytest.param("draft-steps-graphs", Curious, id="another-beam-in-a-graph"),
        pytest.param("draft-steps-graphs", Late, id="stale-lengths"),
    ],
)
def test_wrong_steps_are_found(
    code: str, container: type[Steps], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A beam that sees another one's token is found, and so are stale lengths of a replay."""
    findings = _findings(code, container, monkeypatch)

    assert findings
    assert "step " in findings[0].fault.what


@pytest.mark.parametrize("page_size", [1, 16])
def test_beams_of_pages_begin_in_copies_of_the_last_page(page_size: int) -> None:
    """With pages each beam of several begins as far into a page as the prefix ends."""
    scenario = Scenario(forward=Forward.DRAFT, page_size=page_size)
    drafts = draw_drafts(scenario, 0, 3, 3)

    starts = drafts.places[:, :, 0] - drafts.places[:, :1, 0]

    assert drafts.places.shape == (3, 3, NUM_STEPS)
    assert (starts % page_size == 0).all()
    assert (drafts.places.diff(dim=2) == 1).all()
