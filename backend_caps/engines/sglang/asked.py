"""Runs SGLang's own processing of server arguments, for a machine that is described.

The Python that has SGLang runs it as a script, for `asking`; it imports nothing of this package.
Standard input has one JSON object: the machine, and the command lines. Each command line is
answered by a line of JSON on the descriptor that is the script's argument, and runs in a fork of
its own: SGLang keeps in the process what it found of machine, model and environment.

An answer has the values that SGLang ends with, each value that it rewrites with the line that
does, and, where it refuses, its message and line. Its registry of attention backends and its
draft factory are called as its runner calls them; the classes that they construct are recorded in
place of being constructed.
"""

from __future__ import annotations

import argparse
import ast
import enum
import importlib
import importlib.abc
import importlib.metadata
import importlib.util
import inspect
import json
import logging
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, FrameType, MethodType, ModuleType, SimpleNamespace
from typing import Any, NoReturn, TypeAlias

_Value: TypeAlias = Any
"""A value of SGLang, whose classes are not known here."""
_MIB = 1 << 20
_MISSING = object()


class Refusal(Exception):  # noqa: N818 - it is an answer
    """SGLang refuses the command line."""


class Undecided(Exception):  # noqa: N818 - it is an answer
    """What SGLang asks for is not here, so its answer is not known."""


# The machine.


def stand_in(machine: Mapping[str, Any]) -> None:
    """Make torch, and the programs that list GPUs, describe this machine's GPUs.

    SGLang asks `torch.version`, a few functions of `torch.cuda`, `nvidia-smi` and `rocminfo`;
    nothing is allocated and no kernel runs.
    """
    import torch  # noqa: PLC0415 - this module is read before torch can be imported

    _answer_programs(machine)
    if machine["device"] != "cuda":
        return
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


def _answering(answer: object) -> Callable[..., object]:
    return lambda *_args, **_named: answer


def _answer_programs(machine: Mapping[str, Any]) -> None:
    """Answer the programs by which SGLang asks for a GPU's memory; others run."""
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


# Where SGLang does something.


def place(code: CodeType, line: int) -> str:
    """Write a line of SGLang as `sglang/srt/server_args.py:1234`."""
    _, found, path = code.co_filename.replace(os.sep, "/").rpartition("/sglang/")
    return f"sglang/{path}:{line}" if found else f"{code.co_filename}:{line}"


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
            at, now = _declarer(sys._getframe(1)), view(server_args)  # noqa: SLF001 - the line that declares
            before = {name: getattr(now, name, None) for name in fields}
            declare(server_args, source, **fields)
            for name, after in fields.items():
                self.add(name, before[name], after, at)

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
                self.add(name, before, after, place(frame.f_code, frame.f_lineno))

        cls.__setattr__ = assigned


def _declarer(frame: FrameType) -> str:
    """Return the line that declares; of a function whose result is declared, its first line."""
    passed: _Value = frame.f_locals.get("fn")
    if frame.f_code.co_name == "run_post_process_pass" and hasattr(passed, "__code__"):
        return place(passed.__code__, passed.__code__.co_firstlineno)
    return place(frame.f_code, frame.f_lineno)


def refusing_line(error: BaseException) -> str | None:
    """Return the line of SGLang that raised an error; None where none did."""
    frames = [*traceback.walk_tb(error.__traceback__)]
    files = ((f.f_code.co_filename.replace(os.sep, "/"), f, line) for f, line in frames)
    own = [(f, line) for file, f, line in files if "/sglang/" in file and file != __file__]
    return place(own[-1][0].f_code, own[-1][1]) if own else None


