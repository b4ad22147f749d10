"""Errors of single commands, and of what every command prints."""

from __future__ import annotations

from backend_caps.cli.generate import NoBackendNamedError
from backend_caps.cli.job import ModelDtypeError
from backend_caps.cli.output import OutputError
from backend_caps.cli.trace_errors import TraceWriteError
from backend_caps.insight.dry_run.errors import CannotRunError, DryStartError, StandInError
from backend_caps.insight.measure.errors import NotMeasuredError, StepFailedError
from backend_caps.insight.trace.errors import (
    NoTimelineError,
    TooManyStepsError,
)
from backend_caps.report.measure_results import GpuResultError
from backend_caps.startup.ranks import JobError
from docs.tools.error_examples.occasion import Occasion

GENERATE = Occasion(
    title="Generating",
    told="Raised by `backend-caps generate`, besides those of the engine.",
    examples=(
        NoBackendNamedError(phases=("decode",), declared=("torch_native", "torch_padded")),
        ModelDtypeError(dtype="float16"),
    ),
)
MEASURED = Occasion(
    title="What the mirror costs",
    told="Raised by `backend-caps explain --measure`.",
    examples=(
        NotMeasuredError(
            problem="the plan was resolved with --tp-size 8, which this engine does not do; one "
            "process and a KV cache of bfloat16, float16 or float32 were expected. Resolve a plan "
            "without them."
        ),
        GpuResultError(path="benchmarks/results/gpu.json", problem="Field required"),
    ),
)
DRY_RUNS = Occasion(
    title="A dry run",
    told="Raised by `backend-caps dry-run`.",
    examples=(
        CannotRunError(
            reasons=(
                ("fa3", "no installed plugin declares backend 'fa3' (--attention-backend)"),
                ("my_flash", "No module named 'my_flash'"),
            ),
            device="sim",
            would_run=("torch_native", "torch_padded"),
        ),
        StandInError(
            name="torch_native",
            problem="with it host_seq_lens is exact, and was decided to be none",
            would_run=("torch_padded",),
        ),
        DryStartError(device="cpu", problem="its constructor raised RuntimeError: no such kernel"),
        JobError(
            rank="1",
            size="4",
            what="a group of all ranks within 60 s",
            cause="Timed out after 61 seconds waiting for clients. 3/4 clients joined",
        ),
    ),
)
TRACES = Occasion(
    title="A trace",
    told="Raised by `backend-caps trace`, besides those of a dry run.",
    examples=(
        NoTimelineError(device="cpu", has_streams=False),
        TooManyStepsError(asked=32, most=8, context_length=152),
        StepFailedError(problem="RuntimeError: no such kernel"),
        TraceWriteError(path="out/t.svg", cause="No such file or directory", option="--svg"),
    ),
)
OUTPUT = Occasion(
    title="Output",
    told="Raised by every command.",
    examples=(OutputError(problem="No space left on device"),),
)
