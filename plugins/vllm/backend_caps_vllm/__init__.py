"""backend-caps inside vLLM: `check` is what vLLM's plugin loader calls."""

from backend_caps_vllm.engine import UnsupportedVLLMError
from backend_caps_vllm.graph_statements import check

__all__ = ["UnsupportedVLLMError", "check"]
