"""Another backend in a running engine: the plan is resolved anew, or the swap is refused.

What an engine was made with, it was made with for its plan: a relay that keeps the host in the
dark, graphs of one backend's kernels. A backend that asks for more than that would read what nobody
supplies.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from collections.abc import Set as AbstractSet

from backend_caps.capability.kind import Phase, Role
from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.resolution.plan import Choice, Plan, Policy
from backend_caps.resolution.resolver import resolve
from backend_caps.resolution.uses import Use
from backend_caps.runtime.errors import BackendSwapError


def swapped(
    plan: Plan,
    swaps: Iterable[Use],
    *,
    supplied: HostSeqLens,
    captured: Collection[tuple[Role, Phase]],
) -> Plan:
    """Resolve a plan with other backends in the places of its own.

    A choice for a flag that says `auto` is kept while a use by it is left.

    Args:
        plan: the engine's.
        swaps: uses of the plan, by role and phase, with other backends.
        supplied: what the relay tells the host about lengths.
        captured: roles and phases of which there are graphs.

    Raises:
        BackendSwapError: the engine cannot go on with them, for all the reasons that it names.
    """
    wanted = {(use.role, use.phase): use for use in swaps}
    own = {(use.role, use.phase) for use in plan.uses}
    if strangers := wanted.keys() - own:
        names = sorted(f"{role.value} {phase.value}" for role, phase in strangers)
        raise BackendSwapError(reasons=(f"the plan has no use of {', '.join(names)}",))
    if unread := [use.backend for use in wanted.values() if not (use.declaration or use.problem)]:
        names = sorted(map(repr, unread))
        raise BackendSwapError(reasons=(f"nobody read a declaration of {', '.join(names)}",))
    kept = tuple(use for use in plan.uses if (use.role, use.phase) not in wanted)
    new = resolve(
        (*kept, *wanted.values()),
        plan.flags,
        rules=plan.rules,
        facts=plan.facts,
        policy=Policy.QUIET,
        unsafe_override=plan.unsafe_override,
        choices=_left(plan, {*kept, *wanted.values()}),
    )
    if reasons := tuple(_reasons(plan, new, wanted.values(), supplied, captured)):
        raise BackendSwapError(reasons=reasons)
    return new


def _left(plan: Plan, uses: AbstractSet[Use]) -> tuple[Choice, ...]:
    """List a plan's choices of which a use is among these."""
    flags = {use.slot for use in plan.uses if use in uses}
    return tuple(choice for choice in plan.choices if choice.flag in flags)


def _reasons(
    plan: Plan,
    new: Plan,
    swaps: Iterable[Use],
    supplied: HostSeqLens,
    captured: Collection[tuple[Role, Phase]],
) -> Iterator[str]:
    needed = new.host_seq_lens
    if new.relays_speculation and supplied < needed:
        causes = new["host_seq_lens"].causes
        forcing = sorted({cause.name for cause in causes if cause.value is needed})
        yield (
            f"{', '.join(map(repr, forcing))} needs host_seq_lens {needed.value!r}, and the relay "
            f"was made for {supplied.value!r}"
        )
    for use in swaps:
        if (use.role, use.phase) in captured:
            of = "" if use.role is Role.TARGET else f"{use.role.value} "
            yield f"graphs of {of}phase {use.phase.value!r} were captured with the backend before"
    known = {problem.message for problem in plan.problems}
    for problem in new.problems:
        if problem.message not in known and not problem.is_open:
            yield problem.message.removesuffix(".")
