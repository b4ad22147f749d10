"""How `backend-caps dry-run` goes, on one rank or on each of several. Loads torch."""

from __future__ import annotations

import gc
import io
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext, redirect_stderr
from dataclasses import dataclass, field
from time import monotonic

import click
import torch

from backend_caps.cli.dry_run_asked import DryRunAsked
from backend_caps.cli.dry_run_document import RanHere, RankWord, document_of, ran_of
from backend_caps.cli.invocation import Invocation
from backend_caps.cli.options import Decided, Request, importable, request_of
from backend_caps.cli.output import working
from backend_caps.cli.server_sizes import is_size, sizes_in
from backend_caps.errors import BackendCapsError
from backend_caps.insight.dry_run import RunPlan, ServerSizes, dry_run, dry_start, run_plan
from backend_caps.kit.models import SmallModels
from backend_caps.report.dry_run_views import dry_run_view
from backend_caps.resolution.errors import leaves_of
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.plan import Plan
from backend_caps.simulator import DEVICE_NAME, register, simulate
from backend_caps.startup.agreement import Ranks, agree
from backend_caps.startup.configure import check_device
from backend_caps.startup.locked import check_locked
from backend_caps.startup.ranks import RankGroup, RankPlace, joined

CANNOT_START = 2
"""The exit status where a server cannot be started here, or its ranks do not agree."""
_Refused = (BackendCapsError, ExceptionGroup, click.UsageError)
"""What is said in its own words."""


def status_of(ctx: click.Context, environ: Mapping[str, str]) -> int:
    """Decide, start and run on this rank; print what came of it, and return the exit status."""
    gc.enable()  # the program switched it off, for commands that end before it would matter
    register()
    place = None
    try:
        place = RankPlace.in_environment(environ)
        if place is None:
            return _alone(ctx)
        with joined(place, deadline_s=DryRunAsked.from_context(ctx).deadline_s) as job:
            return _of_several(ctx, job)
    except _Refused as error:
        tell(error, place)
        return CANNOT_START


def tell(error: BaseException, place: RankPlace | None = None) -> None:
    """Say an error in its own words, each fault on a line, under the number of one of several."""
    rank = "" if place is None else f"rank {place.rank}: "
    assert isinstance(error, _Refused), "what else is raised is nobody's input"
    faults = [error.message] if isinstance(error, click.UsageError) else [*leaves_of(error)]
    for fault in faults:
        click.echo(f"{rank}error: {fault}", err=True)


def _alone(ctx: click.Context) -> int:
    """Do all of it in one process."""
    deciding = _Deciding(ctx, DryRunAsked.from_context(ctx))
    deciding.read()
    plan = deciding.plan()
    return _shown(deciding, plan, deciding.ran(plan), [])


def _of_several(ctx: click.Context, job: RankGroup) -> int:
    """Agree with the other ranks first; print where this is the first of them."""
    deciding = _Deciding(ctx, DryRunAsked.from_context(ctx))
    job.take_device(deciding.asked.device)
    with nullcontext() if job.place.rank == 0 else redirect_stderr(io.StringIO()):
        deciding.read_for_later()
    began = monotonic()
    plan = deciding.agreed(job)
    word = deciding.word(monotonic() - began)
    ran = None
    try:
        ran = deciding.ran(plan, job.place.rank)
    except _Refused as error:
        tell(error, job.place)
    own = word if ran is None else word.model_copy(update={"run": ran.run})
    words = [RankWord.model_validate_json(each) for each in job.gathered(own.model_dump_json())]
    if ran is None or any(each.run is None for each in words):
        return CANNOT_START
    return _shown(deciding, plan, ran, words, is_shown=job.place.rank == 0)


def _shown(
    deciding: _Deciding, plan: Plan, ran: RanHere, words: list[RankWord], *, is_shown: bool = True
) -> int:
    request = deciding.request
    assert request is not None, "it ran, so it was read"
    assert deciding.decided is not None, "it ran, so it was decided"
    written = request.written(plan, deciding.decided.registry)
    document = document_of(written, plan, ran, words, deciding.asked)
    if is_shown:
        request.show(document, dry_run_view(document))
    return document.status


@dataclass(slots=True)
class _Deciding:
    """One rank's way from its command line to steps that ran."""

    ctx: click.Context
    asked: DryRunAsked
    request: Request | None = None
    sizes: ServerSizes = field(default_factory=ServerSizes)
    decided: Decided | None = None
    """What this rank decides by itself."""
    _fault: Exception | None = None

    def read(self) -> None:
        """Read what was asked."""
        self.request = request_of(self.ctx, reads=is_size)
        self.sizes = sizes_in(self.ctx, self.request)

    def read_for_later(self) -> None:
        """Read what was asked; what is wrong with it is raised where the others hear of it."""
        try:
            self.read()
        except _Refused as error:
            self._fault = error

    def plan(self) -> Plan:
        """Find, resolve and compare with the lock; and see to it that it can run here."""
        if self._fault is not None:
            raise self._fault
        assert self.request is not None, "no fault, so it was read"
        check_device(self.asked.device)
        self.decided = self.request.decided(self.ctx.ensure_object(Invocation))
        own = self.decided.plan
        if self.asked.lock is not None:
            check_locked(self.asked.lock, own, self.decided.registry)
        with importable(self.request.path):
            self._here(own)
        return own

    def agreed(self, job: RankGroup) -> Plan:
        """Come to one plan with all ranks."""
        given = ServerFlags() if self.request is None else self.request.flags
        named = {role.value: name for role, name in self.asked.stand_ins.items()}
        return agree(
            self.plan,
            Ranks(group=job.agreeing, deadline_s=self.asked.deadline_s),
            given=given,
            arguments={
                "device of the dry run": self.asked.device,
                "stand-ins": named,
                **self.sizes.said,
            },
        )

    def word(self, seconds: float) -> RankWord:
        """Write what the first rank tells of this one's part in the agreement."""
        assert self.decided is not None, "there is a plan, so it was decided"
        assert self.request is not None, "there is a plan, so it was read"
        return RankWord.of(self.decided.plan, self.request.flags, seconds)

    def ran(self, plan: Plan, rank: int = 0) -> RanHere:
        """Start a plan, and run steps."""
        assert self.request is not None, "there is a plan, so it was read"
        asked, models = self.asked, None
        if asked.model is not None:
            models = SmallModels(target=asked.model, draft=asked.draft_model)
        with ExitStack() as stack:
            stack.enter_context(importable(self.request.path))
            run = self._here(plan)
            is_simulated = torch.device(asked.device).type == DEVICE_NAME
            simulation = stack.enter_context(simulate("eager")) if is_simulated else None
            with working("starting small"):
                started = stack.enter_context(
                    dry_start(
                        run,
                        self.sizes,
                        asked.device,
                        models=models,
                        simulation=simulation,
                        seed=asked.seed,
                    )
                )
            with working(f"running {asked.num_steps} steps"):
                done = dry_run(started, num_steps=asked.num_steps, seed=asked.seed)
            return ran_of(started, done, rank)

    def _here(self, plan: Plan) -> RunPlan:
        assert self.decided is not None, "there is a plan, so it was decided"
        return run_plan(plan, self.decided.plugins, self.asked.device, self.asked.stand_ins)
