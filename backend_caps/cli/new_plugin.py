"""`backend-caps new-plugin`: a plugin that works, to make one's own of."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

import click

from backend_caps.cli.examples import examples
from backend_caps.cli.invocation import Invocation
from backend_caps.cli.output import say
from backend_caps.cli.plugin_names import check_plugin_name
from backend_caps.cli.plugin_project import project_files, write_project

_NEXT = """\
It passes its own tests as it stands. What to do next:

  cd {folder}
  pip install --editable . pytest
  pytest
  backend-caps report
  backend-caps generate -- --attention-backend {name}
"""


@click.command(
    "new-plugin",
    epilog=examples(
        "backend-caps new-plugin my_flash",
        "backend-caps new-plugin my_flash --into plugins/my_flash",
    ),
)
@click.argument("name")
@click.option(
    "--into",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="The folder to write the project into: new, or empty but for .git; NAME unless given.",
)
@click.pass_context
def new_plugin(ctx: click.Context, /, name: str, into: Path | None) -> None:
    """Write a plugin project for an attention backend NAME.

    It has a declaration, a backend in plain PyTorch that is right and slow, and tests that hold
    the backend to a float64 reference and to its declaration. Nothing is overwritten.
    """
    if ctx.ensure_object(Invocation).server_flags:
        raise click.UsageError("A new plugin is the same for every server: nothing goes after --.")
    check_plugin_name(name)
    folder = Path(name) if into is None else into
    texts = project_files(name)
    write_project(texts, folder)
    listed = "".join(f"  {path}\n" for path in texts)
    following = _NEXT.format(folder=quote(str(folder)), name=name)
    say(f"Wrote a plugin for the backend {name!r} into {folder}:\n\n{listed}\n{following}")
