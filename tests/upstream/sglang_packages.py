"""SGLang's own packages, imported out of its wheel by their names, on stubs for what they import.

What is real: the plugin loader, its hooks and its environment, the registry of backends, the
choices of the flags and the relay's module. What those import of the rest of SGLang is a module
of `_STUBS`; nothing is installed, and nothing named sglang is left behind.
"""

from __future__ import annotations

import ast
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from importlib import import_module
from pathlib import Path
from types import CodeType, ModuleType, SimpleNamespace
from unittest.mock import patch

import torch

from tests.upstream.sglang_wheel import RuntimeContext, SpeculativeAlgorithm, find_wheel

ENGINE = "sglang"
_PASSING = (
    ENGINE,
    "msgspec",
    "backend_caps_sglang.bridge",
    "backend_caps_sglang.draft_graphs",
    "backend_caps_sglang.verify_masks",
    "torch_native_sglang",
)
"""What is there only while it is asked for: SGLang's packages, and what imports them."""
_PREFIXES = tuple(f"{name}." for name in _PASSING)
_COMPILES = "sglang.srt.managers.overlap_utils"
"""The module that would import torch's compiler, for a helper that nobody calls here."""
_PACKAGES = (
    "",
    ".kernels",
    ".kernels.ops",
    ".kernels.ops.speculative",
    ".srt",
    ".srt.configs",
    ".srt.layers",
    ".srt.layers.attention",
    ".srt.layers.attention.qsa",
    ".srt.managers",
    ".srt.mem_cache",
    ".srt.model_executor",
    ".srt.speculative",
    ".srt.utils",
)
"""Packages whose own `__init__` imports much, or which have none."""


def _no(*_: object) -> bool:
    return False


def _nothing(*_: object) -> None:
    return None


class _Struct:
    """Stands in for msgspec's: keeps the fields that it is given."""

    def __init_subclass__(cls, **_options: object) -> None:
        dataclass(cls)


_CONFIGS = (
    "glm5_next_config",
    "hybrid_gdn_config",
    "hybrid_kda_config",
    "hybrid_lightning_config",
    "kimi_linear_config",
    "mamba2_config",
    "mambaish_config",
)
_STUBS: Mapping[str, Mapping[str, object]] = {
    "msgspec": {"Struct": _Struct},
    "sglang.kernels.kernel_api_logging": {"debug_kernel_api": lambda function: function},
    "sglang.kernels.ops.speculative.gather_spec_extras": {"gather_spec_extras": _nothing},
    "sglang.srt.arg_groups.overrides": dict.fromkeys(
        ("attention_backends_of", "resolved_view"), _nothing
    ),
    "sglang.srt.configs.hybrid_arch": dict.fromkeys(_CONFIGS, _nothing),
    "sglang.srt.configs.linear_attn_model_registry": dict.fromkeys(
        ("get_linear_attn_config", "import_backend_class"), _nothing
    ),
    "sglang.srt.mem_cache.swa_memory_pool": {"SWAKVPool": type("SWAKVPool", (), {})},
    "sglang.srt.speculative.spec_info": {"SpeculativeAlgorithm": SpeculativeAlgorithm},
    "sglang.srt.utils": dict.fromkeys(("is_cuda", "is_hip", "is_musa", "is_npu"), _no)
    | {"get_device_capability": _nothing},
    "sglang.srt.layers.attention.qsa.config": {"QSAProfile": object},
    "sglang.srt.speculative.eagle_utils": {
        "TreeMaskMode": IntEnum("TreeMaskMode", ["FULL_MASK", "QLEN_ONLY"], start=0),
        "default_tree_mask_mode": _nothing,
    },
    "sglang.srt.utils.common": dict.fromkeys(
        ("cpu_has_amx_support", "is_blackwell", "is_cpu", "is_hip", "is_musa", "is_npu"), _no
    ),
}
"""What the modules above import from the rest, by module; `_PARTS` and the context come on top."""
_PARTS: Mapping[str, tuple[str, ...]] = {
    "sglang/srt/layers/radix_attention.py": ("AttentionType",),
    "sglang/srt/mem_cache/memory_pool.py": ("KVWriteLoc",),
    "sglang/srt/model_executor/forward_batch_info.py": ("ForwardMode",),
}
"""Classes that are the wheel's own, out of modules that import everything."""
_PRELUDE = """\
from __future__ import annotations
from dataclasses import dataclass
from enum import *
from functools import *
from typing import *
import torch
"""
"""What the modules of `_PARTS` import for those classes."""


