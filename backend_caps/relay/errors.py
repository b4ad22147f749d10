"""What an engine can get wrong about the relay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from backend_caps.errors import BackendCapsError


def _rows(rows: Sequence[int]) -> str:
    """Name a few rows, or the one that it is."""
    return f"{'row' if len(rows) == 1 else 'rows'} {_listed(rows)}"


def _listed(rows: Sequence[int]) -> str:
    """Name a few rows: a batch may have thousands."""
    shown = ", ".join(str(row) for row in rows[:8])
    return shown if len(rows) <= 8 else f"{shown} and {len(rows) - 8} more"  # noqa: PLR2004


@dataclass(eq=False, kw_only=True)
class UndeclaredDeviceError(BackendCapsError):
    """Nobody said whether a device has streams and pinned memory."""

    device: str
    declared: tuple[str, ...]

    @property
    def message(self) -> str:
        """The device, the declared ones, and how to declare it."""
        return (
            f"the relay has no traits for device {self.device!r}; "
            f"declared: {', '.join(sorted(self.declared))}. "
            f"Pass streams=DeviceStreams({self.device!r}, DeviceTraits(...))."
        )


@dataclass(eq=False, kw_only=True)
class StreamPoolError(BackendCapsError):
    """A device's stream pool hands out nothing but streams that are in use."""

    device: str
    drawn: int

    @property
    def message(self) -> str:
        """How many were drawn, and what to free."""
        return (
            f"{self.drawn} streams drawn from {self.device!r} were all handles already in use; "
            f"a stream of its own was expected. Name fewer streams in DeviceStreams(taken=...)."
        )


@dataclass(eq=False, kw_only=True)
class PoolSizeError(BackendCapsError):
    """A request pool has no row for a request."""

    pool_size: int

    @property
    def message(self) -> str:
        """The size, and what it counts."""
        return (
            f"pool_size is {self.pool_size}; at least 2 was expected, row 0 being the padding "
            f"row. Pass the number of rows of req_to_token."
        )


@dataclass(eq=False, kw_only=True)
class HostSeqLensError(BackendCapsError):
    """A map is asked for a mode that is none."""

    value: object

    @property
    def message(self) -> str:
        """The value, and where a mode comes from."""
        return (
            f"host_seq_lens is {self.value!r}; HostSeqLens.NONE, UPPER_BOUND or EXACT was "
            f"expected. Pass plan['host_seq_lens'].value; needs_cpu_seq_lens=True is EXACT."
        )


@dataclass(eq=False, kw_only=True)
class DraftShapeError(BackendCapsError):
    """A draft's shape leaves the relay without the size of a buffer."""

    field: str
    value: object
    expected: str

    @property
    def message(self) -> str:
        """The field with its value, and what it has to be."""
        return (
            f"DraftShape has {self.field}={self.value!r}; {self.expected} was expected. "
            f"Give the shape that the draft worker stashes."
        )


@dataclass(eq=False, kw_only=True)
class AcceptTokensError(BackendCapsError):
    """An upper bound is asked for, and nobody said how far one step can go."""

    accept_tokens: int | None = None

    @property
    def message(self) -> str:
        """What is missing, and where it can be given."""
        if self.accept_tokens is not None:
            return (
                f"accept_tokens is {self.accept_tokens}; at least 1 was expected, every step "
                f"accepting its bonus token. Give the most tokens that a step can accept."
            )
        return (
            "host_seq_lens is 'upper_bound' and the most tokens that a step can accept is "
            "unknown; a speculative map needs it for the bound. Give DraftShape(accept_tokens=...) "
            "or --speculative-num-draft-tokens."
        )


@dataclass(eq=False, kw_only=True)
class RowsOutOfRangeError(BackendCapsError):
    """Rows are named that the pool does not have."""

    operation: str
    rows: tuple[int, ...]
    pool_size: int

    @property
    def message(self) -> str:
        """The rows, and the pool's range."""
        return (
            f"{self.operation} was given {_rows(self.rows)}; 0 <= row < {self.pool_size} "
            f"was expected. Pass req_pool_indices of this request pool."
        )


@dataclass(eq=False, kw_only=True)
class RepeatedRowsError(BackendCapsError):
    """One request's row is written twice at once."""

    operation: str
    rows: tuple[int, ...]

    @property
    def message(self) -> str:
        """The rows that come more than once."""
        return (
            f"{self.operation} was given {_rows(self.rows)} more than once; only the "
            f"padding row 0 may repeat. Give each request a row of its own."
        )


@dataclass(eq=False, kw_only=True)
class RowCountError(BackendCapsError):
    """A field has another number of rows, or another row shape, than its index."""

    operation: str
    field: str
    shape: tuple[int, ...]
    expected: tuple[int, ...]

    @property
    def message(self) -> str:
        """The shape, and the one that was expected."""
        return (
            f"{self.operation} was given {self.field} of shape {self.shape}; {self.expected} was "
            f"expected. Pass one row for each of req_pool_indices, shaped as the layout says."
        )


@dataclass(eq=False, kw_only=True)
class StaleRowsError(BackendCapsError):
    """Rows are read that nobody wrote since they were last read."""

    field: str
    rows: tuple[int, ...]
    writer: str

    @property
    def message(self) -> str:
        """The rows, and the call that has to come before."""
        return (
            f"{self.field} of {_rows(self.rows)} is read with nothing written since it was last "
            f"read; a value of the step before was expected. Call {self.writer} there first."
        )


@dataclass(eq=False, kw_only=True)
class IndexMismatchError(BackendCapsError):
    """A batch names other rows on the host than on the device."""

    req_pool_indices: tuple[int, ...]
    req_pool_indices_cpu: tuple[int, ...]

    @property
    def message(self) -> str:
        """Both indices."""
        return (
            f"req_pool_indices is [{_listed(self.req_pool_indices)}] on the device and "
            f"[{_listed(self.req_pool_indices_cpu)}] on the host; the same rows in the same order "
            f"were expected. Filter, merge and pad both together."
        )


@dataclass(eq=False, kw_only=True)
class PendingInputIdsError(BackendCapsError):
    """A forward is about to read ids that are not there yet."""

    pending: str

    @property
    def message(self) -> str:
        """Which ids are pending, and what resolves them."""
        return (
            f"the batch's input_ids are not tokens yet: {self.pending}. A forward reads tokens "
            f"only. Call FutureMap.resolve_future(batch) on the forward stream first."
        )


@dataclass(eq=False, kw_only=True)
class PageableStagingError(BackendCapsError):
    """Staged ids lie in memory from which no copy runs beside the host."""

    device: str

    @property
    def message(self) -> str:
        """What the memory is, and what it has to be."""
        return (
            f"prefill_input_ids_cpu is pageable; pinned memory was expected, or its copy to "
            f"{self.device!r} blocks the host. Allocate the staging with pin_memory=True."
        )


@dataclass(eq=False, kw_only=True)
class BoundBelowTruthError(BackendCapsError):
    """A length on the device is above the bound that the host was given."""

    rows: tuple[int, ...]
    bounds: tuple[int, ...]
    seq_lens: tuple[int, ...]

    @property
    def message(self) -> str:
        """The rows with both values, and the protocol that was not kept."""
        return (
            f"the lengths [{_listed(self.seq_lens)}] of {_rows(self.rows)} are above their upper "
            f"bounds [{_listed(self.bounds)}]; a bound was expected never to be below. Open a "
            f"row's generation by commit_lengths before its first resolve_seq_lens_cpu."
        )
