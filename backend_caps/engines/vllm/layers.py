"""The layers of a server's models that are built by interpreting vLLM's source."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

from backend_caps.engines.source.calls import NotFollowedError
from backend_caps.engines.source.module import Module
from backend_caps.engines.source.uncertainty import has_unknown, short
from backend_caps.engines.source.values import (
    MISSING,
    ClassValue,
    Hook,
    Instance,
    ModuleValue,
    Native,
    Raised,
    Unknown,
    members,
)
from backend_caps.engines.surroundings import Record, answering
from backend_caps.engines.vllm.query_values import (
    DRAFTERS,
    LOADERS,
    QUESTION,
    SECOND_RUNNER,
    SELECT,
    SELECTORS,
    SIZES,
    TENSOR_PARALLEL,
)
from backend_caps.engines.vllm.server import Server, plain

_SCRIPT = Path(__file__).with_name("query_caches.py")
_LOADING = "vllm.model_executor.model_loader"
_INITIALIZE = f"{_LOADING}.utils.initialize_model"
_RUNNER = "vllm.v1.worker.gpu_model_runner.GPUModelRunner"
_SCALES = (
    "vllm.v1.attention.backend.AttentionCGSupport",
    "vllm.v1.attention.backends.utils.AttentionCGSupport",  # until 0.13
)


class _BuiltError(Exception):
    """The model of a draft is built, and what loads it need not go on."""


class Layers:
    """The layers of a server's models, each with its backend."""

    def __init__(self, run: Server, config: Instance) -> None:
        """Build the model, and the draft's where there is one.

        Args:
            run: the interpreter that made the configuration.
            config: the `VllmConfig`.
        """
        self._run, self._config = run, config
        self._asked: dict[str, tuple[Native, Native]] = {}
        self._by_layer: dict[int, Instance] = {}
        self._join_groups()
        run.natives["torch.get_default_dtype"] = Hook(
            answering(run.part(config, "model_config", "dtype"))
        )
        self._watch()
        self._build()

    def _watch(self) -> None:
        """Record what each layer asks; it then adds itself to the layers."""
        context = self._context()

        def selected(run: Server, args: Sequence[Native], named: Mapping[str, Native]) -> Native:
            given = {**dict(zip(QUESTION, args, strict=False)), **named}
            asked = given.get("attn_selector_config")
            if isinstance(asked, Instance):
                key = json.dumps(plain(asked.attributes), sort_keys=True)
                self._asked.setdefault(key, (asked, given.get("num_heads", MISSING)))
                self._by_layer[len(context)] = asked
            return run.call(select, *args, **named)

        modules = map(self._run.import_module, SELECTORS)
        module = next(each for each in modules if isinstance(each, ModuleValue))
        select = module.names[SELECT]
        module.names[SELECT] = Hook(selected)

    def _build(self) -> None:
        self._run.call(self._run.found(_INITIALIZE), vllm_config=self._config)
        self._of_target = frozenset(self._layers())
        drafter = self._drafter()
        if drafter is not None:
            with suppress(_BuiltError):
                self._load_draft(drafter)

    def _drafter(self) -> ClassValue | None:
        """Return the class that loads a draft's model in this server; None where none does."""
        run = self._run
        speculative = run.part(self._config, "speculative_config")
        is_second = run.truth(run.uses_second_runner(self._config))
        for name, path in () if speculative is None else DRAFTERS[is_second is True].items():
            predicate = run.attribute_or(speculative, name, None)
            is_own = False if predicate is None else run.truth(run.call(predicate))
            if is_own is None or (is_own and is_second is None):
                raise NotFollowedError("which draft is loaded is not known", run.at)
            if is_own:
                return run.found_class(path)
        return None

    def _load_draft(self, drafter: ClassValue) -> None:
        """Load a draft's model as the runner does, up to the reading of weights."""
        run = self._run
        speculative = run.part(self._config, "speculative_config")
        made = Instance(
            drafter,
            {
                "vllm_config": self._config,
                "speculative_config": speculative,
                "draft_model_config": run.part(speculative, "draft_model_config"),
            },
        )
        run.natives[f"{_LOADING}.get_model"] = Hook(self._built)
        loader = next(name for name in LOADERS if drafter.has(name))
        others = [] if loader == LOADERS[-1] else [set[str]()]
        run.call(run.attribute(made, loader), None, *others)

    def _built(self, run: Server, _args: Sequence[Native], named: Mapping[str, Native]) -> Native:
        """Build a model in place of loading it, and leave the function that does."""
        own = {name: each for name, each in named.items() if name != "load_config"}
        run.call(run.found(_INITIALIZE), **own)
        raise _BuiltError

    def _current(self, function: Callable[[], Native]) -> Native:
        """Call a function while the configuration is the one that vLLM's functions ask for."""
        found: list[Native] = []
        manager = self._run.call(
            self._run.found("vllm.config.set_current_vllm_config"), self._config
        )
        self._run.managed(manager, Unknown("config"), lambda _: found.append(function()))
        return found[0]

    def _layers(self) -> Mapping[str, Instance]:
        base = self._run.found("vllm.model_executor.layers.attention_layer_base.AttentionLayerBase")
        is_instance = self._run.is_instance
        return {name: each for name, each in self._context().items() if is_instance(each, base)}

    def _context(self) -> dict[str, Instance]:
        """Return all that layers have added themselves to."""
        context = self._run.part(self._config, "compilation_config", "static_forward_context")
        if not isinstance(context, dict):
            raise NotFollowedError(f"the layers are not known: {context}", self._run.at)
        return context

    def settle_block_size(self) -> None:
        """Let the platform settle the block size, once each layer has its backend."""
        for name, layer in self._layers().items():
            self._backend_of(name, layer)
        self._current(partial(self._run.call, self._scripted("settle_block_size"), self._config))

    def caches(self) -> list[dict[str, Any]]:
        """List the groups of layers that share blocks."""
        planned = self._scripted("caches_of")
        layers = dict(self._layers())
        found = self._current(partial(self._run.call, planned, self._config, layers))
        for each in [found] if isinstance(found, Unknown) else found:
            if has_unknown(each):
                words = f"a group of the cache is not known: {_open_part(each)}"
                raise NotFollowedError(words, self._run.at)
        own: list[dict[str, Any]] = found
        return own

    def _scripted(self, name: str) -> Native:
        """Return a function of the script that an installed vLLM's Python runs too."""
        script = _script()
        module = self._run.modules.get(script.name) or self._run.run_module(script)
        return module.names[name]

    def groups(self) -> list[dict[str, Any]]:
        """List the layers that are alike, with their backend and what it supports."""
        found: dict[str, dict[str, Any]] = {}
        for name, layer in self._layers().items():
            own = self._current(partial(self._of_layer, name, layer))
            alike = found.setdefault(json.dumps(own, sort_keys=True), {**own, "num_layers": 0})
            alike["num_layers"] += 1
        return list(found.values())

    def _of_layer(self, name: str, layer: Instance) -> dict[str, Any]:
        run = self._run
        backend = self._backend_of(name, layer)
        spec = self._spec_of(name, layer)
        if not isinstance(spec, Instance | None):
            raise NotFollowedError(f"what {name} keeps is not known: {short(spec)}", run.at)
        sizes = {} if spec is None else spec.attributes
        asked = self._by_layer.get([*self._context()].index(name))
        return {
            "role": "target" if name in self._of_target else "draft",
            "layer": layer.cls.name,
            "backend": self._backend_name(backend),
            "path": backend.path,
            "graph_support": None if spec is None else self._support(backend, spec),
            "cache": None if spec is None else spec.cls.name,
            "sizes": {each: plain(sizes[each]) for each in SIZES if each in sizes},
            "asked": None if asked is None else plain(asked.attributes),
        }

    def _backend_of(self, name: str, layer: Instance) -> ClassValue:
        backend = self._run.call(self._run.attribute(layer, "get_attn_backend"))
        if not isinstance(backend, ClassValue):
            words = f"the backend that {name} takes is not known: {short(backend)}"
            raise NotFollowedError(words, self._run.at)
        return backend

    def _backend_name(self, backend: ClassValue) -> str:
        """Return a backend's name; that of its class where a release leaves it out."""
        try:
            return self._name_of(self._run.call(self._run.attribute(backend, "get_name")))
        except Raised:
            return backend.name

    def _spec_of(self, name: str, layer: Instance) -> Native:
        """Return a layer's part of the KV cache, which until 0.11 the runner makes for all."""
        run = self._run
        own = run.attribute_or(layer, "get_kv_cache_spec", None)
        if own is None:
            return run.call(self._scripted("specs_of"), self._config).get(name)
        takes = run.call(run.found("inspect.signature"), own).parameters
        return run.call(own, *[self._config][: len(takes)])

    def _support(self, backend: ClassValue, spec: Instance) -> str:
        """Return for which batches graphs of a backend's builder work."""
        run = self._run
        builder = run.call(run.attribute(backend, "get_builder_cls"))
        support = run.attribute_or(builder, "get_cudagraph_support", None)
        if support is None:  # in 0.11 it is the class's own
            return self._name_of(run.attribute(builder, "cudagraph_support"))
        return self._name_of(run.call(support, self._config, spec))

    def _name_of(self, value: Native) -> str:
        """Return the text of a name, or the name of an enum's member."""
        found = plain(value)
        if not isinstance(found, str):
            raise NotFollowedError(f"a name is not known: {short(value)}", self._run.at)
        return found

    def choices(self) -> list[dict[str, object]]:
        """List, for each kind of layer, the backends by priority with the reasons against them."""
        return [
            {
                "asked": plain(asked.attributes),
                "against": self._current(partial(self._against, asked, num)),
            }
            for asked, num in self._asked.values()
        ]

    def _against(self, asked: Instance, num_heads: Native) -> dict[str, object]:
        run = self._run
        capability = run.call(run.attribute(run.platform, "get_device_capability"))
        heads = () if num_heads is MISSING else (num_heads,)
        found = run.call(
            run.attribute(run.platform, "get_valid_backends"), capability, asked, *heads
        )
        if has_unknown(found):
            return {}
        valid, invalid = found
        own = [_named_pair(each) for each in valid]
        by_priority: dict[str, tuple[Native, object]] = {
            backend.attributes["name"]: (priority, []) for backend, priority in own
        }
        last = len(valid) + len(invalid)  # until 0.15 there is no priority beside reasons
        for backend, why in invalid.items():
            priority, reasons = why if isinstance(why, tuple) else (last, why)
            by_priority[backend.attributes["name"]] = (priority, plain(reasons))
        ordered = sorted(by_priority.items(), key=lambda pair: pair[1][0])
        return {name: reasons for name, (_, reasons) in ordered}

    def graphs(self) -> dict[str, object]:
        """Resolve the graph mode, as the runner does once it has the backends."""
        run = self._run
        levels = {each.attributes["name"]: each for each in members(run.found_class(*_SCALES))}
        supports = [
            (levels[each["graph_support"]], each["path"].rpartition(".")[2])
            for each in self.groups()
            if each["graph_support"] is not None
        ]
        top = levels["ALWAYS"]
        least, by = min(supports, key=lambda own: own[0].attributes["value"], default=(top, None))
        by = None if least is top else by
        compilation = run.part(self._config, "compilation_config")
        asked = self._name_of(run.part(compilation, "cudagraph_mode"))
        is_second = run.uses_second_runner(self._config)
        run.warnings.clear()
        mode = self._current(partial(self._graph_mode, compilation, least, by, is_second))
        return {
            "asked": asked,
            "mode": self._name_of(mode),
            "support": least.attributes["name"],
            "by": by,
            "words": [*run.warnings],
        }

    def _graph_mode(
        self, compilation: Native, least: Native, by: str | None, is_second: Native
    ) -> Native:
        """Let vLLM resolve the mode by the least support, which `by` has, for a runner."""
        run = self._run
        drafts = run.part(self._config, "speculative_config", "num_speculative_tokens") or 0
        resolve = run.attribute_or(compilation, "resolve_cudagraph_mode_and_sizes", None)
        if resolve is None:
            return self._mode_of_runner(compilation, 1 + drafts)
        sizes = {
            SECOND_RUNNER: is_second,
            TENSOR_PARALLEL: run.part(self._config, "parallel_config", TENSOR_PARALLEL),
        }
        taken = run.call(run.found("inspect.signature"), resolve).parameters
        own = {name: value for name, value in sizes.items() if name in taken}
        return run.call(resolve, least, by, 1 + drafts, **own)

    def _mode_of_runner(self, compilation: Native, query_len: Native) -> Native:
        """Let the runner resolve the mode, which until 0.18 is its own."""
        run = self._run
        dispatcher = Record(initialize_cudagraph_keys=Hook(answering(None)))
        runner = Instance(
            run.found_class(_RUNNER),
            {
                "vllm_config": self._config,
                "compilation_config": compilation,
                "parallel_config": run.part(self._config, "parallel_config"),
                "speculative_config": None,  # whose graphs are the draft's
                "kv_cache_config": None,
                "cudagraph_dispatcher": dispatcher,
                "uniform_decode_query_len": query_len,
            },
        )
        if not runner.cls.has("_check_and_update_cudagraph_mode"):  # in 0.11
            builders = [self._builder(layer) for layer in self._layers().values()]
            groups_of_runner = [Record(get_metadata_builder=Hook(answering(e))) for e in builders]
            runner.attributes["_attn_group_iterator"] = Hook(answering(groups_of_runner))
            run.call(run.attribute(runner, "initialize_cudagraph_capture"))
            return run.part(compilation, "cudagraph_mode")
        backends, groups = [], []
        for name, layer in self._layers().items():
            spec = self._spec_of(name, layer)
            if spec is not None:
                backends.append([run.call(run.attribute(layer, "get_attn_backend"))])
                groups.append(Record(kv_cache_spec=spec))
        resolve = run.attribute(runner, "_check_and_update_cudagraph_mode")
        run.call(resolve, backends, groups)
        return run.part(compilation, "cudagraph_mode")

    def _builder(self, layer: Instance) -> Instance:
        """Return a layer's metadata builder, of which only the class's own values are known."""
        backend = self._run.call(self._run.attribute(layer, "get_attn_backend"))
        builder = self._run.call(self._run.attribute(backend, "get_builder_cls"))
        return Instance(builder, {})

    def _join_groups(self) -> None:
        """Set the process groups of a server of this size."""
        run = self._run
        parallel = run.part(self._config, "parallel_config")

        def size(name: str) -> Native:
            return run.attribute_or(parallel, f"{name}_size", 1)

        tensor, data = size("tensor_parallel"), size("data_parallel")
        is_open = has_unknown([tensor, data])
        sizes = {
            "_TP": tensor,
            "_PP": 1,  # of several stages the first one is built
            "_DP": data,
            "_EP": Unknown("the size of expert parallelism") if is_open else tensor * data,
            "_EPLB": 1,
            "_DCP": size("decode_context_parallel"),
            "_PCP": size("prefill_context_parallel"),
            "_WORLD": run.part(parallel, "world_size"),
        }
        state = run.import_module("vllm.distributed.parallel_state")
        state.names.update((name, _group(number)) for name, number in sizes.items())


