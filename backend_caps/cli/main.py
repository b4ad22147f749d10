"""The group of commands, and what an error becomes: a sentence and an exit status."""

from __future__ import annotations

import sys
from importlib import import_module
from io import TextIOWrapper
from typing import TYPE_CHECKING

import click

from backend_caps.cli.invocation import Invocation
from backend_caps.cli.output import CommandError, examples
from backend_caps.cli.report import report
from backend_caps.discovery.loading import Loading
from backend_caps.errors import BackendCapsError
from backend_caps.resolution.errors import FlagsError, FlagValueError, leaves_of, nearest

if TYPE_CHECKING:
    from backend_caps.supervisor import Log

_LATER = {
    "ask": "ask:ask",
    "atlas": "atlas:atlas",
    "check": "check:check",
    "config": "config:config",
    "diff": "diff:diff",
    "dry-run": "dry_run:dry_run",
    "explain": "plan:explain",
    "fits": "fits:fits",
    "facts": "facts:facts",
    "generate": "generate:generate",
    "lock": "lock:lock",
    "new-plugin": "new_plugin:new_plugin",
    "relay": "plan:relay",
    "resolve": "plan:resolve",
    "select": "plan:select_command",
    "trace": "trace:trace",
    "verify": "lock:verify",
}
"""Commands whose modules are imported when they run: each module of `cli`, and the name in it."""
REFUSED = 1
"""The plan or a plugin is refused."""
USAGE = 2
"""The command line is wrong, or the output cannot be written."""
_NEAR = 0.6
"""The similarity from which a wrong name is taken for a command's."""


class Commands(click.Group):
    """Commands whose errors are sentences, and exit statuses."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List all commands, also those that are not imported yet."""
        return sorted({*super().list_commands(ctx), *_LATER})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Find a command by its name; import it where it is one of `_LATER`."""
        if cmd_name not in _LATER:
            return super().get_command(ctx, cmd_name)
        module, _, name = _LATER[cmd_name].partition(":")
        command: click.Command = getattr(import_module(f"backend_caps.cli.{module}"), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that is named first; for an unknown one, suggest the nearest name."""
        name = args[0]
        if not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            known = self.list_commands(ctx)
            meant = nearest(name, known, cutoff=_NEAR)
            remedy = f"Did you mean {meant!r}?" if meant else f"There are: {', '.join(known)}."
            ctx.fail(f"No such command {name!r}. {remedy}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Run a command; print an error as its sentences, one line a fault, and set the status."""
        try:
            return super().invoke(ctx)
        except (BackendCapsError, ExceptionGroup) as error:
            faults = list(leaves_of(error))
            for fault in faults:
                click.echo(f"error: {fault}", err=True)
            ctx.exit(USAGE if any(map(_is_usage, faults)) else REFUSED)


def _is_usage(fault: BackendCapsError) -> bool:
    # Imported only for an error: a plain report is timed against `import torch`.
    from backend_caps.report.lock import LockError  # noqa: PLC0415
    from backend_caps.settings.sources import SettingsError  # noqa: PLC0415

    if isinstance(fault, CommandError):
        return fault.is_usage
    return isinstance(fault, FlagsError | FlagValueError | LockError | SettingsError)


@click.group(
    cls=Commands,
    name="backend-caps",
    commands=[report],
    epilog=examples(
        "backend-caps report",
        "backend-caps resolve -- --attention-backend triton \\\n  --speculative-algorithm EAGLE",
    ),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="backend-caps", prog_name="backend-caps")
def cli() -> None:
    """What the attention backends of an LLM server need and support, and who forces what.

    Server flags go after `--`, exactly as on the server's own command line.
    """


def run(argv: list[str], server_flags: list[str], loading: Loading | None, log: Log | None) -> None:
    """Run a command line that was divided at its first `--`, and exit with its status.

    A character that the terminal's encoding lacks is written as its escape, never an error.
    """
    streams = [stream for stream in (sys.stdout, sys.stderr) if isinstance(stream, TextIOWrapper)]
    for stream in streams:
        stream.reconfigure(errors="backslashreplace")
    invocation = Invocation(server_flags=tuple(server_flags), loading=loading, log=log)
    cli.main(argv, obj=invocation)
