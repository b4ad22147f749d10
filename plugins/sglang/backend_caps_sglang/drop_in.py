"""SGLang's `decide_needs_cpu_seq_lens`, with reasons, for its own live backend objects.

An engine imports it from here instead of from `sglang.srt.managers.overlap_utils`, and changes
nothing else. Both signatures are taken: 0.5.13's with the server's arguments, and 0.5.23's without,
whose flags are read from SGLang's runtime context. Where SGLang's answer rests on what nobody
states, the answer is True, and a warning says why.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import reduce
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import overload

from backend_caps.capability.backend import Problem
from backend_caps.capability.facts import text_of
from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.resolution.errors import FlagValueError
from backend_caps.resolution.flags import ServerFlags, without_flags
from backend_caps.resolution.plan import Cause, Plan, Policy, in_order
from backend_caps.resolution.resolver import resolve
from backend_caps.resolution.rules import RuleSet
from backend_caps_sglang.errors import DecisionError
from backend_caps_sglang.live import uses_of_slots

_LOG = logging.getLogger("backend_caps_sglang")
_RULES_WITH_ARGS = "sglang-0.5.13"
_RULES_WITH_CONTEXT = "sglang-0.5.23"
_ABSENT = object()
_CONTEXT = "sglang.srt.runtime_context"
_WHEN_REFUSED: Mapping[str, object] = {
    "enable_two_batch_overlap": True,
    "disable_piecewise_cuda_graph": False,
    "enable_mixed_chunk": True,
    "disable_overlap_schedule": False,
    "speculative_num_steps": None,
}
"""What a flag counts as that has a value of another kind: never less than it may mean."""
_FLAGS = ("speculative_algorithm", *_WHEN_REFUSED)
_LEAVES = {
    "enable_two_batch_overlap": ("get_exec", "overlap", "enable_two_batch_overlap"),
    "speculative_algorithm": ("get_spec", "speculative_algorithm"),
    "speculative_num_steps": ("get_spec", "speculative_num_steps"),
    "enable_mixed_chunk": ("get_schedule", "enable_mixed_chunk"),
    "disable_overlap_schedule": ("get_schedule", "disable_overlap_schedule"),
}
"""Where the runtime context has each flag."""
_REQUIRED = frozenset({"enable_two_batch_overlap", "speculative_algorithm"})
"""What SGLang's function reads; the others count as not given where they are not there."""


@overload
def decide_needs_cpu_seq_lens(
    server_args: object, attn_backends: Iterable[object], *, rules: str | None = None
) -> bool: ...


@overload
def decide_needs_cpu_seq_lens(
    attn_backends: Iterable[object], /, *, rules: str | None = None
) -> bool: ...


@overload
def decide_needs_cpu_seq_lens(
    *, attn_backends: Iterable[object], rules: str | None = None
) -> bool: ...


def decide_needs_cpu_seq_lens(
    server_args: object = _ABSENT, attn_backends: object = _ABSENT, *, rules: str | None = None
) -> bool:
    """Decide whether the lengths must cross to the host, and log why.

    Takes the place of SGLang's function of that name. One line has the answer and what forced it;
    each thing that SGLang takes for an opt-out and that nobody states is a warning.

    Args:
        server_args: SGLang's `ServerArgs`, as 0.5.13 gives it. Leave it out, as 0.5.23 does, and
            the flags are read from its runtime context.
        attn_backends: the live backends: target, draft, draft_extend. An empty slot is None.
        rules: the rule set; that of the signature's version unless given.

    Raises:
        DecisionError: there are no `server_args`, and no runtime context either; or
            `attn_backends` is no sequence.
        FlagsError: `server_args` has none of a server's flags.
        FlagValueError: the speculative algorithm is no name.
        ResolutionError: there is no such rule set.
    """
    plan = _explained(server_args, attn_backends, rules)
    for problem in plan.problems:
        if problem.code.startswith("live-"):
            _LOG.warning("%s %s", problem.message, problem.remedy)
    _LOG.info("%s", _answer(plan))
    return plan.needs_cpu_seq_lens


@overload
def explain_needs_cpu_seq_lens(
    server_args: object, attn_backends: Iterable[object], *, rules: str | None = None
) -> Plan: ...


@overload
def explain_needs_cpu_seq_lens(
    attn_backends: Iterable[object], /, *, rules: str | None = None
) -> Plan: ...


@overload
def explain_needs_cpu_seq_lens(
    *, attn_backends: Iterable[object], rules: str | None = None
) -> Plan: ...