@contextmanager
def sglang_packages(
    version: str = "0.5.23", *, context: RuntimeContext | None = None, installed: str | None = None
) -> Iterator[None]:
    """Let `import sglang.srt.plugins` and what belongs to it find the wheel, while it is entered.

    Args:
        version: the wheel's version.
        context: the flags as SGLang publishes them; those of a plain server unless given.
        installed: a folder with metadata of another version, which comes before the wheel's.
    """
    wheel = find_wheel(version)
    path = [*([installed] if installed else []), str(wheel), *sys.path]
    with patch.object(sys, "path", path):
        sys.modules.update(_stand_ins(wheel, context or RuntimeContext()))
        try:
            with patch.object(torch, "compile", lambda **_: lambda function: function):
                import_module(_COMPILES)
            yield
        finally:
            # What else was imported meanwhile stays: half of it would be there twice.
            for name in [name for name in sys.modules if f"{name}.".startswith(_PREFIXES)]:
                del sys.modules[name]


def modules() -> SimpleNamespace:
    """Import what backend-caps-sglang changes."""
    hooks = import_module("sglang.srt.plugins.hook_registry")
    return SimpleNamespace(
        overlap=import_module("sglang.srt.managers.overlap_utils"),
        backends=import_module("sglang.srt.layers.attention.attention_registry").ATTENTION_BACKENDS,
        choices=import_module("sglang.srt.arg_groups.choices"),
        load=import_module("sglang.srt.plugins").load_plugins,
        hooks=hooks.HookRegistry,
        replace=hooks.HookType.REPLACE,
        around=hooks.HookType.AROUND,
    )


def state_of(sglang: SimpleNamespace) -> tuple[object, ...]:
    """Say all that the plugin may change."""
    return (
        sglang.overlap.decide_needs_cpu_seq_lens,
        dict(sglang.backends),
        [*sglang.choices.ATTENTION_BACKEND_CHOICES],
        [*sglang.choices.DETERMINISTIC_ATTENTION_BACKEND_CHOICES],
        [*sglang.choices.DRAFT_ATTENTION_BACKEND_CHOICES],
        {target: [*own] for target, own in sglang.hooks._hooks.items()},  # noqa: SLF001
    )


def _stand_ins(wheel: Path, context: RuntimeContext) -> dict[str, ModuleType]:
    made = {}
    for suffix in _PACKAGES:
        name = f"{ENGINE}{suffix}"
        package = ModuleType(name)
        package.__path__ = [f"{wheel}/{name.replace('.', '/')}"]
        made[name] = package
    stubs = dict(_STUBS) | {"sglang.srt.runtime_context": _context_names(context)}
    for name, values in stubs.items():
        made.setdefault(name, ModuleType(name)).__dict__.update(values)
    for file, classes in _PARTS.items():
        name = file.removesuffix(".py").replace("/", ".")
        made[name] = _part(wheel, file, classes, name)
    return made


def _context_names(context: RuntimeContext) -> Mapping[str, object]:
    def plain() -> SimpleNamespace:
        return SimpleNamespace(dcp_enabled=False)

    return {
        "get_exec": context.get_exec,
        "get_spec": context.get_spec,
        "get_schedule": context.get_schedule,
        "get_parallel": plain,
        "get_platform": plain,
        "attention_backends": lambda: (None, None),
    }


def _part(wheel: Path, file: str, classes: tuple[str, ...], name: str) -> ModuleType:
    """Run some classes of a module, and the imports of the standard library that they need."""
    module = ModuleType(name)
    with patch.dict(sys.modules, {name: module}):  # a dataclass looks itself up there
        exec(_code_of(wheel, file, classes), module.__dict__)  # noqa: S102 - a wheel that we pin
    module.__dict__.setdefault("ForwardBatch", type("ForwardBatch", (), {}))
    return module


@cache
def _code_of(wheel: Path, file: str, classes: tuple[str, ...]) -> CodeType:
    with zipfile.ZipFile(wheel) as opened:
        tree = ast.parse(opened.read(file).decode())
    body = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name in classes]
    assert [node.name for node in body] == [*classes], f"{file} has other classes"
    tree.body = [*ast.parse(_PRELUDE).body, *body]
    return compile(tree, file, "exec", dont_inherit=True)
