"""The simulated device as a platform of SGLang's, by its entry-point group for platforms.

What stands in for a GPU here is all in this file. SGLang's kernels are its own: those in Triton run
in Triton's interpreter when the simulated stream comes to them, and of those that it also has in
CUDA it takes the ones in Triton that it keeps for Intel's GPUs:

* `assign_draft_cache_locs_contiguous`, `assign_extend_cache_locs_uniform`: slots of draft and tree;
* `sgl_build_tree_kernel_efficient_triton`: the tree's mask, positions and links;
* `verify_tree_greedy_kernel_triton`: the accepted path.

Its graphs are captured by its own runners and its own backend; only the graph object is the
simulator's, and the names that SGLang's relay asks by whether there is CUDA say yes: a pinned
buffer and a copy stream are made where SGLang makes them on a GPU.
"""

from __future__ import annotations

import importlib
from collections import Counter
from functools import partial
from types import ModuleType
from unittest.mock import patch

import torch
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import PlatformCapabilities, SRTPlatform
from triton.runtime.interpreter import InterpretedFunction  # type: ignore[import-untyped]

from backend_caps.simulator import DEVICE_NAME, SimTensor, register
from backend_caps.simulator.operators import blocks_of
from backend_caps.simulator.queues import Op
from backend_caps.simulator.simulation import current

_MEMORY = 8 << 30
kernels: Counter[str] = Counter()
"""Launches of Triton kernels on the simulated device, by name."""
replays: Counter[str] = Counter()
"""Replays of graphs, by the class of SGLang's runner that captured them."""


class SimulatedPlatform(SRTPlatform):  # type: ignore[misc] # SGLang is in its own environment
    """A platform from outside of SGLang, whose device is `backend_caps`' simulator."""

    _enum = PlatformEnum.OOT
    device_name = device_type = DEVICE_NAME
    capabilities = PlatformCapabilities(supports_triton=True, graph_capture=True)

    def get_device_total_memory(self, device_id: int = 0) -> int:
        """Say how large the device is, in bytes."""
        del device_id
        return _MEMORY

    def get_current_memory_usage(self, device: torch.device | None = None) -> float:
        """Say that nothing is in use: the tests give the size of the cache."""
        del device
        return 0.0

    def is_pin_memory_available(self, device: object = None) -> bool:
        """Say that host memory can be pinned: the simulator has such memory."""
        del device
        return True

    def get_default_attention_backend(self) -> str:
        """Name a backend for a server that names none."""
        return "torch_native"

    def supports_speculative_algorithm(self, algorithm: str) -> bool:
        """Take every algorithm."""
        del algorithm
        return True

    def supports_speculative_draft_attention_backend(self, algorithm: str, backend: str) -> bool:
        """Take every backend for a draft."""
        del algorithm, backend
        return True

    def get_graph_runner_cls(self) -> type:
        """Take SGLang's runner for CUDA."""
        return _runner("sglang.srt.model_executor.runner:DecodeCudaGraphRunner")

    def get_speculative_graph_runner_cls(self, algorithm: str, phase: str) -> type:
        """Take SGLang's runners for CUDA, whatever the algorithm."""
        del algorithm
        name = {"draft_decode": "EAGLEDraft", "draft_extend": "EAGLEDraftExtend"}[phase]
        module = phase.replace("_decode", "")
        return _runner(
            f"sglang.srt.speculative.eagle_{module}_cuda_graph_runner:{name}CudaGraphRunner"
        )

    def get_full_graph_backend_cls(self) -> type:
        """Take SGLang's backend for CUDA, with the simulator's graph."""
        return _graphs(
            _runner(
                "sglang.srt.model_executor.runner_backend.full_cuda_graph_backend:"
                "FullCudaGraphBackend"
            )
        )


def activate() -> str:
    """Register the device with torch, and name the platform: what SGLang's loader calls."""
    register()
    InterpretedFunction.run = _run
    return f"{__name__}:SimulatedPlatform"


def choose_kernels() -> None:
    """Let SGLang take its Triton kernels, and its relay what it has on CUDA."""
    for name in ("spec_tree", "cache_locs"):
        _module(f"sglang.kernels.ops.speculative.{name}")._is_xpu = True  # type: ignore[attr-defined] # noqa: SLF001
    _module("sglang.srt.managers.overlap_utils")._is_cuda = True  # type: ignore[attr-defined] # noqa: SLF001


def _module(name: str) -> ModuleType:
    return importlib.import_module(name)


def _runner(place: str) -> type:
    module, _, name = place.partition(":")
    found: type = getattr(_module(module), name)
    return found


def _graphs(base: type) -> type:
    class SimulatedGraphs(base):  # type: ignore[misc] # SGLang's, where it is installed
        """SGLang's graphs, captured on the simulated device."""

        def capture_one(self, *args: object, **kwargs: object) -> None:
            with patch.object(torch.cuda, "CUDAGraph", torch.get_device_module("sim").CUDAGraph):
                super().capture_one(*args, **kwargs)

        def replay(self, *args: object, **kwargs: object) -> object:
            replays[type(self._cuda_graph_runner).__name__] += 1
            return super().replay(*args, **kwargs)

    return SimulatedGraphs


_interpret = InterpretedFunction.run


def _run(
    self: InterpretedFunction, *args: object, grid: object, warmup: bool, **kwargs: object
) -> object:
    """Put a kernel on the current stream, where the interpreter runs it when its turn comes."""
    tensors = [own for own in (*args, *kwargs.values()) if isinstance(own, SimTensor)]
    if not tensors:
        return _interpret(self, *args, grid=grid, warmup=warmup, **kwargs)
    kernels[self.fn.__name__] += 1
    raw = [_raw(own) for own in args]
    named = {name: _raw(own) for name, own in kwargs.items()}
    work = partial(_interpret, self, *raw, grid=grid, warmup=warmup, **named)
    # A kernel does not say what it writes.
    touched = blocks_of(tensors)
    current().launch(Op(self.fn.__name__, work, touched, touched))
    return None


def _raw(value: object) -> object:
    return value.raw if isinstance(value, SimTensor) else value
