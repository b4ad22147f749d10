"""A compact overlapped engine on which backends really run. Imports torch."""

from backend_caps.runtime.attention import AttentionBackend, BackendSite, ForwardContext
from backend_caps.runtime.configuration import configuration_of, configure_engine
from backend_caps.runtime.disaggregation import Handover
from backend_caps.runtime.engine import Engine
from backend_caps.runtime.errors import (
    AttentionShapeError,
    ConfigurationMisfitError,
    ContextTooLongError,
    DisaggregationModeError,
    EngineClosedError,
    EngineError,
    EngineFailedError,
    ForeignRequestError,
    HandoverMisfitError,
    MissingDraftModelError,
    OutOfPagesError,
    PageSizeError,
    PoolShapeError,
    PromptError,
    RequestTooLongError,
    SamplingError,
    SharedUseError,
    SpeculationError,
    UnfitBackendError,
    UnservedFlagsError,
    UnservedPhaseError,
    UnusedDraftModelError,
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
    "AttentionShapeError",
    "BackendSite",
    "CaptureObserver",
    "ConfigurationMisfitError",
    "ContextTooLongError",
    "DisaggregationModeError",
    "Engine",
    "EngineClosedError",
    "EngineError",
    "EngineFailedError",
    "EngineOptions",
    "FinishReason",
    "ForeignRequestError",
    "ForwardBatch",
    "ForwardContext",
    "GraphChoice",
    "GraphMode",
    "GraphUsage",
    "Handover",
    "HandoverMisfitError",
    "ImplementationError",
    "MissingDraftModelError",
    "NewToken",
    "OutOfPagesError",
    "PageSizeError",
    "PoolShapeError",
    "PromptError",
    "PromptStates",
    "Request",
    "RequestTooLongError",
    "Sampling",
    "SamplingError",
    "SharedUseError",
    "SpeculationError",
    "StepObserver",
    "StepStats",
    "UnfitBackendError",
    "UnservedFlagsError",
    "UnservedPhaseError",
    "UnusedDraftModelError",
    "configuration_of",
    "configure_engine",
]
