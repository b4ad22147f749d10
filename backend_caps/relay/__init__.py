"""The FutureMap: results of one step, relayed to the next by pool row. Imports torch."""

from backend_caps.extras import require_extra

require_extra("relay", __name__)

from backend_caps.relay.errors import RelayError
from backend_caps.relay.future_map import FutureMap
from backend_caps.relay.layout import (
    DraftShape,
    RelayBatch,
    RelayField,
    RelayLayout,
    RelayPayload,
    SpecInfo,
    require_input_ids,
)
from backend_caps.relay.streams import DEVICE_TRAITS, DeviceStreams, DeviceTraits, StepStreams

__all__ = [
    "DEVICE_TRAITS",
    "DeviceStreams",
    "DeviceTraits",
    "DraftShape",
    "FutureMap",
    "RelayBatch",
    "RelayError",
    "RelayField",
    "RelayLayout",
    "RelayPayload",
    "SpecInfo",
    "StepStreams",
    "require_input_ids",
]
