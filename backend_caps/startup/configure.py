"""Server start-up in one call: discover, resolve, agree, configure."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from os import PathLike
from pathlib import Path

import torch
from torch.distributed import ProcessGroup

from backend_caps.capability.facts import Facts, text_of
from backend_caps.capability.kind import Role
from backend_caps.capability.vocabulary import Capabilities, HostSeqLens
from backend_caps.discovery.registry import Registry, discover
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
from backend_caps.startup.configuration import NO_SIZES, Configuration, GraphSizes
from backend_caps.startup.errors import StartupError

_SHOWN = 5
"""Differences from a lock that an error has; `backend-caps verify` has all."""
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
) -> Configuration:
    """Find what is installed, resolve what the server needs, and make what it serves with.

    With a group, all its ranks come to one plan before any builds anything, or all get an error.

    Args:
        flags: the server's.
        pool_size: rows of the request pool, the padding row 0 included.
        device: where the FutureMap's buffers live.
        facts: what is known of machine and model; what the device itself tells is filled in: its
            type, and of a CUDA device the compute capability.
        draft: the shape of what a speculative step hands to the next; None without a draft
            model.
        graph_sizes: the sizes that the engine wants graphs captured for, by role.
        registry: what is installed, where the caller has looked already.
        rules: the engine version whose rules hold, or the rules themselves; unless given, those of
            the installed SGLang, else the newest. The log line says which and why.
        policy: what is done about problems; `warn` logs them.
        unsafe_override: values to put in place of the joined ones; recorded as causes.
        lock: a file of `backend-caps lock`; what is installed, and this rank's own plan, must be
            what it says.
        group: the ranks that have to come to one plan, or `Ranks` to say more; None: there is one.
        debug: check every row that is written and read; slow.
        streams: the device's streams, where the declared traits are not the ones to use.

    Returns:
        The plan, its FutureMap, how each kind of batch runs, and where barriers are released. With
        a group the plan has this rank's own flags and uses, and the values that all ranks came to.

    Raises:
        ResolutionError: no installed backend fits a flag that says `auto`, or a flag names one
            that declares that it cannot run here.
        StartupError: torch has no such device here, something is not as the lock says, the group
            has no gloo or this rank is no member, or the deadline of `Ranks` is none.
        RanksDifferError: ranks differ in what must be the same; all of them raise it.
        RankFailedError: another rank could not decide.
        MissingRanksError: not every rank answered in time.
        BackendCapsError: flags, backends or the plan are refused; several faults come as one
            group.
    """

    def decide() -> Plan:
        if streams is None:
            check_device(device)
        known = discover() if registry is None else registry
        plan = planned(
            flags,
            known,
            device=device,
            facts=facts,
            draft=draft,
            rules=rules,
            policy=policy,
            unsafe_override=unsafe_override,
        )
        # A stand-in for a device is none that a backend could know.
        check_named(plan, known, but=frozenset({"device"} if _stand_ins(device) else ()))
        if lock is not None:
            check_locked(Path(lock), plan, known)
        return plan

    if group is None:
        plan = decide()
    else:
        sizes = {role.value: graph_sizes[role] for role in Role if role in graph_sizes}
        named = policy.value if isinstance(policy, Policy) else policy
        compared = {"pool_size": pool_size, "draft": draft, "graph_sizes": sizes, "policy": named}
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


def planned(
    flags: ServerFlags,
    registry: Registry,
    *,
    device: str | torch.device,
    facts: Facts | None = None,
    draft: DraftShape | None = None,
    rules: str | RuleSet | None = None,
    policy: Policy | str = Policy.WARN,
    unsafe_override: Capabilities | None = None,
) -> Plan:
    """Choose and resolve for a device; the arguments are those of `configure`.

    Whether the backends that flags name run there is not asked: a rehearsal runs none of them.

    Raises:
        BackendCapsError: flags, backends or the plan are refused.
    """
    plan = plan_for(
        registry,
        flags,
        rules=registry.rules(rules),
        facts=_with_device(facts or Facts(), torch.device(device)),
        policy=policy,
        unsafe_override=unsafe_override,
        stand_ins=_stand_ins(device),
    )
    if not _lacks_bound(plan, draft):
        return plan
    return plan.raised(
        "host_seq_lens",
        HostSeqLens.EXACT,
        "neither the draft shape nor the flags say how many tokens a step can accept, so there "
        "is no bound to keep",
    )


def _stand_ins(device: str | torch.device) -> frozenset[str]:
    """Return the device's type where it stands in for others."""
    known = torch.device(device)
    traits = DEVICE_TRAITS.get(known.type)
    return frozenset({known.type} if traits is not None and traits.is_stand_in else ())


