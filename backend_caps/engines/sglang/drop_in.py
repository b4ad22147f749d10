"""SGLang's `decide_needs_cpu_seq_lens`, with reasons, for its own live backend objects.

An engine imports it from here instead of from `sglang.srt.managers.overlap_utils`, and changes
nothing else. Both signatures are taken: 0.5.13's with the server's arguments, and 0.5.23's without,
whose flags are read from SGLang's runtime context. Where SGLang's answer rests on what nobody
states, the answer is True, and a warning says why.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import overload

from backend_caps.capability.backend import Problem
from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.engines.sglang.live import uses_of_slots
from backend_caps.engines.sglang.live_flags import (
    parsed_flags,
    values_of_args,
    values_of_context,
)
from backend_caps.errors import BackendCapsError
from backend_caps.resolution.flips import undo
from backend_caps.resolution.plan import Cause, CauseKind, Plan, Policy, in_order
from backend_caps.resolution.resolver import resolve
from backend_caps.resolution.rules import RuleSet

_LOG = logging.getLogger("backend_caps.engines.sglang")
_RULES_WITH_ARGS = "sglang-0.5.13"
_RULES_WITH_CONTEXT = "sglang-0.5.23"
_ABSENT = object()
_SGLANGS_OWN = frozenset({"two-batch-overlap", "piecewise-cuda-graph", "ngram"})
"""The rules that SGLang's function applies too."""


@dataclass(eq=False, kw_only=True)
class AttnBackendsError(BackendCapsError):
    """What was handed over as backends is no sequence of them."""

    kind: str

    @property
    def message(self) -> str:
        """What came, and what the two signatures are."""
        return (
            f"attn_backends is an object of type {self.kind!r}; expected a sequence of backends. "
            "Call it with (server_args, attn_backends) or with (attn_backends)."
        )


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

    Takes the place of SGLang's function of that name. One line says the answer and who forced it;
    each thing that SGLang takes for an opt-out and that nobody states is a warning.

    Args:
        server_args: SGLang's `ServerArgs`, as 0.5.13 gives it. Leave it out, as 0.5.23 does, and
            the flags are read from its runtime context.
        attn_backends: the live backends: target, draft, draft_extend. An empty slot is None.
        rules: the rule set; that of the signature's version unless given.

    Raises:
        RuntimeContextError: there are no `server_args`, and no runtime context either.
        AttnBackendsError: `attn_backends` is no sequence.
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
        raise AttnBackendsError(kind=_kind_of(attn_backends))
    by_context = server_args is _ABSENT
    rule_set = RuleSet.builtin(rules or (_RULES_WITH_CONTEXT if by_context else _RULES_WITH_ARGS))
    flags, refused = parsed_flags(
        values_of_context() if by_context else values_of_args(server_args)
    )
    uses = uses_of_slots(tuple(attn_backends), flags)
    plan = resolve(uses, flags, rules=rule_set, policy=Policy.QUIET)
    doubts = (use.problem for use in uses if use.problem is not None)
    found = {*plan.problems, *doubts, *refused, *_of_rules(plan)}
    return plan.with_problems(in_order(found))


def _kind_of(value: object) -> str:
    return "nothing" if value is _ABSENT else type(value).__name__


def _of_rules(plan: Plan) -> Iterator[Problem]:
    """List the rules that hold here and that SGLang's own function does not apply."""
    causes = {cause.name: cause for cause in _forcing(plan) if cause.kind is CauseKind.RULE}
    for rule in plan.rules.rules:
        if rule.name in causes and rule.name not in _SGLANGS_OWN:
            remedy = undo(rule)
            assert remedy is not None, f"rule {rule.name} asks for no switch"
            yield Problem(
                code="live-rule-added",
                message=f"rule {rule.name!r} forces needs_cpu_seq_lens=True, and SGLang does not "
                f"apply it: {causes[rule.name].reason}.",
                remedy=f"{remedy.text} Otherwise the copy stays on.",
            )


def _forcing(plan: Plan) -> list[Cause]:
    return [cause for cause in plan["host_seq_lens"].causes if cause.value is HostSeqLens.EXACT]


def _answer(plan: Plan) -> str:
    """Say the answer in one line, and who forced it."""
    forced = _forcing(plan)
    causes = forced or plan["host_seq_lens"].causes
    verb = "forced by" if forced else "stated by"
    told = "; ".join(dict.fromkeys(map(_told, causes)))
    return f"needs_cpu_seq_lens={plan.needs_cpu_seq_lens} under {plan.rules.name}, {verb} {told}"


def _told(cause: Cause) -> str:
    who = f"rule {cause.name!r}" if cause.role is None else f"{cause.name} ({cause.role.value})"
    return f"{who}: {cause.reason.removesuffix('.')}"
