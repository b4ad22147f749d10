"""Errors of the relay, with their codes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from backend_caps.errors import CodedError


class RelayError(CodedError):
    """A FutureMap that cannot be made as configured, or is called in a way that loses values."""

    codes: ClassVar[Mapping[str, str]] = {
        "accept-tokens": "an upper bound is asked for, and the most tokens of a step are not known",
        "bound-below-length": "with `debug=True`, a length is above the bound that the host has",
        "draft-shape": "a `DraftShape` leaves a buffer without its size",
        "host-seq-lens": "a map is asked for a `host_seq_lens` that is no mode",
        "index-mismatch": "with `debug=True`, host and device name other rows of a batch",
        "not-pinned": "torch takes another device of the process for the one to pin memory for",
        "pageable-staging": "with `debug=True`, staged ids do not lie in pinned memory",
        "pending-input-ids": "a forward reads `input_ids` that are not resolved yet",
        "pool-size": "a request pool has no row beside the padding row",
        "repeated-rows": "with `debug=True`, a row is written twice at once",
        "row-count": "a field has another number of rows, or row shape, than its index",
        "rows-out-of-range": "with `debug=True`, a row is named that the pool does not have",
        "stale-rows": "with `debug=True`, a row is read that was not written since its last read",
        "stream-pool": "a device's pool hands out only streams that are in use",
        "undeclared-device": "a device has no declared traits, or the streams are another's",
    }
