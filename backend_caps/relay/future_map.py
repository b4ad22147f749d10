"""Relay of one step's results to the next, on the device.

A step's tokens and lengths are known only on the device when the next step is built. The forward
stream writes them into pool-indexed columns (`publish`, `stash`); the next step reads them there
(`resolve_seq_lens_cpu`, `resolve_future`). Only the lengths that the plan requires are copied to
the host.

Shapes: P rows in the request pool, B requests in this batch, T staged prompt tokens, R decode rows
mixed in after them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.relay.debug import DebugChecks
from backend_caps.relay.errors import RelayError
from backend_caps.relay.host_lengths import (
    BoundedLengths,
    HostLengths,
    LengthBounds,
    host_copy,
    row_width,
    unknown_accept_tokens,
)
from backend_caps.relay.layout import (
    DraftShape,
    RelayBatch,
    RelayColumns,
    RelayLayout,
    RelayPayload,
    as_int64,
    require_shape,
)
from backend_caps.relay.streams import DeviceStreams, StreamLike, undeclared_device, with_index

if TYPE_CHECKING:
    from backend_caps.resolution.plan import Plan


class FutureMap:
    """Carry tokens, lengths and draft state from each step to the next, by pool row.

    Args:
        pool_size: P, the rows of `req_to_token`, with the padding row 0.
        device: where the columns are.
        host_seq_lens: which lengths the host gets in speculative decode.
        speculative: whether overlapped speculative steps relay through this map.
        draft: the draft worker's state; None for plain decode and for stateless drafts (NGRAM).
        max_context_len: the width of a row of `req_to_token`; tightens the upper bound. The
            context's length is no bound: in an overlapped loop steps start above it.
        accept_tokens: the most tokens that one step can accept; by default the draft's.
        debug: check every call and poison every row that was read; each check waits for the device.
        streams: the device's streams, where its declared traits are not the ones to use, or
            where the private copy stream has to avoid streams in use.

    Raises:
        RelayError: the pool has no row but row 0, the device has no declared traits or `streams`
            are another's, an upper bound has no `accept_tokens`, or `host_seq_lens` is no
            `HostSeqLens` (such as True).

    Sync: the whole device, once, so that no stream reads columns before they are initialized.

    A batch's tensors have to live until the step's forward has finished with them.
    """

    copy_stream: StreamLike | None
    """The private stream that copies lengths to the host; None where none is needed."""

    def __init__(
        self,
        *,
        pool_size: int,
        device: torch.device | str,
        host_seq_lens: HostSeqLens,
        speculative: bool,
        draft: DraftShape | None = None,
        max_context_len: int | None = None,
        accept_tokens: int | None = None,
        debug: bool = False,
        streams: DeviceStreams | None = None,
    ) -> None:
        if not isinstance(host_seq_lens, HostSeqLens):
            raise RelayError(
                "host-seq-lens",
                f"host_seq_lens is {host_seq_lens!r}; HostSeqLens.NONE, UPPER_BOUND or EXACT was "
                "expected. Pass plan['host_seq_lens'].value; needs_cpu_seq_lens=True is EXACT.",
            )
        if pool_size < 2:  # noqa: PLR2004 - the padding row and one more
            raise RelayError(
                "pool-size",
                f"pool_size is {pool_size}; at least 2 was expected, row 0 being the padding row. "
                "Pass the number of rows of req_to_token.",
            )
        self.pool_size = pool_size
        self.host_seq_lens = host_seq_lens
        self.speculative = speculative
        self.layout = RelayLayout.from_draft(draft)
        self.streams = DeviceStreams(device) if streams is None else streams
        self.device = _column_device(device, self.streams)
        if accept_tokens is None and draft is not None:
            accept_tokens = draft.accept_tokens
        if accept_tokens is not None and accept_tokens < 1:
            raise RelayError(
                "accept-tokens",
                f"accept_tokens is {accept_tokens}; at least 1 was expected, every step accepting "
                "its bonus token. Give the most tokens that a step can accept.",
            )
        self._published = self.streams.event()
        # A tensor that is made in inference mode cannot be written to outside of it.
        with torch.inference_mode(mode=False):
            word = self.streams.traits.copy_word
            self._columns = RelayColumns(self.layout, pool_size, self.device, word)
            self._host_lengths = self._make_lengths(accept_tokens, max_context_len)
            self.copy_stream = self._host_lengths.stream
            self._checks: DebugChecks | None = None
            if debug:
                self._checks = DebugChecks(self.streams, self._columns, speculative=speculative)
        self.streams.synchronize()

    @classmethod
    def from_plan(
        cls,
        plan: Plan,
        *,
        pool_size: int,
        device: torch.device | str,
        draft: DraftShape | None = None,
        debug: bool = False,
        streams: DeviceStreams | None = None,
    ) -> Self:
        """Make the map for a plan.

        A server that speculates without overlap relays lengths and draft state on the device
        alone: it processes each result before it prepares the next step, so its scheduler knows
        every length, and sets `seq_lens_cpu` after `resolve_seq_lens_cpu`.

        Args:
            plan: provides `host_seq_lens` and the server flags.
            pool_size: P, the rows of `req_to_token`, with the padding row 0.
            device: where the columns are.
            draft: the draft worker's state; None where there is none.
            debug: check every call.
            streams: the device's streams, where the declared traits are not the ones to use.
        """
        flags = plan.flags
        accept_tokens = None if draft is None else draft.accept_tokens
        accept_tokens = accept_tokens or flags.accept_tokens
        speculates = flags.speculative_algorithm is not None
        is_plain_loop = speculates and not plan.relays_speculation
        context_length = flags.context_length or plan.facts.context_length
        return cls(
            pool_size=pool_size,
            device=device,
            host_seq_lens=HostSeqLens.NONE if is_plain_loop else plan.host_seq_lens,
            speculative=speculates,
            draft=draft,
            max_context_len=row_width(context_length, accept_tokens),
            accept_tokens=accept_tokens,
            debug=debug,
            streams=streams,
        )

    def publish(self, req_pool_indices: Tensor, seq_lens: Tensor) -> None:
        """Store this step's committed lengths for the next step to read.

        req_pool_indices  [B] int64 or int32, device  unique rows, 0 <= row < P; row 0 may repeat
        seq_lens          [B] int64 or int32, device  tokens committed per request, with this step's

        Stream: enqueued on the current stream, which must be the forward stream.
        Sync: none. Allocates: nothing for int64. Keeps: nothing; both arguments are copied from.
        Capture: no; it records an event. Exact: other rows keep the last step's value.

        Raises:
            RelayError: there is not one length a row.
        """
        require_shape("publish", "seq_lens", seq_lens, req_pool_indices.shape)
        if not req_pool_indices.numel():
            return
        if self._checks is not None:
            self._checks.before_publish(req_pool_indices)
        self._columns.seq_lens.store(as_int64(req_pool_indices), seq_lens)
        if self.speculative:
            self._published.record(self.streams.current_stream())

    def stash(self, req_pool_indices: Tensor, payload: RelayPayload) -> None:
        """Store this step's tokens and draft state for the next step to read.

        req_pool_indices  [B] int64 or int32, device  unique rows, 0 <= row < P; row 0 may repeat
        payload           [B, ...] each, device  converted to the layout's dtypes

        Stream: enqueued on the current stream, which must be the forward stream.
        Sync: none. Allocates: nothing for contiguous tensors of the layout's dtypes.
        Keeps: nothing; the payload is copied from. Capture: yes.
        Exact: other rows, and fields that are None, keep the last step's value.

        Raises:
            RelayError: there is not one token a row.
        """
        require_shape("stash", "bonus_tokens", payload.bonus_tokens, req_pool_indices.shape)
        if not req_pool_indices.numel():
            return
        if self._checks is not None:
            self._checks.before_stash(req_pool_indices, payload)
        rows = as_int64(req_pool_indices)
        self._columns.bonus_tokens.store(rows, payload.bonus_tokens)
        self._columns.store_draft(rows, payload)

    def bootstrap(
        self,
        req_pool_indices: Tensor,
        seq_lens: Tensor,
        payload: RelayPayload,
        *,
        forward_stream: StreamLike,
    ) -> None:
        """Publish and stash values that no forward of this process made.

        A request whose prefill ran in another process enters a row that the running forward may
        still write for the row's previous request. So the writes here wait for that forward, and
        later work of the forward stream, which reads these values, waits for them.

        req_pool_indices  [B] int64 or int32, device  unique rows, 0 <= row < P; row 0 may repeat
        seq_lens          [B] int64 or int32, device  tokens committed per request
        payload           [B, ...] each, device  converted to the layout's dtypes

        Stream: the current stream, which first waits for `forward_stream`; at the end
        `forward_stream` waits for it.
        Sync: none. Keeps: nothing; the arguments are copied from. Capture: no.
        """
        current_stream = self.streams.current_stream()
        current_stream.wait_stream(forward_stream)
        self.publish(req_pool_indices, seq_lens)
        self.stash(req_pool_indices, payload)
        forward_stream.wait_stream(current_stream)

    def commit_lengths(self, rows_cpu: Tensor, lens_cpu: Tensor, generation: Tensor) -> None:
        """Apply exact lengths that the host has, so that upper bounds stay tight.

        Call it when requests enter their rows, before their first decode step, with the tokens
        that they will start it from: the whole prompt, even where a chunk of it is yet to run.
        Then for every processed decode step, plain or speculative, and for no prefill.
        `resolve_seq_lens_cpu` counts a speculative step, `count_plain_step` a plain one.
        `LengthBounds` has the protocol. Without upper bounds nothing is done.

        rows_cpu    [B] int64 or int32, host  unique rows, 0 <= row < P; row 0 may repeat
        lens_cpu    [B] int64, host  tokens committed per request
        generation  [B] int64, host  the number of the request's stay in its row; later is larger

        Sync: none. Keeps: nothing; the arguments are copied from.
        """
        if self._checks is not None:
            self._checks.before_commit(rows_cpu, lens_cpu, generation)
        self._host_lengths.commit(rows_cpu, lens_cpu, generation)

    def bytes_to_host(self, num_requests: int) -> int:
        """Return the bytes that a speculative step of `num_requests` copies to the host."""
        return self._host_lengths.bytes_to_host(num_requests)

    def resolve_seq_lens_cpu(self, batch: RelayBatch) -> None:
        """Set a speculative batch's lengths on the device, and on the host as the plan requires.

        A no-op outside speculative decode, where the scheduler keeps the lengths itself.
        Call it once for every step: under UPPER_BOUND it counts the step as launched.

        batch.seq_lens                  [B] int64, device  set
        batch.seq_lens_cpu              [B] int64, host  EXACT: set; else None
        batch.seq_lens_sum              int  EXACT: set; else None
        batch.seq_lens_cpu_upper_bound  [B] int64, host  EXACT, UPPER_BOUND: set; NONE: None

        Stream: enqueued on the current stream, which must be the schedule stream.
        Sync: EXACT: the private copy stream, which waits for the last publish; else none.
        Allocates: the tensors that it sets. Keeps: nothing. Capture: no.
        Exact: as of the last publish of each row.
        """
        if batch.spec_info is None or not self.speculative:
            return
        self._published.wait(self.streams.current_stream())
        if self._checks is not None:
            self._checks.before_lengths(batch)
        batch.seq_lens = self._columns.seq_lens.load(batch.req_pool_indices)
        self._host_lengths.refresh(batch)
        if self._checks is not None:
            self._checks.after_lengths(batch)

    def count_plain_step(self, batch: RelayBatch) -> None:
        """Count a step that adds one token to each decode row, so that upper bounds hold.

        Call it once for each step that `resolve_seq_lens_cpu` does not count: of plain decode, or
        of prompts with plain decode rows mixed in, the last R of `req_pool_indices_cpu`. Without
        upper bounds nothing is done.

        Sync: none; nothing is on the device. Keeps: nothing.
        """
        if batch.spec_info is None:
            self._host_lengths.count(batch)

    def set_input_ids_sentinel(self, batch: RelayBatch) -> None:
        """Set a decode batch's ids to sentinels until they are resolved: `~row`, always negative.

        Ids that come from staging or from the draft worker are not changed. Call it for each plain
        decode batch, before `resolve_future`.

        batch.input_ids          [B] int64, device  set
        batch.input_ids_pending  set

        Stream: enqueued on the current stream, which must be the schedule stream.
        Sync: none. Allocates: `input_ids`. Keeps: nothing.
        """
        if batch.spec_info is not None or batch.prefill_input_ids_cpu is not None:
            return
        batch.input_ids = as_int64(batch.req_pool_indices).bitwise_not()
        batch.input_ids_pending = True

    def resolve_future(self, batch: RelayBatch) -> None:
        """Set the tokens that a forward reads, and the draft state that the draft worker reads.

        batch.prefill_input_ids_cpu  [T] int64, pinned host  crosses to `input_ids`; then None
        batch.mix_running_indices    [R] int64 or int32, device  rows whose tokens follow; then None
        batch.input_ids              [T + R] or [B] int64, device  set where staged or pending
        batch.spec_info              gets the layout's fields [B, ...], where it is not None

        Stream: enqueued on the current stream, which must be the forward stream.
        Sync: none. Allocates: the tensors that it sets. Capture: no; what is pending differs.
        Keeps: `mix_running_indices` until the current stream has finished with it; on the CPU the
        staged tensor itself becomes `input_ids`.
        Exact: as of the last stash of each row.
        """
        consumed = None if self._checks is None else self._checks.before_inputs(batch)
        rows = batch.req_pool_indices
        if batch.prefill_input_ids_cpu is not None:
            self._enter_staged(batch, batch.prefill_input_ids_cpu)
        elif batch.input_ids_pending:
            batch.input_ids = self._columns.bonus_tokens.load(rows)
            batch.input_ids_pending = False
        if batch.spec_info is not None and self.speculative:
            batch.spec_info.bonus_tokens = self._columns.bonus_tokens.load(rows)
            self._columns.load_draft(rows, batch.spec_info)
        if self._checks is not None and consumed is not None:
            self._checks.after_inputs(consumed)

    def _enter_staged(self, batch: RelayBatch, staged: Tensor) -> None:
        if staged.device != self.device:
            staged = staged.to(self.device, non_blocking=True)
        input_ids = as_int64(staged)
        running = batch.mix_running_indices
        if running is not None:
            # The scheduler drops this tensor when it merges the batch; an allocator that reuses the
            # memory at once would let the gather read other rows (sglang#34076).
            self.streams.keep_alive(running)
            input_ids = torch.cat((input_ids, self._columns.bonus_tokens.load(running)))
        batch.input_ids = input_ids
        batch.input_ids_pending = False
        batch.prefill_input_ids_cpu = None
        batch.mix_running_indices = None

    def _make_lengths(self, accept_tokens: int | None, max_context_len: int | None) -> HostLengths:
        if self.host_seq_lens is HostSeqLens.NONE or not self.speculative:
            return HostLengths()
        if self.host_seq_lens is HostSeqLens.UPPER_BOUND:
            if accept_tokens is None:
                raise unknown_accept_tokens()
            return BoundedLengths(LengthBounds(self.pool_size, accept_tokens, max_context_len))
        return host_copy(self.streams, self._columns.seq_lens.table, self._published)


def _column_device(device: torch.device | str, streams: DeviceStreams) -> torch.device:
    """Return the columns' device with its index; refuse streams of another device."""
    requested = torch.device(device)
    if requested.type == streams.device.type:
        indexed = with_index(requested)
        if streams.device.index in (None, indexed.index):
            return indexed
    raise undeclared_device(str(requested), [str(streams.device)])
