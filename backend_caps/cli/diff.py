"""`backend-caps diff`: what differs between two locks, or two versions of an engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from backend_caps.capability.facts import Facts
from backend_caps.cli import invocation
from backend_caps.cli.launch import model_option, query_of_server
from backend_caps.cli.lock import DIFFERS
from backend_caps.cli.options import ServerCommand, fact_option, facts_of
from backend_caps.cli.output import Format, examples, printer, working
from backend_caps.engines.reading import EngineReading, LaunchQuery
from backend_caps.errors import BackendCapsError
from backend_caps.report.diff import Side, differences
from backend_caps.report.difference import diff_document, diff_view
from backend_caps.report.lock import read_lock
from backend_caps.report.plans import PlanDocument, plan_document
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.plan import Policy

_INSTALLED = ("", "installed")
"""The PATHs of `engine@PATH` that name the installed distribution."""


@invocation.config_option
@invocation.format_option()
@fact_option
@model_option
@click.command(
    cls=ServerCommand,
    short_help="Show what differs between two locks or engines.",
    epilog=examples(
        "backend-caps diff before.lock after.lock",
        "backend-caps diff sglang@old.whl sglang@new.whl --fact device_name=H100 -- \\\n"
        "  --model-path meta-llama/Llama-3.1-8B-Instruct",
    ),
)
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@click.pass_context
def diff(ctx: click.Context, /, before: str, after: str, format_: str, **_: object) -> None:
    """Show what differs between A and B: what became stricter or looser, what is gone or new.

    Each is a lock file, or an engine: sglang@PATH or vllm@PATH, where PATH is a folder or a
    wheel; without a PATH, the installed one. With a server's command line after --, the plans of
    both engines for it too: a backend that is taken in place of another comes first.

    Exit status 0 where nothing differs, 1 where something does.
    """
    show = printer(Format(format_))
    server = _Server(facts_of(ctx), query_of_server(ctx, facts_of(ctx)))
    (one, label), (other, label_after) = server.side(before), server.side(after)
    labels = (label, label_after) if label != label_after else (before, after)
    found = differences(one, other)
    document = diff_document(*labels, found)
    show(document, diff_view(document))
    if found:
        ctx.exit(DIFFERS)


@dataclass(frozen=True, slots=True)
class _Server:
    """The server whose plans are compared too."""

    facts: Facts
    query: LaunchQuery | None
    """None where only what the sides hold is compared."""

    def side(self, named: str) -> tuple[Side, str]:
        """Read a side, with its name; an unreadable side is wrong usage, not a difference."""
        engine, _, place = named.partition("@")
        if engine not in invocation.ENGINES or "@" not in named:
            return _of_lock(Path(named)), named
        source = None if place in _INSTALLED else Path(place)
        try:
            reading = invocation.reading_of(engine, source, query=self.query)
        except BackendCapsError as error:
            raise click.UsageError(str(error)) from error
        assert reading is not None, f"{engine} was asked for"
        plan = None if self.query is None else self._plan(reading, self.query)
        return Side.of_reading(reading, plan), reading.title

    def _plan(self, reading: EngineReading, query: LaunchQuery) -> PlanDocument:
        from backend_caps.engines.start import EngineStart  # noqa: PLC0415 - for a server alone

        assert reading.launches is not None, "the engine's launches are followed"
        flags = ServerFlags()
        if reading.command_line is not None:
            flags = ServerFlags.from_argv(query.lines[0], engine_name=reading.command_line)
        with working(f"following the command line through {reading.title}"):
            launch = reading.launches(query)[0]
        plan = EngineStart(reading=reading, launch=launch).plan(
            reading.registry,
            flags,
            rules=reading.registry.rules(reading.rules),
            facts=self.facts,
            policy=Policy.WARN,
        )
        return plan_document(plan, (), engine=reading.title)


def _of_lock(path: Path) -> Side:
    """Read a lock file; refuse an engine's source without the engine's name."""
    is_wheel = path.suffix == ".whl"
    if is_wheel or path.is_dir():
        kind = "wheel" if is_wheel else "folder"
        spelled = " or ".join(f"{engine}@{path}" for engine in invocation.ENGINES)
        raise click.UsageError(
            f"{str(path)!r} is a {kind}; expected a lock file, or an engine with its source. "
            f"Write {spelled}."
        )
    return Side.of_lock(read_lock(path))
