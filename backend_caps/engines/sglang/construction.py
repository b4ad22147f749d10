"""The backends that SGLang constructs for a server, interpreted from its source.

Its registry, its wrappers and its factories of draft backends run; a backend's own constructor,
which needs the device, does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from backend_caps.engines.model_config import constructed_config, is_base_config
from backend_caps.engines.sglang.backends import NEEDS
from backend_caps.engines.sglang.query_backends import (
    EAGLE,
    MODEL_FEATURES,
    ONE_DRAFT_BACKEND,
    PHASES,
    RESOLVING_NAMES,
    UNSET_AT_FIRST,
    features_of,
)
from backend_caps.engines.source.calls import NotFollowedError
from backend_caps.engines.source.interpreter import Interpreter
from backend_caps.engines.source.uncertainty import same
from backend_caps.engines.source.values import (
    MISSING,
    ClassValue,
    FunctionValue,
    Hook,
    Native,
    Raised,
    Unknown,
)
from backend_caps.engines.surroundings import Record

_ARGUMENTS = "sglang.srt.server_args"
_OVERRIDES = "sglang.srt.arg_groups.overrides"
_CONTEXT = "sglang.srt.runtime_context"
_SETUP = "sglang.srt.model_executor.model_runner_components.attention_backend_setup"
_RUNNER = "sglang.srt.model_executor.model_runner"
_CONFIG = "sglang.srt.configs.model_config.ModelConfig"
_DRAFTS = "sglang.srt.speculative.draft_utils"
_WORKERS = "sglang.srt.speculative.draft_worker_common"
_SPECULATION = "sglang.srt.speculative.spec_info"
_TP_WORKER = "sglang.srt.managers.tp_worker.TpModelWorker"
_MODULE = re.compile(r"sglang\.srt\.(?:layers\.attention|hardware_backend)\.")
_FOLLOWED = (
    ".attention_registry",
    ".hybrid_attn_backend",
    ".tbo_backend",
    ".linear.utils",
    ".qsa.config",
)
"""Modules beside the backends that decide which are constructed."""
_CLASS = re.compile(r"\w*Backend\b")
_KV_DTYPES = {"fp8_e4m3": "torch.float8_e4m3fn", "fp8_e5m2": "torch.float8_e5m2"}


class Constructed(Record):
    """A backend that is constructed, with the backends among its arguments."""

    def __init__(self, path: str, parts: Sequence[tuple[str, Constructed]]) -> None:
        super().__init__(attn_backends=(), sparse_layer_ids=())
        self.path = path
        self.parts = parts

    def asks_prefill(self) -> bool:
        """Return whether a pair in it joins the lengths of what runs prefill."""
        return self.attributes.get("asks_prefill") is True or any(
            part.asks_prefill() for _, part in self.parts
        )

    def in_slot(self, slot: str) -> tuple[str, ...]:
        """List the classes that run a slot, each once, the outermost first."""
        return tuple(dict.fromkeys(self.in_phase("prefill" if "prefill" in slot else "decode")))

    def wrappers(self) -> Iterator[str]:
        """List the classes that are constructed around others."""
        if self.parts:
            yield self.path
        for _, part in self.parts:
            yield from part.wrappers()

    def in_phase(self, phase: str) -> Iterator[str]:
        """List the classes that run a phase, the outermost first."""
        yield self.path
        for name, part in self.parts:
            if PHASES.get(name, phase) == phase:
                yield from part.in_phase(phase)


class Runner(Record):
    """A model runner, of which a few attributes are known, and all of its class's methods."""

    def __init__(self, run: Interpreter, cls: ClassValue | None, **attributes: Native) -> None:
        super().__init__(**attributes)
        self._run = run
        self._cls = cls

    def interpreted_attribute(self, name: str, default: Native) -> Native:
        """Return an attribute, or a method; unknown where it is neither."""
        if name not in self.attributes and self._cls is not None:
            if name in UNSET_AT_FIRST and "_UNSET" in self._cls.module.names:
                return self._cls.module.names["_UNSET"]
            if self._cls.has(name):
                return self._run.bound(self._cls.lookup(name), self, self._cls)
        return super().interpreted_attribute(name, default)

    def interpreted_set(self, name: str, value: Native) -> None:
        """Set an attribute."""
        self.attributes[name] = value


