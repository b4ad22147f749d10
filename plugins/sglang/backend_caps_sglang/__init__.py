"""backend-caps inside SGLang: `register` is what SGLang's plugin loader calls.

`decide_needs_cpu_seq_lens` takes the place of SGLang's function where the plugin is not loaded.
`backend_caps_sglang.bridge` imports SGLang, and is imported by adapters alone.
"""

from backend_caps_sglang.drop_in import decide_needs_cpu_seq_lens, explain_needs_cpu_seq_lens
from backend_caps_sglang.errors import (
    AdapterError,
    DecisionError,
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
    "DecisionError",
    "DecisionTakenError",
    "NameTakenError",
    "RefutedBackendError",
    "SchedulersDifferError",
    "UnheardSchedulersError",
    "UnsupportedSGLangError",
    "decide_needs_cpu_seq_lens",
    "explain_needs_cpu_seq_lens",
    "register",
]
