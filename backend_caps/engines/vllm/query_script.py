"""Runs vLLM's own configuration and choice of attention backends, for a machine that is described.

The Python that has vLLM runs it as a script, for `query`; it imports nothing of this package, and
is asked and answers as `query_process` says.

A command line goes through vLLM's parser and `create_engine_config`. The model is then built on
torch's `meta` device, which has no memory, so that each of its layers chooses its backend as in a
server, by its own head size, window and sinks; and vLLM resolves the graph mode from the builders
of those backends. No weights are read.

An answer has the values that vLLM ends with, each one that it rewrites with the line that does, the
layers with their backends, the graph mode with the engine's own words where it lowers it, and,
where it refuses, its message and line.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import importlib
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

_Value: TypeAlias = Any
"""A value of vLLM, whose classes are not known here."""
_MISSING = object()


if TYPE_CHECKING:
    from backend_caps.engines import query_machine, query_process
    from backend_caps.engines.vllm import query_layers, query_platform, query_values
else:
    query_machine = sys.modules["backend_caps_query_machine"]
    query_process = sys.modules["backend_caps_query_process"]
    query_platform = query_process.load(Path(__file__).with_name("query_platform.py"))
    query_values = query_process.load(Path(__file__).with_name("query_values.py"))
    query_layers = query_process.load(Path(__file__).with_name("query_layers.py"))
plain = query_process.plain
PACKAGE = "vllm"
READERS = frozenset({"get_current_vllm_config", "get_current_vllm_config_or_none"})
"""The functions that return what is configured of a command line."""


class Rewrites:
    """The values that vLLM assigns to its configurations itself, in order."""

    def __init__(self) -> None:
        self.found: list[dict[str, object]] = []

    def watch(self) -> None:
        """Record assignments to the configurations from now on."""
        config = importlib.import_module("vllm.config")
        for owner, names in query_values.VALUES.items():
            cls = getattr(config, "".join(each.title() for each in owner.split("_")))
            self._watch(cls, owner, frozenset(names))

    def _watch(self, cls: _Value, owner: str, names: frozenset[str]) -> None:
        assign = cls.__setattr__

        def assigned(config: _Value, name: str, after: object) -> None:
            before = config.__dict__.get(name, _MISSING)
            assign(config, name, after)
            if name in names and before is not _MISSING and plain(before) != plain(after):
                self.found.append(
                    {
                        "name": f"{owner}.{name}",
                        "before": _named(before),
                        "after": _named(after),
                        "at": _place(sys._getframe(1)),  # noqa: SLF001 - the line that assigns
                    }
                )

        cls.__setattr__ = assigned


def _place(frame: FrameType) -> str:
    return query_process.place(frame.f_code, frame.f_lineno, "vllm")


def _named(value: _Value) -> object:
    """Write an enumeration's member by its name, and a dtype without its module."""
    name = getattr(value, "name", None)
    if isinstance(name, str):
        return name
    return plain(value) if not str(value).startswith("torch.") else str(value)[len("torch.") :]


def processed(argv: Sequence[str]) -> dict[str, object]:
    """Process one command line, and answer as the module says."""
    rewrites = Rewrites()
    answer: dict[str, object] = {"stage": "command line"}
    try:
        arguments = _parsed(argv)
        rewrites.watch()
        answer["stage"] = "arguments"
        config = arguments.create_engine_config(_context())
        answer["values"] = values_of(config)
        answer["facts"] = facts_of(config)
        answer["stage"] = "layers"
        layers = Layers(config)
        layers.settle_block_size()
        answer["layers"] = layers.groups()
        answer["stage"] = "caches"
        answer["caches"] = layers.caches()
        answer["values"] = values_of(config)
        answer["choices"] = layers.choices()
        answer["stage"] = "graphs"
        answer["graphs"] = layers.graphs()
        answer["stage"] = "accepted"
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever vLLM raises is its answer
        own = _unwrapped(error)
        found = query_process.refusal(own, "vllm")
        if _is_refusal(own):
            answer["refusal"] = found
        else:
            answer["undecided"] = f"{found['error']}: {str(found['message'])[:300]}"
            answer["stage"] = found["at"] or answer["stage"]
    version = importlib.metadata.version("vllm")
    return answer | {"rewrites": rewrites.found, "version": version}


