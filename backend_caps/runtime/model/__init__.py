"""A Llama-architecture decoder loaded from a Hugging Face folder, and the choice of tokens.

It knows neither backends nor batches: attention is what the forward's context makes of it.
"""

from backend_caps.runtime.model.config import DefaultRope, Llama3Rope, LlamaConfig
from backend_caps.runtime.model.draft import DraftModel, StandaloneDraft
from backend_caps.runtime.model.draft_errors import (
    DraftLayersError,
    DraftMismatchError,
    HeadKindError,
    NoHeadError,
)
from backend_caps.runtime.model.draft_loading import load_eagle, load_eagle3, load_standalone
from backend_caps.runtime.model.drafts import eagle3_of, eagle_of, first_layers, random_eagle
from backend_caps.runtime.model.eagle import EagleConfig, EagleHead
from backend_caps.runtime.model.eagle3 import Eagle3Config, Eagle3Head
from backend_caps.runtime.model.errors import (
    ModelConfigError,
    ModelFileMissingError,
    ModelFileUnreadableError,
    ModelWeightsError,
    UnsupportedDtypeError,
    UnsupportedModelError,
)
from backend_caps.runtime.model.layers import AttentionContext, DecoderLayer
from backend_caps.runtime.model.linear import Embedding, LMHead
from backend_caps.runtime.model.llama import LlamaModel
from backend_caps.runtime.model.loading import load_llama
from backend_caps.runtime.model.random_llama import random_llama
from backend_caps.runtime.model.sampling import SamplingBatch, sample_tokens

__all__ = [
    "AttentionContext",
    "DecoderLayer",
    "DefaultRope",
    "DraftLayersError",
    "DraftMismatchError",
    "DraftModel",
    "Eagle3Config",
    "Eagle3Head",
    "EagleConfig",
    "EagleHead",
    "Embedding",
    "HeadKindError",
    "LMHead",
    "Llama3Rope",
    "LlamaConfig",
    "LlamaModel",
    "ModelConfigError",
    "ModelFileMissingError",
    "ModelFileUnreadableError",
    "ModelWeightsError",
    "NoHeadError",
    "SamplingBatch",
    "StandaloneDraft",
    "UnsupportedDtypeError",
    "UnsupportedModelError",
    "eagle3_of",
    "eagle_of",
    "first_layers",
    "load_eagle",
    "load_eagle3",
    "load_llama",
    "load_standalone",
    "random_eagle",
    "random_llama",
    "sample_tokens",
]