def plain(value: _Value) -> _Value:
    """Make a value one that JSON has."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in value]
    names = getattr(value, "__struct_fields__", None) or getattr(value, "__dataclass_fields__", ())
    if names:
        return {name: plain(getattr(value, name)) for name in names}
    return str(value)


# The processing itself.


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
        with BackendModules().in_place():
            slots = backends_of(args, config, values)
        answer["classes"] = {slot: made.in_slot(slot) for slot, made in slots.items()}
        answer["wrappers"] = sorted({each for made in slots.values() for each in made.wrappers()})
        answer["stage"] = "accepted"
    except Undecided as error:
        answer["undecided"] = str(error)
    except ImportError as error:
        answer["undecided"] = f"{type(error).__name__}: {error}"
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever SGLang raises is its answer
        words = " ".join(str(error).split()) or type(error).__name__
        answer["refusal"] = {
            "message": words,
            "error": type(error).__name__,
            "at": refusing_line(error),
        }
    version = importlib.metadata.version("sglang")
    return answer | {"rewrites": rewrites.found, "version": version}


def _refuse_line(parser: argparse.ArgumentParser, message: str) -> NoReturn:
    del parser
    raise Refusal(message)


def values_of(args: _Value) -> dict[str, object]:
    """Return the final value of each field."""
    if hasattr(args, "resolved_dict"):
        return dict(plain(args.resolved_dict()))
    return {name: plain(getattr(args, name)) for name in type(args).__dataclass_fields__}


# Backends.

_EAGLE = ("EAGLE", "EAGLE3", "STANDALONE", "NEXTN")
_ONE_DRAFT_BACKEND = ("DFLASH", "DSPARK")
"""Algorithms whose draft runner has one backend for all that it runs."""


class Backend:
    """A backend in whose place SGLang constructs this."""

    _path = ""

    def __init__(self, *args: object, **named: object) -> None:
        self.attn_backends: tuple[object, ...] = ()
        self.sparse_layer_ids: tuple[object, ...] = ()
        given = [*(("", each) for each in args), *named.items()]
        self._parts = [
            (name, each)
            for name, value in given
            for each in (value if isinstance(value, list | tuple) else (value,))
            if isinstance(each, Backend)
        ]

    def in_slot(self, slot: str) -> list[str]:
        """List the classes that run a slot, each once, the outermost first."""
        phase = "prefill" if "prefill" in slot else "decode"
        found = [self._path]
        for name, part in self._parts:
            if _PHASES.get(name, phase) == phase:
                found += part.in_slot(slot)
        return list(dict.fromkeys(found))

    def wrappers(self) -> Iterator[str]:
        """List the classes that are constructed around others."""
        if self._parts:
            yield self._path
        for _, part in self._parts:
            yield from part.wrappers()


_PHASES = {"prefill_backend": "prefill", "decode_backend": "decode"}
"""The arguments of the wrapper of two backends, each with the phase that it runs."""


class BackendModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Puts `Backend` in the place of the backend classes that SGLang constructs.

    A module with a class of a backend is replaced, unless it is loaded already, by one that has
    its classes' names: the real one imports what a GPU's packages bring. Of the class, its methods
    that construct it are kept.
    """

    _BACKEND = re.compile(r"^class \w*Backend\b", re.MULTILINE)
    _FOLDERS = ("sglang.srt.layers.attention.", "sglang.srt.hardware_backend.")
    _REAL = ("base_attn_backend", "attention_registry", "utils", "config")

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Replace the modules in a block."""
        sys.meta_path.insert(0, self)
        try:
            yield
        finally:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module that has a backend's class."""
        del path, target
        if not fullname.startswith(self._FOLDERS) or fullname.endswith(self._REAL):
            return None
        sys.meta_path.remove(self)
        try:
            real = importlib.util.find_spec(fullname)
        finally:
            sys.meta_path.insert(0, self)
        if real is None or real.origin is None or not real.origin.endswith(".py"):
            return None
        source = Path(real.origin).read_text("utf-8")
        if self._BACKEND.search(source) is None:
            return None
        spec = ModuleSpec(fullname, self, origin=real.origin)
        spec.loader_state = ast.parse(source)
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Let the import system make the module."""
        del spec
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its classes, and a function for any other name."""
        assert module.__spec__ is not None, "the import system sets it"
        for node in module.__spec__.loader_state.body:
            if isinstance(node, ast.ClassDef):
                setattr(module, node.name, self._class(module, node))

        def other(name: str) -> object:
            if name.startswith("__"):
                raise AttributeError(name)
            return lambda *_args, **_named: None

        module.__getattr__ = other  # type: ignore[method-assign]

    def _class(self, module: ModuleType, node: ast.ClassDef) -> type:
        kept: list[ast.stmt] = []
        for each in node.body:
            if isinstance(each, ast.FunctionDef) and _decorators(each) == ["classmethod"]:
                each.returns, each.args.defaults = None, []
                for argument in each.args.args:
                    argument.annotation = None
                kept.append(each)
        names: dict[str, Any] = {}
        exec(  # noqa: S102 - SGLang's own lines, in its own process
            compile(ast.Module(kept, []), module.__name__, "exec"), module.__dict__, names
        )
        return type(node.name, (Backend,), {**names, "_path": f"{module.__name__}.{node.name}"})


def _decorators(node: ast.FunctionDef) -> list[str]:
    return [ast.unparse(each) for each in node.decorator_list]


class Runner:
    """What SGLang's registry and factories read of a model runner; anything else is undecided."""

    def __init__(
        self, args: _Value, config: _Value, values: Mapping[str, object], **draft: object
    ) -> None:
        self.server_args = args
        self.model_config = config
        self.is_draft_worker = bool(draft)
        self.use_mla_backend = config.attention_arch.name == "MLA"
        self.draft_attention_backend = draft.get("draft_attention_backend")
        self.init_new_workspace = False
        self.prefill_attention_backend_str = self.decode_attention_backend_str = None
        self.plan_stream_for_flashinfer = True
        self.device = values["device"]
        self.page_size = values["page_size"]
        self.dtype = config.dtype
        self.kv_cache_dtype = self._kv_cache_dtype(str(values["kv_cache_dtype"]))

    def _kv_cache_dtype(self, name: str) -> object:
        import torch  # noqa: PLC0415 - as above

        known = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
        return known.get(name, self.dtype)

    def __getattr__(self, name: str) -> _Value:
        """Return a method of the real runner's class.

        Raises:
            Undecided: it has none; so it is an attribute, which is not known.
        """
        runner = sys.modules.get("sglang.srt.model_executor.model_runner")
        method = getattr(getattr(runner, "ModelRunner", None), name, None)
        if method is None or name.startswith("__"):
            raise Undecided(f"the runner's {name}")
        return MethodType(method, self)


