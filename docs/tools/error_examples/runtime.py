"""Errors of models, of the engine and of its requests."""

from __future__ import annotations

from backend_caps.runtime import (
    EngineClosedError,
    EngineError,
    EngineFailedError,
    ImplementationError,
    OutOfPagesError,
    PromptError,
    RequestTooLongError,
    SamplingError,
    UnfitBackendError,
)
from backend_caps.runtime.model.errors import ModelError
from docs.tools.error_examples.occasion import Occasion

MODELS = Occasion(
    title="A model's folder",
    told="Raised by what loads a model: `backend_caps.runtime.model.load_llama`, `load_eagle`.",
    coded=(ModelError,),
)
ENGINE = Occasion(
    title="The engine",
    told="Raised when an engine is made, and by what it is asked for then.",
    coded=(EngineError,),
    examples=(
        ImplementationError(
            backend="my_flash",
            implementation="my_flash.backend:MyFlash",
            problem="No module named 'my_flash'",
        ),
        UnfitBackendError(
            problems=("backend 'my_flash' takes dtype bfloat16; here it is float32.",)
        ),
        EngineClosedError(),
        EngineFailedError(cause="CUDA out of memory"),
    ),
)
REQUESTS = Occasion(
    title="A request",
    told="Raised by `Engine.submit` and by what it is made of.",
    examples=(
        PromptError(problem="holds no token", expected="at least one was expected"),
        RequestTooLongError(
            num_prompt_tokens=4000, max_new_tokens=200, limit=4096, limited_by="the context"
        ),
        SamplingError(field="top_p", value=1.5, expected="above 0 and at most 1"),
        OutOfPagesError(wanted=3, free=2, pages=64),
    ),
)