class Constructions(Interpreter):
    """An interpreter that records the backends that SGLang constructs."""

    def construct(
        self, cls: ClassValue, args: Sequence[Native], named: Mapping[str, Native]
    ) -> Native:
        """Record the construction of a backend."""
        if _MODULE.match(cls.module.module.name) and _CLASS.fullmatch(cls.name) and not cls.is_enum:
            parts = [*_parts([("", each) for each in args]), *_parts(named.items())]
            made = Constructed(cls.path, parts)
            if any(name in PHASES for name, _ in parts):
                made.attributes["asks_prefill"] = self._asks_prefill(cls, args, named, parts)
            return made
        if any(map(is_base_config, cls.externals)):
            return constructed_config(self, cls, named, is_complete=True)
        return super().construct(cls, args, named)

    def _asks_prefill(
        self,
        cls: ClassValue,
        args: Sequence[Native],
        named: Mapping[str, Native],
        parts: Sequence[tuple[str, Constructed]],
    ) -> bool:
        """Return whether a pair needs lengths where its part for prefill alone does.

        Its own constructor tells; where that cannot be followed, it counts as if it did.
        """
        for name, part in parts:
            part.attributes[NEEDS] = PHASES.get(name) == "prefill"
        before = [*self.notes]
        try:
            made = super().construct(cls, args, named)
            return self.attribute(made, NEEDS) is not False
        except (Raised, NotFollowedError):
            return True
        finally:
            self.notes[:] = before
            for _, part in parts:
                del part.attributes[NEEDS]

    def replacement(self, function: FunctionValue) -> Hook | None:
        """Leave out functions beside a backend's class, which look at the runner's memory."""
        module = function.frame.module.module.name
        if _MODULE.match(module) and not module.endswith(_FOLLOWED):
            return Hook(lambda *_: Unknown(f"{function.name}() of {module}"))
        return super().replacement(function)

    def published(self, args: Native) -> Native:
        """Publish the arguments to the process as a scheduler does; return the model's config."""
        config_of = self.attribute_or(args, "get_model_config", None)
        if config_of is None:
            config = self.call(self.found(f"{_OVERRIDES}.model_config_of"), args)
        else:
            config = self.call(config_of)
        publish = self.found(f"{_CONTEXT}.publish")
        if isinstance(publish, FunctionValue):
            self.call(publish, args, role="scheduler")
        else:
            publish = self.found(f"{_ARGUMENTS}.set_global_server_args_for_scheduler")
            self.call(publish, args)
        return config

    def _function(self, module: Native, name: str) -> FunctionValue | None:
        """Return a module's function of that name, if it has one."""
        found = self.attribute_or(module, name, None)
        return found if isinstance(found, FunctionValue) else None

    def backends(
        self, args: Native, config: Native, values: Mapping[str, Native]
    ) -> dict[str, Constructed]:
        """List the backends that are constructed for the target and the draft, by slot."""
        target = self._built(self._runner(args, config, values))
        slots = dict.fromkeys(("prefill", "decode"), target)
        algorithm = values["speculative_algorithm"]
        if algorithm in (*EAGLE, *ONE_DRAFT_BACKEND):
            slots |= self._drafts(args, values, is_one=algorithm in ONE_DRAFT_BACKEND)
        return {slot: made for slot, made in slots.items() if made is not None}

    def _drafts(
        self, args: Native, values: Mapping[str, Native], *, is_one: bool
    ) -> dict[str, Constructed | None]:
        config = self.call(
            self.attribute(self.found(_CONFIG), "from_server_args"),
            args,
            model_path=values["speculative_draft_model_path"],
            model_revision=values["speculative_draft_model_revision"],
            is_draft_model=True,
        )
        name = values["speculative_draft_attention_backend"]
        if is_one:
            args, name = self._given_to_draft(args, values)
        runner = self._runner(args, config, values, draft_attention_backend=name)
        own = self._built(runner)
        if is_one:
            return dict.fromkeys(("draft_prefill", "draft", "draft_extend"), own)
        factory = self.found(f"{_DRAFTS}.DraftBackendFactory")
        is_older = "server_args" in _parameters(factory.lookup("__init__"))
        first = (args, runner) if is_older else (runner,)
        counts = (values["speculative_eagle_topk"], values["speculative_num_steps"])
        made = self.call(factory, *first, *counts)
        decode, extend = (
            self.call(self.attribute(made, f"create_{name}_backend"))
            for name in ("decode", "draft_extend")
        )
        return {
            "draft_prefill": own,
            "draft": decode if isinstance(decode, Constructed) else None,
            "draft_extend": extend if isinstance(extend, Constructed) else own,
        }

    def _given_to_draft(self, args: Native, values: Mapping[str, Native]) -> tuple[Native, Native]:
        """Return the arguments that a worker gives to its draft's runner, and a backend's name."""
        self.natives[_TP_WORKER] = made = Hook(_given_to_draft)
        common = self.import_module(_WORKERS) if self.index.module(_WORKERS) else None
        maker = None if common is None else self._function(common, "build_draft_tp_worker")
        if maker is None:
            algorithms = self.found(f"{_SPECULATION}.SpeculativeAlgorithm")
            named = self.attribute(algorithms, "from_string")
            algorithm = self.call(named, values["speculative_algorithm"])
            maker = self.call(self.attribute(algorithm, "create_worker"), args)
        takes = _parameters(maker)
        known = {"server_args": args, "attention_backend_override": None, "draft_worker_cls": made}
        given = {name: known.get(name, Unknown(name)) for name in takes}
        try:
            self.call(maker, **given)
        except _GivenToDraft as found:
            return found.args
        raise NotFollowedError("its worker makes no runner for its draft", _WORKERS)

    def _built(self, runner: Runner) -> Constructed | None:
        """Construct a runner's backend as the runner does."""
        module = self.import_module(_SETUP) if self.index.module(_SETUP) else None
        if module is None:
            self.call(self.attribute(runner, "init_attention_backend"))
            made = self.attribute(runner, "attn_backend")
        else:
            # Where the runner has no names of its own yet, the builder resolves them itself.
            resolve = self._function(module, RESOLVING_NAMES)
            if resolve is not None:
                names = self.call(resolve, model_runner=runner)
                for phase in ("prefill", "decode"):
                    name = self.attribute(names, phase)
                    runner.interpreted_set(f"{phase}_attention_backend_str", name)
            build = self._function(module, "build_attention_backends")
            if build is None:
                raise NotFollowedError("it has no build_attention_backends", _SETUP)
            made = self.attribute(self.call(build, model_runner=runner), "attn_backend")
        return made if isinstance(made, Constructed) else None

    def _runner(
        self, args: Native, config: Native, values: Mapping[str, Native], **draft: Native
    ) -> Runner:
        arch = self.attribute(self.attribute(config, "attention_arch"), "name")
        is_mla = same(arch, "MLA")
        dtype, kv_dtype = self.attribute(config, "dtype"), values["kv_cache_dtype"]
        if not isinstance(kv_dtype, Unknown):
            own = _KV_DTYPES.get(str(kv_dtype))
            kv_dtype = dtype if own is None else self.natives[own]
        module = self.import_module(_RUNNER) if self.index.module(_SETUP) is None else None
        return Runner(
            self,
            None if module is None else self.attribute(module, "ModelRunner"),
            server_args=args,
            model_config=config,
            is_draft_worker=bool(draft),
            use_mla_backend=Unknown(f"{arch} == 'MLA'") if is_mla is None else is_mla,
            draft_attention_backend=draft.get("draft_attention_backend"),
            init_new_workspace=False,
            plan_stream_for_flashinfer=True,
            device=values["device"],
            page_size=values["page_size"],
            dtype=dtype,
            kv_cache_dtype=kv_dtype,
        )