def facts_of(config: _Value, values: Mapping[str, Any]) -> dict[str, object]:
    """List what the model's configuration tells, as far as it is known."""
    known = {
        "attention_arch": config.attention_arch.name.lower(),
        "dtype": str(getattr(config, "dtype", None)),
        "head_size": getattr(config, "head_dim", None),
        "context_length": getattr(config, "context_len", None),
        "device": values["device"],
    }
    return {name: value for name, value in known.items() if isinstance(value, str | int)}


def backends_of(args: _Value, config: _Value, values: Mapping[str, Any]) -> dict[str, Backend]:
    """Construct the backends as a runner does, and list them by slot."""
    target = _built(Runner(args, config, values))
    slots = {"prefill": target, "decode": target}
    if values["speculative_algorithm"] in {*_EAGLE, *_ONE_DRAFT_BACKEND}:
        slots |= _drafts(args, values, is_one=values["speculative_algorithm"] in _ONE_DRAFT_BACKEND)
    return {slot: made for slot, made in slots.items() if isinstance(made, Backend)}


def _built(runner: Runner) -> _Value:
    """Construct a runner's backend as the runner does."""
    try:
        setup = importlib.import_module(
            "sglang.srt.model_executor.model_runner_components.attention_backend_setup"
        )
    except ModuleNotFoundError:
        importlib.import_module("sglang.srt.model_executor.model_runner")
        runner.init_attention_backend()
        return runner.attn_backend
    vars(setup)["init_cublas"] = lambda: None  # it would multiply on the device
    names = setup.resolve_attention_backend_strs(model_runner=runner)
    runner.prefill_attention_backend_str = names.prefill
    runner.decode_attention_backend_str = names.decode
    return setup.build_attention_backends(model_runner=runner).attn_backend


def _published(args: _Value) -> _Value:
    """Publish the arguments to the process, as a scheduler does, and return the model's config."""
    try:
        context = importlib.import_module("sglang.srt.runtime_context")
        overrides = importlib.import_module("sglang.srt.arg_groups.overrides")
    except ImportError:
        module = importlib.import_module("sglang.srt.server_args")
        module.set_global_server_args_for_scheduler(args)
        return args.get_model_config()
    config = overrides.model_config_of(args)
    context.publish(args, role="scheduler")
    return config


def _drafts(args: _Value, values: Mapping[str, Any], *, is_one: bool) -> dict[str, _Value]:
    config = importlib.import_module("sglang.srt.configs.model_config").ModelConfig
    own_config = config.from_server_args(
        args,
        model_path=values["speculative_draft_model_path"],
        model_revision=values["speculative_draft_model_revision"],
        is_draft_model=True,
    )
    name = values["speculative_draft_attention_backend"]
    if is_one:
        try:
            common = importlib.import_module("sglang.srt.speculative.draft_worker_common")
            name = common.resolve_draft_worker_attention_backend()
        except (ModuleNotFoundError, AttributeError):  # older releases fall back in the worker
            pass
    runner = Runner(args, own_config, values, draft_attention_backend=name)
    own = _built(runner)
    if is_one:
        return dict.fromkeys(("draft_prefill", "draft", "draft_extend"), own)
    factory = importlib.import_module("sglang.srt.speculative.draft_utils").DraftBackendFactory
    counts = (values["speculative_eagle_topk"], values["speculative_num_steps"])
    is_older = "server_args" in inspect.signature(factory).parameters
    made = factory(*((args, runner) if is_older else (runner,)), *counts)
    decode, extend = made.create_decode_backend(), made.create_draft_extend_backend()
    return {"draft_prefill": own, "draft": decode, "draft_extend": extend or own}


def main() -> None:
    """Answer each command line that standard input has."""
    out = int(sys.argv[1])
    request = json.load(sys.stdin)
    logging.disable(logging.CRITICAL)
    stand_in(request["machine"])
    rocm = request["machine"]["rocm"]
    sys.meta_path.insert(0, Packages("sgl_kernel", "aiter" if rocm else "flashinfer"))
    try:
        importlib.import_module("sglang.srt.server_args")
        for name in request.get("warm_up", ()):
            importlib.import_module(name)
    except Exception as error:  # noqa: BLE001 - an engine that is not whole is an answer
        words = f"SGLang's arguments cannot be imported: {type(error).__name__}: {error}"
        for _ in request["command_lines"]:
            _write(out, {"undecided": words})
        return
    for argv in request["command_lines"]:
        if (child := os.fork()) == 0:
            try:
                _write(out, processed(argv))
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            _write(out, {"undecided": f"the process ended with status {status}"})


def _write(out: int, answer: Mapping[str, object]) -> None:
    data = json.dumps(answer).encode() + b"\n"
    while data:
        data = data[os.write(out, data) :]


if __name__ == "__main__":
    main()
