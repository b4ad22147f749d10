"""Captured forwards: which are captured, for what sizes of batch, and how a batch replays one."""

from backend_caps.runtime.graphs.buckets import Bucket, mixed_buckets, uniform_buckets
from backend_caps.runtime.graphs.buffers import GraphBuffers
from backend_caps.runtime.graphs.capture import capture_graphs
from backend_caps.runtime.graphs.choice import GraphChoice, Obstacle, choose_graphs
from backend_caps.runtime.graphs.errors import GraphBucketError
from backend_caps.runtime.graphs.runner import GraphMemory, GraphRunner, Replayed

__all__ = [
    "Bucket",
    "GraphBucketError",
    "GraphBuffers",
    "GraphChoice",
    "GraphMemory",
    "GraphRunner",
    "Obstacle",
    "Replayed",
    "capture_graphs",
    "choose_graphs",
    "mixed_buckets",
    "uniform_buckets",
]
