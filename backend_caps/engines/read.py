"""Read an engine: the installed one, a folder's or a wheel's."""

from __future__ import annotations

import gc
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from backend_caps.engines.ahead import Answer, in_thread
from backend_caps.engines.reading import EngineError, EngineReading, LaunchQuery
from backend_caps.engines.source.files import open_tree, unusable

ENGINES = ("sglang", "vllm")
"""Engines that have a reader."""


def read_engine(
    engine: str,
    source: Path | None = None,
    python: Path | None = None,
    query: LaunchQuery | None = None,
) -> EngineReading:
    """Read an engine's attention backends from its source, without importing it.

    Args:
        engine: one of `ENGINES`.
        source: a wheel, or a folder with the package in it; the installed one if None.
        python: the Python of an environment that has SGLang, in place of a source. It is asked
            what becomes of a command line, as this Python is where the installed one is read.
        query: what the reading's `launches` will be asked, which is followed meanwhile.

    Raises:
        EngineError: the engine has no reader or is not installed; or the source does not hold
            it, cannot be opened, or is nested too deep; or there is no SGLang for `python`.
    """
    if engine not in ENGINES:
        raise EngineError(
            "unknown-engine",
            f"no reader knows the engine {engine!r}; known: {', '.join(ENGINES)}. "
            "Name one of them.",
        )
    was_collecting = gc.isenabled()
    # Syntax trees are many live objects: each collection would scan all and free none.
    gc.disable()
    try:
        return _read(engine, source, python, query)
    except RecursionError as error:
        raise unusable(engine, source, "is nested deeper than can be read") from error
    finally:
        if was_collecting:
            gc.enable()


def _read(
    engine: str, source: Path | None, python: Path | None, query: LaunchQuery | None
) -> EngineReading:
    if engine == "sglang":
        from backend_caps.engines.sglang.query import ask_launches, folder_of  # noqa: PLC0415 - load one reader only
        from backend_caps.engines.sglang.read import is_wanted, read_sglang  # noqa: PLC0415

        if python is not None:
            source = folder_of(python)
        elif source is None:
            python = Path(sys.executable)
        if python is None:
            return read_sglang(open_tree(engine, source, within=is_wanted), query)
        launches: Answer = partial(ask_launches, python)
        if query is not None:
            launches = in_thread(launches, query)
        reading = read_sglang(open_tree(engine, source, within=is_wanted))
        return replace(reading, launches=launches)
    from backend_caps.engines.vllm.read import read_vllm  # noqa: PLC0415 - load one reader only

    # Every file is read, as files of models define attention backends too.
    return read_vllm(open_tree(engine, source))
