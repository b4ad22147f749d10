"""What vLLM makes of a command line, interpreted from its source.

Its own functions run: the parser, `create_engine_config`, the constructors of the models with
their layers, the platform's choice for each of them, and the resolution of the graph mode. Nothing
of it is written down here but where those functions are, and what they ask of the machine and of
the model's configuration (`surroundings`).
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

from backend_caps.capability.gpu import Gpu
from backend_caps.engines.ahead import in_forks
from backend_caps.engines.command_line import without_model
from backend_caps.engines.model import STORED_PATH, Model, as_path, with_paths
from backend_caps.engines.reading import LaunchQuery
from backend_caps.engines.source.calls import NotFollowedError
from backend_caps.engines.source.index import Index
from backend_caps.engines.source.library import forget_types
from backend_caps.engines.source.values import Raised
from backend_caps.engines.vllm.layers import Layers
from backend_caps.engines.vllm.query import launch_of
from backend_caps.engines.vllm.server import Server, surroundings_of
from backend_caps.resolution.launch import Launch

_ARGUMENTS = "vllm/engine/arg_utils.py"
_SHAPE = "what the interpreter can follow"
_OF_PROGRAMS = (AttributeError, ImportError, KeyError, NameError, TypeError)
"""Errors of a wrong name or type: they come of a value that stands in, and refuse no server."""


def read_launches(index: Index, query: LaunchQuery) -> list[Launch]:
    """Follow several command lines, each as `read_launch` does, on all cores.

    Those with the environment and the file of the first share a server that has imported vLLM's
    arguments and made its parser, which takes half of the time.
    """
    first, *rest = query.lines
    alone = partial(read_launch, index, gpu=query.gpu, num_gpus=query.num_gpus, model=query.model)
    parsing = alone(first)  # what it parses the others need too
    found: dict[int, Launch] = {}
    begun = _begun(index, query, first) if rest else None

    def follow(argv: Sequence[str]) -> tuple[Launch, list[str]]:
        if begun is None or surroundings_of(argv) != surroundings_of(first):
            return alone(argv), index.parsed
        return _read(lambda: begun, index, argv, query.gpu, query.model), index.parsed

    try:
        for at, (launch, paths) in in_forks(follow, rest):
            found[at] = launch
            deque(index.modules(paths), maxlen=0)  # for the forks to come
    finally:
        if begun is not None:
            begun.restore()
        forget_types()
    return [parsing, *(found[at] for at in range(len(rest)))]


def _begun(index: Index, query: LaunchQuery, argv: Sequence[str]) -> Server | None:
    """Return a server that parses command lines next; None where it cannot, which each finds."""
    with suppress(Exception):
        run = Server(index, query.gpu, query.num_gpus, query.model, argv)
        with ExitStack() as failed:
            failed.callback(run.restore)  # what the lines that follow alone must not find
            _ = run.parser
            failed.pop_all()
        return run
    return None


def read_launch(index: Index, argv: Sequence[str], gpu: Gpu, num_gpus: int, model: Model) -> Launch:
    """Follow a command line through vLLM's functions.

    Args:
        index: vLLM's source.
        argv: the command line, `NAME=value` before it; its model is replaced by `model`.
        gpu: the machine's GPUs.
        num_gpus: how many it has.
        model: the model, by its configuration.
    """
    try:
        return _read(lambda: Server(index, gpu, num_gpus, model, argv), index, argv, gpu, model)
    finally:
        forget_types()


def _read(
    begin: Callable[[], Server], index: Index, argv: Sequence[str], gpu: Gpu, model: Model
) -> Launch:
    argv = with_paths(argv, as_path)
    answer: dict[str, Any] = {"version": index.tree.version or "unknown"}
    unchecked: list[dict[str, str]] = []
    run: Server | None = None
    try:
        run = begin()
        _follow(run, [*without_model(argv), "--model", model.name], answer)
    except Raised as error:
        words = error.message or error.error
        if isinstance(error.value, _OF_PROGRAMS):
            unchecked.append(
                {"message": f"{error.error}: {words}", "at": error.at, "unless": _SHAPE}
            )
        else:
            answer["refusal"] = {"message": words, "at": error.at}
    except NotFollowedError as error:
        unchecked.append({"message": str(error), "at": error.at, "unless": _SHAPE})
    except Exception as error:  # noqa: BLE001 - a fault of ours is no answer of the engine's
        words = f"the interpreter fails ({type(error).__name__}: {error})"
        unchecked.append({"message": words, "at": _ARGUMENTS, "unless": _SHAPE})
    if run is not None:
        run.restore()
        answer["rewrites"] = run.rewrites
        unchecked += [{"message": n.text, "at": n.at, "unless": n.why} for n in run.notes]
    answer, unchecked = json.loads(json.dumps([answer, unchecked]).replace(STORED_PATH, ""))
    return launch_of(answer, gpu, model.name, unchecked)


def _follow(run: Server, argv: Sequence[str], answer: dict[str, Any]) -> None:
    """Configure a server and build its models, and add to the answer what is known by then."""
    config = run.configured(argv)
    answer["values"] = run.values_of(config)
    answer["facts"] = run.facts_of(config)
    layers = Layers(run, config)
    layers.settle_block_size()
    answer["layers"] = layers.groups()
    answer["caches"] = layers.caches()
    answer["values"] = run.values_of(config)
    answer["choices"] = layers.choices()
    answer["graphs"] = layers.graphs()
