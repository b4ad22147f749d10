"""The declaration of a backend that has the stand-in's wrappers, which run anywhere."""

from __future__ import annotations

from flashinfer_caps import FLASHINFER

from backend_caps import ANY

ANYWHERE = FLASHINFER.model_copy(
    update={
        "capabilities": FLASHINFER.capabilities.model_copy(
            update={"devices": ANY, "dtypes": ANY, "kv_cache_dtypes": ANY, "head_sizes": ANY}
        )
    }
)
"""What the stand-in takes: tests run on any machine, on small heads and in float32 too."""
