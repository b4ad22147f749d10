"""What a trace's engine is made of: a small model, a plan, and options."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch_native_caps import TORCH_NATIVE, TORCH_PADDED

from backend_caps import Declaration, Phase, Plan, Role, ServerFlags, SharedReadsEnd, Use, resolve
from backend_caps.runtime.model import random_llama
from backend_caps.runtime.options import EngineOptions
from tests.races.traces import MAX_LENGTH, VOCAB_SIZE, Backends, Trace

_GRAPHS = (2, 4)
"""Other batches are padded, up to the largest one."""
_PROMPT_GRAPHS = (8,)
"""Steps of more tokens are not replayed."""


@contextmanager
def model_folder() -> Iterator[Path]:
    """Write the model of all traces, for the length of a `with` block."""
    with tempfile.TemporaryDirectory() as folder:
        random_llama(
            folder,
            seed=7,
            vocab_size=VOCAB_SIZE,
            hidden_size=32,
            num_layers=1,
            num_heads=2,
            num_kv_heads=1,
            max_position_embeddings=MAX_LENGTH,
        )
        yield Path(folder)


def plan_of(trace: Trace) -> Plan:
    """Resolve the plan of a trace's engine."""
    argv = ["--page-size", str(trace.page_size), "--attention-backend", "torch_native"]
    argv += [] if trace.overlapped else ["--disable-overlap-schedule"]
    argv += ["--enable-mixed-chunk"] if trace.mixed else []
    argv += ["--disable-cuda-graph"] if trace.replayed is None else []
    return resolve(tuple(_uses(trace)), ServerFlags.from_argv(argv))


def options_of(trace: Trace) -> EngineOptions:
    """Return the room of a trace's engine, and how it cuts prompts."""
    return EngineOptions(
        max_running_requests=trace.max_running_requests,
        max_total_tokens=trace.max_total_tokens,
        chunked_prefill_size=trace.chunked_prefill_size,
        graph_batch_sizes=_GRAPHS,
        graph_token_counts=_PROMPT_GRAPHS if trace.replays_prompts else (),
    )


def _uses(trace: Trace) -> Iterator[Use]:
    padded = _padded(trace.replayed)
    by_phase = {
        Backends.NATIVE: (TORCH_NATIVE, TORCH_NATIVE),
        Backends.PADDED: (padded, padded),
        Backends.PAIR: (TORCH_NATIVE, padded),
    }[trace.backends]
    for phase, declaration in zip((Phase.PREFILL, Phase.DECODE), by_phase, strict=True):
        name = "torch_native" if declaration is TORCH_NATIVE else "torch_padded"
        yield Use(backend=name, role=Role.TARGET, phase=phase, declaration=declaration)


def _padded(replayed: SharedReadsEnd | None) -> Declaration:
    """Declare where the reads of a replay end: in it, they are its first operators."""
    if replayed is None:
        return TORCH_PADDED
    capabilities = TORCH_PADDED.capabilities.model_copy(update={"shared_reads_end": replayed})
    changes: dict[str, object] = {"capabilities": capabilities}
    if replayed is SharedReadsEnd.PRE_REPLAY:
        changes["implementation"] = "tests.races.early_padded:EarlyPadded"
    return TORCH_PADDED.model_copy(update=changes)
