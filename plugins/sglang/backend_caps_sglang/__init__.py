"""backend-caps inside SGLang: `register` is what SGLang's plugin loader calls.

`backend_caps_sglang.bridge` imports SGLang, and is imported by adapters alone.
"""

from backend_caps_sglang.errors import (
    AdapterError,
    DecisionTakenError,
    NameTakenError,
    RefutedBackendError,
    SchedulersDifferError,
    UnheardSchedulersError,
    UnsupportedSGLangError,
)
from backend_caps_sglang.registration import register

__all__ = [
    "AdapterError",
    "DecisionTakenError",
    "NameTakenError",
    "RefutedBackendError",
    "SchedulersDifferError",
    "UnheardSchedulersError",
    "UnsupportedSGLangError",
    "register",
]
