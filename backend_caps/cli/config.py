"""`backend-caps config`: the settings, and where each value comes from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import click
from click.core import ParameterSource
from pydantic_core import to_jsonable_python

from backend_caps.cli.engines import engine_options
from backend_caps.cli.examples import examples
from backend_caps.cli.invocation import Invocation
from backend_caps.cli.options import ServerCommand, request_options
from backend_caps.cli.output import Format, printer
from backend_caps.cli.settings import SECONDS, SettingOption, traced_in
from backend_caps.cli.words import facts_from
from backend_caps.report.config_documents import (
    ConfigDocument,
    PlacedValueDocument,
    SettingDocument,
)
from backend_caps.report.config_views import config_view
from backend_caps.resolution.errors import raise_all
from backend_caps.resolution.flags import ServerFlags
from backend_caps.settings.layers import FACTS, SECTIONS, SERVER, PlacedValue, SettingLayer
from backend_caps.settings.server import server_key
from backend_caps.settings.settings import (
    AGREEMENT_DEADLINE_S,
    KEYS,
    Settings,
    TracedSettings,
    trace_settings,
)

Said: TypeAlias = Mapping[str, tuple[PlacedValue, ...]]
"""By setting, every value that somebody gives; the one that counts stands first."""
_DEFAULTS = {name: own.default for name, own in Settings.model_fields.items()}


_EXAMPLES = examples(
    "backend-caps config show",
    "backend-caps config show --policy strict -- --page-size 16",
)


@click.group(epilog=_EXAMPLES)
def config() -> None:
    """Show what configures backend-caps itself."""


@request_options
@engine_options
@config.command(
    "show",
    cls=ServerCommand,
    epilog=_EXAMPLES,
)
@click.option(
    "--agreement-deadline",
    "agreement_deadline_s",
    cls=SettingOption,
    type=SECONDS,
    metavar="SECONDS",
    default=AGREEMENT_DEADLINE_S,
    show_default=True,
    help="How long a rank waits for the others to agree on a plan.",
)
@click.option(
    "--lock",
    cls=SettingOption,
    type=click.Path(path_type=Path),
    help="The lock file that what is installed and planned is compared with.",
)
@click.option("--device", cls=SettingOption, help="The torch device to run on.")
@click.pass_context
def show(ctx: click.Context, /, **_options: object) -> None:
    """Show every setting with its value, where that comes from, and what it goes before.

    Options and server flags are taken as any command takes them.
    """
    document = _document(ctx)
    printer(Format(ctx.params["format"]))(document, config_view(document))


def _document(ctx: click.Context) -> ConfigDocument:
    traced = traced_in(ctx) or trace_settings(environ={})
    sections = {**_facts(ctx, traced), **_server(ctx, traced)}
    plain = {key: _setting(ctx, traced, name) for name, key in KEYS.items() if key not in SECTIONS}
    return ConfigDocument(
        schema_="backend-caps/config@1",
        file=None if traced.file is None else str(traced.file),
        settings=[_written(name, said) for name, said in {**plain, **sections}.items()],
    )


def _written(name: str, said: tuple[PlacedValue, ...]) -> SettingDocument:
    """Write down who goes before whom."""
    counts, *others = map(_document_of, said)
    return SettingDocument(
        name=name, value=counts.value, layer=counts.layer, place=counts.place, overrides=others
    )


def _document_of(said: PlacedValue) -> PlacedValueDocument:
    value = to_jsonable_python(said.value)
    return PlacedValueDocument(value=value, layer=said.layer.value, place=said.place)


def _setting(ctx: click.Context, traced: TracedSettings, name: str) -> tuple[PlacedValue, ...]:
    """List what is said of a setting; what click took, and everybody below."""
    key = KEYS[name]
    default = PlacedValue(
        layer=SettingLayer.DEFAULT, place=SettingLayer.DEFAULT.value, value=_DEFAULTS[name]
    )
    below = (*traced.said.get(key, ()), default)
    if ctx.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
        return below
    value = ctx.params[name]
    option = f"--no-{key}" if value is False else f"--{key}"
    return (PlacedValue(layer=SettingLayer.COMMAND_LINE, place=option, value=value), *below)


def _facts(ctx: click.Context, traced: TracedSettings) -> Said:
    known = facts_from(ctx.params["fact"]).known()
    named = {f"{FACTS}.{name}": value for name, value in known.items()}
    below = {key: said for key, said in traced.said.items() if key.startswith(FACTS)}
    return _over(named, dict.fromkeys(named, "--fact"), below)


def _server(ctx: click.Context, traced: TracedSettings) -> Said:
    line, file = ctx.params["rules"], ctx.params["flags_file"]
    below = traced.server(line)
    raise_all("server flags", below.faults)
    said: Said = below.said
    if file is not None:
        named = _options(ServerFlags.from_file(file, engine_name=line))
        said = _over(named, dict.fromkeys(named, str(file)), said)
    argv = ctx.ensure_object(Invocation).server_flags
    named = _options(ServerFlags.from_argv(argv, engine_name=line))
    return _over(named, {key: key.replace(f"{SERVER}.", "--") for key in named}, said)


def _options(flags: ServerFlags) -> Mapping[str, object]:
    return {server_key(name): value for name, value in flags.given().items()}


def _over(
    named: Mapping[str, object],
    places: Mapping[str, str],
    below: Said,
) -> Said:
    """Put what the command line names over what is said elsewhere."""
    said = {
        key: (
            PlacedValue(layer=SettingLayer.COMMAND_LINE, place=places[key], value=value),
            *below.get(key, ()),
        )
        for key, value in named.items()
    }
    return {**below, **said}
