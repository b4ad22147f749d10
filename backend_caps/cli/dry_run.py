"""`backend-caps dry-run`: a server's configuration decided, and started small."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import click
from click.decorators import FC

from backend_caps.capability.kind import Role
from backend_caps.cli import options
from backend_caps.cli.invocation import SECONDS, SettingOption
from backend_caps.cli.launch import launch_options
from backend_caps.cli.output import loading_torch
from backend_caps.settings.settings import AGREEMENT_DEADLINE_S

_ROLES = {role.value: role for role in Role}


def _stand_ins(_: click.Context, __: click.Parameter, words: tuple[str, ...]) -> Mapping[Role, str]:
    """Read the stand-ins: a name for all roles, or `ROLE=NAME` for one."""
    everywhere: dict[Role, str] = {}
    of_roles: dict[Role, str] = {}
    for word in words:
        role, equals, name = word.rpartition("=")
        if not name or (equals and role not in _ROLES):
            roles = ", ".join(_ROLES)
            raise click.BadParameter(
                f"{word!r} names no backend; NAME was expected, or ROLE=NAME with a role of: "
                f"{roles}."
            )
        if equals:
            of_roles[_ROLES[role]] = name
        else:
            everywhere.update(dict.fromkeys(Role, name))
    return {**everywhere, **of_roles}


def deadline_option(*names: str, words: str) -> Callable[[FC], FC]:
    """Make the option of how long ranks wait for one another."""
    return click.option(
        *names,
        "agreement_deadline_s",
        cls=SettingOption,
        type=SECONDS,
        metavar="SECONDS",
        default=AGREEMENT_DEADLINE_S,
        show_default=True,
        help=words,
    )


stand_in_option = click.option(
    "--stand-in",
    "stand_ins",
    multiple=True,
    metavar="[ROLE=]NAME",
    callback=_stand_ins,
    help="Run this backend's code in the place of what cannot run here; each figure says so. "
    "Repeatable, by role.",
)
"""The backends that may stand in for what cannot run."""


@options.server_command(
    "Decide what a server would, and start it small.",
    "backend-caps dry-run -- --attention-backend torch_padded",
    "backend-caps dry-run --engine sglang --source new.whl \\\n"
    "  --stand-in torch_native -- --attention-backend fa3 --device cuda",
    engine=launch_options,
    name="dry-run",
)
@options.folder_option(
    "--model", "A Hugging Face folder of a Llama; a small one with random weights unless given."
)
@options.folder_option(
    "--draft-model", "With --model, the Hugging Face folder of what drafts for it."
)
@options.device_option(
    "sim", "The torch device to start on; 'sim' simulates one on the CPU, and counts."
)
@options.steps_option(32, "Steps to run.")
@options.seed_option("Of the trace and of random weights.")
@stand_in_option
@click.option("--strict", is_flag=True, help="Exit with status 1 where the plan has problems.")
@click.option(
    "--lock",
    cls=SettingOption,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="What is installed, and the plan, must be what this file says.",
)
@deadline_option(
    "--deadline",
    "--agreement-deadline",
    words="How long ranks that torchrun started wait for one another to agree.",
)
@click.pass_context
def dry_run(ctx: click.Context, /, **_options: object) -> None:
    """Decide what a server would, and start it small: some steps of a drawn trace, counted.

    Plan, scheduler, FutureMap and graphs are the real ones, in the server's configuration; models
    and sizes are small. Under torchrun the ranks agree first.

    Exit status 0 where it ran as decided, 1 where something was not, or --strict found problems, 2
    where it cannot start, or the ranks do not agree.
    """
    options.check_draft_model(ctx)
    # Loads torch, which a wrong command line is not worth.
    with loading_torch("dry-run"):
        from backend_caps.cli.dry_run_job import status_of  # noqa: PLC0415

    ctx.exit(status_of(ctx, os.environ))
