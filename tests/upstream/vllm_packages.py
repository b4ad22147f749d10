"""vLLM's own packages, imported out of its wheel by their names, on stubs for what they import.

What is real: the plugin loader, its environment, the registry of backends, and the classes that
backends and their metadata builders derive from.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

ENGINE = "vllm"
WHEELS = Path(__file__).resolve().parents[2] / ".cache" / "wheels"
_PACKAGES = (
    "",
    ".model_executor",
    ".model_executor.layers",
    ".model_executor.layers.quantization",
    ".model_executor.layers.quantization.utils",
    ".utils",
    ".v1",
    ".v1.attention",
    ".v1.attention.backends",
)
"""Packages whose own `__init__` imports much, or which have none."""
_QUANT = ("kFp8Dynamic64Sym", "kFp8Dynamic128Sym", "kFp8StaticTensorSym", "kNvfp4Dynamic")


def _resolved(path: str) -> object:
    module, _, name = path.rpartition(".")
    return vars(import_module(module))[name]


_STUBS: Mapping[str, Mapping[str, object]] = {
    "vllm.logger": {"init_logger": logging.getLogger},
    "vllm.model_executor.layers.quantization.utils.quant_utils": dict.fromkeys(_QUANT),
    "vllm.utils.import_utils": {"resolve_obj_by_qualname": _resolved},
    "vllm.v1.kv_cache_interface": dict.fromkeys(("KVCacheLayout", "get_kv_quant_mode")),
}


@contextmanager
def vllm_packages(*, installed: str | None = None) -> Iterator[None]:
    """Let `import vllm.plugins` and what belongs to it find the wheel, while it is entered.

    Args:
        installed: a folder with metadata of another version, which comes before the wheel's.
    """
    wheels = sorted(WHEELS.glob("vllm-0.33.0-*.whl"))
    assert wheels, "no wheel of vllm 0.33.0 in .cache/wheels; fetch it: make vllm"
    path = [*([installed] if installed else []), str(wheels[0]), *sys.path]
    with patch.object(sys, "path", path):
        for suffix in _PACKAGES:
            package = ModuleType(f"{ENGINE}{suffix}")
            package.__path__ = [f"{wheels[0]}/{package.__name__.replace('.', '/')}"]
            sys.modules[package.__name__] = package
        for name, values in _STUBS.items():
            sys.modules[name] = ModuleType(name)
            vars(sys.modules[name]).update(values)
        try:
            yield
        finally:
            for name in [name for name in sys.modules if name.partition(".")[0] == ENGINE]:
                del sys.modules[name]