def _with_device(facts: Facts, device: torch.device) -> Facts:
    """Fill in what the device itself tells; what was said goes before."""
    found: dict[str, object] = {"device": device.type}
    if device.type == "cuda":  # the one whose compute capability there is
        found["rocm"] = torch.version.hip is not None
        if torch.version.hip is None:
            found["compute_capability"] = torch.cuda.get_device_capability(device)
    return Facts.model_validate({**found, **facts.known()})


def check_device(device: str | torch.device) -> None:
    """Require a device that torch has here.

    Raises:
        StartupError: it has none such.
    """
    try:
        known = torch.device(device)
        module = torch.get_device_module(known)
        number = known.index or 0
        available = module.is_available() and number < module.device_count()
    except (AttributeError, RuntimeError):  # no such type, or one without a module of its own
        available = False
    if not available:
        raise StartupError(
            "device",
            f"device {str(device)!r} is not available to torch on this machine. Name one that is, "
            "such as 'cpu', or install the torch build for it.",
        )


def _check_bound(joint: Plan, draft: DraftShape | None) -> None:
    """Refuse a bound that other ranks brought, where this one cannot keep it."""
    if _lacks_bound(joint, draft):
        raise unknown_accept_tokens()


def _lacks_bound(plan: Plan, draft: DraftShape | None) -> bool:
    mirror = plan["host_seq_lens"]
    if mirror.value is not HostSeqLens.UPPER_BOUND or not mirror.effect.active:
        return False
    return not (plan.flags.accept_tokens or (draft is not None and draft.accept_tokens))


def check_locked(path: Path, plan: Plan, registry: Registry) -> None:
    """Refuse a plan that a lock file does not have.

    What was asked when it was written is not compared: this is the plan that counts.

    Raises:
        LockError: the file is not there, cannot be read, or is another document.
        StartupError: something is not as it says.
    """
    locked = read_lock(path)
    now = lock_document(
        locked.request,
        backends=registry.entries,
        problems=registry.problems,
        rules=plan.rules,
        plan=None if locked.plan is None else plan_document(plan, ()),
    ).model_copy(update={"engine": locked.engine})
    found = differences(Side.of_lock(locked), Side.of_lock(now))
    if not found:
        return
    told = "; ".join(map(_difference, found[:_SHOWN]))
    rest = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    raise StartupError(
        "lock-differs",
        f"the server would not start as {str(path)!r} says: {told}{rest}. Expected what was "
        f"locked. Install it, or look at `backend-caps verify {path}` and lock anew.",
    )


def _difference(difference: DifferenceDocument) -> str:
    what = " ".join(part for part in (difference.subject, difference.field) if part)
    return f"{what} is {difference.after or 'not there'} and was {difference.before or 'not there'}"


def log_plan(plan: Plan) -> None:
    """Log what was chosen, the decision in one line, and what is wrong with it.

    The line's record carries the same as the fields `plan_fingerprint`, `plan_rules` and
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


def _value(own: Resolved) -> str:
    """Write a value with its first cause, and the rank of that where not all have it."""
    said = "no use"
    if own.causes:
        cause = own.causes[0]
        said = " of ".join([f"{cause.kind.value} {cause.name}", *reversed(cause.via)])
        said += "" if cause.rank is None else f" on rank {cause.rank}, {cause.host}"
    return f"{text_of(own.value)} ({said})"
