"""What SGLang makes of a command line, interpreted from its source.

Its own functions run, from the parser of the command line to the registry of backends and the
factory of draft backends: nothing of it is written down here but what it asks of machine and model
(`surroundings`), and where its functions are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from backend_caps.capability.gpu import Gpu
from backend_caps.engines.reading import Models
from backend_caps.engines.sglang.surroundings import Record, surroundings
from backend_caps.engines.source.calls import NotFollowedError
from backend_caps.engines.source.index import Index
from backend_caps.engines.source.interpreter import Interpreter
from backend_caps.engines.source.library import library
from backend_caps.engines.source.values import (
    MISSING,
    PLAIN,
    ClassValue,
    External,
    FunctionValue,
    Hook,
    Instance,
    Native,
    Perhaps,
    Raised,
    Unknown,
    has_unknown,
    joined,
)
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.launch import Launch, Refusal, Rewrite, Unchecked

_ARGUMENTS = "sglang.srt.server_args"
_OVERRIDES = "sglang.srt.arg_groups.overrides"
_REGISTRY = "sglang.srt.layers.attention.attention_registry"
_DRAFTS = "sglang.srt.speculative.draft_utils"
_OUTSIDE = re.compile(
    r"sglang\.(?:jit_kernel|multimodal_gen|lang)(?:\.|$)"
    r"|sglang\.srt\.(?:models|model_loader|managers|entrypoints|mem_cache|distributed)(?:\.|$)"
    r"|sglang\.srt\.utils\.custom_op$"
)
"""Modules that are not followed: what runs the model, and not what decides how."""
_BACKEND_MODULE = re.compile(r"sglang\.srt\.(?:layers\.attention|hardware_backend)\.")
_FOLLOWED = (".attention_registry", ".linear.utils", ".qsa.config")
"""Modules beside the backends that decide which are constructed."""
_BACKEND_CLASS = re.compile(r"\w*Backend\b")
_MODEL_OPTIONS = frozenset({"--model-path", "--model"})
_EAGLE = ("EAGLE", "EAGLE3", "STANDALONE", "NEXTN")


@dataclass(slots=True, kw_only=True)
class _Outcome:
    """What is found while a command line is followed."""

    rewrites: list[Rewrite] = field(default_factory=list)
    refusal: Refusal | None = None
    unchecked: list[Unchecked] = field(default_factory=list)
    values: Mapping[str, Native] = field(default_factory=dict)
    facts: Mapping[str, object] = field(default_factory=dict)
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def read_launch(
    index: Index, argv: Sequence[str], gpu: Gpu, num_gpus: int, model: str, models: Models
) -> Launch:
    """Follow a command line through SGLang's functions.

    Args:
        index: SGLang's source.
        argv: the command line; its `--model-path` is replaced by `model`.
        gpu: the machine's GPUs.
        num_gpus: how many it has.
        model: the path of the model, of which `models` knows the configuration.
        models: finds a model's configuration by its path.
    """
    found = _Outcome()
    run = _Arguments(index, found, surroundings(gpu, num_gpus, models))
    try:
        run.follow([*without_model(argv), "--model-path", model])
    except Raised as error:
        found.refusal = Refusal(message=error.message or error.error, at=error.at)
    except NotFollowedError as error:
        found.unchecked.append(Unchecked(message=str(error), at=run.at, unless="its length"))
    found.unchecked += [Unchecked(message=n.text, at=n.at, unless=n.why) for n in run.notes]
    return Launch(
        engine=index.label,
        machine=gpu.key,
        model=model,
        refusal=found.refusal,
        unchecked=tuple(dict.fromkeys(found.unchecked)),
        rewrites=tuple(found.rewrites),
        flags=_flags(found.values),
        facts=found.facts,
        classes=found.classes,
    )


def without_model(argv: Sequence[str]) -> list[str]:
    """Leave the model's path out of a command line, and what starts the program."""
    kept: list[str] = []
    words = list(argv)
    while words and not words[0].startswith("--"):
        del words[0]
    while words:
        word = words.pop(0)
        if word.partition("=")[0] in _MODEL_OPTIONS:
            if "=" not in word and words:
                del words[0]
            continue
        kept.append(word)
    return kept


def _flags(values: Mapping[str, Native]) -> Mapping[str, object]:
    """List the final values of the flags that matter here, where they are known."""
    known = {name: plain(value) for name, value in values.items() if not has_unknown(value)}
    flags = {
        name: value
        for name, value in known.items()
        if name in ServerFlags.model_fields and name != "unrelated" and value is not None
    }
    graphs = known.get("cuda_graph_config")
    if isinstance(graphs, dict):
        phases = [each for each in graphs.values() if isinstance(each, dict)]
        flags["disable_cuda_graph"] = all(each["backend"] == "disabled" for each in phases)
    width = known.get("attn_dp_size")
    if isinstance(width, int) and width > 1:
        flags["enable_dp_attention"] = True
    return flags


