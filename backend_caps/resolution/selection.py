"""The choice of a backend for each flag that is `auto`: from backends, flags and facts alone.

`select` tries every installed backend in the flag's place and takes the one that fits and declares
the highest `auto_priority`; of equals, the first by name. No rule is repeated here: the
server is resolved with the candidate, and each new problem is the candidate's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from backend_caps.capability.backend import Backend, Problem, Status
from backend_caps.capability.declaration import Declaration
from backend_caps.capability.facts import CHECKED_AGAINST, Facts, Situation, text_of
from backend_caps.capability.kind import Role
from backend_caps.capability.model import AUTO
from backend_caps.capability.provenance import BY_HAND
from backend_caps.capability.vocabulary import CAPABILITIES, Capabilities
from backend_caps.errors import BackendCapsError
from backend_caps.resolution import problems
from backend_caps.resolution.engine import option_of
from backend_caps.resolution.errors import ResolutionError, leaves_of, plan_problem, raise_all
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.flips import Remedy, with_declared
from backend_caps.resolution.plan import Candidate, Choice, Plan, Policy, in_order
from backend_caps.resolution.resolver import cause_of_use, resolve
from backend_caps.resolution.routing import left_out, named_by_flags, unread, uses_of
from backend_caps.resolution.rules import RuleSet
from backend_caps.resolution.uses import Use, made_of

BACKEND_FLAGS = (
    "attention_backend",
    "prefill_attention_backend",
    "decode_attention_backend",
    "speculative_draft_attention_backend",
)
"""The flags that name a backend, in the order in which they are decided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The choices for a server's flags."""

    flags: ServerFlags
    """With the chosen names in the place of `auto`, which stays where nothing fits."""
    choices: tuple[Choice, ...]
    """One for each flag that is `auto` and has a use; empty: the user named every backend."""

    def uses(self, backends: Mapping[str, Backend]) -> tuple[Use, ...]:
        """List the uses of the server, those by a chosen name marked.

        Raises:
            ResolutionError: no backend fits a flag that says `auto`.
            BackendCapsError: as `uses_of` does. Several come as one group.
        """
        raise_all("no backend fits", [_refused(each) for each in self.choices if not each.chosen])
        slots, uses = {choice.flag for choice in self.choices}, uses_of(self.flags, backends)
        return tuple(replace(use, by_auto=use.slot in slots) for use in uses)


def select(
    backends: Mapping[str, Backend],
    flags: ServerFlags,
    *,
    rules: RuleSet | None = None,
    facts: Facts | None = None,
    policy: Policy | str = Policy.WARN,
    stand_ins: Collection[str] = (),
) -> Selection:
    """Choose a backend for each flag that is `auto`, and keep the others' reasons.

    Several flags are decided one after the other: `--attention-backend`, prefill, decode, draft.

    Args:
        backends: what is installed: a registry.
        flags: the server's.
        rules: the engine version's; unless given, as in `resolve`.
        facts: what is known of machine and model. An unknown fact excludes no backend.
        policy: under `strict`, an unknown fact excludes the backends that restrict it.
        stand_ins: device types on which a backend for another device may be named, not chosen.

    Raises:
        BackendCapsError: a flag that names a backend cannot be served, whatever is chosen.
    """
    rules = rules or RuleSet.installed()
    setting = _Setting(backends, flags, rules, facts or Facts(), frozenset(stand_ins))
    choices: list[Choice] = []
    for field in BACKEND_FLAGS:
        if dict(setting.flags)[field] != AUTO:
            continue
        choice = _choice(setting, field, Policy(policy))
        if choice is None:
            setting = setting.named(field, None)
            continue
        choices.append(choice)
        if choice.chosen is not None:
            setting = setting.named(field, choice.chosen.name)
    return Selection(flags=setting.flags, choices=tuple(choices))


def _choice(setting: _Setting, field: str, policy: Policy) -> Choice | None:
    """Try every backend as a flag's value; None where the flag has no use."""
    uses = setting.uses()
    own = [use for use in uses if _is_of(use, field, AUTO)]
    if not own:
        return None
    # `auto` is resolved as `_perfect` here: its problems are not the candidates'.
    known = setting.resolved(own).problems, setting.resolved(uses).problems
    installed = named_by_flags({**left_out(setting.backends), **setting.backends})
    tried = [_candidate(setting, field, each, known) for each in installed.values()]
    if policy is Policy.STRICT:
        tried = [replace(c, reasons=(*c.reasons, *c.unchecked), unchecked=()) for c in tried]
    return Choice(
        flag=option_of(field),
        candidates=tuple(sorted(tried, key=lambda each: each.sort_key)),
        unknown_facts=problems.unknown_facts(setting.flags, setting.facts),
    )


