"""The FutureMap: results of one step, relayed to the next by pool row. Imports torch."""

from backend_caps.relay.batch import RelayBatch, SpecInfo, require_input_ids
from backend_caps.relay.errors import (
    AcceptTokensError,
    BoundBelowTruthError,
    DraftShapeError,
    HostSeqLensError,
    IndexMismatchError,
    PageableStagingError,
    PendingInputIdsError,
    PoolSizeError,
    RepeatedRowsError,
    RowCountError,
    RowsOutOfRangeError,
    StaleRowsError,
    StreamPoolError,
    UndeclaredDeviceError,
)
from backend_caps.relay.future_map import FutureMap
from backend_caps.relay.layout import DraftShape, RelayField, RelayLayout, RelayPayload
from backend_caps.relay.streams import DEVICE_TRAITS, DeviceStreams, DeviceTraits, StepStreams

__all__ = [
    "DEVICE_TRAITS",
    "AcceptTokensError",
    "BoundBelowTruthError",
    "DeviceStreams",
    "DeviceTraits",
    "DraftShape",
    "DraftShapeError",
    "FutureMap",
    "HostSeqLensError",
    "IndexMismatchError",
    "PageableStagingError",
    "PendingInputIdsError",
    "PoolSizeError",
    "RelayBatch",
    "RelayField",
    "RelayLayout",
    "RelayPayload",
    "RepeatedRowsError",
    "RowCountError",
    "RowsOutOfRangeError",
    "SpecInfo",
    "StaleRowsError",
    "StepStreams",
    "StreamPoolError",
    "UndeclaredDeviceError",
    "require_input_ids",
]
