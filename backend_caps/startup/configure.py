"""Server start-up in one call: discover, resolve, agree, configure."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from os import PathLike
from pathlib import Path

import torch
from torch.distributed import ProcessGroup

from backend_caps.capability.facts import Facts, text_of
from backend_caps.capability.kind import Role
from backend_caps.capability.vocabulary import Capabilities, HostSeqLens
from backend_caps.discovery.registry import Registry, discover
from backend_caps.engines.start import EngineStart, beside
from backend_caps.relay import DraftShape
from backend_caps.relay.host_lengths import unknown_accept_tokens
from backend_caps.relay.streams import DEVICE_TRAITS, DeviceStreams
from backend_caps.report.diff import Side, differences
from backend_caps.report.difference import DifferenceDocument
from backend_caps.report.document import json_text
from backend_caps.report.lock import lock_document, read_lock
from backend_caps.report.plans import plan_document
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.plan import Plan, Policy, Resolved
from backend_caps.resolution.rules import RuleSet
from backend_caps.resolution.selection import check_named, plan_for
from backend_caps.startup.agreement import Ranks, agree
from backend_caps.startup.configuration import NO_SIZES, Configuration
from backend_caps.startup.errors import StartupError
from backend_caps.startup.graph_choice import GraphSizes

_SHOWN = 5
"""Most differences from a lock in an error; `backend-caps verify` lists all."""
_log = logging.getLogger("backend_caps")


def configure(  # noqa: PLR0913 - what a server is started with
    flags: ServerFlags,
    *,
    pool_size: int,
    device: str | torch.device,
    facts: Facts | None = None,
    draft: DraftShape | None = None,
    graph_sizes: Mapping[Role, GraphSizes] = NO_SIZES,
    registry: Registry | None = None,
    rules: str | RuleSet | None = None,
    policy: Policy | str = Policy.WARN,
    unsafe_override: Capabilities | None = None,
    lock: str | PathLike[str] | None = None,
    group: ProcessGroup | Ranks | None = None,
    debug: bool = False,
    streams: DeviceStreams | None = None,
    engine: EngineStart | None = None,
) -> Configuration:
    """Discover backends, resolve the plan, and make the server's configuration.

    With a group, all its ranks agree on one plan before any rank builds anything, or all raise.

    Args:
        flags: the server's flags.
        pool_size: rows of the request pool, the padding row 0 included.
        device: where the FutureMap's buffers live.
        facts: known facts of machine and model; those of the device are filled in: its type, and
            for CUDA the compute capability.
        draft: the shape of the draft state that a speculative step relays; None without a draft
            model.
        graph_sizes: the sizes that the engine captures graphs for, by role.
        registry: the installed backends, where the caller has discovered them already.
        rules: the engine version whose rules hold, or the rules themselves; unless given, those of
            the installed SGLang, else the newest. The log line says which and why.
        policy: how problems are treated; `warn` logs them.
        unsafe_override: values to put in place of the joined ones; recorded as causes.
        lock: a file of `backend-caps lock`; the installed backends and this rank's plan must match
            it.
        group: the ranks that have to agree on one plan, or `Ranks` with more options; None for a
            single rank.
        debug: check every row that is written and read; slow.
        streams: the device's streams, where the declared traits are not the ones to use.
        engine: SGLang, read or asked, with what it makes of the server's command line: its own
            backends join the registry's, its final flags go before `flags`, its rules hold unless
            `rules` are given, and what it refuses is a problem.

    Returns:
        The plan, its FutureMap, how each kind of batch runs, and where barriers are released. With
        a group the plan has this rank's flags and uses, and the values joined over all ranks.

    Raises:
        ResolutionError: no installed backend fits a flag that says `auto`, or a flag names one
            that declares that it cannot run here.
        StartupError: torch has no such device here, the plan differs from the lock, the group has
            no gloo or this rank is no member, or the deadline of `Ranks` is invalid.
        RanksDifferError: ranks differ in a field that must be the same; all of them raise it.
        RankFailedError: another rank has no plan.
        MissingRanksError: not every rank answered in time.
        BackendCapsError: flags, backends or the plan are refused; several faults come as one
            group.
    """

    def decide() -> Plan:
        if streams is None:
            check_device(device)
        known = discover() if registry is None else registry
        resolved: Callable[..., Plan] = partial(plan_for, stand_ins=stand_ins(device))
        named = rules
        if engine is not None:
            known, resolved = beside(engine.reading, known), engine.plan
            named = rules or engine.reading.rules
        plan = resolved(
            known,
            flags,
            rules=known.rules(named),
            facts=with_device(facts or Facts(), device),
            policy=policy,
            unsafe_override=unsafe_override,
        )
        plan = with_bound(plan, draft)
        # No backend declares a stand-in device by name, so naming it is no mistake to report.
        check_named(plan, known, but=frozenset({"device"} if stand_ins(device) else ()))
        if lock is not None:
            check_locked(Path(lock), plan, known)
        return plan

    if group is None:
        plan = decide()
    else:
        sizes = {role.value: graph_sizes[role] for role in Role if role in graph_sizes}
        treated = policy.value if isinstance(policy, Policy) else policy
        compared = {"pool_size": pool_size, "draft": draft, "graph_sizes": sizes, "policy": treated}
        plan = agree(
            decide,
            Ranks.of(group),
            given=flags,
            arguments=compared,
            check=lambda joint: _check_bound(joint, draft),
        )
    log_plan(plan)
    return Configuration.from_plan(
        plan,
        pool_size=pool_size,
        device=device,
        draft=draft,
        graph_sizes=graph_sizes,
        debug=debug,
        streams=streams,
    )


def with_bound(plan: Plan, draft: DraftShape | None) -> Plan:
    """Raise `host_seq_lens` from an upper bound to exact where no bound can be computed.

    Args:
        plan: of a server.
        draft: the shape of the relayed draft state; None without a draft model.
    """
    if not _lacks_bound(plan, draft):
        return plan
    return plan.raised(
        "host_seq_lens",
        HostSeqLens.EXACT,
        "neither the draft shape nor the flags say how many tokens a step can accept, so there "
        "is no bound to keep",
    )


def stand_ins(device: str | torch.device) -> frozenset[str]:
    """Return the device's type if it is a stand-in for others, else an empty set."""
    known = torch.device(device)
    traits = DEVICE_TRAITS.get(known.type)
    return frozenset({known.type} if traits is not None and traits.is_stand_in else ())


