"""The plan that runs here: the values that were decided, with backends whose code is installed.

Only the code of a stand-in is used. `host_seq_lens` and graphs stay as they were decided, so a
stand-in must not need more than that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from backend_caps.capability.backend import Backend
from backend_caps.capability.facts import text_of
from backend_caps.capability.kind import ANY, Phase, Role
from backend_caps.capability.provenance import Status
from backend_caps.capability.vocabulary import CAPABILITIES
from backend_caps.discovery.registry import Registry
from backend_caps.errors import BackendCapsError
from backend_caps.insight.errors import InsightError, sentence_of
from backend_caps.relay.streams import declared_traits
from backend_caps.report.dry_run_documents import StandInDocument, WorsenedDocument
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.plan import Plan, Policy, Resolved
from backend_caps.resolution.problems import misfits_of
from backend_caps.resolution.resolver import resolve
from backend_caps.resolution.uses import Use, UseKind
from backend_caps.runtime.options import MISFITS, features_of
from backend_caps.startup.configuration import ImplementationError, load_implementation
from backend_caps.startup.graph_choice import KIND_OF_PHASE

_OF_RANKS: Mapping[str, object] = {"tp_size": 1, "pp_size": 1, "dp_size": 1}
"""Flags by which ranks divide the work; here each runs a model by itself."""
_MAY_WORSEN = ("graph_metadata", "sync_free_prepare", "shared_reads_end")
"""Values that a stand-in may make worse; the document then lists them."""
_MACHINE = frozenset({"device", "compute_capability"})
_REFUSED = MISFITS - {"device-unsupported", "compute-capability-unsupported"}
"""Problems with which no engine starts; `_reason_against` checks the machine's by backend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """A plan whose backends can run here."""

    plan: Plan
    stand_ins: tuple[StandInDocument, ...] = ()
    changes: tuple[WorsenedDocument, ...] = ()
    left_out: tuple[str, ...] = ()
    """Flags of the server that do not hold here, each with why."""
    idle_stand_ins: tuple[str, ...] = ()
    """Stand-ins that were named for roles whose own backends run."""

    def stands_in(self, role: Role | None = None, phase: Phase | None = None) -> str | None:
        """Name the stand-ins of a role and phase, or all; None where each backend runs itself."""
        places: dict[str, dict[str, None]] = {}
        for own in self.stand_ins:
            if role in (None, Role(own.role)) and phase in (None, Phase(own.phase)):
                places.setdefault(own.stand_in, {})[own.backend] = None
        names = (f"{name} in place of {' and '.join(own)}" for name, own in places.items())
        return ", ".join(names) or None


class _UnfitError(Exception):
    """A backend cannot stand in, as the run would no longer follow the server's plan."""

    def __init__(self, names: str | Iterable[str], problem: str) -> None:
        self.names = names if isinstance(names, str) else ", ".join(sorted({*names}))
        self.problem = problem
        super().__init__(problem)


def run_plan(plan: Plan, plugins: Registry, device: str, asked: Mapping[Role, str]) -> RunPlan:
    """Make the plan that runs here, of backends whose code is installed.

    Args:
        plan: what was decided.
        plugins: what is installed, without an engine's own backends.
        device: the torch device to run on.
        asked: the backend that may stand in for what cannot run, by role.

    Raises:
        InsightError: a backend cannot run here, and none may stand in for it; or the one that
            may cannot run either, or asks for more than was decided.
    """
    own = _here(plan, device)
    blocked = {use: why for use in own.uses if (why := _reason_against(use, own, device))}
    left_out = _left_out(plan.flags)
    roles = {use.role for use in blocked}
    needed = {name for role, name in asked.items() if role in roles}
    idle = tuple(sorted({*asked.values()} - needed))
    if not blocked:
        return RunPlan(plan=own, left_out=left_out, idle_stand_ins=idle)
    named = {use: asked[use.role] for use in blocked if use.role in asked}
    left_alone = [use for use in blocked if use not in named]
    if left_alone:
        raise _cannot_run(
            {use.named: blocked[use] for use in left_alone},
            device,
            [*_would_run(own, plugins, device, blocked)],
            next((use.unread_engine for use in left_alone if use.unread_engine), None),
        )
    try:
        run = _standing_in(own, plugins, device, named)
        return replace(run, left_out=left_out, idle_stand_ins=idle)
    except _UnfitError as error:
        would = ", ".join(_would_run(own, plugins, device, blocked)) or "none of the installed"
        raise InsightError(
            "unfit-stand-in",
            f"backend {error.names!r} cannot stand in: {error.problem}. Expected one that runs "
            f"here and asks for no more than was decided: {would}. Name such a one with "
            "--stand-in.",
        ) from error


