"""How `backend-caps dry-run` goes, on one rank or on each of several. Loads torch."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext, redirect_stderr
from time import monotonic
from typing import Any, Literal

import click

from backend_caps.cli.options import importable, request_of
from backend_caps.cli.output import working
from backend_caps.cli.server_sizes import is_size, sizes_in
from backend_caps.errors import BackendCapsError
from backend_caps.insight import run_documents
from backend_caps.insight.dry_run import dry_start
from backend_caps.insight.errors import InsightError
from backend_caps.insight.run_sizes import ServerSizes
from backend_caps.insight.stand_ins import RunPlan, run_plan
from backend_caps.kit.models import SmallModels
from backend_caps.report import dry_run_documents as documents
from backend_caps.report.dry_run_views import dry_run_view
from backend_caps.resolution.errors import leaves_of
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.plan import Plan
from backend_caps.simulator import is_simulated, register, simulate
from backend_caps.startup.agreement import Ranks, agree
from backend_caps.startup.configure import check_device, check_locked
from backend_caps.startup.ranks import RankGroup, RankPlace, joined

CANNOT_START = 2
"""The exit status where a server cannot be started here, or its ranks do not agree."""
_Refused = (BackendCapsError, ExceptionGroup, click.UsageError)
"""Errors that are shown by their sentences."""


def status_of(ctx: click.Context, environ: Mapping[str, str]) -> int:
    """Decide, start and run on this rank; print what came of it, and return the exit status."""
    if is_simulated(ctx.params["device"]):
        register()
    place = None
    try:
        place = RankPlace.in_environment(environ)
        if place is None:
            server = SmallServer(ctx)
            server.read_sizes()
            document = server.run(server.decide())
            server.show(document)
            return document.status
        with joined(place, deadline_s=ctx.params["agreement_deadline_s"]) as group:
            return _run_in_group(ctx, group)
    except _Refused as error:
        show_error(error, place)
        return CANNOT_START


def show_error(error: BaseException, place: RankPlace | None = None) -> None:
    """Print each fault of an error on a line; behind the rank's number where there are several."""
    rank = "" if place is None else f"rank {place.rank}: "
    assert isinstance(error, _Refused), "no other error is an input's"
    faults = [error.message] if isinstance(error, click.UsageError) else [*leaves_of(error)]
    for fault in faults:
        click.echo(f"{rank}error: {fault}", err=True)


def _run_in_group(ctx: click.Context, group: RankGroup) -> int:
    """Agree with the other ranks first; the first of them prints what all of them did."""
    number = group.place.rank
    group.take_device(ctx.params["device"])
    server, fault = None, None
    with nullcontext() if number == 0 else redirect_stderr(io.StringIO()):
        try:
            server = SmallServer(ctx)
            server.read_sizes()
        except _Refused as error:  # raised where the other ranks receive it
            fault = error
    began = monotonic()
    plan = _agreed_plan(ctx.params, server, fault, group)
    assert server is not None, "a fault of reading ends the agreement"
    seconds, document = monotonic() - began, None
    try:
        document = server.run(plan, number)
    except _Refused as error:
        show_error(error, group.place)
    ran = None if document is None else document.ranks[0]
    report = run_documents.RankReport.of(server.request.plan, server.request.flags, seconds, ran)
    gathered = group.gathered(report.model_dump_json())
    reports = [run_documents.RankReport.model_validate_json(each) for each in gathered]
    runs = [each.run for each in reports if each.run is not None]
    if document is None or len(runs) < len(reports):
        return CANNOT_START
    status = server.status(plan, runs)
    if number == 0:
        agreement = run_documents.agreement_document(plan, reports)
        update = {"agreement": agreement, "ranks": runs, "status": status}
        server.show(document.model_copy(update=update))
    return status


