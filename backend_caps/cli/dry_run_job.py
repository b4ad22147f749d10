"""How `backend-caps dry-run` goes, on one rank or on each of several. Loads torch."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext, redirect_stderr
from time import monotonic
from typing import Any, Literal, Self, TypeAlias

import click
import torch
from pydantic import BaseModel, ConfigDict

from backend_caps.capability.facts import text_of
from backend_caps.capability.kind import Phase
from backend_caps.cli.options import Request, importable, request_of
from backend_caps.cli.output import working
from backend_caps.cli.server_sizes import is_size, sizes_in
from backend_caps.errors import BackendCapsError
from backend_caps.insight.dry_run import dry_start
from backend_caps.insight.run_documents import graphs_document, rank_document
from backend_caps.insight.run_sizes import ServerSizes
from backend_caps.insight.stand_ins import RunPlan, run_plan
from backend_caps.kit.models import SmallModels
from backend_caps.report import dry_run_documents as documents
from backend_caps.report.dry_run_views import dry_run_view
from backend_caps.resolution.errors import leaves_of
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.plan import Plan
from backend_caps.simulator import DEVICE_NAME, register, simulate
from backend_caps.startup.agreement import Ranks, Treatment, agree, statement_of
from backend_caps.startup.configure import check_device, check_locked
from backend_caps.startup.ranks import RankGroup, RankPlace, joined

CANNOT_START = 2
"""The exit status where a server cannot be started here, or its ranks do not agree."""
_Refused = (BackendCapsError, ExceptionGroup, click.UsageError)
"""Errors that are shown by their sentences."""
_EQUAL = (Treatment.EQUAL, Treatment.EQUAL_WHERE_STATED)
_ROUNDS_ALIKE, _ROUNDS_APART = 2, 3
"""Where all ranks state the same, the comparison and the acknowledgement; else the gathering too,
and one more for each different statement."""


def status_of(ctx: click.Context, environ: Mapping[str, str]) -> int:
    """Decide, start and run on this rank; print what came of it, and return the exit status."""
    register()
    place = None
    try:
        place = RankPlace.in_environment(environ)
        if place is None:
            rank = _Rank(ctx)
            rank.read()
            document = rank.run(rank.decide())
            rank.show(document)
            return document.status
        with joined(place, deadline_s=ctx.params["agreement_deadline_s"]) as group:
            return _run_in_group(_Rank(ctx), group)
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


def _run_in_group(rank: _Rank, group: RankGroup) -> int:
    """Agree with the other ranks first; the first of them prints what all of them did."""
    number = group.place.rank
    group.take_device(rank.given["device"])
    fault: Exception | None = None
    with nullcontext() if number == 0 else redirect_stderr(io.StringIO()):
        try:
            rank.read()
        except _Refused as error:  # raised where the other ranks receive it
            fault = error
    began = monotonic()
    plan = rank.agree(group, fault)
    seconds, document = monotonic() - began, None
    try:
        document = rank.run(plan, number)
    except _Refused as error:
        show_error(error, group.place)
    ran = None if document is None else document.ranks[0]
    report = RankReport.of(rank.request.plan, rank.request.flags, seconds, ran)
    gathered = group.gathered(report.model_dump_json())
    reports = [RankReport.model_validate_json(each) for each in gathered]
    runs = [each.run for each in reports if each.run is not None]
    if document is None or len(runs) < len(reports):
        return CANNOT_START
    status = rank.status(plan, runs)
    if number == 0:
        agreement = agreement_document(plan, reports)
        update = {"agreement": agreement, "ranks": runs, "status": status}
        rank.show(document.model_copy(update=update))
    return status


_PlanValue: TypeAlias = tuple[str | None, str, str]
"""A phase, None for the server's; a capability; and its value in words."""


