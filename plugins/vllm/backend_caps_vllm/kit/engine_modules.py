"""Import vLLM's own modules where there is no GPU of its kinds.

vLLM asks which platform it runs on when its modules are imported, and takes Triton for missing
where no device of Triton's is active. So the simulated device is registered, and set as vLLM's
platform, before anything else of vLLM is imported.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from importlib.util import find_spec
from types import ModuleType

import torch

from backend_caps.kit import KitError
from backend_caps.simulator import DEVICE_NAME, register
from backend_caps_vllm.kit.operators import stand_in

ENGINE = "vllm"
_EXTENSIONS = tuple(f"vllm.vllm_flash_attn._vllm_fa{number}_C" for number in (2, 3))
_CAPABILITY = (9, 0)
"""The compute capability of the simulated device, as its driver tells Triton."""
_NUM_UNITS = 132
_MEMORY_BYTES = 80 << 30


@dataclass(frozen=True, slots=True)
class VLLM:
    """The modules of vLLM that a backend is built and called with."""

    version: str
    attention: ModuleType
    """`CommonAttentionMetadata` and `AttentionType`."""
    config: ModuleType
    """`CUDAGraphMode` and `set_current_vllm_config`."""
    specs: ModuleType
    """`FullAttentionSpec`."""
    tables: ModuleType
    """`get_block_table_width`."""

    @staticmethod
    def module(name: str) -> ModuleType:
        """Import a further module, by its name in vLLM."""
        return _module(name)


@cache
def load_vllm() -> VLLM:
    """Import vLLM on the simulated device, or on the GPU that is here.

    Raises:
        KitError: it is not installed, or cannot be imported here.
    """
    if find_spec(ENGINE) is None:
        raise KitError.uncheckable(ENGINE, "vllm is not installed here; make upstream")
    register()  # before vLLM asks Triton which devices there are
    # vLLM warns that its compiled operators are missing, which no adapter here calls.
    logging.getLogger(ENGINE).setLevel(logging.ERROR)
    try:
        if not torch.cuda.is_available():
            sys.meta_path.insert(0, _Extensions())
            stand_in()
            _set_platform()
        return VLLM(
            version=version(ENGINE),
            attention=_module("v1.attention.backend"),
            config=_module("config"),
            specs=_module("v1.kv_cache_interface"),
            tables=_module("v1.worker.block_table"),
        )
    except Exception as error:  # an engine raises what it likes
        problem = f"vllm cannot be imported here: {type(error).__name__}: {error}"
        raise KitError.uncheckable(ENGINE, problem) from error


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"{ENGINE}.{name}")


def _set_platform() -> None:
    """Make vLLM see the simulated device as a GPU of NVIDIA's."""
    interface = _module("platforms.interface")
    capability = interface.DeviceCapability(*_CAPABILITY)
    attributes = {
        "_enum": interface.PlatformEnum.CUDA,
        "device_name": DEVICE_NAME,
        "device_type": DEVICE_NAME,
        "dispatch_key": "PrivateUse1",
        "get_device_capability": classmethod(_answer(capability)),
        "get_device_name": classmethod(_answer(DEVICE_NAME)),
        "get_device_total_memory": classmethod(_answer(_MEMORY_BYTES)),
        "num_compute_units": classmethod(_answer(_NUM_UNITS)),
        "import_kernels": classmethod(_answer(None)),
    }
    platforms = _module("platforms")
    # Some launchers ask torch, and not the platform.
    vars(torch.cuda)["get_device_capability"] = _answer(_CAPABILITY)
    vars(platforms)["_current_platform"] = type("SimPlatform", (interface.Platform,), attributes)()


class _Extensions(MetaPathFinder, Loader):
    """Finds the extension modules of FlashAttention, which vLLM imports beside its Triton kernels.

    They are built for CUDA, and cannot be loaded without it. These are empty.
    """

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Answer for the extension modules."""
        return ModuleSpec(fullname, self) if fullname in _EXTENSIONS else None

    def create_module(self, _spec: ModuleSpec) -> None:
        """Let Python make an empty module."""

    def exec_module(self, _module: ModuleType) -> None:
        """Do nothing: it has no code."""


def _answer(value: object) -> Callable[..., object]:
    """Make a function that returns a value, whatever its arguments."""
    return lambda *_args, **_named: value
