"""The generated parts of the API page: names and signatures, from the code."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from typing import ForwardRef

import backend_caps
from backend_caps import protocols, relay, runtime
from backend_caps.conformance import scenes, simulator
from backend_caps.engines import sglang
from backend_caps.engines.read import read_engine
from backend_caps.runtime.memory import ReqToTokenPool, TokenToKVPool
from backend_caps.runtime.metrics import Metrics
from backend_caps.runtime.model import random_llama
from backend_caps.runtime.observers import EveryObserver, StepTotals
from backend_caps.runtime.progress import CaptureProgress, GenerateProgress
from docs.tools.markdown import table
from docs.tools.sources import attribute_docs_of, first_line

_WIDTH = 100
_PUBLIC = (*backend_caps.__all__, "configure")
"""`configure` is left out of `import *`, for it loads torch."""


def public_names() -> str:
    """Give each name of the package with its first docstring line."""
    return _names(backend_caps, _PUBLIC)


def relay_names() -> str:
    """Give each name of `backend_caps.relay` with its first docstring line."""
    return _names(relay, relay.__all__)


def _names(module: object, names: Sequence[str]) -> str:
    rows = [(f"`{name}`", first_line(getattr(module, name), name)) for name in names]
    return table(("name", "what it does"), rows)


def functions() -> str:
    """Give the functions of the package with their whole docstrings."""
    return "\n\n".join(
        _documented(name, getattr(backend_caps, name))
        for name in _PUBLIC
        if inspect.isfunction(getattr(backend_caps, name))
    )


def engine_functions() -> str:
    """Give the functions that read engines and answer for them, with their whole docstrings."""
    named: dict[str, Callable[..., object]] = {
        "backend_caps.engines.read.read_engine": read_engine,
        "backend_caps.engines.sglang.decide_needs_cpu_seq_lens": sglang.decide_needs_cpu_seq_lens,
        "backend_caps.engines.sglang.explain_needs_cpu_seq_lens": sglang.explain_needs_cpu_seq_lens,
    }
    return "\n\n".join(_documented(name, function) for name, function in named.items())


def runtime_names() -> str:
    """Give each name of `backend_caps.runtime` with its first docstring line."""
    return _names(runtime, runtime.__all__)


def simulator_names() -> str:
    """Give each name of the simulated accelerator with its first docstring line."""
    return _names(simulator, [name for name in simulator.__all__ if name not in _CONSTANTS])


def protocol_names() -> str:
    """Give each name of `backend_caps.protocols` with its first docstring line."""
    return _names(protocols, protocols.__all__)


def scene_names() -> str:
    """Give each class and function of the scenes with its first docstring line."""
    values = {name: getattr(scenes, name) for name in scenes.__all__}
    return _names(
        scenes, [n for n, own in values.items() if inspect.isclass(own) or inspect.isfunction(own)]
    )


_CONSTANTS = ("DEVICE_NAME", "HOST")
"""Names of strings and numbers, which have no docstring of their own."""


def future_map() -> str:
    """Give FutureMap and its methods with their whole docstrings."""
    return _class_documented("FutureMap", relay.FutureMap)


def engine() -> str:
    """Give Engine, its options and its methods with their whole docstrings."""
    options = _attributes_documented(runtime.EngineOptions)
    return "\n\n".join((_class_documented("Engine", runtime.Engine), options))


def attention_backend() -> str:
    """Give the methods that an attention backend has, with their whole docstrings."""
    return _class_documented("AttentionBackend", runtime.AttentionBackend, with_class=False)


def backend_reads() -> str:
    """Give what an attention backend reads: its site, the pools, a batch, a layer."""
    return "\n\n".join(
        (
            _attributes_documented(runtime.BackendSite),
            _class_documented("ReqToTokenPool", ReqToTokenPool),
            _class_documented("TokenToKVPool", TokenToKVPool),
            _attributes_documented(runtime.ForwardBatch),
            _attributes_documented(runtime.AttentionLayer),
        )
    )


def requests() -> str:
    """Give what goes into an engine with a prompt, and what comes out."""
    return "\n\n".join(
        map(_attributes_documented, (runtime.Sampling, runtime.Request, runtime.NewToken))
    )


def observers() -> str:
    """Give what a step says of itself, and who can be told."""
    return "\n\n".join(
        (
            _attributes_documented(runtime.StepStats),
            _class_documented("backend_caps.runtime.observers.EveryObserver", EveryObserver),
            _attributes_documented(StepTotals, "backend_caps.runtime.observers.StepTotals"),
            _class_documented("backend_caps.runtime.metrics.Metrics", Metrics),
            _class_documented("backend_caps.runtime.progress.GenerateProgress", GenerateProgress),
            _class_documented("backend_caps.runtime.progress.CaptureProgress", CaptureProgress),
        )
    )


def random_model() -> str:
    """Give the function that makes a small model."""
    return _documented("backend_caps.runtime.model.random_llama", random_llama)


def simulation() -> str:
    """Give how the simulated accelerator is run, and what a run holds."""
    functions = ("register", "simulate", "systematic_schedules")
    documented = (_documented(name, getattr(simulator, name)) for name in functions)
    kinds = (
        simulator.Simulation,
        simulator.Counts,
        simulator.HostSync,
        simulator.Race,
        simulator.Access,
    )
    return "\n\n".join((*documented, *map(_attributes_documented, kinds)))


def _attributes_documented(kind: type, name: str = "") -> str:
    """Give a class with a table of what it holds."""
    rows = [(f"`{own}`", f"`{said}`", text) for own, said, text in _attributes(kind)]
    heading = f"### {name or kind.__name__}\n\n{first_line(kind)}"
    return f"{heading}\n\n{table(('name', 'type', 'what it is'), rows)}"


def _attributes(kind: type) -> Iterator[tuple[str, str, str]]:
    """List name, type and docstring: of fields, or of what is annotated, then of properties."""
    docs = attribute_docs_of(kind)
    defaults = {own.name: own.default for own in fields(kind)} if is_dataclass(kind) else {}
    for name, said in inspect.get_annotations(kind).items():
        if not name.startswith("_"):
            default = defaults.get(name, MISSING)
            end = "" if default is MISSING else f" = {default!r}"
            yield name, f"{_type_text(said)}{end}", docs.get(name, "")
    for name, member in vars(kind).items():
        if isinstance(member, property) and member.fget is not None and not name.startswith("_"):
            said = inspect.signature(member.fget).return_annotation
            yield name, _type_text(said), first_line(member)


def _type_text(said: object) -> str:
    return said.__forward_arg__ if isinstance(said, ForwardRef) else str(said)


def _class_documented(name: str, kind: type, *, with_class: bool = True) -> str:
    methods = [
        _documented(f"{name}.{method}", getattr(kind, method))
        for method in vars(kind)
        if not method.startswith("_") and callable(getattr(kind, method))
    ]
    return "\n\n".join((*((_documented(name, kind),) if with_class else ()), *methods))


def _documented(name: str, thing: Callable[..., object]) -> str:
    return f"### {name}\n\n```text\n{_signature(name, thing)}\n\n{inspect.getdoc(thing)}\n```"


def _signature(name: str, thing: Callable[..., object]) -> str:
    """Write a signature as its source does, one parameter a line where it is long."""
    signature = inspect.signature(thing)
    words: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in words:
            words.append("*")
        words.append(_parameter(parameter))
    result = signature.return_annotation
    end = ")" if result in {signature.empty, "None"} else f") -> {result}"
    short = f"{name}({', '.join(words)}{end}"
    if len(short) <= _WIDTH:
        return short
    return "\n".join((f"{name}(", *(f"    {word}," for word in words), end))


def _parameter(parameter: inspect.Parameter) -> str:
    if parameter.annotation is parameter.empty:
        return parameter.name
    written = f"{parameter.name}: {parameter.annotation}"
    default = parameter.default
    if default is parameter.empty:
        return written
    if type(default) is object:  # stands for what was not given
        return f"{written} = ..."
    return f"{written} = {default if isinstance(default, Enum) else repr(default)}"
