"""`backend-caps config`: the settings, and where each value comes from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Literal

import click
from click.core import ParameterSource
from pydantic import BeforeValidator, Field, JsonValue
from pydantic_core import to_jsonable_python

from backend_caps.cli.dry_run import deadline_option
from backend_caps.cli.invocation import Invocation, engine_options, setting_option, traced_in
from backend_caps.cli.options import ServerCommand, facts_from, request_options
from backend_caps.cli.output import Format, examples, printer
from backend_caps.report.document import WRITTEN, Document
from backend_caps.report.sections import Columns, Lines, Section, table_of
from backend_caps.resolution.errors import raise_all
from backend_caps.resolution.flags import ServerFlags
from backend_caps.settings.settings import (
    KEYS,
    Settings,
    TracedSettings,
    server_key,
    trace_settings,
)
from backend_caps.settings.sources import FACTS, SECTIONS, SERVER, PlacedValue, SettingLayer

LayerName = Literal["command line", "environment", "file", "default"]
_EXAMPLES = examples(
    "backend-caps config show", "backend-caps config show --policy strict -- --page-size 16"
)


class PlacedValueDocument(Document):
    """A value of a setting that another one overrides, and its place."""

    value: Annotated[JsonValue, BeforeValidator(to_jsonable_python)]
    """As a file would have it; null where nothing is given."""
    layer: Annotated[LayerName, WRITTEN]
    """The layer that gives it."""
    place: str
    """The option, the variable, `file:line`, or the word default."""


class SettingDocument(Document):
    """A setting with the value that counts."""

    name: str
    """As files and options spell it; `facts.<name>` and `server.<flag>` in a section."""
    value: JsonValue
    """As a file would have it; null where nothing is given."""
    layer: LayerName
    """The layer that gives it; each of these goes before those after it."""
    place: str
    """The option, the variable, `file:line`, or the word default."""
    overrides: list[PlacedValueDocument]
    """The values that it overrides; the default is the last."""


class ConfigDocument(Document):
    """Every setting, and the layer that decides it."""

    schema_: Annotated[Literal["backend-caps/config@1"], Field(alias="schema")]
    file: str | None
    """The file that was read; null where none is named."""
    settings: list[SettingDocument]
    """Each setting; of the sections, those that are given."""


@click.group(epilog=_EXAMPLES)
def config() -> None:
    """Show what configures backend-caps itself."""


@request_options
@engine_options
@config.command("show", cls=ServerCommand, epilog=_EXAMPLES)
@deadline_option(
    "--agreement-deadline", words="How long a rank waits for the others to agree on a plan."
)
@setting_option(
    "--lock",
    type=click.Path(path_type=Path),
    help="The lock file that what is installed and planned is compared with.",
)
@setting_option("--device", help="The torch device to run on.")
@click.pass_context
def show(ctx: click.Context, /, **_options: object) -> None:
    """Show each setting with its value, its place, and what it overrides.

    Options and server flags are taken as any command takes them.
    """
    document = _document(ctx)
    printer(Format(ctx.params["format_"]))(document, config_view(document))


def _document(ctx: click.Context) -> ConfigDocument:
    traced = traced_in(ctx) or trace_settings(environ={})
    server = traced.server(ctx.params["rules"])
    raise_all("server flags", server.faults)
    facts = {key: placed for key, placed in traced.values.items() if key.startswith(FACTS)}
    values = {**_plain(traced), **facts, **server.values}
    for key, value, place in _on_the_command_line(ctx):
        placed = PlacedValue(layer=SettingLayer.COMMAND_LINE, place=place, value=value)
        values[key] = (placed, *values.get(key, ()))
    return ConfigDocument(
        schema_="backend-caps/config@1",
        file=None if traced.file is None else str(traced.file),
        settings=[_written(name, values[name]) for name in sorted(values, key=_section)],
    )


def _section(name: str) -> int:
    """Order settings as a file has them: plain ones, facts, and the server's flags."""
    return ("", *SECTIONS).index(name.rpartition(".")[0])


def _plain(traced: TracedSettings) -> dict[str, tuple[PlacedValue, ...]]:
    """List the values of each setting outside the sections; the default is the last."""
    layer = SettingLayer.DEFAULT
    defaults = {
        key: PlacedValue(layer=layer, place=layer.value, value=Settings.model_fields[name].default)
        for name, key in KEYS.items()
        if key not in SECTIONS
    }
    return {key: (*traced.values.get(key, ()), default) for key, default in defaults.items()}


def _on_the_command_line(ctx: click.Context) -> Iterator[tuple[str, object, str]]:
    """List the command line's settings with value and place; of one name, the last counts."""
    for name, key in KEYS.items():
        parameter = name if name in ctx.params else f"{name}_"  # `format` would hide the builtin
        if ctx.get_parameter_source(parameter) is ParameterSource.COMMANDLINE:
            value = ctx.params[parameter]
            yield key, value, f"--no-{key}" if value is False else f"--{key}"
    for name, value in facts_from(ctx.params["fact"]).known().items():
        yield f"{FACTS}.{name}", value, "--fact"
    line, file = ctx.params["rules"], ctx.params["flags_file"]
    if file is not None:
        for name, value in ServerFlags.from_file(file, engine_name=line).given().items():
            yield server_key(name), value, str(file)
    argv = ctx.ensure_object(Invocation).server_flags
    for name, value in ServerFlags.from_argv(argv, engine_name=line).given().items():
        key = server_key(name)
        yield key, value, key.replace(f"{SERVER}.", "--")


def _written(name: str, values: Iterable[PlacedValue]) -> SettingDocument:
    counts, *others = map(PlacedValueDocument.model_validate, values)
    return SettingDocument.of(counts, name=name, overrides=others)


_COLUMNS: Columns[SettingDocument] = {
    "setting": lambda setting: setting.name,
    "value": lambda setting: _text(setting.value),
    "from": lambda setting: setting.place,
    "instead of": lambda setting: "; ".join(
        f"{_text(old.value)}, {old.place}" for old in setting.overrides if old.layer != "default"
    ),
}


def config_view(config: ConfigDocument) -> Iterator[Section]:
    """Show each setting with its value, its place, and all that it overrides but the default."""
    yield table_of(config.settings, _COLUMNS, "names")
    if config.file is None:
        yield Lines(("No file of settings is named; --config or BACKEND_CAPS_CONFIG names one.",))


def _text(value: JsonValue) -> str:
    """Write a value as a file has it."""
    match value:
        case None:
            return "not given"
        case bool():
            return "true" if value else "false"
        case float():
            return f"{value:g}"
        case list():
            return f"[{', '.join(map(_text, value))}]"
    return str(value)
