"""Read an engine: the installed one, a folder's or a wheel's."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from backend_caps.discovery.engine_plugins import engine_distributions
from backend_caps.discovery.process import Search
from backend_caps.engines.ahead import Answer, in_fork, in_thread
from backend_caps.engines.reading import Acceptances, EngineError, EngineReading, LaunchQuery
from backend_caps.engines.source.files import Tree, open_tree, unusable
from backend_caps.engines.source.index import Index
from backend_caps.resolution.launch import Launch

ENGINES = ("sglang", "vllm")
"""Engines that have a reader."""


def read_engine(
    engine: str,
    source: Path | None = None,
    python: Path | None = None,
    query: LaunchQuery | None = None,
    plugins: Search | None = None,
) -> EngineReading:
    """Read an engine's attention backends from its source, without importing it.

    Args:
        engine: one of `ENGINES`.
        source: a wheel, or a folder with the package in it; the installed one if None.
        python: the Python of an environment that has it, in place of a source. It is asked
            what becomes of a command line, as this Python is where the installed one is read.
        query: what the reading's `launches` will be asked, which is followed meanwhile.
        plugins: where to look for distributions that extend the engine by its own entry points,
            and are read beside it; for none if None.

    Raises:
        EngineError: the engine has no reader or is not installed; or the source does not hold
            it, cannot be opened, or is nested too deep; or `python` has no such engine.
    """
    if engine not in ENGINES:
        raise EngineError(
            "unknown-engine",
            f"no reader knows the engine {engine!r}; known: {', '.join(ENGINES)}. "
            "Name one of them.",
        )
    with _of_source(engine, source):
        return _read(engine, source, python, query, plugins)


def read_acceptances(engine: str, source: Path) -> Acceptances:
    """Find what SGLang's server takes with each backend, in a minute on two cores.

    The backends of other engines say themselves what they take: `acceptances` of their reading asks
    them.

    Args:
        engine: one of `ENGINES`.
        source: a wheel, or a folder with the package in it.

    Raises:
        EngineError: the source does not hold it, cannot be opened, or is nested too deep.
    """
    if engine != "sglang":
        return Acceptances(found=(), tried={})
    from backend_caps.engines.sglang import acceptance  # noqa: PLC0415 - one reader only
    from backend_caps.engines.sglang.read import is_wanted  # noqa: PLC0415

    with _of_source(engine, source):
        tree = open_tree(engine, source, within=is_wanted, lazily=True)
        return acceptance.read_acceptances(Index(tree))


def read_layers(source: Path, query: LaunchQuery) -> Sequence[Launch]:
    """Follow command lines of vLLM through its source, to the layers of their models.

    Args:
        source: a wheel, or a folder with the package in it.
        query: the command lines, the machine and the model.

    Raises:
        EngineError: the source does not hold it, cannot be opened, or is nested too deep; or the
            GPU is none of NVIDIA's.
    """
    from backend_caps.engines.vllm.arguments import read_launches  # noqa: PLC0415 - one reader only

    with _of_source("vllm", source):
        return read_launches(Index(open_tree("vllm", source, lazily=True)), query)


@contextmanager
def _of_source(engine: str, source: Path | None) -> Iterator[None]:
    """Read without collections: syntax trees are many live objects, of which none is freed."""
    was_collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    except RecursionError as error:
        raise unusable(engine, source, "is nested deeper than can be read") from error
    finally:
        if was_collecting:
            gc.enable()


class _Reader(NamedTuple):
    """How one engine is read and asked."""

    read: Callable[[Tree], EngineReading]
    follow: Callable[[Index, LaunchQuery], Sequence[Launch]]
    ask: Callable[[Path, LaunchQuery], Sequence[Launch]]
    within: Callable[[str], bool]
    """Returns whether a file may matter."""


def _reader(engine: str, plugins: Search | None) -> _Reader:
    """Import one engine's reader, and find what extends it."""
    if engine == "sglang":
        from backend_caps.engines.sglang.arguments import read_launches as follow  # noqa: PLC0415
        from backend_caps.engines.sglang.query import ask_launches as ask  # noqa: PLC0415
        from backend_caps.engines.sglang.read import is_wanted, read_sglang  # noqa: PLC0415

        return _Reader(read_sglang, follow, ask, is_wanted)
    from backend_caps.engines.vllm.arguments import read_launches  # noqa: PLC0415
    from backend_caps.engines.vllm.plugins import read_with_plugins  # noqa: PLC0415
    from backend_caps.engines.vllm.query import ask_launches  # noqa: PLC0415

    found = () if plugins is None else tuple(engine_distributions("vllm", plugins))
    is_installed = plugins is not None and not plugins.named
    read = partial(read_with_plugins, distributions=found, installed=is_installed)
    # Every file is read, as files of models define attention backends too.
    return _Reader(read, read_launches, ask_launches, bool)


def _read(
    engine: str,
    source: Path | None,
    python: Path | None,
    query: LaunchQuery | None,
    plugins: Search | None,
) -> EngineReading:
    own = _reader(engine, plugins)
    if python is not None:
        from backend_caps.engines.query import folder_of  # noqa: PLC0415 - for a Python that is named

        source = folder_of(python, engine)
    elif source is None:
        python = Path(sys.executable)
    tree_of = partial(open_tree, engine, source, within=own.within)

    def follow(asked: LaunchQuery) -> Sequence[Launch]:
        return own.follow(Index(tree_of(lazily=True)), asked)

    answer: Answer | None = None if python is None else partial(own.ask, python)
    begun: Callable[[Answer], Answer] | None = None
    if query is not None:
        begun = in_fork(follow, query) if answer is None else in_thread(answer, query)
    reading = own.read(tree_of())
    launches = answer or reading.launches
    if begun is not None and launches is not None:
        launches = begun(launches)
    return replace(reading, launches=launches)
