"""backend-caps inside vLLM: `check` is what vLLM's plugin loader calls."""

from backend_caps_vllm.checking import check
from backend_caps_vllm.engine import UnsupportedVLLMError

__all__ = ["UnsupportedVLLMError", "check"]
