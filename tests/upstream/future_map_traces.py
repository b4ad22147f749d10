"""Random traces of batches, run through our FutureMap and SGLang's side by side.

Both get the same calls with the same tensors; after each call everything that a batch holds is
compared. Stale values are put into every field before a call, so that a field which one side
forgets to set shows.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace

import torch
from torch import Tensor

from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.relay import DraftShape, FutureMap, RelayPayload
from tests.upstream.sglang_wheel import make_future_map

MAX_TOKEN = 2**40
SHARED = ("input_ids", "seq_lens", "seq_lens_cpu", "seq_lens_sum", "prefill_input_ids_cpu")
EXTRAS = ("topk_p", "topk_index", "bonus_tokens", "hidden_states")


@dataclass
class Batch:
    """A batch of ours: the fields of `RelayBatch`."""

    req_pool_indices: Tensor
    req_pool_indices_cpu: Tensor
    seq_lens: Tensor
    seq_lens_cpu: Tensor | None
    seq_lens_sum: int | None
    input_ids: Tensor | None
    prefill_input_ids_cpu: Tensor | None
    mix_running_indices: Tensor | None
    spec_info: SpecState | None
    seq_lens_cpu_upper_bound: Tensor | None = None
    input_ids_pending: bool = False


@dataclass
class SpecState:
    """A draft worker's state, full of values of an earlier step."""

    future_indices: Tensor
    topk_p: Tensor | None = field(default_factory=lambda: torch.tensor([[-1.0]]))
    topk_index: Tensor | None = field(default_factory=lambda: torch.tensor([[-2]]))
    bonus_tokens: Tensor | None = field(default_factory=lambda: torch.tensor([-3]))
    hidden_states: Tensor | None = field(default_factory=lambda: torch.tensor([[-4.0]]))


@dataclass(frozen=True)
class Setting:
    """One configuration of both maps."""

    speculative: bool
    mirror: bool
    hidden: bool


