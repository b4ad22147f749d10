"""Errors of engines' sources, and of SGLang at work."""

from __future__ import annotations

from backend_caps.engines.errors import (
    EngineNotInstalledError,
    EngineSourceError,
    UnknownEngineError,
)
from backend_caps.engines.sglang.drop_in import AttnBackendsError
from backend_caps.engines.sglang.live_flags import RuntimeContextError
from docs.tools.error_examples.occasion import Occasion

ENGINES = Occasion(
    title="Engines",
    told="Raised where an engine's source is named and cannot be read, as by `--engine`.",
    examples=(
        UnknownEngineError(name="sgl", known=("sglang", "vllm")),
        EngineNotInstalledError(engine="sglang"),
        EngineSourceError(
            engine="sglang", source="checkouts/sglang", problem="has no sglang/ in it"
        ),
    ),
)
LIVE = Occasion(
    title="SGLang's live backends",
    told="Raised by `backend_caps.engines.sglang.decide_needs_cpu_seq_lens`.",
    examples=(
        AttnBackendsError(kind="ServerArgs"),
        RuntimeContextError(cause="config namespace 'exec' not published"),
    ),
)
