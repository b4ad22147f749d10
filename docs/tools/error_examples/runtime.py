"""Errors of models, of the engine and of its requests."""

from __future__ import annotations

from backend_caps.runtime import (
    AttentionShapeError,
    ConfigurationMisfitError,
    ContextTooLongError,
    DisaggregationModeError,
    EngineClosedError,
    EngineError,
    EngineFailedError,
    ForeignRequestError,
    HandoverMisfitError,
    ImplementationError,
    MissingDraftModelError,
    OutOfPagesError,
    PageSizeError,
    PoolShapeError,
    PromptError,
    RequestTooLongError,
    SamplingError,
    SharedUseError,
    SpeculationError,
    UnfitBackendError,
    UnservedFlagsError,
    UnservedPhaseError,
    UnusedDraftModelError,
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
        ConfigurationMisfitError(field="pool_size", configured="65", needed="4"),
        UnservedFlagsError(flags=("--tp-size 2", "--enable-lora (LoRA)")),
        UnservedPhaseError(phase="decode", served=("prefill",)),
        SharedUseError(phase="decode", backends=("full", "linear")),
        ImplementationError(
            backend="my_flash",
            implementation="my_flash.backend:MyFlash",
            problem="No module named 'my_flash'",
        ),
        UnfitBackendError(
            problems=("backend 'my_flash' takes dtype bfloat16; here it is float32.",)
        ),
        ContextTooLongError(context_length=8192, max_position_embeddings=2048),
        AttentionShapeError(backend="MyFlash", layer_id=0, shape=(5, 4, 16), expected=(5, 64)),
        EngineClosedError(),
        EngineFailedError(cause="CUDA out of memory"),
        PageSizeError(conflict="flash takes multiples of 16, triton takes 1"),
        PoolShapeError(field="max_requests", value=0),
        SpeculationError(flag="--speculative-num-steps", value=0, expected="at least 1"),
        MissingDraftModelError(algorithm="EAGLE"),
        UnusedDraftModelError(path="my/draft", algorithm="NGRAM"),
        DisaggregationModeError(asked="generate", mode="decode", expected="null"),
        HandoverMisfitError(
            problems=(
                "its draft model is none, and the engine has 7d8cee01f36f",
                "its keys are torch.float16 instead of torch.bfloat16",
            ),
        ),
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
        ForeignRequestError(number=7),
        OutOfPagesError(wanted=3, free=2, pages=64),
    ),
)