def _cannot_run(
    reasons: Mapping[str, str], device: str, would_run: Sequence[str], unread_engine: str | None
) -> InsightError:
    """Make the error that names each backend, why it cannot run, and what could stand in."""
    causes = "; ".join(f"backend {name!r}: {why}" for name, why in reasons.items())
    remedy = f"Add --stand-in {would_run[0]}" if would_run else "Install one"
    of_engine = f" Add --engine {unread_engine} too: unread, its own backends count as the worst."
    return InsightError(
        "cannot-run",
        f"this server cannot be started here on {device}: {causes}. Expected backends whose code "
        f"runs here; in their places would run: {', '.join(would_run) or 'no installed backend'}. "
        f"{remedy}, or start where they are installed.{of_engine if unread_engine else ''}",
    )


def _here(plan: Plan, device: str) -> Plan:
    """Put this machine's facts into the plan, and drop the uses that run nothing: wrappers."""
    kind = torch.device(device).type
    known: dict[str, object] = {"device": kind, "compute_capability": None}
    if kind == "cuda":
        known["compute_capability"] = torch.cuda.get_device_capability(device)
    return replace(
        plan,
        flags=plan.flags.updated({**_OF_RANKS, "device": None, "unrelated": ()}),
        facts=plan.facts.model_copy(update=known),
        uses=tuple(use for use in plan.uses if use.via or use.kind is not UseKind.PAIR),
    )


def _left_out(flags: ServerFlags) -> tuple[str, ...]:
    values = dict(flags)
    ranks = (
        f"--{name.replace('_', '-')} {values[name]}; each rank runs a whole model by itself"
        for name, one in _OF_RANKS.items()
        if values[name] != one
    )
    features = (
        f"{flag}; the engine of a dry run has no {feature}"
        for flag, feature in features_of(flags).items()
    )
    return (*ranks, *features)


def _reason_against(use: Use, plan: Plan, device: str) -> str | None:
    """Return why a use's code cannot run here; None where it can."""
    if use.adds_only:
        return None
    if use.kind is UseKind.ENGINE_DEFAULT:
        return (
            "no flag names it, and what an engine picks by itself is not known here; name it with "
            "--attention-backend"
        )
    if use.declaration is None:
        return "not read" if use.problem is None else use.problem.message.removesuffix(".")
    if use.readings:
        owner = f"{use.source.distribution} {use.source.version}"
        return f"what it declares was read from {owner}, whose own server alone runs its code"
    if use.declaration.implementation is None:
        return f"only what it declares is known ({use.source}), and no code of it"
    try:
        load_implementation(use)
    except ImplementationError as error:
        return error.problem
    if declared_traits(torch.device(device)).is_stand_in:
        return None
    misfits = (
        f"it takes {each.fact} {each.needed}, and here it is {each.actual}"
        for each in misfits_of(use, plan)
        if each.fact in _MACHINE
    )
    return "; ".join(misfits) or None


def _would_run(plan: Plan, plugins: Registry, device: str, blocked: Iterable[Use]) -> Iterator[str]:
    """List the backends that could stand in for all that cannot run; portable ones first.

    A simulated device counts as a CPU, because its operators run on one.
    """
    is_stand_in = declared_traits(torch.device(device)).is_stand_in
    kind = "cpu" if is_stand_in else torch.device(device).type
    portable, others = [], []
    for backend in sorted(plugins.values(), key=lambda own: own.name):
        declaration = backend.declaration
        if backend.status is Status.OK and declaration is not None:
            devices = declaration.capabilities.stated().get("devices")
            if devices is ANY:
                portable.append(backend.name)
            elif isinstance(devices, frozenset) and kind in devices:
                others.append(backend.name)
    for name in (*portable, *others):
        try:
            _standing_in(plan, plugins, device, dict.fromkeys(blocked, name))
        except _UnfitError:
            continue
        yield name