class _Arguments(Interpreter):
    """An interpreter that records what SGLang rewrites, and the backends that it constructs."""

    def __init__(self, index: Index, found: _Outcome, names: Mapping[str, Native]) -> None:
        super().__init__(index, {**library({}), **names})
        self._found = found
        self._made: list[str] = []
        self.natives[f"{_OVERRIDES}.declare_resolution"] = Hook(self._declare)

    def follow(self, argv: Sequence[str]) -> None:
        """Parse the arguments, process and check them, and construct the backends."""
        args = self.call(self.found(f"{_ARGUMENTS}.prepare_server_args"), list(argv))
        resolve = self.attribute_or(args, "resolve_once", None)
        if resolve is not None:
            self.call(resolve)
        self.call(self.attribute(args, "check_server_args"))
        self._found.values = self.final_values(args)
        self._found.classes = self.backends(args, self._found.values)

    def import_module(self, name: str) -> Native:
        """Leave out the modules that run the model."""
        if _OUTSIDE.match(name):
            return External(name)
        return super().import_module(name)

    def set_raw(self, owner: Instance, name: str, value: Native) -> None:
        """Record what older versions assign to their arguments."""
        before = owner.attributes.get(name, MISSING)
        super().set_raw(owner, name, value)
        is_argument = owner.cls.name == "ServerArgs" and name in owner.cls.record_fields()
        if is_argument and before is not MISSING:
            self._rewritten(name, before, owner.attributes[name])

    def _rewritten(self, name: str, before: Native, after: Native) -> None:
        if before is not after and plain(before) != plain(after):
            self._found.rewrites.append(
                Rewrite(name=name, before=plain(before), after=plain(after), at=self.at)
            )

    def _declare(
        self, _run: Interpreter, args: Sequence[Native], fields: Mapping[str, Native]
    ) -> Native:
        """Do what `declare_resolution` does: add the fields to those that are decided."""
        server_args, source = args
        decided = self.attribute_or(server_args, "_resolved_overrides", None)
        if not isinstance(decided, list):
            decided = []
            self.set_raw(server_args, "_resolved_overrides", decided)
        known = {}
        for name, value in fields.items():
            before = _decided(server_args, decided, name)
            is_certain = self.is_certain and not isinstance(value, Perhaps)
            own = value.value if isinstance(value, Perhaps) else value
            known[name] = own if is_certain else joined(before, own)
            self._rewritten(name, before, known[name])
        decided.append((source, known))

    # The backends.

    def construct(
        self, cls: ClassValue, args: Sequence[Native], named: Mapping[str, Native]
    ) -> Native:
        """Record the construction of a backend, whose own constructor needs the device."""
        is_backend = _BACKEND_MODULE.match(cls.module.module.name) is not None
        if is_backend and _BACKEND_CLASS.fullmatch(cls.name) and not cls.is_enum:
            self._made.append(cls.path)
            return Record(attn_backends=(), sparse_layer_ids=())
        return super().construct(cls, args, named)

    def _run_function(
        self, function: FunctionValue, args: Sequence[Native], named: Mapping[str, Native]
    ) -> Native:
        """Leave out functions beside a backend's class, which look at the runner's memory."""
        module = function.frame.module.module.name
        if _BACKEND_MODULE.match(module) and not module.endswith(_FOLLOWED):
            return Unknown(f"{function.name}() of {module}")
        return super()._run_function(function, args, named)

    def final_values(self, args: Native) -> dict[str, Native]:
        """Return the final value of each argument."""
        decided = args.attributes.get("_resolved_overrides") or []
        fallbacks: Native = {}
        if self.index.module(_OVERRIDES) is not None and decided:
            fallbacks = self.call(
                self.found("sglang.srt.arg_groups.arg_utils.fallbacks_of"), args.cls
            )
        values = {}
        for name in args.cls.record_fields():
            value = _decided(args, decided, name)
            if value is None and isinstance(fallbacks, dict):
                value = fallbacks.get(name)
            values[name] = value
        return values

    def backends(self, args: Native, values: Mapping[str, Native]) -> dict[str, tuple[str, ...]]:
        """List the classes that the registry and the draft factory construct, by slot."""
        config = self._published(args)
        arch = self.attribute(self.attribute(config, "attention_arch"), "name")
        table = self.attribute(self.import_module(_REGISTRY), "ATTENTION_BACKENDS")
        wrap = self.found(f"{_REGISTRY}.attn_backend_wrapper")
        runner = self._runner(args, config, values, draft=False)
        self._found.facts = self._facts(config, values)
        slots: dict[str, tuple[str, ...]] = {}
        for slot in ("prefill", "decode"):
            name = runner.interpreted_attribute(f"{slot}_attention_backend_str", None)
            if arch == "SSM" or has_unknown(name):
                continue
            if name not in table:
                raise self.raised(ValueError(f"Invalid attention backend: {name}"))
            start = len(self._made)
            full = self.call(self.item(table, name), runner)
            self.call(wrap, runner, full)
            slots[slot] = tuple(self._made[start:])
        if values["speculative_algorithm"] in _EAGLE:
            slots |= self._draft_slots(args, config, values)
        return slots

    def _facts(self, config: Native, values: Mapping[str, Native]) -> dict[str, object]:
        """List what the model's configuration tells."""
        known: dict[str, Native] = {
            "attention_arch": str(self.attribute(self.attribute(config, "attention_arch"), "name")),
            "dtype": str(self.attribute_or(config, "dtype", None)),
            "head_size": self.attribute_or(config, "head_dim", None),
            "context_length": self.attribute_or(config, "context_len", None),
            "device": values["device"],
        }
        known["attention_arch"] = known["attention_arch"].lower()
        return {name: each for name, each in known.items() if isinstance(each, str | int)}

    def _published(self, args: Native) -> Native:
        if self.index.module(_OVERRIDES) is None:
            publish = self.found(f"{_ARGUMENTS}.set_global_server_args_for_scheduler")
            self.call(publish, args)
            return self.call(self.attribute(args, "get_model_config"))
        config = self.call(self.found(f"{_OVERRIDES}.model_config_of"), args)
        publish = self.found("sglang.srt.runtime_context.publish")
        self.call(publish, args, role="scheduler")
        return config

    def _runner(
        self, args: Native, config: Native, values: Mapping[str, Native], *, draft: bool
    ) -> Record:
        arch = self.attribute(self.attribute(config, "attention_arch"), "name")
        shared = values["attention_backend"]
        names = {
            f"{slot}_attention_backend_str": values[f"{slot}_attention_backend"] or shared
            for slot in ("prefill", "decode")
        }
        dtypes = {"fp8_e4m3": "torch.float8_e4m3fn", "fp8_e5m2": "torch.float8_e5m2"}
        dtype = self.attribute(config, "dtype")
        kv_dtype = dtypes.get(str(values["kv_cache_dtype"]))
        return Record(
            server_args=args,
            model_config=config,
            is_draft_worker=draft,
            use_mla_backend=arch == "MLA",
            draft_attention_backend=values["speculative_draft_attention_backend"],
            init_new_workspace=False,
            plan_stream_for_flashinfer=True,
            device=values["device"],
            page_size=values["page_size"],
            dtype=dtype,
            kv_cache_dtype=dtype if kv_dtype is None else self.natives[kv_dtype],
            **names,
        )

    def _draft_slots(
        self, args: Native, config: Native, values: Mapping[str, Native]
    ) -> dict[str, tuple[str, ...]]:
        factory = self.found(f"{_DRAFTS}.DraftBackendFactory")
        runner = self._runner(args, config, values, draft=True)
        takes_args = "server_args" in _parameters(factory)
        first = (args, runner) if takes_args else (runner,)
        counts = (values["speculative_eagle_topk"], values["speculative_num_steps"])
        made = self.call(factory, *first, *counts)
        slots = {}
        for slot in ("decode", "draft_extend"):
            start = len(self._made)
            self.call(self.attribute(made, f"create_{slot}_backend"))
            slots["draft" if slot == "decode" else slot] = tuple(self._made[start:])
        return slots


def _parameters(cls: ClassValue) -> list[str]:
    maker = cls.lookup("__init__")
    return [] if maker is None else [each.arg for each in maker.node.args.args]


def _decided(args: Instance, decided: Sequence[Native], name: str) -> Native:
    for _, fields in reversed(decided):
        if name in fields:
            return fields[name]
    return args.attributes.get(name)


def plain(value: Native) -> object:
    """Make a value one that JSON has; what is not known is `{"unknown": why}`."""
    match value:
        case Unknown():
            return {"unknown": value.why}
        case Instance() if value.cls.is_enum:
            return plain(value.attributes["value"])
        case Instance():
            return {name: plain(each) for name, each in value.attributes.items()}
        case dict():
            return {str(key): plain(each) for key, each in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(each) for each in value]
        case ClassValue():
            return value.path
    return value if isinstance(value, PLAIN) else str(value)
