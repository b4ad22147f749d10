"""What a trace's engine is made of: a small model, a plan, and options."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch_native_caps import TORCH_NATIVE, TORCH_PADDED

from backend_caps import (
    Declaration,
    GraphMetadata,
    Phase,
    Plan,
    Role,
    ServerFlags,
    SharedReadsEnd,
    Use,
    resolve,
)
from backend_caps.relay import DeviceStreams
from backend_caps.runtime import Engine, EngineOptions, StepObserver
from backend_caps.runtime.model.random_models import eagle3_of, eagle_of, first_layers, random_llama
from backend_caps.runtime.speculation import Algorithm
from tests.races.traces import MAX_LENGTH, VOCAB_SIZE, Backends, Speculation, Trace
from tests.runtime.engines import rules_forcing

_GRAPHS = (2, 4)
"""Other batches are padded, up to the largest one."""
_PROMPT_GRAPHS = 8
"""Steps of more tokens are not replayed. Where chunks are smaller, so are graphs."""
_TARGET = "target"
_DRAFTS: Mapping[Algorithm, str] = {
    Algorithm.EAGLE: "head",
    Algorithm.EAGLE3: "eagle3",
    Algorithm.STANDALONE: "small",
}
"""Folders of the models that draft."""
_LATER_GAIN = 0.15
"""What the target's second layer adds: drafts of the first one are right half of the time."""
_STATES_GAIN = 0.002
"""How much a head makes of states: enough for wrong ones to change its drafts."""
_NORM_GAIN = 0.02
"""Of the norm through which an EAGLE3 head reads states, for the same reason."""


@contextmanager
def model_folder() -> Iterator[Path]:
    """Write the models of all traces, for the length of a `with` block."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write = partial(
            random_llama,
            seed=7,
            vocab_size=VOCAB_SIZE,
            hidden_size=32,
            num_heads=2,
            num_kv_heads=1,
            max_position_embeddings=MAX_LENGTH,
        )
        write(folder, num_layers=1)
        write(folder / _TARGET, num_layers=2, later_gain=_LATER_GAIN)
        _write_drafts(folder)
        yield folder


def plan_of(trace: Trace) -> Plan:
    """Resolve the plan of a trace's engine."""
    argv = ["--page-size", str(trace.page_size), "--attention-backend", "torch_native"]
    argv += [] if trace.overlapped else ["--disable-overlap-schedule"]
    argv += ["--enable-mixed-chunk"] if trace.mixed else []
    argv += ["--disable-cuda-graph"] if trace.replayed is None else []
    argv += [] if trace.speculation is None else _spoken(trace.speculation)
    flags, drafts = ServerFlags.from_argv(argv), trace.speculation
    rules = None if drafts is None else rules_forcing(drafts.host_seq_lens)
    return resolve(tuple(_uses(trace)), flags, rules=rules)


def options_of(trace: Trace) -> EngineOptions:
    """Return the room of a trace's engine, and how it cuts prompts."""
    prompts = min(_PROMPT_GRAPHS, trace.chunked_prefill_size or _PROMPT_GRAPHS)
    return EngineOptions(
        max_running_requests=trace.max_running_requests,
        max_total_tokens=trace.max_total_tokens,
        chunked_prefill_size=trace.chunked_prefill_size,
        graph_batch_sizes=_GRAPHS,
        graph_token_counts=(prompts,) if trace.replays_prompts else (),
    )


def make_engine(
    trace: Trace,
    folder: Path,
    device: str = "sim",
    *,
    mode: str = "null",
    observer: StepObserver | None = None,
    streams: DeviceStreams | None = None,
) -> Engine:
    """Make a trace's engine, or the one that does its part of it in a `--disaggregation-mode`."""
    plan = plan_of(trace)
    flags = plan.flags.model_copy(update={"disaggregation_mode": mode})
    return Engine.from_plan(
        model_of(trace, folder),
        replace(plan, flags=flags),
        device,
        options=options_of(trace),
        draft_model_path=draft_of(trace, folder),
        observer=observer,
        streams=streams,
    )