class _Rank:
    """One rank's way from its command line to steps that ran."""

    def __init__(self, ctx: click.Context) -> None:
        self._ctx = ctx
        self.given: Mapping[str, Any] = ctx.params
        self._request: Request | None = None
        self._sizes = ServerSizes()

    @property
    def request(self) -> Request:
        """The command line, read."""
        assert self._request is not None, "it was read first"
        return self._request

    def read(self) -> None:
        """Read the command line."""
        self._request = request_of(self._ctx, reads=is_size)
        self._sizes = sizes_in(self._ctx, self._request)

    def decide(self) -> Plan:
        """Find, resolve and compare with the lock; refuse a plan that cannot run here."""
        check_device(self.given["device"])
        plan = self.request.plan
        if self.given["lock"] is not None:
            check_locked(self.given["lock"], plan, self.request.registry)
        with importable(self.request.path):
            self._run_plan(plan)
        return plan

    def agree(self, group: RankGroup, fault: Exception | None) -> Plan:
        """Come to one plan with all ranks; a fault of reading is this rank's part in it."""

        def decide() -> Plan:
            if fault is not None:
                raise fault
            return self.decide()

        stand_ins = {role.value: name for role, name in self.given["stand_ins"].items()}
        return agree(
            decide,
            Ranks(group=group.agreeing, deadline_s=self.given["agreement_deadline_s"]),
            given=ServerFlags() if self._request is None else self._request.flags,
            arguments={
                "device of the dry run": self.given["device"],
                "stand-ins": stand_ins,
                **self._sizes.given,
            },
        )

    def run(self, plan: Plan, rank: int = 0) -> documents.DryRunDocument:
        """Start a plan, and run steps."""
        given, models = self.given, None
        device, num_steps, seed = given["device"], given["steps"], given["seed"]
        if given["model"] is not None:
            models = SmallModels(target=given["model"], draft=given["draft_model"])
        with ExitStack() as stack:
            stack.enter_context(importable(self.request.path))
            run = self._run_plan(plan)
            is_simulated = torch.device(device).type == DEVICE_NAME
            simulation = stack.enter_context(simulate("eager")) if is_simulated else None
            with working("starting small"):
                done = stack.enter_context(
                    dry_start(
                        run, self._sizes, device, models=models, simulation=simulation, seed=seed
                    )
                )
            with working(f"running {num_steps} steps"):
                done.run_steps(num_steps, seed)
            ran = rank_document(done, rank)
            return documents.DryRunDocument(
                schema_="backend-caps/dry-run@1",
                plan=self.request.written(plan),
                future_map=done.engine.relay.host_seq_lens.value,
                shared_reads_end=_reads_end(plan),
                graphs=graphs_document(done.engine),
                device=device,
                model=None if given["model"] is None else str(given["model"]),
                num_steps=num_steps,
                sizes=done.sizes.compared,
                left_out=[*run.left_out, *done.sizes.left_out],
                stand_ins=run.stand_ins,
                idle_stand_ins=run.idle,
                changes=run.changes,
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

    def _run_plan(self, plan: Plan) -> RunPlan:
        return run_plan(plan, self.request.plugins, self.given["device"], self.given["stand_ins"])


class RankReport(BaseModel):
    """What a rank sends to the first one, once it has run."""

    model_config = ConfigDict(frozen=True)

    host: str
    mark: int
    """Of its statement in the agreement."""
    seconds: float
    equal: tuple[str, ...]
    """What had to be the same."""
    values: tuple[_PlanValue, ...]
    """Those of its own plan."""
    run: documents.RankRunDocument | None = None
    """None where it could not start."""

    @classmethod
    def of(
        cls,
        plan: Plan,
        given: ServerFlags,
        seconds: float,
        run: documents.RankRunDocument | None = None,
    ) -> Self:
        """Write down a rank's part in an agreement."""
        statement = statement_of(plan, given=given)
        fields = statement.fields.items()
        return cls(
            host=statement.host,
            mark=statement.mark,
            seconds=seconds,
            equal=tuple(name for name, (treatment, _) in fields if treatment in _EQUAL),
            values=_values(plan),
            run=run,
        )


def agreement_document(plan: Plan, reports: Sequence[RankReport]) -> documents.AgreementDocument:
    """Write down how ranks agreed.

    Args:
        plan: what they agreed on.
        reports: of every rank, by rank.
    """
    marks = {own.mark for own in reports}
    return documents.AgreementDocument(
        hosts=[own.host for own in reports],
        rounds=_ROUNDS_ALIKE if len(marks) == 1 else _ROUNDS_APART + len(marks),
        seconds=max(own.seconds for own in reports),
        equal=sorted({name for own in reports for name in own.equal}),
        joined=[*_joined(plan, reports)],
    )


def _joined(plan: Plan, reports: Sequence[RankReport]) -> Iterator[documents.JoinedDocument]:
    """List the values in which the ranks' own plans differed."""
    for (phase, name, joint), *decided in zip(
        _values(plan), *(report.values for report in reports), strict=True
    ):
        own: dict[str, list[int]] = {}
        for rank, (_, _, value) in enumerate(decided):
            own.setdefault(value, []).append(rank)
        if len(own) > 1:
            yield documents.JoinedDocument(capability=name, phase=phase, joint=joint, own=own)


def _values(plan: Plan) -> tuple[_PlanValue, ...]:
    return tuple(
        (None if phase is None else phase.value, own.capability, text_of(own.value))
        for phase, own in plan.values()
    )


def _reads_end(plan: Plan) -> dict[str, documents.ReadsEndDocument]:
    served = {use.phase for use in plan.uses}
    ends = {phase: plan["shared_reads_end", phase] for phase in Phase if phase in served}
    return {
        phase.value: documents.ReadsEndDocument(value=text_of(own.value), effect=str(own.effect))
        for phase, own in ends.items()
    }
