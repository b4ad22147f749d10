"""The backends that SGLang constructs for a server: recorded, in place of being constructed.

`query_script` loads it into the Python that has SGLang; it imports nothing of this package.
"""

from __future__ import annotations

import ast
import importlib
import importlib.abc
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, TypeAlias

_Value: TypeAlias = Any
"""A value of SGLang, whose classes are not known here."""
EAGLE = ("EAGLE", "EAGLE3", "STANDALONE", "NEXTN")
ONE_DRAFT_BACKEND = ("DFLASH", "DSPARK")
"""Algorithms whose draft runner has one backend for all that it runs."""
UNSET_AT_FIRST = ("_linear_attn_registry_cache",)
"""Attributes that older runners keep an answer in."""
_SETUP = "sglang.srt.model_executor.model_runner_components.attention_backend_setup"
RESOLVING_NAMES = "resolve_attention_backend_strs"
"""The function that names a runner's backends; before it, what constructs them did, of the
arguments alone, which the worker of a draft with one backend rewrote."""
RESOLVING_DRAFTS = (
    "resolve_draft_worker_attention_backend",
    "_resolve_draft_attention_backend_fallback",
)
"""Functions that choose the backend of such a draft."""
MODEL_FEATURES = {"sliding_window": "sliding_window_size", "attention_sinks": "has_attention_sinks"}
"""The attribute of a model's configuration that says whether it has each feature."""
SIZES = {"decode_context_parallel": "dcp_size", "prefill_context_parallel": "attn_cp_size"}
"""The argument with the number of ranks that share a request."""
PHASES = {"prefill_backend": "prefill", "decode_backend": "decode"}
"""The arguments of the wrapper of two backends, each with the phase that it runs."""


class Undecided(Exception):  # noqa: N818 - it is an answer
    """What SGLang asks for is not here, so its answer is not known."""


class Backend:
    """A backend in whose place SGLang constructs this."""

    _path = ""
    pairs: _Value = None
    """The constructor of a wrapper of two backends."""

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
        is_pair = any(name in PHASES for name, _ in self._parts)
        self._asks_prefill = is_pair and self._joins(args, named)

    def _joins(self, args: Sequence[object], named: Mapping[str, object]) -> bool:
        """Return whether a pair needs lengths where its part for prefill alone does.

        Its own constructor tells; where that cannot be executed, it counts as if it did.
        """

        def own(value: object, name: str = "") -> object:
            if isinstance(value, Backend):
                return SimpleNamespace(needs_cpu_seq_lens=PHASES.get(name) == "prefill")
            return _Known(value)

        pair = SimpleNamespace()
        try:
            type(self).pairs(pair, *map(own, args), **{k: own(v, k) for k, v in named.items()})
        except Exception:  # noqa: BLE001 - whatever it raises, it does not tell
            return True
        return getattr(pair, "needs_cpu_seq_lens", True) is not False

    def asks_prefill(self) -> bool:
        """Return whether a pair in it joins the lengths of what runs prefill."""
        return self._asks_prefill or any(part.asks_prefill() for _, part in self._parts)

    def in_slot(self, slot: str) -> list[str]:
        """List the classes that run a slot, each once, the outermost first."""
        phase = "prefill" if "prefill" in slot else "decode"
        found = [self._path]
        for name, part in self._parts:
            if PHASES.get(name, phase) == phase:
                found += part.in_slot(slot)
        return list(dict.fromkeys(found))

    def wrappers(self) -> Iterator[str]:
        """List the classes that are constructed around others."""
        if self._parts:
            yield self._path
        for _, part in self._parts:
            yield from part.wrappers()


class _Known:
    """What is known of a value; a test of what is not is undecided."""

    def __init__(self, value: object = None) -> None:
        self._value = value

    def __getattr__(self, name: str) -> object:
        try:
            return getattr(self._value, name)
        except (AttributeError, Undecided):
            return _Known()

    def __bool__(self) -> bool:
        raise Undecided("a value of the runner")

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, _other: object) -> bool:
        raise Undecided("a value of the runner")


