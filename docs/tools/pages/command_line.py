"""The generated part of `docs/reference/cli.md`: each command's own help."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from backend_caps.cli.main import cli

_WIDTH = 100


def command_line() -> str:
    """Give each command's own help."""
    parts = [_help(cli, "backend-caps", None)]
    assert isinstance(cli, click.Group)
    context = click.Context(cli, info_name="backend-caps", **cli.context_settings)
    return "\n\n".join([*parts, *_commands(cli, context)])


def _commands(group: click.Group, context: click.Context) -> Iterator[str]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, f"{name} is listed and not there"
        yield _help(command, name, context)
        if isinstance(command, click.Group):
            yield from _commands(command, click.Context(command, parent=context, info_name=name))


def _help(command: click.Command, name: str, parent: click.Context | None) -> str:
    settings: dict[str, Any] = {**command.context_settings, "terminal_width": _WIDTH}
    context = click.Context(command, info_name=name, parent=parent, **settings)
    lines = "\n".join(line.rstrip() for line in command.get_help(context).splitlines())
    return f"### {context.command_path}\n\n```text\n{lines}\n```"
