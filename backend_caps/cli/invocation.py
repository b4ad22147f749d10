"""What a command was started with: server flags, settings, and where backends are found.

A command has options for the settings that it uses, and `--config`, which is eager: it reads file
and environment first, and their values become click's defaults. Backends are those of plugins, and
those that are read from the source of an engine.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

import click
from click.core import ParameterSource
from click.decorators import FC

from backend_caps.cli.output import Format, working
from backend_caps.discovery.loading import DEADLINE_S, LONGEST_DEADLINE_S, Loading
from backend_caps.discovery.process import Search
from backend_caps.discovery.registry import Registry, discover
from backend_caps.discovery.scan import PLUGINS, AllowList

if TYPE_CHECKING:
    from backend_caps.engines.reading import EngineReading, LaunchQuery
    from backend_caps.settings.settings import TracedSettings
    from backend_caps.supervisor import Log

_PREFIX = "BACKEND_CAPS_"
"""How the names of all our variables begin."""
_TRACED = "backend_caps.settings"
"""The key of the settings in click's `Context.meta`."""
ENGINES = ("sglang", "vllm")
"""The engines whose source is read."""
LAYERED = frozenset({"vllm"})
"""Those that choose backends by layer, and whose flags their own functions read."""
_SHOWN = 3
"""As many problems of a reading are in an error's text."""
NO_ENGINE = "none"
"""Overrides the engine of the settings, or the installed one."""
_HELP = (
    "Read this engine's own backends from its source as well; its own flags hold, and its own "
    "rules unless --rules is given."
)
SECONDS = click.FloatRange(min=0, max=LONGEST_DEADLINE_S, min_open=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """The server flags after `--`, and work that began before the command."""

    server_flags: tuple[str, ...] = ()
    loading: Loading | None = None
    """The load of the environment's plugins; None where the command needs none."""
    log: Log | None = None
    """The log of an earlier process of the same command; None without a supervisor."""


class SettingOption(click.Option):
    """The option of the setting of its name; file and environment give its default."""

    @property
    def setting(self) -> str:
        """The setting's name; an option's may end in an underscore, as `format_` does."""
        assert self.name is not None, "an option has a name"
        return self.name.removesuffix("_")


setting_option = partial(click.option, cls=SettingOption)
"""Makes the option of a setting."""


def _names(value: str | Sequence[str]) -> tuple[str, ...]:
    """Split names at commas; a file has a list already."""
    words = value.split(",") if isinstance(value, str) else value
    return tuple(name for word in words if (name := word.strip()))


def _configure(ctx: click.Context, _: click.Parameter, file: Path | None) -> Path | None:
    """Read file and environment; their values become the defaults of the command's options.

    Raises:
        BackendCapsError: something in them is refused; several faults come as one group.
    """
    is_set = file is not None or any(name.startswith(_PREFIX) for name in os.environ)
    if is_set and not ctx.resilient_parsing:
        # Imported only where something is set: a plain report is timed against `import torch`.
        from backend_caps.settings.settings import trace_settings  # noqa: PLC0415

        traced = trace_settings(file, os.environ)
        traced.check()
        ctx.meta[_TRACED] = traced
        ctx.default_map = _defaults(ctx.command, traced)
    return file


def _defaults(command: click.Command, traced: TracedSettings) -> dict[str, object]:
    """List the values of a command's options, by name, as click reads them."""
    values = traced.settings.given()
    return {
        option.name: value.value if isinstance(value, Enum) else value
        for option in command.params
        if isinstance(option, SettingOption) and not option.hidden and option.name is not None
        if (value := values.get(option.setting)) is not None
    }


config_option = click.option(
    "--config",
    type=click.Path(path_type=Path),
    is_eager=True,
    callback=_configure,
    help="Take settings from this YAML file; options and BACKEND_CAPS_<NAME> go before it.",
)
"""The file of settings, which gives the command's other options their defaults."""
_SEARCH = (
    config_option,
    setting_option(
        "--path",
        multiple=True,
        type=click.Path(exists=True, path_type=Path),
        help="Look for plugins in this folder instead of the environment. Repeatable.",
    ),
    setting_option(
        "--plugins",
        type=_names,
        metavar="NAME,NAME",
        help="Load the plugins of these distributions alone.",
    ),
    setting_option(
        "--discovery-deadline",
        "discovery_deadline_s",
        type=SECONDS,
        metavar="SECONDS",
        default=DEADLINE_S,
        show_default=True,
        help="How long the reading of one declaration may take.",
    ),
)


def format_option(*more: str) -> Callable[[FC], FC]:
    """Make `--format`, the function's `format_`; `more` are further formats."""
    return setting_option(
        "--format",
        "format_",
        type=click.Choice([*(each.value for each in Format), *more]),
        default=Format.TABLE.value,
        show_default=True,
        help="How to print.",
    )


def source_option(words: str) -> Callable[[FC], FC]:
    """Make `--source`, the folder or wheel that an engine is read from."""
    kind = click.Path(exists=True, path_type=Path)
    return setting_option("--source", type=kind, help=words)


def search_options(command: click.Command) -> click.Command:
    """Add `--config`, and the options that `PluginSearch` reads."""
    for option in _SEARCH:
        option(command)
    return command


def traced_in(ctx: click.Context) -> TracedSettings | None:
    """Return the settings of file and environment; None where nothing is set."""
    traced: TracedSettings | None = ctx.meta.get(_TRACED)
    return traced


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSearch:
    """Where plugins are looked for, which are loaded, and how long one may take."""

    path: tuple[Path, ...] = ()
    """Folders; none is the environment."""
    allow: AllowList | None = None
    deadline_s: float = DEADLINE_S
    loading: Loading | None = field(default=None, compare=False)
    """The load that has begun: of the environment's plugins."""

    @property
    def places(self) -> Search:
        """The folders, or the environment's, to read metadata in."""
        return Search.of_folders(self.path) if self.path else Search.of_process()

    @classmethod
    def from_context(cls, ctx: click.Context) -> Self:
        """Read the command's options."""
        options = ctx.params
        return cls(
            path=options["path"],
            allow=_allow_list(ctx, options["plugins"]),
            deadline_s=options["discovery_deadline_s"],
            loading=ctx.ensure_object(Invocation).loading,
        )

    def registry(self) -> Registry:
        """Find the plugins; take the load that has begun, where it is of the same search."""
        begun = PluginSearch(allow=AllowList.of(None, os.environ))
        with working("reading declarations"):
            if self.loading is not None and self == begun:
                return Registry.of_loading(self.loading)
            return discover(
                self.path or None, allow=self.allow, deadline_s=self.deadline_s, environ={}
            )


def _allow_list(ctx: click.Context, names: tuple[str, ...] | None) -> AllowList | None:
    """Make the allow list; its name is its place, for the problems of what it leaves out."""
    if names is None:
        return None
    traced = traced_in(ctx)
    if traced is None or ctx.get_parameter_source("plugins") is ParameterSource.COMMANDLINE:
        return AllowList.named("--plugins", names)
    place = traced.values["plugins"][0].place
    return AllowList.named(place if place == PLUGINS else f"the list at {place}", names)


def engine_options(
    command: click.Command, *, engines: Sequence[str] = ENGINES, words: str = ""
) -> click.Command:
    """Add --engine and --source.

    Args:
        command: a command that reads an engine.
        engines: those that it reads.
        words: added to the help of `--engine`.
    """
    kind = click.Choice([*engines, NO_ENGINE])
    setting_option("--engine", type=kind, help=_HELP + words)(command)
    return source_option(
        "Read the engine from this folder or wheel instead of the installed distribution."
    )(command)


def installed_engine(engines: Sequence[str]) -> str | None:
    """Name the engine that is installed, where there is one; the first of several."""
    from importlib.machinery import PathFinder  # noqa: PLC0415 - only for `lock`

    return next((name for name in engines if PathFinder.find_spec(name, sys.path)), None)


def reading_of(
    engine: str | None,
    source: Path | None,
    python: Path | None = None,
    query: LaunchQuery | None = None,
    search: PluginSearch | None = None,
) -> EngineReading | None:
    """Read the engine of `--engine`; without one, load nothing.

    Args:
        engine: its name, as given.
        source: a folder or wheel to read it from.
        python: a Python that has it.
        query: command lines that it will be asked about.
        search: where the distributions are that extend it; none are read without one.
    """
    if engine is None or engine == NO_ENGINE:
        option = f"--engine-python {python}" if source is None else f"--source {source}"
        if (source or python) and engine is None:
            raise click.UsageError(f"{option} names no engine; add --engine.")
        return None
    if source is not None and python is not None:
        raise click.UsageError("--source and --engine-python both name an engine; leave one out.")
    from backend_caps.engines.read import read_engine  # noqa: PLC0415 - only for --engine

    places = None if search is None else search.places
    with working(f"reading {engine if source is None else source.name}"):
        reading = read_engine(engine, source, python, query, places)
    if not any(backend.engine_class for backend in reading.backends):
        why = " ".join(problem.message for problem in reading.problems[:_SHOWN])
        raise click.UsageError(
            f"no class of a backend could be read of {reading.title}. {why} Expected --source "
            f"or --engine-python with a whole {engine}."
        )
    return reading