def _refused(choice: Choice) -> ResolutionError:
    reasons = [f"{each.name}, {_line(own)}" for each in choice.rejected for own in each.reasons]
    return ResolutionError(
        "no-backend-fits",
        f"{choice.flag} is auto, and no installed backend fits:"
        f"{_lines(reasons or ['None is installed.'])}Install one that does, or change what they "
        "do not take; backend-caps select shows each.",
    )


def _line(reason: Problem) -> str:
    return f"{reason.code}: {reason.message} {reason.remedy}"


def _lines(lines: Sequence[str]) -> str:
    """Put a single line into the sentence, and several on separate lines."""
    if len(lines) == 1:
        return f" {lines[0]} "
    return "".join(f"\n  {line}" for line in lines) + "\n"


def plan_for(
    backends: Mapping[str, Backend],
    flags: ServerFlags,
    *,
    rules: RuleSet | None = None,
    facts: Facts | None = None,
    policy: Policy | str = Policy.WARN,
    unsafe_override: Capabilities | None = None,
    stand_ins: Collection[str] = (),
) -> Plan:
    """Resolve flags that may be `auto`: choose first, and keep the choices.

    Raises:
        BackendCapsError: as `select`, `Selection.uses` and `resolve` do.
    """
    rules = rules or RuleSet.installed()
    chosen = select(backends, flags, rules=rules, facts=facts, policy=policy, stand_ins=stand_ins)
    return resolve(
        chosen.uses(backends),
        chosen.flags,
        rules=rules,
        facts=facts,
        policy=policy,
        unsafe_override=unsafe_override,
        choices=chosen.choices,
    )


def check_named(plan: Plan, backends: Mapping[str, Backend], *, but: frozenset[str]) -> None:
    """Refuse a plan whose named backends do not take the machine or the model.

    Args:
        plan: of uses from these backends.
        backends: what is installed; the error names those that fit instead.
        but: facts to leave unchecked.

    Raises:
        ResolutionError: one for each flag and backend; several as a group.
    """
    overridden = {CHECKED_AGAINST[name] for name, _ in plan.overrides if name in CHECKED_AGAINST}
    misfits: dict[tuple[str, str], list[Problem]] = {}
    for use in plan.uses:
        for reason in problems.misfits_of(use, plan):
            if reason.fact not in but | overridden:
                found = problems.problem_of(reason, use)
                misfits.setdefault((use.slot, use.named), []).append(found)
    faults = [
        _unfit(slot, name, tuple(dict.fromkeys(reasons)), _fitting(plan, backends, slot, but))
        for (slot, name), reasons in misfits.items()
    ]
    raise_all("backends in use", faults)


def _unfit(flag: str, name: str, reasons: Sequence[Problem], fit: Sequence[str]) -> ResolutionError:
    instead = (
        f"these fit: {', '.join(fit)}. Name one of them, or auto"
        if fit
        else "no installed backend fits. Install one that does"
    )
    return ResolutionError(
        "unfit-backend",
        f"{flag} names {name!r}, which cannot run here:{_lines([*map(_line, reasons)])}"
        f"In its place {instead}, or change what it does not take.",
    )


def _fitting(
    plan: Plan, backends: Mapping[str, Backend], slot: str, but: frozenset[str]
) -> tuple[str, ...]:
    """List the backends that fit as a flag's value."""
    field = slot.removeprefix("--").replace("-", "_")
    if field not in BACKEND_FLAGS:  # put there by hand
        return ()
    flags = plan.flags.updated({field: AUTO})
    facts = plan.facts.model_copy(update=dict.fromkeys(but))
    selection = select(backends, flags, rules=plan.rules, facts=facts)
    return tuple(each.name for choice in selection.choices for each in choice.fitting)


@cache
def _perfect() -> Backend:
    """Make the backend that replaces `auto`: it takes all and causes no problem."""
    best = {name: kind.best for name, kind in CAPABILITIES.items()}
    declaration = Declaration(capabilities=Capabilities.model_validate(best))
    return Backend(name=AUTO, status=Status.OK, source=BY_HAND, declaration=declaration)


