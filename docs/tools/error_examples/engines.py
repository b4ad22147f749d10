"""Errors of engines' sources, and of SGLang at work."""

from __future__ import annotations

from backend_caps.engines.reading import EngineError
from docs.tools.error_examples.occasion import Occasion

ENGINES = Occasion(
    title="Engines",
    told="Raised where an engine's source is named and cannot be read, as by `--engine`; the last "
    "two by `backend_caps.engines.sglang.decide_needs_cpu_seq_lens`.",
    coded=(EngineError,),
)
