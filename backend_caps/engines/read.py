"""Read an engine: the installed one, a folder's or a wheel's."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from backend_caps.engines.errors import EngineSourceError, UnknownEngineError
from backend_caps.engines.reading import EngineReading
from backend_caps.engines.source.tree import INSTALLED, open_tree

ENGINES = ("sglang", "vllm")
"""The engines that there are readers for."""


def read_engine(engine: str, source: Path | None = None) -> EngineReading:
    """Read what an engine's source says of its attention backends, importing nothing of it.

    Args:
        engine: one of `ENGINES`.
        source: a wheel, or a folder with the package in it; the installed one if None.

    Raises:
        UnknownEngineError: there is no reader for it.
        EngineNotInstalledError: no source is named, and it is not installed.
        EngineSourceError: the source holds no such engine, cannot be opened, or is nested too deep.
    """
    if engine not in ENGINES:
        raise UnknownEngineError(name=engine, known=ENGINES)
    with _no_collection():
        try:
            return _read(engine, source)
        except RecursionError as error:
            where = INSTALLED if source is None else str(source)
            problem = "is nested deeper than can be read"
            raise EngineSourceError(engine=engine, source=where, problem=problem) from error


def _read(engine: str, source: Path | None) -> EngineReading:
    if engine == "sglang":
        from backend_caps.engines.sglang.read import (  # noqa: PLC0415 - one of the two
            is_wanted,
            read_sglang,
        )

        return read_sglang(open_tree(engine, source, within=is_wanted))
    from backend_caps.engines.vllm.read import WITHIN, read_vllm  # noqa: PLC0415 - the other

    return read_vllm(open_tree(engine, source, within=WITHIN))


@contextmanager
def _no_collection() -> Iterator[None]:
    """Hold the garbage collector: syntax trees are many objects, and none is garbage."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
