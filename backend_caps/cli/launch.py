"""The options of an engine's start, and the command line and the model that it starts with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from backend_caps.capability.facts import Facts
from backend_caps.capability.model import AUTO
from backend_caps.cli import invocation
from backend_caps.cli.output import working
from backend_caps.cli.request import query_of, without_launch
from backend_caps.resolution.engine import option_of, read_flags, without_options, words_of
from backend_caps.resolution.launch import Launch
from backend_caps.resolution.selection import BACKEND_FLAGS

if TYPE_CHECKING:
    from backend_caps.engines.reading import LaunchQuery


model_option = click.option(
    "--model-config",
    metavar="MODEL",
    help="With an engine and a GPU's fact, follow the command line through the engine's own "
    "functions, for this model: a folder with a config.json, or a stored one such as "
    "llama-3.1-8b; by default the one that the command line names.",
)


def launch_options(command: click.Command, *, words: str = "") -> click.Command:
    """Add the options of an engine that is read or asked, and of the model that it serves.

    Args:
        command: a command that reads an engine.
        words: added to the help of `--engine`.
    """
    click.option(
        "--engine-python",
        metavar="PATH",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Take the engine of --engine from this Python, and ask it for the launch.",
    )(command)
    model_option(command)
    return invocation.engine_options(command, words=words)


def launch_of_layers(ctx: click.Context, facts: Facts) -> Launch:
    """Ask an installed vLLM for the layers of a server, or read its source.

    Raises:
        UsageError: no GPU or no model is named; or a Python and a source are, or neither.
        EngineError: the model or the source cannot be read, or vLLM gives no answer.
    """
    given, words = ctx.params, _words(ctx)
    python, source = given["engine_python"], given["source"]
    if (python is None) is (source is None):
        raise click.UsageError(
            "select --engine vllm asks the vLLM of --engine-python PATH, or reads that of --source "
            "PATH, a wheel or a folder. Expected one of the two."
        )
    model = _model(ctx, words)
    query = None if model is None else query_of([words], model, facts)
    if query is None:
        raise without_launch("select --engine vllm configures a server")
    if python is not None:
        from backend_caps.engines.vllm.query import ask_launches  # noqa: PLC0415 - for vLLM alone

        with working("asking vLLM for its layers"):
            return ask_launches(python, query)[0]
    from backend_caps.engines.read import read_layers  # noqa: PLC0415 - for vLLM alone

    with working("reading vLLM's source"):
        return read_layers(source, query)[0]


def model_and_words(ctx: click.Context, facts: Facts) -> tuple[str | None, tuple[str, ...]]:
    """Return the model of a launch, and its command line; None where it is not followed.

    Without --model-config it is the model that the command line names, where its configuration is
    known, and the GPU is.
    """
    given = ctx.params
    named: str | None = given.get("model_config")
    has_engine = given.get("engine") not in {None, invocation.NO_ENGINE}
    if named is None and ("model_config" not in given or not has_engine or facts.gpu is None):
        return None, ()
    words = _words(ctx)
    if named is not None:
        return named, words
    from backend_caps.engines.model import config_of  # noqa: PLC0415 - for a launch alone

    named = _model(ctx, words)
    return (None, ()) if named is None or config_of(named) is None else (named, words)


def query_of_server(ctx: click.Context, facts: Facts) -> LaunchQuery | None:
    """Return what engines are asked of a command line; None where none is given.

    Raises:
        UsageError: the model or the machine is not known.
        EngineError: the model's configuration cannot be read.
    """
    words = _words(ctx)
    model = _model(ctx, words)
    if model is None and not words:
        return None
    query = None if model is None else query_of([words], model, facts)
    if query is None:
        raise without_launch("a server's plan is of a model on a machine")
    return query


def _model(ctx: click.Context, words: tuple[str, ...]) -> str | None:
    """Return the model of the options, else that of the command line."""
    from backend_caps.engines.command_line import named_model  # noqa: PLC0415 - for a launch alone

    return ctx.params["model_config"] or named_model(words)


def _words(ctx: click.Context) -> tuple[str, ...]:
    """Return the command line that an engine starts with, flags of files and environment first.

    `auto` leaves a backend to the engine, whose own command line has no such word.
    """
    traced, file = invocation.traced_in(ctx), ctx.params.get("flags_file")
    words = [
        *words_of({} if traced is None else traced.server_values()),
        *words_of({} if file is None else read_flags(file)),
        *ctx.ensure_object(invocation.Invocation).server_flags,
    ]
    return tuple(without_options(words, [*map(option_of, BACKEND_FLAGS)], AUTO))
