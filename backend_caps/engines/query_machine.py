"""The machine that is described to an engine: torch, the programs that list GPUs, and packages.

A `query_script` loads it into the Python that has the engine; it imports nothing of this package.
"""

from __future__ import annotations

import importlib
import importlib.abc
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any, TypeAlias

_Value: TypeAlias = Any
"""A value of a library, whose classes do not matter here."""
_MIB = 1 << 20


def stand_in(machine: Mapping[str, Any]) -> None:
    """Make torch, and the programs that list GPUs, describe this machine's GPUs.

    Engines ask `torch.version`, a few functions of `torch.cuda`, `nvidia-smi` and `rocminfo`;
    nothing is allocated and no kernel runs. So `torch.compile` leaves functions as they are: its
    compiler would take a second to import.
    """
    torch = importlib.import_module("torch")
    vars(torch)["compile"] = _uncompiled

    _answer_programs(machine)
    major, minor = machine["compute_capability"]
    memory = machine["memory_mib"] * _MIB
    properties = SimpleNamespace(
        name=machine["device_name"],
        major=major,
        minor=minor,
        total_memory=memory,
        multi_processor_count=machine["num_multiprocessors"],
        gcnArchName=machine["gcn_arch"] or "",
        is_integrated=False,
        warp_size=64 if machine["rocm"] else 32,
        uuid="GPU-0",
    )
    torch.version.cuda, torch.version.hip = machine["cuda"], machine["rocm"]
    answers: dict[str, Any] = {
        "is_available": True,
        "is_initialized": True,
        "device_count": machine["num_gpus"],
        "current_device": 0,
        "get_device_capability": (major, minor),
        "get_device_name": machine["device_name"],
        "get_device_properties": properties,
        "mem_get_info": (memory, memory),
        "synchronize": None,
        "set_device": None,
        "empty_cache": None,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, _answering(answer))
    torch.library.register_fake = _register_fake


def _uncompiled(function: _Value = None, **_named: object) -> _Value:
    return function or (lambda own: own)


def _answering(answer: object) -> Callable[..., object]:
    return lambda *_args, **_named: answer


def _register_fake(_name: str, function: _Value = None, /, **_named: object) -> _Value:
    """Register nothing: the operators of packages that are not here do not exist."""
    return (lambda own: own) if function is None else function


def _answer_programs(machine: Mapping[str, Any]) -> None:
    """Answer the programs by which an engine asks for a GPU's memory; others run."""
    run = subprocess.run
    mib = machine["memory_mib"]
    known = {
        "memory.total": f"{mib}\n" * machine["num_gpus"],
        "compute_cap": "{}.{}\n".format(*machine["compute_capability"]),
        "rocminfo": f"{mib * 1024}(0x0) KB\n" * machine["num_gpus"],
    }

    def answered(args: _Value, *others: _Value, **named: _Value) -> _Value:
        line = args if isinstance(args, str) else " ".join(map(str, args))
        if not re.match(r"nvidia-smi|rocminfo|rocm-smi|amd-smi", line):
            return run(args, *others, **named)
        found = next((text for word, text in known.items() if word in line), None)
        if found is None:
            raise FileNotFoundError(line)
        return subprocess.CompletedProcess(args, 0, stdout=found, stderr="")

    subprocess.run = answered


class Anything:
    """A class, a function or a constant of a package that is not here."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, name: str) -> Anything:
        """Return any attribute."""
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(f"{self.name}.{name}")

    def __call__(self, *_args: object, **_named: object) -> Anything:
        """Return anything."""
        return Anything(f"{self.name}()")

    def __getitem__(self, _index: object) -> Anything:
        """Return any item."""
        return Anything(f"{self.name}[]")

    __iter__ = None  # items of any number would be endless

    def __mro_entries__(self, _bases: tuple[object, ...]) -> tuple[type, ...]:
        """Be a base without attributes."""
        return ()


class Packages(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for packages that are built for GPUs: a server has them, this machine cannot."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find any module of the packages."""
        del path, target
        if fullname.partition(".")[0] not in self._names:
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Let the import system make the module."""
        del spec
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Give the module a class for any name."""

        def other(name: str) -> object:
            if name.startswith("__"):
                raise AttributeError(name)
            return Anything(name)

        module.__getattr__ = other  # type: ignore[method-assign]
