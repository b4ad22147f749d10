"""The state of the process that every library shares, and how it differs from an earlier one."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

import torch

from backend_caps.relay.streams import DeviceStreams


@dataclass(frozen=True, slots=True)
class ProcessState:
    """Random states, defaults, modes and streams at one moment."""

    values: Mapping[str, object]
    """By what they are called in a fault. Random states are hashes."""

    @classmethod
    def now(cls, streams: DeviceStreams) -> Self:
        """Read the present state. Sync: none."""
        device = streams.device.type
        values = {
            "torch's random state": _hash(torch.get_rng_state().numpy().tobytes()),
            "Python's random state": _hash(repr(random.getstate()).encode()),
            "the default dtype": torch.get_default_dtype(),
            "the default device": torch.get_default_device(),
            "the mode of gradients": torch.is_grad_enabled(),
            "the inference mode": torch.is_inference_mode_enabled(),
            "the mode of autocast": torch.is_autocast_enabled("cpu"),
            "the precision of float32 products": torch.get_float32_matmul_precision(),
            "the use of deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
            "the number of threads": torch.get_num_threads(),
            "the current stream": streams.current_stream(),
        }
        if device == "cuda":
            generator = torch.cuda.default_generators[torch.cuda.current_device()]
            values["CUDA's random state"] = _hash(generator.get_state().numpy().tobytes())
            values["the current CUDA device"] = torch.cuda.current_device()
        return cls(values)

    @classmethod
    def fresh(cls, streams: DeviceStreams) -> Self:
        """Draw random numbers, and read the state: a seed that was set before shows if set again.

        Sync: none.
        """
        torch.rand(1, device="cpu")
        random.random()  # noqa: S311 - no secrets
        return cls.now(streams)

    def changes(self, now: ProcessState) -> Iterator[str]:
        """Describe what is another one now."""
        for name, value in self.values.items():
            if now.values[name] != value:
                is_random = name.endswith("random state")
                what = "" if is_random else f": it was {value}, and is {now.values[name]}"
                yield f"{name} was changed{what}"


@contextmanager
def defaults_kept() -> Iterator[None]:
    """Set torch's defaults behind a `with` block as they were, whatever a backend left."""
    dtype, num_threads = torch.get_default_dtype(), torch.get_num_threads()
    precision = torch.get_float32_matmul_precision()
    is_deterministic = torch.are_deterministic_algorithms_enabled()
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_float32_matmul_precision(precision)
        torch.use_deterministic_algorithms(is_deterministic)
        if torch.get_num_threads() != num_threads:
            torch.set_num_threads(num_threads)


def _hash(state: bytes) -> str:
    return hashlib.sha256(state).hexdigest()
