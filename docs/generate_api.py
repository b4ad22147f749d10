# ruff: noqa: INP001 - the folder holds pages, and the modules that keep them true
"""The generated parts of the API page: names and signatures, from the code."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from enum import Enum

import backend_caps
from backend_caps import relay, runtime
from backend_caps.conformance import simulator
from backend_caps.engines import sglang
from backend_caps.engines.read import read_engine
from docs.generate import first_line, table

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


_CONSTANTS = ("DEVICE_NAME", "HOST")
"""Names of strings and numbers, which have no docstring of their own."""


def future_map() -> str:
    """Give FutureMap and its methods with their whole docstrings."""
    return _class_documented("FutureMap", relay.FutureMap)


def engine() -> str:
    """Give Engine, its options and its methods with their whole docstrings."""
    options = _documented("EngineOptions", runtime.EngineOptions)
    return "\n\n".join((_class_documented("Engine", runtime.Engine), options))


def attention_backend() -> str:
    """Give the methods that an attention backend has, with their whole docstrings."""
    return _class_documented("AttentionBackend", runtime.AttentionBackend, with_class=False)


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
