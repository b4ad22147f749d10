"""The layers of a server's models that are built by interpreting vLLM's source."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

from backend_caps.engines.source.calls import NotFollowedError
from backend_caps.engines.source.module import Module
from backend_caps.engines.source.uncertainty import has_unknown, short
from backend_caps.engines.source.values import (
    ClassValue,
    Hook,
    Instance,
    ModuleValue,
    Native,
    Unknown,
)
from backend_caps.engines.surroundings import Record, answering
from backend_caps.engines.vllm import query_layers
from backend_caps.engines.vllm.query_values import LOADERS, OF_LAYER, grouped
from backend_caps.engines.vllm.server import Server, plain

_SCRIPT = Path(query_layers.__file__)
_LOADING = "vllm.model_executor.model_loader"
_INITIALIZE = f"{_LOADING}.utils.initialize_model"


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
            given = {**dict(zip(query_layers.QUESTION, args, strict=False)), **named}
            asked = given.get("attn_selector_config")
            if isinstance(asked, Instance):
                key = json.dumps(plain(asked.attributes), sort_keys=True)
                self._asked.setdefault(key, (asked, given.get("num_heads")))
                self._by_layer[len(context)] = asked
            return run.call(select, *args, **named)

        modules = map(self._run.import_module, query_layers.SELECTORS)
        module = next(each for each in modules if isinstance(each, ModuleValue))
        select = module.names[query_layers.SELECT]
        module.names[query_layers.SELECT] = Hook(selected)

    def _build(self) -> None:
        run = self._run
        run.call(run.found(_INITIALIZE), vllm_config=self._config)
        self._of_target = frozenset(self._answered("layers_of"))
        drafter = None
        if run.part(self._config, "speculative_config") is not None:
            second = run.uses_second_runner(self._config)
            drafter = self._scripted("drafter_of", second=second)
        if not isinstance(drafter, ClassValue | None):
            raise NotFollowedError("which draft is loaded is not known", run.at)
        if drafter is not None:
            with suppress(_BuiltError):
                self._load_draft(drafter)

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

    def _context(self) -> dict[str, Instance]:
        """Return all that layers have added themselves to."""
        context = self._run.part(self._config, "compilation_config", "static_forward_context")
        if not isinstance(context, dict):
            raise NotFollowedError(f"the layers are not known: {context}", self._run.at)
        return context

    def _scripted(self, name: str, *args: Native, **named: Native) -> Native:
        """Call a function of the script that an installed vLLM's Python runs too."""
        run, script = self._run, _script()
        module = run.modules.get(script.name) or run.run_module(script)
        call = partial(run.call, module.names[name], *(args or (self._config,)), **named)
        return run.under(self._config, call)

    def _answered(self, name: str, *args: Native, **named: Native) -> Native:
        """Call a function of the script, and go on where it is known what it returns."""
        return self._known(f"the answer of {name}", self._scripted(name, *args, **named), depth=0)

    def settle_block_size(self) -> None:
        """Let the platform settle the block size, once each layer has its backend."""
        for name, layer in self._answered("layers_of").items():
            backend = self._run.call(self._run.attribute(layer, "get_attn_backend"))
            if not isinstance(backend, ClassValue):
                words = f"the backend that {name} takes is not known: {short(backend)}"
                raise NotFollowedError(words, self._run.at)
        self._scripted("settle_block_size")

    @cached_property
    def _descriptions(self) -> list[dict[str, Native]]:
        """Each layer with its backend, once the block size is settled."""
        found: list[dict[str, Native]] = self._answered("layer_descriptions")
        return found

    def groups(self) -> list[dict[str, Any]]:
        """List the layers that are alike, with their backend and what it supports."""
        return grouped(map(self._written, self._descriptions))

    def _written(self, layer: Mapping[str, Native]) -> dict[str, Any]:
        name = layer["name"]
        own = {each: self._known(f"the {each} of {name}", layer[each]) for each in OF_LAYER}
        asked = self._by_layer.get([*self._context()].index(name))
        return {
            "role": "target" if name in self._of_target else "draft",
            "path": layer["class"].path,
            "sizes": plain(layer["sizes"]),
            "asked": None if asked is None else plain(asked.attributes),
            **own,
        }

    def _known(self, what: str, value: Native, *, depth: int = 3) -> Native:
        """Return a value that is known, with what it holds down to a depth."""
        if has_unknown(value, depth):
            raise NotFollowedError(f"{what} is not known: {short(value)}", self._run.at)
        return value

    def caches(self) -> list[dict[str, Any]]:
        """List the groups of layers that share blocks."""
        groups: list[dict[str, Any]] = self._answered("cache_groups_of")
        for own in groups:
            for name, value in self._known("a group of the cache", own, depth=0).items():
                self._known(f"the {name} of a group of the cache", value)
        return groups

    def choices(self) -> list[dict[str, object]]:
        """List, for each kind of layer, the backends by priority with the reasons against them."""
        found = [
            (asked, self._scripted("reasons_against", asked, num))
            for asked, num in self._asked.values()
        ]
        return [
            {"asked": plain(asked.attributes), "against": {} if has_unknown(own) else plain(own)}
            for asked, own in found
        ]

    def graphs(self) -> dict[str, object]:
        """Resolve the graph mode, as the runner does once it has the backends."""
        run = self._run
        second = run.uses_second_runner(self._config)
        run.warnings.clear()
        mode = self._answered("graph_mode_of", self._config, self._descriptions, second=second)
        found = {each: self._known(f"the {each} of graphs", own) for each, own in mode.items()}
        return {**found, "words": [*run.warnings]}

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


@cache
def _script() -> Module:
    text = _SCRIPT.read_bytes()
    return Module(_SCRIPT.stem, f"backend_caps/engines/vllm/{_SCRIPT.name}", ast.parse(text), text)


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
