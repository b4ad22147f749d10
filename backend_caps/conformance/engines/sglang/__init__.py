"""SGLang's own backends under the kit, on a CPU, and the checks that only they have."""

from backend_caps.conformance.engines.sglang import staged, windows
from backend_caps.conformance.engines.sglang.subjects import sglang_subject
from backend_caps.conformance.kit import Check

SGLANG_CHECKS: tuple[Check, ...] = (windows.CHECK, staged.CHECK, staged.WINDOWED_CHECK)
"""They come behind the kit's own."""

__all__ = ["SGLANG_CHECKS", "sglang_subject"]
