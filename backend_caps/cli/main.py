"""The group of commands, and what an error becomes: a sentence and an exit status."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from io import TextIOWrapper
from typing import TYPE_CHECKING

import click

from backend_caps.cli.examples import examples
from backend_caps.cli.invocation import Invocation
from backend_caps.cli.output import OutputError
from backend_caps.cli.plugin_errors import PluginFolderError, PluginNameError
from backend_caps.cli.report import report
from backend_caps.discovery.loading import Loading
from backend_caps.errors import BackendCapsError
from backend_caps.report.errors import LockFileError, LockSchemaError, LockWriteError
from backend_caps.resolution.errors import (
    FlagsError,
    FlagValueError,
    leaves_of,
    nearest,
)

if TYPE_CHECKING:
    from backend_caps.supervisor import Log

REFUSED = 1
"""The plan or a plugin is refused."""
USAGE = 2
"""The command line is wrong, or what it was to write cannot be written."""
_USAGE_ERRORS = (
    FlagsError,
    FlagValueError,
    LockFileError,
    LockSchemaError,
    LockWriteError,
    OutputError,
    PluginFolderError,
    PluginNameError,
)
_NEAR = 0.6
"""How much of a command's name has to be right for it to be meant."""


class Commands(click.Group):
    """Commands whose errors are sentences, and exit statuses."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the commands, those too that are loaded where they are asked for."""
        return sorted({*super().list_commands(ctx), *_LATER})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Find a command by its name."""
        later = _LATER.get(cmd_name)
        return super().get_command(ctx, cmd_name) if later is None else later()

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that is named first; of an unknown one, say what was probably meant."""
        name = args[0]
        if not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            known = self.list_commands(ctx)
            meant = nearest(name, known, cutoff=_NEAR)
            remedy = f"Did you mean {meant!r}?" if meant else f"There are: {', '.join(known)}."
            ctx.fail(f"No such command {name!r}. {remedy}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Run a command; say an error in its own words, each fault on a line."""
        try:
            return super().invoke(ctx)
        except (BackendCapsError, ExceptionGroup) as error:
            faults = list(leaves_of(error))
            for fault in faults:
                click.echo(f"error: {fault}", err=True)
            ctx.exit(USAGE if any(map(_is_usage, faults)) else REFUSED)


def _is_usage(fault: BackendCapsError) -> bool:
    from backend_caps.settings.errors import SETTINGS_ERRORS  # noqa: PLC0415 - where it went wrong

    return isinstance(fault, _USAGE_ERRORS + SETTINGS_ERRORS)


def _check() -> click.Command:
    from backend_caps.cli.check import check  # noqa: PLC0415 - the others check nothing

    return check


def _config() -> click.Command:
    from backend_caps.cli.config import config  # noqa: PLC0415 - the others show no settings

    return config


def _diff() -> click.Command:
    from backend_caps.cli.diff import diff  # noqa: PLC0415 - the others do not compare

    return diff


def _dry_run() -> click.Command:
    from backend_caps.cli.dry_run import dry_run  # noqa: PLC0415 - the others start nothing

    return dry_run


def _explain() -> click.Command:
    from backend_caps.cli.explain import explain  # noqa: PLC0415 - the others explain no value

    return explain


def _generate() -> click.Command:
    from backend_caps.cli.generate import generate  # noqa: PLC0415 - the others run no prompts

    return generate


def _lock() -> click.Command:
    from backend_caps.cli.lock import lock  # noqa: PLC0415 - the others write no lock

    return lock


def _new_plugin() -> click.Command:
    from backend_caps.cli.new_plugin import new_plugin  # noqa: PLC0415 - the others write none

    return new_plugin


def _relay() -> click.Command:
    from backend_caps.cli.relay import relay  # noqa: PLC0415 - the others relay no steps

    return relay


def _resolve() -> click.Command:
    from backend_caps.cli.resolve import resolve  # noqa: PLC0415 - the others show no plan alone

    return resolve


def _select() -> click.Command:
    from backend_caps.cli.select import select_command  # noqa: PLC0415 - the others do not show it

    return select_command


def _trace() -> click.Command:
    from backend_caps.cli.trace import trace  # noqa: PLC0415 - the others record nothing

    return trace


def _verify() -> click.Command:
    from backend_caps.cli.verify import verify  # noqa: PLC0415 - the others do not compare

    return verify


_LATER: Mapping[str, Callable[[], click.Command]] = {
    "check": _check,
    "config": _config,
    "diff": _diff,
    "dry-run": _dry_run,
    "explain": _explain,
    "generate": _generate,
    "lock": _lock,
    "new-plugin": _new_plugin,
    "relay": _relay,
    "resolve": _resolve,
    "select": _select,
    "trace": _trace,
    "verify": _verify,
}
"""Commands that are not worth their imports where another is run."""


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


def run(own: list[str], server_flags: list[str], loading: Loading | None, log: Log | None) -> None:
    """Run a command line that was divided at its first `--`, and exit with its status.

    A character that the terminal's encoding lacks is written as its escape, never an error.
    """
    streams = [each for each in (sys.stdout, sys.stderr) if isinstance(each, TextIOWrapper)]
    for stream in streams:
        stream.reconfigure(errors="backslashreplace")
    invocation = Invocation(server_flags=tuple(server_flags), loading=loading, log=log)
    cli.main(own, obj=invocation)
