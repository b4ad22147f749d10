"""The group of commands, and what an error becomes: a sentence and an exit status."""

from __future__ import annotations

from collections.abc import Iterator

import click

from backend_caps.cli.explain import explain
from backend_caps.cli.invocation import Invocation
from backend_caps.cli.relay import relay
from backend_caps.cli.report import report
from backend_caps.cli.resolve import resolve
from backend_caps.discovery.loading import Loading
from backend_caps.errors import BackendCapsError
from backend_caps.resolution.errors import (
    AmbiguousFlagError,
    FlagsFileError,
    FlagValueError,
    MissingFlagValueError,
    OverrideError,
    UnknownBackendError,
    UnknownFlagError,
)

REFUSED = 1
"""The plan or a plugin is refused."""
USAGE = 2
"""The command line is wrong."""
_USAGE_ERRORS = (
    AmbiguousFlagError,
    FlagsFileError,
    FlagValueError,
    MissingFlagValueError,
    OverrideError,
    UnknownBackendError,
    UnknownFlagError,
)


class Commands(click.Group):
    """Commands whose errors are sentences, and exit statuses."""

    def invoke(self, ctx: click.Context) -> object:
        """Run a command; say an error in its own words, each fault on a line."""
        try:
            return super().invoke(ctx)
        except (BackendCapsError, ExceptionGroup) as error:
            faults = list(_leaves(error))
            for fault in faults:
                click.echo(f"error: {fault}", err=True)
            ctx.exit(USAGE if any(isinstance(f, _USAGE_ERRORS) for f in faults) else REFUSED)


def _leaves(error: BackendCapsError | ExceptionGroup[Exception]) -> Iterator[BackendCapsError]:
    """List the faults of a group; what is no fault of the user's goes on as it came."""
    if isinstance(error, BackendCapsError):
        yield error
        return
    for inner in error.exceptions:
        if not isinstance(inner, BackendCapsError | ExceptionGroup):
            raise error
        yield from _leaves(inner)


@click.group(
    cls=Commands,
    name="backend-caps",
    commands=[report, resolve, explain, relay],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="backend-caps", prog_name="backend-caps")
def cli() -> None:
    """What the attention backends of an LLM server need and support, and who forces what.

    Server flags go after `--`, exactly as on the server's own command line:

    \b
        backend-caps resolve -- --attention-backend triton --speculative-algorithm EAGLE
    """  # noqa: D301 - click reads the character that \b is


def run(own: list[str], server_flags: list[str], loading: Loading | None) -> None:
    """Run a command line that was divided at its first `--`, and exit with its status."""
    cli.main(own, obj=Invocation(server_flags=tuple(server_flags), loading=loading))
