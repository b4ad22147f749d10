"""A Llama-architecture decoder loaded from a Hugging Face folder, and the choice of tokens.

It knows neither backends nor batches: attention is what the forward's context makes of it.
"""

from backend_caps.runtime.model.draft_loading import load_eagle, load_eagle3, load_standalone
from backend_caps.runtime.model.llama import load_llama
from backend_caps.runtime.model.random_models import (
    eagle3_of,
    eagle_of,
    first_layers,
    random_eagle,
    random_llama,
)

__all__ = [
    "eagle3_of",
    "eagle_of",
    "first_layers",
    "load_eagle",
    "load_eagle3",
    "load_llama",
    "load_standalone",
    "random_eagle",
    "random_llama",
]