def _context() -> _Value:
    """Return what tells vLLM that a server is started, on which its defaults of sizes depend."""
    return importlib.import_module("vllm.usage.usage_lib").UsageContext.OPENAI_API_SERVER


def _unwrapped(error: BaseException) -> BaseException:
    """Return the error behind one of pydantic's, which has its words in a frame of its own."""
    details = error.errors() if hasattr(error, "errors") else ()
    causes = (each.get("ctx", {}).get("error") for each in details)
    raised = (each for each in causes if getattr(each, "__traceback__", None) is not None)
    return next(raised, error)


def _is_refusal(error: BaseException) -> bool:
    """Return whether vLLM, its parser or its validation raised an error on purpose.

    What another package raises, and the errors of a wrong type or name, may come of a stand-in.
    """
    if isinstance(error, query_process.Refusal) or hasattr(error, "errors"):
        return True
    if isinstance(error, ImportError | AttributeError | TypeError | KeyError):
        return False
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return last is not None and _is_of_vllm(last.tb_frame.f_code) and _raises(last)


def _is_of_vllm(code: CodeType) -> bool:
    return "/vllm/" in code.co_filename.replace(os.sep, "/")


def _raises(at: TracebackType) -> bool:
    """Return whether a frame is at a `raise` or an `assert`, not at a call of torch's C code."""
    return dis.opname[at.tb_frame.f_code.co_code[at.tb_lasti]] in {"RAISE_VARARGS", "RERAISE"}


def _parsed(argv: Sequence[str]) -> _Value:
    args, parser = _parser()

    def refuse(_parser: object, message: str) -> None:
        raise query_process.Refusal(message)

    type(parser).error = refuse
    return args.from_cli_args(parser.parse_args(list(argv)))


def _parser() -> tuple[_Value, _Value]:
    args = importlib.import_module("vllm.engine.arg_utils").EngineArgs
    parser = importlib.import_module("vllm.utils.argparse_utils").FlexibleArgumentParser()
    return args, args.add_cli_args(parser)


def values_of(config: _Value) -> dict[str, object]:
    """List the final values that matter here."""
    parts = {owner: getattr(config, owner) for owner in query_values.VALUES}
    found = {
        f"{owner}.{name}": _named(getattr(part, name))
        for owner, part in parts.items()
        for name in query_values.VALUES[owner]
        if hasattr(part, name)
    }
    return {**found, query_values.SECOND_RUNNER: query_platform.uses_second_runner(config)}


def facts_of(config: _Value) -> dict[str, object]:
    """List what the model's configuration tells."""
    model = config.model_config
    return {
        "attention_arch": "mla" if model.use_mla else "mha",
        "dtype": _named(model.dtype),
        "head_size": model.get_head_size(),
        "context_length": model.max_model_len,
        "device": "cuda",
    }