def _agreed_plan(
    given: Mapping[str, Any], server: SmallServer | None, fault: Exception | None, group: RankGroup
) -> Plan:
    """Agree on one plan with all ranks; `fault`, of reading, is raised on this one."""

    def decide() -> Plan:
        if server is None or fault is not None:
            raise fault or AssertionError("a rank without a server has a fault")
        return server.decide()

    stand_ins = {role.value: name for role, name in given["stand_ins"].items()}
    sizes = {} if server is None else server.sizes.given
    return agree(
        decide,
        Ranks(group=group.agreeing, deadline_s=given["agreement_deadline_s"]),
        given=ServerFlags() if server is None else server.request.flags,
        arguments={"device of the dry run": given["device"], "stand-ins": stand_ins, **sizes},
    )


class SmallServer:
    """A server's command line, read for a small run of it here.

    Raises:
        BackendCapsError: an option or a flag is refused.
    """

    def __init__(self, ctx: click.Context) -> None:
        self._ctx = ctx
        self.given: Mapping[str, Any] = ctx.params
        self.request = request_of(ctx, reads=is_size)
        self.sizes = ServerSizes()

    def read_sizes(self) -> None:
        """Read the sizes; apart from the flags, which other ranks get where a size is refused."""
        self.sizes = sizes_in(self._ctx, self.request)

    def decide(self) -> Plan:
        """Find, resolve and compare with the lock; refuse a plan that cannot run here."""
        check_device(self.given["device"])
        launch = self.request.launch
        if launch is not None and launch.refusal is not None:
            told = next(launch.problems())
            raise InsightError("engine-refuses", f"{told.message} {told.remedy}")
        plan = self.request.plan
        if self.given["lock"] is not None:
            check_locked(self.given["lock"], plan, self.request.registry)
        with importable(self.request.path):
            self.run_plan_here(plan)
        return plan

    def run(self, plan: Plan, rank: int = 0) -> documents.DryRunDocument:
        """Start a plan, and run steps."""
        given, models = self.given, None
        device, num_steps, seed = given["device"], given["steps"], given["seed"]
        if given["model"] is not None:
            models = SmallModels(target=given["model"], draft=given["draft_model"])
        with ExitStack() as stack:
            stack.enter_context(importable(self.request.path))
            run = self.run_plan_here(plan)
            simulation = stack.enter_context(simulate("eager")) if is_simulated(device) else None
            with working("starting small"):
                done = stack.enter_context(
                    dry_start(
                        run, self.sizes, device, models=models, simulation=simulation, seed=seed
                    )
                )
            with working(f"running {num_steps} steps"):
                done.run_steps(num_steps, seed)
            ran = run_documents.rank_document(done, rank)
            return documents.DryRunDocument.of(
                run,
                schema_="backend-caps/dry-run@1",
                plan=self.request.written(plan),
                future_map=done.engine.relay.host_seq_lens.value,
                shared_reads_end=run_documents.shared_reads_end(plan),
                graphs=run_documents.graphs_document(done.engine),
                device=device,
                model=None if given["model"] is None else str(given["model"]),
                num_steps=num_steps,
                sizes=done.sizes.compared,
                left_out=[*run.left_out, *done.sizes.left_out],
                ranks=[ran],
                status=self.status(plan, [ran]),
            )

    def status(self, plan: Plan, runs: Sequence[documents.RankRunDocument]) -> Literal[0, 1]:
        """Return 1 where a rank has findings, or --strict refuses the plan's problems."""
        is_refused = self.given["strict"] and bool(plan.problems)
        return 1 if is_refused or any(own.findings for own in runs) else 0

    def show(self, document: documents.DryRunDocument) -> None:
        """Print in the format that was asked for."""
        self.request.show(document, dry_run_view(document))

    def run_plan_here(self, plan: Plan) -> RunPlan:
        """Make the plan that runs on the device here, with stand-ins where they are needed."""
        return run_plan(plan, self.request.plugins, self.given["device"], self.given["stand_ins"])
