"""Which backend runs where a flag says `auto`. Pure: what is installed, flags and facts decide.

`select` tries every installed backend in the flag's place and takes the one that fits and declares
the highest `auto_priority`; of equals, the first by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from backend_caps.capability.backend import Backend, Problem
from backend_caps.capability.facts import Facts
from backend_caps.capability.fit import CHECKED_AGAINST, Reason
from backend_caps.capability.spelling import AUTO
from backend_caps.capability.vocabulary import Capabilities
from backend_caps.resolution.candidates import Known, Setting, candidate
from backend_caps.resolution.choice import Choice
from backend_caps.resolution.engine import option_of
from backend_caps.resolution.errors import NoFittingBackendError, UnfitChoiceError, raise_all
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.plan import Plan, Policy
from backend_caps.resolution.problems import misfits_of, problem_of
from backend_caps.resolution.resolver import resolve
from backend_caps.resolution.rules import RuleSet
from backend_caps.resolution.uses import Use, left_out, named_by_flags, uses_of

BACKEND_FLAGS = (
    "attention_backend",
    "prefill_attention_backend",
    "decode_attention_backend",
    "speculative_draft_attention_backend",
)
"""The flags that name a backend, in the order in which they are decided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What was chosen for a server's flags."""

    flags: ServerFlags
    """With the chosen names in the place of `auto`, which stays where nothing fits."""
    choices: tuple[Choice, ...]
    """One for each flag that says `auto` and has a use; none: every name is the user's."""

    def uses(self, backends: Mapping[str, Backend]) -> tuple[Use, ...]:
        """List the uses of the server, those by a chosen name marked.

        Raises:
            NoFittingBackendError: no backend fits a flag that says `auto`.
            BackendCapsError: as `uses_of` does. Several come as one group.
        """
        raise_all("no backend fits", [_refused(each) for each in self.choices if not each.chosen])
        chosen = {choice.flag for choice in self.choices}
        return tuple(
            replace(use, by_auto=use.slot in chosen) for use in uses_of(self.flags, backends)
        )


def select(
    backends: Mapping[str, Backend],
    flags: ServerFlags,
    *,
    rules: RuleSet | None = None,
    facts: Facts | None = None,
    policy: Policy | str = Policy.WARN,
) -> Selection:
    """Choose a backend for each flag that says `auto`, and keep why the others were not.

    Several flags are decided one after the other: `--attention-backend`, prefill, decode, draft.

    Args:
        backends: what is installed: a registry.
        flags: the server's.
        rules: the engine version's; `sglang-0.5.13`'s unless given.
        facts: what is known of machine and model. What is not speaks against nobody.
        policy: under `strict`, what is not known speaks against a backend.

    Raises:
        BackendCapsError: a flag that names a backend cannot be served, whatever is chosen.
    """
    setting = Setting(backends=backends, flags=flags, rules=rules, facts=facts or Facts())
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


def _choice(setting: Setting, field: str, policy: Policy) -> Choice | None:
    """Try every backend in a flag's place; None where nothing would run there."""
    known = Known.of(setting, field)
    if known is None:
        return None
    installed = named_by_flags({**left_out(setting.backends), **setting.backends})
    tried = [candidate(setting, field, backend, known) for backend in installed.values()]
    if policy is Policy.STRICT:
        tried = [each.under_strict() for each in tried]
    return Choice(
        flag=option_of(field),
        candidates=tuple(sorted(tried, key=lambda each: each.sort_key)),
        unknown_facts=setting.unknown_facts(),
    )


def _refused(choice: Choice) -> NoFittingBackendError:
    return NoFittingBackendError(flag=choice.flag, rejected=choice.rejected)


def plan_for(
    backends: Mapping[str, Backend],
    flags: ServerFlags,
    *,
    rules: RuleSet | None = None,
    facts: Facts | None = None,
    policy: Policy | str = Policy.WARN,
    unsafe_override: Capabilities | None = None,
) -> Plan:
    """Resolve flags that may say `auto`: choose first, and keep the choices in the plan.

    Raises:
        BackendCapsError: as `select`, `Selection.uses` and `resolve` do.
    """
    selection = select(backends, flags, rules=rules, facts=facts, policy=policy)
    return resolve(
        selection.uses(backends),
        selection.flags,
        rules=rules,
        facts=facts,
        policy=policy,
        unsafe_override=unsafe_override,
        choices=selection.choices,
    )


def check_named(plan: Plan, backends: Mapping[str, Backend], *, but: frozenset[str]) -> None:
    """Refuse a plan whose flags name backends that say they do not take machine or model.

    Args:
        plan: of uses from these backends.
        backends: what is installed; what would do instead is looked for there.
        but: facts that count for nothing here.

    Raises:
        UnfitChoiceError: one for each flag and backend; several as a group.
    """
    overridden = {CHECKED_AGAINST[name] for name, _ in plan.overrides if name in CHECKED_AGAINST}
    misfits: dict[tuple[str, str], list[Problem]] = {}
    for use, reason in _misfits(plan):
        if reason.fact not in but | overridden:
            found = problem_of(reason, use)
            misfits.setdefault((use.slot, (*use.via, use.backend)[0]), []).append(found)
    faults = [
        UnfitChoiceError(
            flag=slot,
            name=name,
            reasons=tuple(dict.fromkeys(reasons)),
            fitting=_fitting(plan, backends, slot, but),
        )
        for (slot, name), reasons in misfits.items()
    ]
    raise_all("backends in use", faults)


def _misfits(plan: Plan) -> Iterator[tuple[Use, Reason]]:
    """List the uses that do not fit, each with why."""
    for use in plan.uses:
        if use.declaration is not None:
            for reason in misfits_of(use, use.declaration, plan):
                if reason.needed is not None:
                    yield use, reason


def _fitting(
    plan: Plan, backends: Mapping[str, Backend], slot: str, but: frozenset[str]
) -> tuple[str, ...]:
    """Name what would do in a flag's place."""
    field = slot.removeprefix("--").replace("-", "_")
    if field not in BACKEND_FLAGS:  # put there by hand
        return ()
    flags = plan.flags.updated({field: AUTO})
    facts = plan.facts.model_copy(update=dict.fromkeys(but))
    selection = select(backends, flags, rules=plan.rules, facts=facts)
    return tuple(each.name for choice in selection.choices for each in choice.fitting)
