"""What would have to change for a better value: verified, not guessed.

Every cause that stands in the way must go, so a flip is the union of their remedies, and it is
listed only if resolving once more with all of them really gives the better value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from backend_caps.capability.backend import Backend, Status
from backend_caps.capability.declaration import Declaration
from backend_caps.capability.fit import text_of
from backend_caps.capability.kind import Kind, Phase
from backend_caps.capability.scale import Scale
from backend_caps.capability.vocabulary import CAPABILITIES, Capabilities
from backend_caps.errors import BackendCapsError
from backend_caps.resolution.contributions import cause_of_use
from backend_caps.resolution.engine import option_of
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.plan import Cause, CauseKind, Plan, Policy, Resolved
from backend_caps.resolution.resolver import resolve
from backend_caps.resolution.rules import Rule
from backend_caps.resolution.uses import Use, uses_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One change: a flag to set, or what a backend would have to declare, truly."""

    text: str
    flags: Mapping[str, object] | None = None
    """Flags to change, by the names of `ServerFlags`."""
    backend: str | None = None
    declares: Capabilities | None = None
    """What `backend` would have to declare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip:
    """Changes that together lead to a better value."""

    capability: str
    phase: Phase | None
    value: object
    becomes: object
    remedies: tuple[Remedy, ...]


def flips(plan: Plan, backends: Mapping[str, Backend], flags: ServerFlags) -> tuple[Flip, ...]:
    """List, for each value with an effect, what would lead to the next better one.

    Args:
        plan: resolved from `flags`.
        backends: the registry; its other backends are candidates.
        flags: the server's.
    """
    search = _Search(plan, backends, flags)
    return tuple(
        flip
        for phase, resolved in plan.values()
        if resolved.effect.active
        for flip in search.flips(resolved, phase)
    )


class _Search:
    def __init__(self, plan: Plan, backends: Mapping[str, Backend], flags: ServerFlags) -> None:
        self._plan = plan
        self._backends = backends
        self._flags = flags
        self._situation = flags.situation(plan.facts)
        self._rules = {rule.name: rule for rule in plan.rules.rules}

    def flips(self, resolved: Resolved, phase: Phase | None) -> list[Flip]:
        """Try the next better values; for each, other installed backends, then declarations."""
        kind = CAPABILITIES[resolved.capability]
        found: list[Flip] = []
        for target in _next_better(kind, resolved.value):
            blocking = [c for c in resolved.causes if not _reaches(kind, c.value, target)]
            for remedies in filter(None, self._candidates(resolved.capability, target, blocking)):
                becomes = self._after(remedies, resolved.capability, phase)
                if becomes is not None and _reaches(kind, becomes, target):
                    flip = Flip(
                        capability=resolved.capability,
                        phase=phase,
                        value=resolved.value,
                        becomes=becomes,
                        remedies=remedies,
                    )
                    found += [flip] if flip not in found else []
                    break
        return found

    def _candidates(
        self, capability: str, target: object, blocking: list[Cause]
    ) -> Iterator[tuple[Remedy, ...]]:
        rules = [self._rules[c.name] for c in blocking if c.kind is CauseKind.RULE]
        undoing = [remedy for rule in rules if (remedy := _undo(rule)) is not None]
        undone = tuple({remedy.text: remedy for remedy in undoing}.values())
        if any(c.kind is CauseKind.OVERRIDE for c in blocking):
            return
        uses = self._uses_behind(blocking)
        if not uses:
            yield undone
            return
        for name in self._others(capability, target, uses):
            yield (*undone, *_swaps(uses, name))
        declared = tuple(_redeclared(name, capability, target) for name in _names(uses))
        if all(use.problem is None and use.source.distribution for use in uses):
            yield (*undone, *declared)

    def _uses_behind(self, blocking: list[Cause]) -> list[Use]:
        places = {(c.name, c.role, c.phase, c.via) for c in blocking if c.kind is CauseKind.BACKEND}
        return [u for u in self._plan.uses if (u.backend, u.role, u.phase, u.via) in places]

    def _others(self, capability: str, target: object, uses: list[Use]) -> Iterator[str]:
        """List the installed backends that would reach the target in each of these uses."""
        kind = CAPABILITIES[capability]
        blamed = {use.backend for use in uses}
        for name in sorted(set(self._backends) - blamed):
            backend = self._backends[name]
            if backend.status is not Status.OK or backend.declaration is None:
                continue
            swapped = [replace(u, backend=name, declaration=backend.declaration) for u in uses]
            causes = [cause_of_use(u, capability, self._situation) for u in swapped]
            if all(c is not None and _reaches(kind, c.value, target) for c in causes):
                yield name

    def _after(
        self, remedies: tuple[Remedy, ...], capability: str, phase: Phase | None
    ) -> object | None:
        """Resolve once more with all the changes; None where that is refused."""
        changes = {k: v for remedy in remedies for k, v in (remedy.flags or {}).items()}
        flags = self._flags.updated(changes)
        try:
            uses = [_with_declared(use, remedies) for use in uses_of(flags, self._backends)]
            plan = resolve(
                uses, flags, rules=self._plan.rules, facts=self._plan.facts, policy=Policy.QUIET
            )
        except (BackendCapsError, ExceptionGroup):
            return None
        resolved = plan[capability] if phase is None else plan[capability, phase]
        return resolved.value


def _reaches(kind: Kind, value: object, target: object) -> bool:
    """Tell whether a value is at least as good as the target."""
    return kind.join(value, target) == target


def _next_better(kind: Kind, value: object) -> Iterator[object]:
    """List the next steps from a value towards the best."""
    if value == kind.best:
        return
    if isinstance(value, Scale) and isinstance(kind.best, Scale):
        step = 1 if kind.best > value else -1
        yield list(type(value))[value.rank + step]
    elif isinstance(value, frozenset) and isinstance(kind.best, frozenset):
        for member in sorted(kind.best - value, key=text_of):
            yield value | {member}
    elif isinstance(value, bool):
        yield kind.best


def _undo(rule: Rule) -> Remedy | None:
    """Turn over the first switch that the rule asks for."""
    for name, wanted in rule.given.stated().items():
        if isinstance(wanted, bool):
            verb = "Leave out" if wanted else "Add"
            return Remedy(text=f"{verb} {option_of(name)}.", flags={name: not wanted})
    return None


def _names(uses: list[Use]) -> list[str]:
    return sorted({use.backend for use in uses})


def _swaps(uses: list[Use], name: str) -> Iterator[Remedy]:
    """Name another backend in every slot that these uses come from."""
    for slot in sorted({use.slot for use in uses}):
        option = slot.removeprefix("no ")
        field = option.removeprefix("--").replace("-", "_")
        if field in ServerFlags.model_fields:
            yield Remedy(text=f"Set {option} {name}.", flags={field: name})


def _redeclared(name: str, capability: str, target: object) -> Remedy:
    required = CAPABILITIES[capability].requires
    values = {capability: target} if required is None else {capability: target, required: True}
    says = " and ".join(f"{key}={text_of(value)}" for key, value in values.items())
    return Remedy(
        text=f"Have {name!r} declare {says}, if that is true.",
        backend=name,
        declares=Capabilities.model_validate(values),
    )


def _with_declared(use: Use, remedies: tuple[Remedy, ...]) -> Use:
    for remedy in remedies:
        if remedy.backend == use.backend and remedy.declares and use.declaration:
            stated = remedy.declares.stated()
            return replace(use, declaration=_restated(use.declaration, stated))
    return use


def _restated(declaration: Declaration, stated: Mapping[str, object]) -> Declaration:
    """State values unconditionally: conditions on the same capabilities fall away."""
    kept = []
    for when in declaration.conditions:
        left = {k: v for k, v in when.capabilities.stated().items() if k not in stated}
        if left:
            capabilities = Capabilities.model_validate(left)
            kept.append(when.model_copy(update={"capabilities": capabilities}))
    capabilities = declaration.capabilities.model_copy(update=stated)
    return declaration.model_copy(update={"capabilities": capabilities, "conditions": tuple(kept)})