def model_of(trace: Trace, folder: Path) -> Path:
    """Name the folder of a trace's model: another one where it is drafted for."""
    return folder if trace.speculation is None else folder / _TARGET


def draft_of(trace: Trace, folder: Path) -> Path | None:
    """Name the folder of what drafts, where it is a model."""
    if trace.speculation is None:
        return None
    name = _DRAFTS.get(trace.speculation.settings.algorithm)
    return None if name is None else folder / name


def _write_drafts(folder: Path) -> None:
    """Write two models that draft for the target, often right and often wrong."""
    first_layers(folder / _DRAFTS[Algorithm.STANDALONE], folder / _TARGET)
    head = folder / _DRAFTS[Algorithm.EAGLE]
    eagle_of(head, folder / _TARGET)
    file = head / "model.safetensors"
    weights = load_file(file)
    _, states = weights["fc.weight"].chunk(2, dim=1)
    # Made of a layer of the target it would not read states, which the relay carries.
    generator = torch.Generator().manual_seed(0)
    states.copy_(torch.randn(states.shape, generator=generator) * _STATES_GAIN)
    save_file(weights, file, metadata={"format": "pt"})
    eagle3 = folder / _DRAFTS[Algorithm.EAGLE3]
    eagle3_of(eagle3, folder / _TARGET)
    weights = load_file(eagle3 / "model.safetensors")
    weights["layers.0.hidden_norm.weight"].fill_(_NORM_GAIN)
    save_file(weights, eagle3 / "model.safetensors", metadata={"format": "pt"})


def _spoken(speculation: Speculation) -> list[str]:
    """Say on the command line how a server speculates."""
    settings = speculation.settings
    return [
        *("--speculative-algorithm", settings.algorithm.value),
        *("--speculative-eagle-topk", str(settings.topk)),
        *("--speculative-num-steps", str(settings.num_steps)),
        *("--speculative-num-draft-tokens", str(settings.num_draft_tokens)),
        *(["--enable-two-batch-overlap"] if speculation.two_batch else []),
    ]


def _uses(trace: Trace) -> Iterator[Use]:
    padded = _padded(trace.replayed)
    prefill, decode = {
        Backends.NATIVE: (TORCH_NATIVE, TORCH_NATIVE),
        Backends.PADDED: (padded, padded),
        Backends.PAIR: (TORCH_NATIVE, padded),
    }[trace.backends]
    for role, phase in _slots(trace.speculation):
        declaration = prefill if phase is Phase.PREFILL else decode
        name = "torch_native" if declaration is TORCH_NATIVE else "torch_padded"
        yield Use(backend=name, role=role, phase=phase, declaration=declaration)


def _slots(speculation: Speculation | None) -> Iterator[tuple[Role, Phase]]:
    yield from ((Role.TARGET, Phase.PREFILL), (Role.TARGET, Phase.DECODE))
    if speculation is None:
        return
    yield Role.TARGET, Phase.VERIFY
    if speculation.settings.algorithm in _DRAFTS:
        yield Role.DRAFT, Phase.PREFILL
        yield Role.DRAFT, Phase.DECODE
        yield Role.DRAFT_EXTEND, Phase.VERIFY


def _padded(replayed: SharedReadsEnd | None) -> Declaration:
    """Declare where the reads of a replay end: in it, they are its first operators."""
    if replayed is None:
        return TORCH_PADDED
    capabilities = TORCH_PADDED.capabilities.model_copy(update={"shared_reads_end": replayed})
    changes: dict[str, object] = {"capabilities": capabilities}
    if replayed is SharedReadsEnd.PRE_REPLAY:
        # It copies the page table before each replay, so the graph has not all of its metadata.
        device = {"graph_metadata": GraphMetadata.DEVICE}
        changes["capabilities"] = capabilities.model_copy(update=device)
        changes["implementation"] = "tests.races.early_padded:EarlyPadded"
    return TORCH_PADDED.model_copy(update=changes)
