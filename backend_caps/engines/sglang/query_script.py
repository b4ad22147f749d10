"""Runs SGLang's own processing of server arguments, for a machine that is described.

The Python that has SGLang runs it as a script, for `query`; it imports nothing of this package, and
is asked and answers as `query_process` says.

An answer has the values that SGLang ends with, each value that it rewrites with the line that
does, and, where it refuses, its message and line. Its registry of attention backends and its
draft factory are called as its runner calls them; the classes that they construct are recorded in
place of being constructed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.abc
import importlib.metadata
import importlib.util
import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

_Value: TypeAlias = Any
"""A value of SGLang, whose classes are not known here."""
_MISSING = object()
_SHARED_MODULES = (
    "sglang.srt.configs.model_config",
    "sglang.srt.layers.attention.attention_registry",
    "sglang.srt.speculative.draft_utils",
)
"""What most command lines import; several share one import."""

if TYPE_CHECKING:
    from backend_caps.engines import query_machine, query_process
    from backend_caps.engines.sglang import query_backends
else:
    query_machine = sys.modules["backend_caps_query_machine"]
    query_process = sys.modules["backend_caps_query_process"]
    query_backends = query_process.load(Path(__file__).with_name("query_backends.py"))
plain = query_process.plain
PACKAGE = "sglang"
READERS: frozenset[str] = frozenset()
"""Functions that return what is configured of a command line: modules take it in many ways."""


def _place(frame: FrameType) -> str:
    return query_process.place(frame.f_code, frame.f_lineno, "sglang")


class Rewrites:
    """The values that SGLang assigns itself, in order."""

    def __init__(self) -> None:
        self.found: list[dict[str, object]] = []

    def add(self, field: str, before: object, after: object, at: str) -> None:
        """Record a value that differs from the one before."""
        if before is not after and plain(before) != plain(after):
            self.found.append(
                {"name": field, "before": plain(before), "after": plain(after), "at": at}
            )

    def watch(self) -> None:
        """Record what SGLang declares, or in older releases assigns, from now on."""
        try:
            overrides = importlib.import_module("sglang.srt.arg_groups.overrides")
            declare, view = overrides.declare_resolution, overrides.resolving_view
        except (ImportError, AttributeError):
            self._watch_assignments()
            return

        def declared(server_args: _Value, source: str, **fields: object) -> None:
            frame, now = sys._getframe(1), view(server_args)  # noqa: SLF001 - the line that declares
            before = {name: getattr(now, name, None) for name in fields}
            declare(server_args, source, **fields)
            for name, after in fields.items():
                self.add(name, before[name], after, _place(frame))

        for module in list(sys.modules.values()):
            if getattr(module, "declare_resolution", None) is declare:
                vars(module)["declare_resolution"] = declared

    def _watch_assignments(self) -> None:
        cls = importlib.import_module("sglang.srt.server_args").ServerArgs
        fields = cls.__dataclass_fields__

        def assigned(args: _Value, name: str, after: object) -> None:
            before = args.__dict__.get(name, _MISSING)
            object.__setattr__(args, name, after)
            if before is not _MISSING and name in fields:
                frame = sys._getframe(1)  # noqa: SLF001 - the line that assigns
                self.add(name, before, after, _place(frame))

        cls.__setattr__ = assigned


def processed(argv: Sequence[str]) -> dict[str, object]:
    """Process one command line, and answer as the module says."""
    rewrites = Rewrites()
    answer: dict[str, object] = {"stage": "command line"}
    setattr(argparse.ArgumentParser, "error", _refuse_line)  # noqa: B010 - the type checker refuses to assign a method
    try:
        args_of = importlib.import_module("sglang.srt.server_args").prepare_server_args
        rewrites.watch()
        args = args_of(list(argv))
        answer["stage"] = "arguments"
        if hasattr(args, "resolve_once"):
            args.resolve_once()
        args.check_server_args()
        answer["stage"] = "backends"
        answer["values"] = values = values_of(args)
        config = _published(args)
        answer["facts"] = facts_of(config, values)
        with query_backends.BackendModules().in_place():
            slots = query_backends.backends_of(args, config, values)
        answer["classes"] = {slot: made.in_slot(slot) for slot, made in slots.items()}
        answer["wrappers"] = sorted({each for made in slots.values() for each in made.wrappers()})
        answer["joined"] = sorted(slot for slot, made in slots.items() if made.asks_prefill())
        answer["stage"] = "accepted"
    except query_backends.Undecided as error:
        answer["undecided"] = str(error)
    except ImportError as error:
        answer["undecided"] = f"{type(error).__name__}: {error}"
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever SGLang raises is its answer
        answer["refusal"] = query_process.refusal(error, "sglang")
    version = importlib.metadata.version("sglang")
    return answer | {"rewrites": rewrites.found, "version": version}


def _refuse_line(parser: argparse.ArgumentParser, message: str) -> NoReturn:
    del parser
    raise query_process.Refusal(message)


def values_of(args: _Value) -> dict[str, object]:
    """Return the final value of each field."""
    if hasattr(args, "resolved_dict"):
        return dict(plain(args.resolved_dict()))
    return {name: plain(getattr(args, name)) for name in type(args).__dataclass_fields__}


def facts_of(config: _Value, values: Mapping[str, Any]) -> dict[str, object]:
    """List what the model's configuration tells, as far as it is known."""
    known = {
        "attention_arch": config.attention_arch.name.lower(),
        "dtype": str(getattr(config, "dtype", None)),
        "head_size": getattr(config, "head_dim", None),
        "context_length": getattr(config, "context_len", None),
        "device": values["device"],
    }
    names = query_backends.MODEL_FEATURES.values()
    model = {name: getattr(config, name) for name in names if hasattr(config, name)}
    certain = {name: value for name, value in known.items() if isinstance(value, str | int)}
    return {**certain, **query_backends.features_of(model, values)}


def _published(args: _Value) -> _Value:
    """Publish the arguments to the process, as a scheduler does, and return the model's config."""
    if hasattr(args, "get_model_config"):
        config = args.get_model_config()
    else:
        config = importlib.import_module("sglang.srt.arg_groups.overrides").model_config_of(args)
    try:
        publish = importlib.import_module("sglang.srt.runtime_context").publish
    except (ImportError, AttributeError):
        module = importlib.import_module("sglang.srt.server_args")
        module.set_global_server_args_for_scheduler(args)
    else:
        publish(args, role="scheduler")
    return config


def prepare(request: Mapping[str, Any]) -> None:
    """Import SGLang's arguments, and what several command lines share."""
    logging.disable(logging.CRITICAL)
    rocm = request["machine"]["rocm"]
    sys.meta_path.insert(0, query_machine.Packages("sgl_kernel", "aiter" if rocm else "flashinfer"))
    importlib.import_module("sglang.srt.server_args")
    for name in _SHARED_MODULES if len(request["command_lines"]) > 1 else ():
        with contextlib.suppress(Exception):  # the command line that needs it has the error
            importlib.import_module(name)