def explain_needs_cpu_seq_lens(
    server_args: object = _ABSENT, attn_backends: object = _ABSENT, *, rules: str | None = None
) -> Plan:
    """Return the plan behind `decide_needs_cpu_seq_lens`, with every cause; nothing is logged.

    The plan answers for `host_seq_lens`: a live backend states nothing else. Arguments and errors
    are those of `decide_needs_cpu_seq_lens`.
    """
    return _explained(server_args, attn_backends, rules)


def _explained(server_args: object, attn_backends: object, rules: str | None) -> Plan:
    if attn_backends is _ABSENT:  # one argument by position: 0.5.23's
        server_args, attn_backends = _ABSENT, server_args
    if not isinstance(attn_backends, Iterable):
        kind = "nothing" if attn_backends is _ABSENT else type(attn_backends).__name__
        raise DecisionError(
            "attn-backends-no-sequence",
            f"attn_backends is an object of type {kind!r}; expected a sequence of backends. "
            "Call it with (server_args, attn_backends) or with (attn_backends).",
        )
    by_context = server_args is _ABSENT
    rule_set = RuleSet.builtin(rules or (_RULES_WITH_CONTEXT if by_context else _RULES_WITH_ARGS))
    flags, refused = parsed_flags(
        values_of_context() if by_context else values_of_args(server_args)
    )
    uses = uses_of_slots(tuple(attn_backends), flags)
    plan = resolve(uses, flags, rules=rule_set, policy=Policy.QUIET)
    doubts = (use.problem for use in uses if use.problem is not None)
    found = {*plan.problems, *doubts, *refused}
    return replace(plan, problems=in_order(found))


def _forcing(plan: Plan) -> list[Cause]:
    return [cause for cause in plan["host_seq_lens"].causes if cause.value is HostSeqLens.EXACT]


def _answer(plan: Plan) -> str:
    """Write the answer in one line, with what forced it."""
    forced = _forcing(plan)
    causes = forced or plan["host_seq_lens"].causes
    verb = "forced by" if forced else "stated by"
    reasons = "; ".join(dict.fromkeys(map(_reason, causes)))
    return f"needs_cpu_seq_lens={plan.needs_cpu_seq_lens} under {plan.rules.name}, {verb} {reasons}"


def _reason(cause: Cause) -> str:
    who = f"rule {cause.name!r}" if cause.role is None else f"{cause.name} ({cause.role.value})"
    return f"{who}: {cause.reason.removesuffix('.')}"


def values_of_args(server_args: object) -> Mapping[str, object]:
    """Read the arguments by attribute; one that this version has no more is not given.

    Raises:
        FlagsError: the object has none of them at all.
    """
    present = {name: getattr(server_args, name) for name in _FLAGS if hasattr(server_args, name)}
    if not present:
        raise without_flags(server_args)
    return present


def values_of_context() -> Mapping[str, object]:
    """Read the flags from the context that SGLang publishes them in, since 0.5.23.

    Raises:
        DecisionError: SGLang is not there, or has not published its flags.
    """
    try:
        return dict(_published(import_module(_CONTEXT)))
    except (ImportError, AttributeError, ValueError) as error:
        raise DecisionError(
            "runtime-context-unreadable",
            f"{_CONTEXT} cannot be read: {error}; expected the context of an SGLang 0.5.23 "
            "that has published its flags. Call after that, or give server_args first.",
        ) from error


def _published(context: ModuleType) -> Iterator[tuple[str, object]]:
    for name, (accessor, *path) in _LEAVES.items():
        try:
            yield name, reduce(getattr, path, getattr(context, accessor)())
        except (AttributeError, ValueError):
            if name in _REQUIRED:
                raise


def parsed_flags(values: Mapping[str, object]) -> tuple[ServerFlags, list[Problem]]:
    """Parse flags; one that has a value of another kind counts as the worst it may mean.

    Raises:
        FlagValueError: the speculative algorithm is no name.
    """
    parsed, problems = dict(values), []
    for name in (each for each in _WHEN_REFUSED if each in values):
        try:
            ServerFlags.from_object(SimpleNamespace(**{name: values[name]}))
        except FlagValueError as fault:
            worst = _WHEN_REFUSED[name]
            parsed[name] = worst
            shown = "not given" if worst is None else text_of(worst)
            problems.append(
                Problem(
                    code="live-server-flag-refused",
                    message=f"{fault.flag} is {fault.value} in SGLang's flags; expected "
                    f"{fault.expected}, so it counts as {shown}.",
                    remedy="Correct the value.",
                )
            )
    return ServerFlags.from_object(SimpleNamespace(**parsed)), problems
