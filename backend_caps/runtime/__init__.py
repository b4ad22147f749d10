"""A compact overlapped engine on which backends really run. Imports torch."""

from backend_caps.extras import require_extra

require_extra("kit", __name__)

from backend_caps.runtime.attention import AttentionBackend, BackendSite, ForwardContext
from backend_caps.runtime.configuration import configuration_of, configure_engine
from backend_caps.runtime.disaggregation import Handover
from backend_caps.runtime.engine import Engine
from backend_caps.runtime.errors import (
    EngineClosedError,
    EngineError,
    EngineFailedError,
    OutOfPagesError,
    PromptError,
    RequestTooLongError,
    SamplingError,
    UnfitBackendError,
)
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.graphs.capture import GraphUsage
from backend_caps.runtime.graphs.runner import CaptureObserver
from backend_caps.runtime.model.layers import AttentionLayer
from backend_caps.runtime.options import EngineOptions
from backend_caps.runtime.request import FinishReason, PromptStates, Request, Sampling
from backend_caps.runtime.scheduler import NewToken
from backend_caps.runtime.stats import StepObserver, StepStats
from backend_caps.startup.configuration import ImplementationError
from backend_caps.startup.graph_choice import GraphChoice
from backend_caps.startup.graph_modes import GraphMode

__all__ = [
    "AttentionBackend",
    "AttentionLayer",
    "BackendSite",
    "CaptureObserver",
    "Engine",
    "EngineClosedError",
    "EngineError",
    "EngineFailedError",
    "EngineOptions",
    "FinishReason",
    "ForwardBatch",
    "ForwardContext",
    "GraphChoice",
    "GraphMode",
    "GraphUsage",
    "Handover",
    "ImplementationError",
    "NewToken",
    "OutOfPagesError",
    "PromptError",
    "PromptStates",
    "Request",
    "RequestTooLongError",
    "Sampling",
    "SamplingError",
    "StepObserver",
    "StepStats",
    "UnfitBackendError",
    "configuration_of",
    "configure_engine",
]
