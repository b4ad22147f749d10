"""An engine's own backends on the command line: its options, and its reading beside plugins."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from backend_caps.capability.backend import Backend
from backend_caps.capability.provenance import Problem, Status
from backend_caps.cli.invocation import SettingOption, source_option
from backend_caps.cli.output import working
from backend_caps.discovery.registry import Registry

if TYPE_CHECKING:
    from backend_caps.engines.reading import EngineReading

ENGINES = ("sglang", "vllm")
"""The engines whose source is read."""
NO_ENGINE = "none"
"""Overrides the engine of the settings, or the installed one."""
_ROUTED = ("sglang",)
"""Those whose flags and routing are known, so that there are plans for them."""
_HELP = (
    "Read this engine's own backends from its source as well; its own flags hold, and its own "
    "rules unless --rules is given."
)


def _refuse_unrouted(_: click.Context, __: click.Parameter, engine: str | None) -> str | None:
    check_routed(engine)
    return engine


def engine_options(
    command: click.Command, *, routed: bool = False, words: str = ""
) -> click.Command:
    """Add --engine and --source.

    Args:
        command: which reads an engine.
        routed: whether it always makes a plan, so that it has to know the engine's routing.
        words: what its help says beside what all say.
    """
    kind, refuse = click.Choice([*ENGINES, NO_ENGINE]), _refuse_unrouted if routed else None
    click.option("--engine", cls=SettingOption, type=kind, callback=refuse, help=_HELP + words)(
        command
    )
    source = source_option(
        "Read the engine from this folder or wheel instead of the installed distribution."
    )
    return source(command)


routed_engine_options = partial(engine_options, routed=True)


def installed_engine(*, routed: bool) -> str | None:
    """Name the engine that is installed, where there is one; the first of several.

    Args:
        routed: whether there is to be a plan, so that its routing has to be known.
    """
    from importlib.machinery import PathFinder  # noqa: PLC0415 - only for `lock`

    names = _ROUTED if routed else ENGINES
    return next((name for name in names if PathFinder.find_spec(name, sys.path)), None)


def check_routed(engine: str | None) -> None:
    """Refuse a plan for an engine whose flags and routing are not known."""
    if engine not in {None, NO_ENGINE, *_ROUTED}:
        raise click.UsageError(
            f"there is no plan for {engine}: its command line and routing are not read; expected "
            f"--engine {' or '.join(_ROUTED)}. backend-caps report --engine {engine}, without "
            "server flags, shows what its backends say."
        )


def reading_of(engine: str | None, source: Path | None) -> EngineReading | None:
    """Read the engine of `--engine`; without one, load nothing."""
    if engine is None or engine == NO_ENGINE:
        if source is not None and engine is None:
            raise click.UsageError(f"--source {source} names no engine; add --engine.")
        return None
    from backend_caps.engines.read import read_engine  # noqa: PLC0415 - only for --engine

    with working(f"reading {engine if source is None else source.name}"):
        return read_engine(engine, source)


def merged(reading: EngineReading, plugins: Registry) -> Registry:
    """Join an engine's own backends with the installed plugins; the engine's win a shared name."""
    own = reading.registry
    beside = Registry.of(
        (*own.entries, *_beside(reading, plugins)),
        rules=plugins.third_party_rules,
        problems=(*own.problems, *plugins.problems),
    )
    return replace(beside, rule_problems=plugins.rule_problems, remarks=plugins.remarks)


def _beside(reading: EngineReading, plugins: Registry) -> Iterator[Backend]:
    own = {backend.name for backend in reading.backends}
    for entry in plugins.entries:
        if entry.name not in own or entry.status is Status.SKIPPED:
            yield entry
            continue
        problem = _engines_own(entry, name_of(reading))
        yield replace(entry, status=Status.SKIPPED, problems=(*entry.problems, problem))


def _engines_own(entry: Backend, engine: str) -> Problem:
    plugin = replace(entry.source, declared_at=None)
    return Problem(
        code="engines-own",
        message=f"backend {entry.name!r} of {plugin} has the name of one that {engine} has "
        "itself, and the engine's goes before it.",
        remedy="Rename the plugin's, or leave --engine out.",
    )


def name_of(reading: EngineReading) -> str:
    """Name an engine, with its version where the source has one."""
    return " ".join(part for part in (reading.engine, reading.version) if part)