class Questions:
    """What layers ask of the platform."""

    def __init__(self, layers: Mapping[str, _Value]) -> None:
        """Take the layers of the server, to which each that has asked adds itself."""
        self.found: dict[str, tuple[_Value, _Value]] = {}
        self._layers = layers
        self._by_layer: dict[int, _Value] = {}

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Record what is asked in a `with` block."""
        places = query_layers.SELECTORS
        module = importlib.import_module(next(filter(query_layers.has_module, places)))
        select = getattr(module, query_layers.SELECT)

        def selected(*args: _Value, **named: _Value) -> _Value:
            given = dict(zip(query_layers.QUESTION, args, strict=False)) | named
            own = given.get("attn_selector_config")
            if hasattr(own, "_asdict"):
                asked = (own, given.get("num_heads"))
                self.found.setdefault(str(asked), asked)
                self._by_layer[len(self._layers)] = own
            return select(*args, **named)

        setattr(module, query_layers.SELECT, selected)
        try:
            yield
        finally:
            setattr(module, query_layers.SELECT, select)

    def of_layer(self, name: str) -> dict[str, object] | None:
        """Return what a layer asked; None where it asked nothing, or by arguments alone."""
        asked = self._by_layer.get([*self._layers].index(name))
        return None if asked is None else _written(asked)


def _written(asked: _Value) -> dict[str, object]:
    return {key: _named(value) for key, value in asked._asdict().items()}


class Layers:
    """The layers of a server's models, each with its backend, built without memory."""

    def __init__(self, config: _Value) -> None:
        """Build the model, and the draft's where there is one."""
        self._config = config
        self._is_second = query_platform.uses_second_runner(config)
        self._questions = Questions(config.compilation_config.static_forward_context)
        query_platform.join_groups(config.parallel_config, query_machine.Anything)
        query_platform.begin_workspaces()
        with self._questions.watched(), query_platform.without_memory(config):
            self._build()

    def _build(self) -> None:
        loading = importlib.import_module("vllm.model_executor.model_loader.utils")
        loading.initialize_model(vllm_config=self._config)
        self._of_target = frozenset(query_layers.layers_of(self._config))
        drafter = query_layers.drafter_of(self._config, second=self._is_second)
        if drafter is not None:
            query_platform.load_draft(self._config, drafter, loading.initialize_model)

    def settle_block_size(self) -> None:
        """Let the platform settle the block size, once each layer has its backend."""
        with query_platform.current(self._config):
            query_layers.settle_block_size(self._config)

    @functools.cached_property
    def _descriptions(self) -> list[dict[str, Any]]:
        """Each layer with its backend, once the block size is settled."""
        with query_platform.current(self._config):
            return query_layers.layer_descriptions(self._config)

    def groups(self) -> list[dict[str, Any]]:
        """List the layers that are alike, with their backend and what it supports."""
        return query_values.grouped(map(self._written, self._descriptions))

    def _written(self, layer: Mapping[str, Any]) -> dict[str, Any]:
        name = layer["name"]
        return {
            "role": "target" if name in self._of_target else "draft",
            "path": ".".join(layer["class"].full_cls_name()),
            "sizes": {each: _named(value) for each, value in layer["sizes"].items()},
            "asked": self._questions.of_layer(name),
            **{each: layer[each] for each in query_values.OF_LAYER},
        }

    def caches(self) -> list[dict[str, Any]]:
        """List the groups of layers that share blocks."""
        with query_platform.current(self._config):
            return query_layers.cache_groups_of(self._config)

    def choices(self) -> list[dict[str, object]]:
        """List, for each kind of layer, the backends by priority with the reasons against them."""
        with query_platform.without_memory(self._config):  # some have buffers of their own
            return [
                {
                    "asked": _written(asked),
                    "against": query_layers.reasons_against(asked, num_heads),
                }
                for asked, num_heads in self._questions.found.values()
            ]

    def graphs(self) -> dict[str, object]:
        """Resolve the graph mode, as the runner does once it has the backends."""
        words = query_platform.Words()
        with query_platform.current(self._config), words.heard("vllm"):
            found = query_layers.graph_mode_of(
                self._config, self._descriptions, second=self._is_second
            )
        return {**found, "words": words.found}


def prepare(request: Mapping[str, Any]) -> None:
    """Import vLLM's arguments, on the machine that is described."""
    query_platform.describe(request["machine"], query_machine)
    for name in ("vllm.engine.arg_utils", *query_layers.MODULES):
        importlib.import_module(name)
    query_platform.silence()
    with contextlib.suppress(Exception):  # which each line meets itself
        _parser()  # vLLM keeps what it computes of each class of options