class _Imported(dict[str, _Value]):
    """The names that a module imports, each imported where it is used."""

    def __init__(self, tree: ast.Module) -> None:
        super().__init__()
        self._from = {
            alias.asname or alias.name: (str(node.module), alias.name)
            for node in tree.body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }

    def __missing__(self, name: str) -> _Value:
        module, own = self._from[name]
        return getattr(importlib.import_module(module), own)


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
        names: dict[str, Any] = {}
        for each in node.body:
            if not isinstance(each, ast.FunctionDef):
                continue
            if _decorators(each) == ["classmethod"]:
                names |= _executed(each, module.__dict__)
            if each.name == "__init__" and PHASES.keys() & {own.arg for own in each.args.args}:
                assert module.__spec__ is not None, "the import system sets it"
                imported = _Imported(module.__spec__.loader_state)
                names["pairs"] = _executed(each, imported)["__init__"]
        return type(node.name, (Backend,), {**names, "_path": f"{module.__name__}.{node.name}"})


def _executed(function: ast.FunctionDef, scope: dict[str, Any]) -> Mapping[str, Any]:
    """Define a function in a scope, without annotations and defaults."""
    function.returns, function.args.defaults = None, []
    for argument in function.args.args:
        argument.annotation = None
    names: dict[str, Any] = {}
    code = compile(ast.Module([function], []), "backend", "exec")
    exec(code, scope, names)  # noqa: S102 - SGLang's own lines, in its own process
    return names


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
        torch = importlib.import_module("torch")

        known = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
        return known.get(name, self.dtype)

    def __getattr__(self, name: str) -> _Value:
        """Return a method of the real runner's class, or the value of a property.

        Raises:
            Undecided: it has none; so it is an attribute, which is not known.
        """
        module = sys.modules.get("sglang.srt.model_executor.model_runner")
        if name in UNSET_AT_FIRST and hasattr(module, "_UNSET"):
            return vars(module)["_UNSET"]
        runner = getattr(module, "ModelRunner", None)
        member = inspect.getattr_static(runner, name, None)
        if member is None or name.startswith("__"):
            raise Undecided(f"the runner's {name}")
        return member.__get__(self, runner)


def backends_of(args: _Value, config: _Value, values: Mapping[str, Any]) -> dict[str, Backend]:
    """Construct the backends as a runner does, and list them by slot."""
    target = _built(Runner(args, config, values))
    slots = {"prefill": target, "decode": target}
    if values["speculative_algorithm"] in {*EAGLE, *ONE_DRAFT_BACKEND}:
        slots |= _drafts(args, values, is_one=values["speculative_algorithm"] in ONE_DRAFT_BACKEND)
    return {slot: made for slot, made in slots.items() if isinstance(made, Backend)}


def _built(runner: Runner) -> _Value:
    """Construct a runner's backend as the runner does."""
    setup = _imported(_SETUP)
    if setup is None:
        _imported("sglang.srt.model_executor.model_runner")
        runner.init_attention_backend()
        return runner.attn_backend
    setup.init_cublas = lambda: None  # it would multiply on the device
    resolve = getattr(setup, RESOLVING_NAMES, None)
    if resolve is not None:
        names = resolve(model_runner=runner)
        runner.prefill_attention_backend_str = names.prefill
        runner.decode_attention_backend_str = names.decode
    return setup.build_attention_backends(model_runner=runner).attn_backend


def _imported(name: str) -> _Value:
    """Import a module; None where this release has none of that name.

    Raises:
        Undecided: it needs what is not here.
    """
    try:
        return importlib.import_module(name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            return None
        words = f"{name} cannot be imported: {type(error).__name__}: {error}"
        raise Undecided(words) from error


def _of_one(args: _Value) -> str | None:
    """Return the backend that a draft with one gets; None where its constructor decides it."""
    if not hasattr(_imported(_SETUP), RESOLVING_NAMES):
        return None
    module = _imported("sglang.srt.speculative.draft_worker_common")
    known = {"server_args": args, "algo_label": ""}
    for resolve in filter(None, (getattr(module, each, None) for each in RESOLVING_DRAFTS)):
        names = inspect.signature(resolve).parameters
        found: str = resolve(**{key: known[key] for key in known if key in names})
        return found
    return None


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
        name = _of_one(args)
        if name is None:
            return {}
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


def features_of(model: Mapping[str, _Value], values: Mapping[str, _Value]) -> dict[str, bool]:
    """List the features that a model and a server have or have not, as far as it is known.

    Args:
        model: the attributes of its configuration that are known, by name.
        values: the final arguments of the server.
    """
    own = {
        fact: bool(model[name])
        for fact, name in MODEL_FEATURES.items()
        if name in model and isinstance(model[name], int | None)
    }
    shared = {
        fact: values[name] > 1 for fact, name in SIZES.items() if isinstance(values.get(name), int)
    }
    return {**own, **shared}