def with_device(facts: Facts, device: str | torch.device) -> Facts:
    """Add the facts that the device provides; facts that are given take precedence."""
    kind = torch.device(device).type
    provided: dict[str, object] = {"device": kind}
    if kind == "cuda":
        # A ROCm build of torch calls its devices "cuda" too, and their versions are not CUDA's.
        provided["rocm"] = torch.version.hip is not None
        if torch.version.hip is None:
            provided["compute_capability"] = torch.cuda.get_device_capability(device)
    return Facts.model_validate({**provided, **facts.known()})


def check_device(device: str | torch.device) -> None:
    """Require a device that torch can use on this machine.

    Raises:
        StartupError: the device is not available.
    """
    try:
        known = torch.device(device)
        module = torch.get_device_module(known)
        number = known.index or 0
        available = module.is_available() and number < module.device_count()
    except (AttributeError, RuntimeError):  # unknown type, or a type without a torch module
        available = False
    if not available:
        raise StartupError(
            "device",
            f"device {str(device)!r} is not available to torch on this machine. Name one that is, "
            "such as 'cpu', or install the torch build for it.",
        )


def _check_bound(joint: Plan, draft: DraftShape | None) -> None:
    """Refuse a joined upper bound that this rank has no `accept_tokens` for."""
    if _lacks_bound(joint, draft):
        raise unknown_accept_tokens()


def _lacks_bound(plan: Plan, draft: DraftShape | None) -> bool:
    mirror = plan["host_seq_lens"]
    if mirror.value is not HostSeqLens.UPPER_BOUND or not mirror.effect.active:
        return False
    return not (plan.flags.accept_tokens or (draft is not None and draft.accept_tokens))


def check_locked(path: Path, plan: Plan, registry: Registry) -> None:
    """Refuse a plan that differs from a lock file.

    The request that the lock was written for is not compared, only the plan that came of it.

    Raises:
        LockError: the file is missing, cannot be read, or is another document.
        StartupError: the installed backends or the plan differ from it.
    """
    locked = read_lock(path)
    planned = None if locked.plan is None else plan_document(plan, ())
    now = lock_document(locked.request, registry, plan.rules, planned)
    now = now.model_copy(update={"engine": locked.engine})
    changes = differences(Side.of_lock(locked), Side.of_lock(now))
    if not changes:
        return
    shown = "; ".join(map(_difference, changes[:_SHOWN]))
    rest = f"; and {len(changes) - _SHOWN} more" if len(changes) > _SHOWN else ""
    raise StartupError(
        "lock-differs",
        f"the server would not start as {str(path)!r} says: {shown}{rest}. Expected what was "
        f"locked. Install it, or look at `backend-caps verify {path}` and lock anew.",
    )


def _difference(difference: DifferenceDocument) -> str:
    what = " ".join(part for part in (difference.subject, difference.field) if part)
    return f"{what} is {difference.after or 'not there'} and was {difference.before or 'not there'}"


def log_plan(plan: Plan) -> None:
    """Log the chosen backends, the plan in one line, and its problems.

    The line's log record has the same values as the fields `plan_fingerprint`, `plan_rules` and
    `plan_values`. The whole plan, with every cause, is logged as JSON for debugging.
    """
    values = {
        own.capability if phase is None else f"{phase.value}.{own.capability}": _value(own)
        for phase, own in plan.values()
    }
    fields = {"plan_fingerprint": plan.fingerprint, "plan_rules": plan.rules.name}
    for choice in plan.choices:
        _log.info("%s", choice)
    _log.info(
        "plan %s under %s: %s",
        plan.fingerprint,
        plan.rules,
        "; ".join(f"{name}={value}" for name, value in values.items()),
        extra={**fields, "plan_values": values},
    )
    if _log.isEnabledFor(logging.DEBUG):
        _log.debug("%s", json_text(plan_document(plan, ())))
    if plan.policy is not Policy.QUIET:
        for problem in plan.problems:
            _log.warning("%s: %s %s", problem.code, problem.message, problem.remedy)


def _value(resolved: Resolved) -> str:
    """Return a value with its first cause, and the cause's rank where not all ranks have it."""
    reason = "no use"
    if resolved.causes:
        cause = resolved.causes[0]
        reason = " of ".join([f"{cause.kind.value} {cause.name}", *reversed(cause.via)])
        reason += "" if cause.rank is None else f" on rank {cause.rank}, {cause.host}"
    return f"{text_of(resolved.value)} ({reason})"