def _standing_in(plan: Plan, plugins: Registry, device: str, named: Mapping[Use, str]) -> RunPlan:
    """Replace some uses by others, and keep the values that were decided.

    Raises:
        _UnfitError: one of them cannot run here, or asks for more.
    """
    others = {use: _in_place(use, name, plugins) for use, name in named.items()}
    for other in others.values():
        if why := _reason_against(other, plan, device):
            raise _UnfitError(other.backend, why)
    # With these no engine would start: one of them does not take what the flags ask for.
    problems = _asks(plan, [*others.values()], named).problems
    messages = dict.fromkeys(each.message for each in problems if each.code in _REFUSED)
    if messages:
        raise _UnfitError(named.values(), " ".join(messages).removesuffix("."))
    asks = _asks(plan, [others.get(use, use) for use in plan.uses], named)
    joint = plan.with_values(lambda phase, own: _joined(own, asks, phase))
    stand_ins = (
        StandInDocument(
            role=use.role.value, phase=use.phase.value, backend=use.named, stand_in=other.backend
        )
        for use, other in others.items()
    )
    return RunPlan(
        plan=replace(joint, uses=asks.uses),
        stand_ins=tuple(stand_ins),
        changes=tuple(_changes(plan, asks, [*named.values()])),
    )


def _in_place(use: Use, name: str, plugins: Registry) -> Use:
    backend: Backend | None = plugins.get(name)
    if backend is None or backend.declaration is None or backend.status is not Status.OK:
        raise _UnfitError(name, "no installed plugin declares it")
    return Use(
        backend=name,
        role=use.role,
        phase=use.phase,
        declaration=backend.declaration,
        source=backend.source,
        slot=use.slot,
    )


def _asks(plan: Plan, uses: Sequence[Use], named: Mapping[Use, str]) -> Plan:
    """Resolve the plan's flags with the stand-ins in place."""
    try:
        return resolve(
            uses,
            plan.flags,
            rules=plan.rules,
            facts=plan.facts,
            policy=Policy.QUIET,
            unsafe_override=plan.unsafe_override,
        )
    except (BackendCapsError, ExceptionGroup) as error:
        raise _UnfitError(named.values(), sentence_of(error)) from error


def _joined(own: Resolved, asks: Plan, phase: Phase | None) -> Resolved:
    other = asks.by_phase[phase][own.capability]
    return replace(own, value=CAPABILITIES[own.capability].join(own.value, other.value))


def _changes(plan: Plan, asks: Plan, names: Sequence[str]) -> Iterator[WorsenedDocument]:
    """List the values that become worse; lengths on the host and graphs may not.

    Raises:
        _UnfitError: lengths on the host, or graphs, would not be as they were decided.
    """
    for phase, own in plan.values():
        joined = _joined(own, asks, phase)
        if joined.value == own.value or not own.effect.active:
            continue
        if own.capability == "host_seq_lens" or _loses_graphs(plan, joined, phase):
            where = "" if phase is None else f" in {phase.value}"
            raise _UnfitError(
                names,
                f"with it {own.capability}{where} is {text_of(joined.value)}, and was decided to "
                f"be {text_of(own.value)}",
            )
        if own.capability in _MAY_WORSEN:
            yield WorsenedDocument(
                capability=own.capability,
                phase=None if phase is None else phase.value,
                decided=text_of(own.value),
                here=text_of(joined.value),
            )


def _loses_graphs(plan: Plan, joined: Resolved, phase: Phase | None) -> bool:
    """Return whether batches are replayed as decided, and would not be with the joined value."""
    if joined.capability != "graph_replay" or phase is None:
        return False
    speculates = plan.flags.speculative_algorithm is not None
    if speculates and phase is not Phase.VERIFY:  # this engine captures no other whole
        return False
    before = plan.by_phase[phase][joined.capability].value
    assert isinstance(before, frozenset), "kinds of batch are a set"
    assert isinstance(joined.value, frozenset), "kinds of batch are a set"
    return KIND_OF_PHASE[phase] in before - joined.value