class Trace:
    """A pair of maps with one history.

    Args:
        module: SGLang's `overlap_utils`, loaded with the setting's `hidden`.
        setting: how both maps are configured.
        seed: the trace.
    """

    def __init__(self, module: ModuleType, setting: Setting, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 - a trace, not a secret
        self.generator = torch.Generator().manual_seed(seed)
        self.module = module
        self.setting = setting
        self.pool_size = self.random.choice((4, 17, 300))
        self.topk, self.width = self.random.choice((1, 2, 4)), self.random.choice((3, 8, 24))
        self.theirs = make_future_map(
            module,
            pool_size=self.pool_size,
            speculative=setting.speculative,
            needs_cpu_seq_lens=setting.mirror,
        )
        self.ours = FutureMap(
            pool_size=self.pool_size,
            device="cpu",
            host_seq_lens=HostSeqLens.EXACT if setting.mirror else HostSeqLens.NONE,
            speculative=setting.speculative,
            draft=self._draft(),
        )

    def _draft(self) -> DraftShape | None:
        if not self.setting.speculative:
            return None
        if not self.setting.hidden:
            return DraftShape(topk=self.topk)
        return DraftShape(topk=self.topk, hidden_size=self.width, dtype=torch.bfloat16)

    def run(self, num_calls: int) -> None:
        """Fill every row, so that no read meets memory nobody wrote; then make random calls."""
        self.write(torch.arange(self.pool_size))
        calls: tuple[Callable[[], None], ...] = (
            lambda: self.write(self.rows()),
            self.resolve_lengths,
            self.resolve_decode,
            self.resolve_prefill,
        )
        for _ in range(num_calls):
            self.random.choice(calls)()

    def rows(self) -> Tensor:
        """Pick an index: empty where a DP rank idles, padded by row 0 where a graph is larger."""
        kind = self.random.choice(("live", "live", "padded", "idle"))
        if kind == "idle":
            return torch.empty(0, dtype=torch.int64)
        count = self.random.randint(1, self.pool_size - 1)
        rows = torch.randperm(self.pool_size - 1, generator=self.generator)[:count] + 1
        if kind == "padded":
            rows = torch.cat((rows, torch.zeros(self.random.randint(1, 3), dtype=torch.int64)))
        return rows.to(self.random.choice((torch.int64, torch.int64, torch.int32)))

    def numbers(self, rows: Tensor) -> Tensor:
        """Draw a large number a row; rows that repeat (the padding) get one number."""
        drawn = torch.randint(0, MAX_TOKEN, (self.pool_size,), generator=self.generator)
        return drawn[rows.long()]

    def vectors(self, rows: Tensor, width: int, dtype: torch.dtype) -> Tensor:
        """Draw a vector a row, now and then as a strided view."""
        drawn = torch.randn(self.pool_size, 2 * width, generator=self.generator) * 1000
        vectors = drawn.to(dtype)[rows.long()]
        return vectors[:, ::2] if self.random.random() < 0.3 else vectors[:, :width]

    def write(self, rows: Tensor) -> None:
        """Publish and stash on both sides."""
        seq_lens, payload = self.numbers(rows), self.payload(rows)
        self.theirs.publish(rows, seq_lens)
        self.ours.publish(rows, seq_lens)
        self.theirs.stash(rows, payload if self.setting.speculative else payload.bonus_tokens)
        self.ours.stash(rows, payload)

    def payload(self, rows: Tensor) -> RelayPayload:
        """Draw what a step leaves behind."""
        if not self.setting.speculative:
            return RelayPayload(self.numbers(rows))
        return RelayPayload(
            self.numbers(rows),
            topk_p=self.vectors(rows, self.topk, torch.float32),
            topk_index=self.vectors(rows, self.topk, torch.int64),
            hidden_states=self.vectors(rows, self.width, torch.bfloat16),
        )

    def batches(self, rows: Tensor, *, spec: bool) -> tuple[Batch, SimpleNamespace]:
        """Build one batch twice, with stale values in every field."""
        stale = self.numbers(rows)
        ours = Batch(
            req_pool_indices=rows,
            req_pool_indices_cpu=rows.clone(),
            seq_lens=stale,
            seq_lens_cpu=self.random.choice((None, stale.clone())),
            seq_lens_sum=self.random.choice((None, 0, 7)),
            input_ids=self.random.choice((None, None, stale + 1)),
            prefill_input_ids_cpu=None,
            mix_running_indices=None,
            spec_info=SpecState(rows) if spec else None,
        )
        theirs = SimpleNamespace(**vars(ours))
        theirs.spec_info = SpecState(rows) if spec else None
        theirs.device = "cpu"
        theirs.enable_overlap = True
        theirs.is_spec_v2 = self.setting.speculative
        return ours, theirs

    def resolve_lengths(self) -> None:
        """Resolve the lengths of a batch, speculative or not."""
        spec = self.setting.speculative and self.random.random() < 0.8
        ours, theirs = self.batches(self.rows(), spec=spec)
        self.ours.resolve_seq_lens_cpu(ours)
        self.theirs.resolve_seq_lens_cpu(theirs)
        assert_same(ours, theirs)

    def resolve_decode(self) -> None:
        """Resolve the inputs of a decode batch, its ids pending or there already."""
        ours, theirs = self.batches(self.rows(), spec=self.setting.speculative)
        if ours.input_ids is None:  # how SGLang says that they are pending
            self.ours.set_input_ids_sentinel(ours)
        self.resolve_inputs(ours, theirs)

    def resolve_prefill(self) -> None:
        """Resolve the inputs of a prefill batch, alone or with decode rows mixed in."""
        ours, theirs = self.batches(
            self.rows(), spec=self.random.choice((False, self.setting.speculative))
        )
        num_staged = self.random.randint(0, 9)
        staged = torch.randint(0, MAX_TOKEN, (num_staged,), generator=self.generator)
        running = self.random.choice((None, self.rows()))
        for batch in (ours, theirs):
            batch.prefill_input_ids_cpu = staged
            batch.mix_running_indices = running
        self.ours.set_input_ids_sentinel(ours)
        self.resolve_inputs(ours, theirs)
        assert ours.mix_running_indices is theirs.mix_running_indices is None

    def resolve_inputs(self, ours: Batch, theirs: SimpleNamespace) -> None:
        """Resolve both sides' inputs and compare."""
        self.ours.resolve_future(ours)
        self.module.resolve_forward_inputs(theirs, self.theirs)
        assert not ours.input_ids_pending
        assert_same(ours, theirs)


def assert_same(ours: Batch, theirs: SimpleNamespace) -> None:
    """Compare every field that both sides have."""
    for name in SHARED:
        assert_equal(name, getattr(ours, name), getattr(theirs, name))
    if ours.spec_info is not None:
        for name in EXTRAS:
            assert_equal(name, getattr(ours.spec_info, name), getattr(theirs.spec_info, name))


def assert_equal(name: str, ours: object, theirs: object) -> None:
    """Compare two values bit by bit, dtypes and shapes included."""
    if isinstance(ours, Tensor) and isinstance(theirs, Tensor):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, msg=lambda text: f"{name}: {text}")
    else:
        assert ours == theirs, f"{name}: {ours} is not {theirs}"
