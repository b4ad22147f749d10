"""Captured forwards: which are captured, for what sizes of batch, and how a batch replays one."""

from backend_caps.runtime.graphs.buffers import GraphBuffers
from backend_caps.runtime.graphs.capture import HalvesModel, capture_graphs
from backend_caps.runtime.graphs.captured import (
    CapturedGraphs,
    GraphUsage,
    PhaseGraphs,
    total_usage,
)
from backend_caps.runtime.graphs.observing import CaptureObserver, NoCaptureObserver
from backend_caps.runtime.graphs.pieces import PieceModel, PieceRunner, Pieces
from backend_caps.runtime.graphs.runner import GraphHalves, GraphMemory, GraphRunner, Replayed
from backend_caps.startup.graph_buckets import (
    Bucket,
    GraphBucketError,
    mixed_buckets,
    uniform_buckets,
)
from backend_caps.startup.graph_choice import (
    KIND_OF_PHASE,
    GraphChoice,
    Obstacle,
    TwoBatch,
    choose_graphs,
    halved_phases,
    kind_of,
)
from backend_caps.startup.graph_modes import COMBINATIONS, GraphMode, GraphRequest, Requested

__all__ = [
    "COMBINATIONS",
    "KIND_OF_PHASE",
    "Bucket",
    "CaptureObserver",
    "CapturedGraphs",
    "GraphBucketError",
    "GraphBuffers",
    "GraphChoice",
    "GraphHalves",
    "GraphMemory",
    "GraphMode",
    "GraphRequest",
    "GraphRunner",
    "GraphUsage",
    "HalvesModel",
    "NoCaptureObserver",
    "Obstacle",
    "PhaseGraphs",
    "PieceModel",
    "PieceRunner",
    "Pieces",
    "Replayed",
    "Requested",
    "TwoBatch",
    "capture_graphs",
    "choose_graphs",
    "halved_phases",
    "kind_of",
    "mixed_buckets",
    "total_usage",
    "uniform_buckets",
]