@dataclass(frozen=True, slots=True)
class _Setting:
    """A server's flags and facts, with the installed backends."""

    backends: Mapping[str, Backend]
    flags: ServerFlags
    rules: RuleSet
    facts: Facts
    stand_ins: frozenset[str]

    def uses(self) -> tuple[Use, ...]:
        """List the uses whose conditions are not known to fail."""
        known = {**self.backends, AUTO: _perfect()}
        return tuple(made_of(uses_of(self.flags, known), self.situation))

    @property
    def situation(self) -> Situation:
        """The known flags and facts."""
        return self.flags.situation(self.facts)

    def resolved(self, uses: Iterable[Use]) -> Plan:
        """Resolve some of the uses, keeping problems as data."""
        return resolve(uses, self.flags, rules=self.rules, facts=self.facts, policy=Policy.QUIET)

    def named(self, field: str, name: str | None) -> _Setting:
        """Return the setting with a backend's name in one flag."""
        return replace(self, flags=self.flags.updated({field: name}))


_Known = tuple[Collection[Problem], Collection[Problem]]


def _is_of(use: Use, field: str, name: str) -> bool:
    """Return whether a use comes from this flag and name, also as a part."""
    return use.slot == option_of(field) and use.named == name


def _candidate(setting: _Setting, field: str, backend: Backend, known: _Known) -> Candidate:
    """Resolve a backend as a flag's value: its uses alone, then with all others.

    Alone first, because a limit of another backend could hide the candidate's.

    `known` holds the problems that do not depend on the flag's value: of its uses, and of all.
    """
    tried = Candidate(name=backend.name, source=backend.source)
    if backend.status is not Status.OK:
        return replace(tried, reasons=unread(backend))
    with_it = setting.named(field, backend.name)
    try:
        uses = with_it.uses()
    except (BackendCapsError, ExceptionGroup) as error:
        reasons = (plan_problem("composite-unusable", fault=fault) for fault in leaves_of(error))
        return replace(tried, reasons=tuple(reasons))
    own = [use for use in uses if _is_of(use, field, tried.name)]
    faults = problems.role_faults(own, with_it.situation)
    alone = with_it.resolved(_in_their_roles(own, faults))
    whole = with_it.resolved(_in_their_roles(uses, faults))
    codes = {found.code for found in alone.problems}
    found = {
        *(
            plan_problem("role-unsupported", name=name, actual=role.value, needed=takes)
            for (name, _, role), takes in faults.items()
        ),
        *(each for each in alone.problems if each not in known[0]),
        *(each for each in whole.problems if each not in known[1] and each.code not in codes),
        *problems.not_known(own, with_it.flags, with_it.facts),
    }
    ordered, mirror = in_order(found), whole["host_seq_lens"]
    return replace(
        tried,
        priority=_priority(own, with_it.situation),
        reasons=tuple(_or_by_name(each, with_it) for each in ordered if not each.is_open),
        unchecked=tuple(each for each in ordered if each.is_open),
        host_seq_lens=text_of(mirror.value),
        costs=str(mirror.effect),
    )


def _or_by_name(reason: Problem, setting: _Setting) -> Problem:
    """Add to a device's remedy that a stand-in device accepts a named backend."""
    if reason.code != "device-unsupported" or setting.facts.device not in setting.stand_ins:
        return reason
    remedy = reason.remedy.removesuffix(".")
    by_name = "by its name it is tried on the simulated device, unless the policy is strict."
    return replace(reason, remedy=f"{remedy}; {by_name}")


def _in_their_roles(uses: Iterable[Use], faults: Collection[problems.RoleFault]) -> tuple[Use, ...]:
    """Grant the refused roles, so that the other problems are found too."""
    every_role = Capabilities(roles=frozenset(Role))
    return tuple(
        with_declared(use, [Remedy(text="", backend=use.backend, declares=every_role)])
        if (use.backend, use.slot, use.role) in faults
        else use
        for use in uses
    )


def _priority(uses: Iterable[Use], situation: Situation) -> int:
    """Return the lowest priority of the uses; a composite's replaces its parts'."""
    stated = [
        (not (use.adds_only and not use.via), cause.value)
        for use in uses
        if (cause := cause_of_use(use, "auto_priority", situation)) is not None
    ]
    of_parts = all(is_part for is_part, _ in stated)
    values = (value for is_part, value in stated if is_part is of_parts)
    return min((value for value in values if isinstance(value, int)), default=0)