def _parts(named: Iterable[tuple[str, Native]]) -> Iterator[tuple[str, Constructed]]:
    """List the backends among arguments."""
    for name, value in named:
        for each in value if isinstance(value, list | tuple) else (value,):
            if isinstance(each, Constructed):
                yield name, each


class _GivenToDraft(Exception):  # noqa: N818 - it ends what is followed, and is no error
    """A worker makes its draft's runner: the arguments, and the backend's name if it has one."""


def _given_to_draft(
    _run: Interpreter, _args: Sequence[Native], named: Mapping[str, Native]
) -> Native:
    own = named["server_args"]
    raise _GivenToDraft(own, named.get("draft_attention_backend"))


def _parameters(maker: Native) -> list[str]:
    """List what a function or a constructor takes; nothing of another value."""
    function = maker.lookup("__init__") if isinstance(maker, ClassValue) else maker
    if not isinstance(function, FunctionValue):
        return []
    own = function.node.args
    return [each.arg for each in (*own.args, *own.kwonlyargs) if each.arg != "self"]


def facts_of(run: Interpreter, config: Native, values: Mapping[str, Native]) -> dict[str, object]:
    """List what the model's configuration tells, as far as it is known."""
    arch = run.attribute(run.attribute(config, "attention_arch"), "name")
    known: dict[str, Native] = {
        "attention_arch": arch.lower() if isinstance(arch, str) else arch,
        "dtype": str(run.attribute_or(config, "dtype", MISSING)),
        "head_size": run.attribute_or(config, "head_dim", None),
        "context_length": run.attribute_or(config, "context_len", None),
        "device": values["device"],
    }
    model = {name: run.attribute_or(config, name, MISSING) for name in MODEL_FEATURES.values()}
    certain = {name: each for name, each in known.items() if isinstance(each, str | int)}
    return {**certain, **features_of(model, values)}
