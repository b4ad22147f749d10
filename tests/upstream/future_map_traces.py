"""Random traces of batches, run through our FutureMap and SGLang's side by side.

Both get the same calls with equal tensors, each side its own: what one side writes into an argument
shows as a difference. After each call everything that a batch holds is compared, and once more when
the trace is over: no later call may change what a batch was given. Stale values are put into every
field before a call, so that a field which one side forgets to set shows.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, fields
from types import ModuleType, SimpleNamespace

import torch
from torch import Tensor

from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.relay import DraftShape, FutureMap, RelayPayload
from tests.relay.fake_streams import FakeModule, FakeStreams
from tests.upstream.sglang_wheel import make_future_map

MAX_TOKEN = 2**40
MAX_BATCH = 64
POOLS = (4, 17, 300)
# Rows of 128 bytes and more are copied in words of 16 bytes, where they are whole ones.
WIDTHS = (3, 8, 24, 64, 65, 128, 200)
INTEGERS = (torch.int64, torch.int64, torch.int32)
FLOATS = (torch.bfloat16, torch.float16, torch.float32)
SHARED = (
    "req_pool_indices",
    "req_pool_indices_cpu",
    "input_ids",
    "seq_lens",
    "seq_lens_cpu",
    "seq_lens_sum",
    "prefill_input_ids_cpu",
    "mix_running_indices",
)
EXTRAS = ("future_indices", "topk_p", "topk_index", "bonus_tokens", "hidden_states")


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
    streams: bool = False
    """Whether our device has streams, so that the mirror comes by a private one."""
    pools: tuple[int, ...] = POOLS
    """The pool sizes to draw from."""


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
        self.pool_size = self.random.choice(setting.pools)
        self.topk, self.width = self.random.choice((1, 2, 4, 32)), self.random.choice(WIDTHS)
        self.dtype = self.random.choice(FLOATS)
        self.resolved: list[tuple[Batch, SimpleNamespace]] = []
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
            streams=FakeStreams(FakeModule()) if setting.streams else None,
        )
        has_private_copy = self.ours.copy_stream is not None
        assert has_private_copy == (setting.streams and setting.mirror and setting.speculative)

    def _draft(self) -> DraftShape | None:
        if not self.setting.speculative:
            return None
        if not self.setting.hidden:
            return DraftShape(topk=self.topk)
        return DraftShape(topk=self.topk, hidden_size=self.width, dtype=self.dtype)

    def run(self, num_calls: int) -> None:
        """Fill every row, so that no read meets memory nobody wrote; then make random calls.

        SGLang takes the dtypes of its buffers from the first payload, so that one has ours.
        """
        everybody = torch.arange(self.pool_size)
        self.publish(everybody)
        self.stash(everybody, self.payload(everybody, (self.dtype,), (torch.int64,)))
        calls: tuple[Callable[[], None], ...] = (
            lambda: self.publish(self.rows()),
            lambda: self.stash_drawn(self.rows()),
            lambda: self.resolve_lengths(self.rows(), spec=self.spec()),
            lambda: self.resolve_decode(self.rows(), spec=self.spec()),
            self.resolve_prefill,
        )
        for _ in range(num_calls):
            self.random.choice(calls)()
        self.resolve_lengths(everybody, spec=self.setting.speculative)
        self.resolve_decode(everybody, spec=self.setting.speculative)
        for ours, theirs in self.resolved:
            assert_same(ours, theirs)

    def spec(self) -> bool:
        """Draw whether a batch is in speculative decode; a speculative map has others too."""
        return self.setting.speculative and self.random.random() < 0.75

    def rows(self) -> Tensor:
        """Pick an index: empty where a DP rank idles, padded by row 0 where a graph is larger."""
        kind = self.random.choice(("live", "live", "padded", "idle"))
        if kind == "idle":
            return torch.empty(0, dtype=torch.int64)
        count = self.random.randint(1, min(self.pool_size - 1, MAX_BATCH))
        count = self.random.choice((1, count, count))
        rows = torch.randperm(self.pool_size - 1, generator=self.generator)[:count] + 1
        if kind == "padded":
            rows = torch.cat((rows, torch.zeros(self.random.randint(1, 3), dtype=torch.int64)))
        return rows.to(self.random.choice(INTEGERS))

    def numbers(self, rows: Tensor, dtypes: tuple[torch.dtype, ...] = (torch.int64,)) -> Tensor:
        """Draw a large number a row; rows that repeat (the padding) get one number."""
        dtype = self.random.choice(dtypes)
        end = min(MAX_TOKEN, torch.iinfo(dtype).max)
        drawn = torch.randint(0, end, rows.shape, generator=self.generator)
        return drawn[first_of_each(rows)].to(dtype)

    def vectors(self, rows: Tensor, width: int, dtypes: tuple[torch.dtype, ...]) -> Tensor:
        """Draw a vector a row: whole, a part of wider ones, strided, or at an odd address."""
        dtype = self.random.choice(dtypes)
        kind = self.random.choice(("whole", "part", "strided", "odd"))
        wide = {"part": width + self.random.randint(1, 9), "strided": 2 * width}.get(kind, width)
        drawn = torch.randn(rows.shape[0], wide, generator=self.generator) * 1000
        vectors = drawn[first_of_each(rows)].to(dtype)
        if kind == "strided":
            return vectors[:, ::2]
        if kind == "odd":
            start = self.random.randint(1, 7)
            odd = vectors.new_zeros(vectors.numel() + start)[start:].view(vectors.shape)
            return odd.copy_(vectors)
        return vectors[:, :width]

    def publish(self, rows: Tensor) -> None:
        """Publish on both sides."""
        ours = rows, self.numbers(rows, INTEGERS)
        theirs = deepcopy(ours)
        self.ours.publish(*ours)
        self.theirs.publish(*theirs)
        assert_equal("publish", ours, theirs)

    def stash_drawn(self, rows: Tensor) -> None:
        """Stash what a step leaves behind, of dtypes that need not be the layout's."""
        self.stash(rows, self.payload(rows, FLOATS, INTEGERS))

    def stash(self, rows: Tensor, payload: RelayPayload) -> None:
        """Stash on both sides."""
        ours = rows, payload
        theirs = their_rows, their_payload = deepcopy(ours)
        self.ours.stash(*ours)
        self.theirs.stash(
            their_rows, their_payload if self.setting.speculative else their_payload.bonus_tokens
        )
        assert_equal("stash", ours, theirs)

    def payload(
        self, rows: Tensor, floats: tuple[torch.dtype, ...], integers: tuple[torch.dtype, ...]
    ) -> RelayPayload:
        """Draw what a step leaves behind; probabilities are float32 where `floats` is one dtype."""
        tokens = self.numbers(rows, integers)
        if not self.setting.speculative:
            return RelayPayload(tokens)
        probabilities = (torch.float32,) if len(floats) == 1 else floats
        return RelayPayload(
            tokens,
            topk_p=self.vectors(rows, self.topk, probabilities),
            topk_index=self.vectors(rows, self.topk, integers),
            hidden_states=self.vectors(rows, self.width, floats),
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
            spec_info=SpecState(rows.clone()) if spec else None,
            seq_lens_cpu_upper_bound=self.random.choice((None, stale - 1)),
        )
        theirs = SimpleNamespace(**vars(deepcopy(ours)))
        theirs.device = "cpu"
        theirs.enable_overlap = True
        theirs.is_spec_v2 = self.setting.speculative
        self.resolved.append((ours, theirs))
        return ours, theirs

    def resolve_lengths(self, rows: Tensor, *, spec: bool) -> None:
        """Resolve the lengths of a batch, speculative or not."""
        ours, theirs = self.batches(rows, spec=spec)
        self.ours.resolve_seq_lens_cpu(ours)
        self.theirs.resolve_seq_lens_cpu(theirs)
        assert_same(ours, theirs)
        if spec:  # a field of ours alone: the exact lengths, or nothing
            bound = ours.seq_lens_cpu_upper_bound
            assert_equal("seq_lens_cpu_upper_bound", bound, theirs.seq_lens_cpu)

    def resolve_decode(self, rows: Tensor, *, spec: bool) -> None:
        """Resolve the inputs of a decode batch, its ids pending or there already."""
        ours, theirs = self.batches(rows, spec=spec)
        pending = ours.input_ids is None  # how SGLang says that they are
        if pending:
            self.ours.set_input_ids_sentinel(ours)
        if pending and self.setting.speculative and not spec:
            self.resolve_plain_in_speculative(ours, theirs)
        else:
            self.resolve_inputs(ours, theirs)

    def resolve_plain_in_speculative(self, ours: Batch, theirs: SimpleNamespace) -> None:
        """Resolve a plain decode batch of a speculative map, the one known difference.

        SGLang 0.5.13 gathers tokens only where its algorithm is none, and leaves None here.
        """
        self.ours.resolve_future(ours)
        self.module.resolve_forward_inputs(theirs, self.theirs)
        assert theirs.input_ids is None
        theirs.input_ids = self.theirs.output_tokens_buf[theirs.req_pool_indices]
        assert not ours.input_ids_pending
        assert_same(ours, theirs)

    def resolve_prefill(self) -> None:
        """Resolve the inputs of a prefill batch, alone or with decode rows mixed in."""
        ours, theirs = self.batches(self.rows(), spec=self.spec())
        num_staged = self.random.randint(0, 9)
        staged = torch.randint(0, MAX_TOKEN, (num_staged,), generator=self.generator)
        running = self.random.choice((None, self.rows()))
        their_staged, their_running = deepcopy((staged, running))
        ours.prefill_input_ids_cpu, ours.mix_running_indices = staged, running
        theirs.prefill_input_ids_cpu, theirs.mix_running_indices = their_staged, their_running
        self.ours.set_input_ids_sentinel(ours)
        self.resolve_inputs(ours, theirs)
        assert ours.prefill_input_ids_cpu is ours.mix_running_indices is None
        assert_equal("staged and running", (staged, running), (their_staged, their_running))

    def resolve_inputs(self, ours: Batch, theirs: SimpleNamespace) -> None:
        """Resolve both sides' inputs and compare."""
        self.ours.resolve_future(ours)
        self.module.resolve_forward_inputs(theirs, self.theirs)
        assert not ours.input_ids_pending
        assert_same(ours, theirs)


def first_of_each(rows: Tensor) -> Tensor:
    """Return for each row a place that all of its repetitions share."""
    return torch.searchsorted(rows.sort().values, rows)


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
        assert ours.dtype is theirs.dtype, f"{name}: {ours.dtype} is not {theirs.dtype}"
        assert torch.equal(ours, theirs), f"{name}: {ours} is not {theirs}"
    elif isinstance(ours, tuple) and isinstance(theirs, tuple):
        for our_part, their_part in zip(ours, theirs, strict=True):
            assert_equal(name, our_part, their_part)
    elif isinstance(ours, RelayPayload) and isinstance(theirs, RelayPayload):
        for part in fields(ours):
            assert_equal(part.name, getattr(ours, part.name), getattr(theirs, part.name))
    else:
        assert ours == theirs, f"{name}: {ours} is not {theirs}"
