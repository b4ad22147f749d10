"""`backend-caps diff`: what another version of an engine, or another lock, has changed."""

from __future__ import annotations

from pathlib import Path

import click

from backend_caps.cli.engines import name_of, reading_of
from backend_caps.cli.examples import examples
from backend_caps.cli.output import Format, printer
from backend_caps.cli.settings import config_option, format_option
from backend_caps.errors import BackendCapsError
from backend_caps.report.diff import differences
from backend_caps.report.diff_document import diff_document
from backend_caps.report.diff_views import diff_view
from backend_caps.report.lock_file import read_lock
from backend_caps.report.snapshot import Snapshot

DIFFERS = 1
"""The exit status where something is not the same."""
_ENGINES = ("sglang", "vllm")
"""The engines that a side may be."""
_INSTALLED = ("", "installed")
"""What stands for the distribution that is installed."""


@config_option
@format_option
@click.command(
    epilog=examples(
        "backend-caps diff sglang@old.whl sglang@new.whl",
        "backend-caps diff before.lock after.lock",
    ),
)
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@click.pass_context
def diff(ctx: click.Context, /, before: str, after: str, format_: str, **_options: object) -> None:
    """Show what differs between A and B: what became stricter or looser, what is gone or new.

    Each is a lock file, or an engine: sglang@PATH or vllm@PATH, where PATH is a folder or a
    wheel; without a PATH, the installed one.

    Exit status 0 where nothing differs, 1 where something does.
    """
    show = printer(Format(format_))
    (one, label), (other, label_after) = _side(before), _side(after)
    labels = (label, label_after) if label != label_after else (before, after)
    found = differences(one, other)
    document = diff_document(*labels, found)
    show(document, diff_view(document))
    if found:
        ctx.exit(DIFFERS)


def _side(named: str) -> tuple[Snapshot, str]:
    """Read a side and name it; that it cannot be read is no difference, but wrong usage."""
    engine, _, place = named.partition("@")
    if engine not in _ENGINES or "@" not in named:
        return _of_lock(Path(named)), named
    try:
        reading = reading_of(engine, None if place in _INSTALLED else Path(place))
    except BackendCapsError as error:
        raise click.UsageError(str(error)) from error
    assert reading is not None, f"{engine} was asked for"
    return Snapshot.of_reading(reading), name_of(reading)


def _of_lock(path: Path) -> Snapshot:
    """Read a lock file; an engine's source without the engine's name is taken for one."""
    is_wheel = path.suffix == ".whl"
    if is_wheel or path.is_dir():
        kind = "wheel" if is_wheel else "folder"
        spelled = " or ".join(f"{engine}@{path}" for engine in _ENGINES)
        raise click.UsageError(
            f"{str(path)!r} is a {kind}; expected a lock file, or an engine with its source. "
            f"Write {spelled}."
        )
    return Snapshot.of_lock(read_lock(path))
