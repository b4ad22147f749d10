"""backend-caps inside vLLM: `check` is what vLLM's plugin loader calls."""

from backend_caps_vllm.engine import UnsupportedVLLMError
from backend_caps_vllm.hooks import check
from backend_caps_vllm.start import RefusedStartError

__all__ = ["RefusedStartError", "UnsupportedVLLMError", "check"]