def _open_part(group: Native) -> str:
    """Write what is not known of a group."""
    parts = group.items() if isinstance(group, dict) else ()
    words = [f"{name} {short(each)}" for name, each in parts if has_unknown(each)]
    return ", ".join(words) or short(group)


@cache
def _script() -> Module:
    text = _SCRIPT.read_bytes()
    return Module(_SCRIPT.stem, f"backend_caps/engines/vllm/{_SCRIPT.name}", ast.parse(text), text)


def _named_pair(candidate: Native) -> tuple[Native, Native]:
    """Return a backend and its priority, which until 0.22 are a pair."""
    if isinstance(candidate, tuple):
        return candidate
    return candidate.attributes["backend"], candidate.attributes["priority"]


def _group(size: Native) -> Record:
    """Make a group of so many processes, of which this one is the first."""
    is_known = isinstance(size, int)
    group = Record(
        world_size=size,
        ranks=list(range(size)) if is_known else Unknown("ranks"),
        rank=0,
        rank_in_group=0,
        local_rank=0,
        first_rank=0,
        last_rank=size - 1 if is_known else size,
        is_first_rank=True,
        is_last_rank=True,
        size=Hook(answering(size)),
    )
    of_torch = Record(**{**group.attributes, "rank": Hook(answering(0))})
    group.attributes.update(device_group=of_torch, cpu_group=of_torch)
    return group
