"""Changes that lead to a better value, each verified by resolving again.

Every blocking cause must go, so a flip is the union of their remedies. It is listed only if
resolving with all of them gives the better value.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from backend_caps.capability.backend import Backend
from backend_caps.capability.declaration import Declaration, declared
from backend_caps.capability.facts import Given, Situation, Truth, text_of
from backend_caps.capability.kind import UNDECLARED, Kind, Phase, Scale
from backend_caps.capability.vocabulary import CAPABILITIES, Capabilities
from backend_caps.errors import BackendCapsError
from backend_caps.resolution.engine import option_of
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.plan import Cause, CauseKind, Plan, Policy, Resolved
from backend_caps.resolution.resolver import cause_of_use, resolve
from backend_caps.resolution.routing import uses_of
from backend_caps.resolution.rules import Rule
from backend_caps.resolution.uses import PAIR, Use, UseKind

_USUAL_DTYPE = "bfloat16"
GRAPHS, STARTS = "graphs", "starts"
"""What a flip of a launch is of beside capabilities: the mode of graphs, and whether it starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One change: a flag to set, or what a backend would have to declare, truly."""

    text: str
    flags: Mapping[str, object] | None = None
    """Flags to change, by the names of `ServerFlags`."""
    backend: str | None = None
    declares: Capabilities | None = None
    """What `backend` would have to declare."""


Remedies = tuple[Remedy, ...]
"""Changes that are made together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip:
    """Changes that together lead to a better value."""

    capability: str
    phase: Phase | None
    value: object
    becomes: object
    remedies: Remedies


def flips(plan: Plan, backends: Mapping[str, Backend], flags: ServerFlags) -> tuple[Flip, ...]:
    """List the changes that lead to the next better value of each active one.

    Args:
        plan: resolved from `flags`; a plan of uses by hand has no flips, nor has one whose command
            line was followed through an engine, which may take other flags or refuse them.
        backends: the registry; its other backends are candidates.
        flags: the server's.
    """
    if plan.launch is not None:
        return ()
    search = _Search(plan, backends, flags)
    again = search.resolved(())
    if again is None or again.uses != plan.uses:  # its uses do not follow from the flags
        return ()
    active = [(phase, own) for phase, own in plan.values() if own.effect.active and own.is_known]
    return tuple(flip for phase, own in active for flip in search.flips(own, phase))


class _Search:
    def __init__(self, plan: Plan, backends: Mapping[str, Backend], flags: ServerFlags) -> None:
        self._plan, self._backends, self._flags = plan, backends, flags
        self._situation = flags.situation(plan.facts)
        self._plans: dict[tuple[str, ...], Plan | None] = {}

    def flips(self, resolved: Resolved, phase: Phase | None) -> list[Flip]:
        """Try the next better values; for each, other installed backends, then declarations."""
        capability = resolved.capability
        found: list[Flip] = []
        for target in _next_better(CAPABILITIES[capability], resolved.value):
            blocking = [c for c in resolved.causes if not _reaches(capability, c.value, target)]
            for same in self._candidates(capability, target, blocking):
                reached = [
                    (remedies, becomes)
                    for remedies in filter(None, same)
                    if (becomes := self._after(remedies, capability, phase)) is not None
                    and _reaches(capability, becomes, target)
                ]
                if reached:
                    (first, becomes), *others = reached
                    flip = Flip(
                        capability=capability,
                        phase=phase,
                        value=resolved.value,
                        becomes=becomes,
                        remedies=_with_others(first, [remedies for remedies, _ in others]),
                    )
                    found += [flip] if flip not in found else []
                    break
        return found

    def _candidates(
        self, capability: str, target: object, blocking: list[Cause]
    ) -> Iterator[list[Remedies]]:
        """List what to try: flags before other backends, and those before declarations.

        The candidates of one list are equally good.
        """
        if any(c.kind in {CauseKind.OVERRIDE, CauseKind.ENGINE} for c in blocking):
            return
        rules = {rule.name: rule for rule in self._plan.rules.rules}
        undone = _unique(undo(rules[c.name]) for c in blocking if c.kind is CauseKind.RULE)
        places = {(c.name, c.role, c.phase, c.via) for c in blocking if c.kind is CauseKind.BACKEND}
        uses = [u for u in self._plan.uses if (u.backend, u.role, u.phase, u.composites) in places]
        if not uses:
            yield [undone]
            return
        if any(use.kind is UseKind.PAIR for use in uses):
            yield [_unique((*undone, unpair(self._flags)))]
            return
        avoided = [r for use in uses for r in avoid(use, capability, self._situation)]
        yield [_unique((*undone, *avoided))]
        yield [_unique((*undone, reroute(self._flags)))]
        others = self._others(capability, target, uses)
        swaps = [(*undone, *swap(uses, name)) for name in others]
        if len({use.slot for use in uses}) == 1:
            yield swaps
        else:  # alternatives for the last slot alone would mix backends
            yield from ([each] for each in swaps)
        if all(use.problem is None and use.source.distribution for use in uses):
            yield [(*undone, *redeclare(uses, capability, target, self._situation))]

    def _others(self, capability: str, target: object, uses: list[Use]) -> Iterator[str]:
        """List the installed backends that would reach the target in each of these uses.

        A composite is always listed: only resolving again shows what its parts reach. Where an
        engine was read, a plugin without an adapter for it is left out.
        """
        engine = next(
            (b.source.distribution for b in self._backends.values() if b.engine_class), None
        )
        blamed = {name for use in uses for name in (use.backend, *use.composites)}
        for name in sorted(set(self._backends) - blamed):
            backend = self._backends[name]
            if backend.declaration is None or backend.engine_class or name == PAIR:
                continue
            is_own = backend.source.distribution == engine
            if engine is not None and not is_own and engine not in backend.declaration.adapters:
                continue
            if backend.declaration.parts:
                yield name
                continue
            swapped = [replace(u, backend=name, declaration=backend.declaration) for u in uses]
            causes = [cause_of_use(u, capability, self._situation) for u in swapped]
            if all(c is not None and _reaches(capability, c.value, target) for c in causes):
                yield name

    def _after(self, remedies: Remedies, capability: str, phase: Phase | None) -> object | None:
        """Return the value after all changes; None where they cause a new problem."""
        plan = self.resolved(remedies)
        known = {found.code for found in self._plan.problems}
        if plan is None or any(p.code not in known and not p.is_open for p in plan.problems):
            return None
        return (plan[capability] if phase is None else plan[capability, phase]).value

    def resolved(self, remedies: Remedies) -> Plan | None:
        """Resolve again with all changes; None where that raises."""
        texts = tuple(remedy.text for remedy in remedies)
        if texts in self._plans:
            return self._plans[texts]
        changes = {k: v for remedy in remedies for k, v in (remedy.flags or {}).items()}
        flags, rules, facts = self._flags.updated(changes), self._plan.rules, self._plan.facts
        plan = None
        with suppress(BackendCapsError, ExceptionGroup):
            uses = [with_declared(use, remedies) for use in uses_of(flags, self._backends)]
            plan = resolve(uses, flags, rules=rules, facts=facts, policy=Policy.QUIET)
        self._plans[texts] = plan
        return plan


def _with_others(remedies: Remedies, others: list[Remedies]) -> Remedies:
    """Add the equally good alternatives to the last remedy."""
    if not others:
        return remedies
    names = ", ".join(str(name) for other in others for name in (other[-1].flags or {}).values())
    last = replace(remedies[-1], text=f"{remedies[-1].text.removesuffix('.')}, or {names}.")
    return (*remedies[:-1], last)


def _unique(remedies: Iterable[Remedy | None]) -> Remedies:
    return tuple({remedy.text: remedy for remedy in remedies if remedy is not None}.values())


def _reaches(capability: str, value: object, target: object) -> bool:
    """Return whether a value is at least as good as the target."""
    return CAPABILITIES[capability].join(value, target) == target


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


def undo(rule: Rule) -> Remedy | None:
    """Return the remedy that flips the first switch in a rule's condition."""
    return next(_turned_switches(rule.given), None)


def _with_flag(field: str, value: str) -> Remedy:
    return Remedy(text=f"Set {option_of(field)} {value}.", flags={field: value})


def avoid(use: Use, capability: str, situation: Situation) -> Iterator[Remedy | None]:
    """Yield a remedy for each condition not known to fail; None where none exists."""
    if use.declaration is None:
        return
    own = use.placed(situation)
    for when in use.declaration.conditions:
        concerns = capability in when.capabilities.stated()
        if concerns and when.given.truth(own) is not Truth.FALSE:
            changes = (*_turned_switches(when.given), *_other_dtypes(when.given, use.declaration))
            yield next(iter(changes), None)


def _turned_switches(given: Given) -> Iterator[Remedy]:
    for name, wanted in given.stated().items():
        if isinstance(wanted, bool):
            verb = "Leave out" if wanted else "Add"
            yield Remedy(text=f"{verb} {option_of(name)}.", flags={name: not wanted})


def _other_dtypes(given: Given, declaration: Declaration) -> Iterator[Remedy]:
    """Yield each KV-cache dtype that the backend takes outside the condition."""
    if given.kv_cache_dtype is None:
        return
    takes = declaration.capabilities.kv_cache_dtypes
    names = takes if isinstance(takes, frozenset) else frozenset({_USUAL_DTYPE})
    for name in sorted(names - given.kv_cache_dtype):
        yield _with_flag("kv_cache_dtype", name)


def reroute(flags: ServerFlags) -> Remedy | None:
    """Return the remedy that runs verify on the other of a prefill/decode pair."""
    if flags.speculative_algorithm is None:
        return None
    other = "decode" if flags.speculative_attention_mode == "prefill" else "prefill"
    return _with_flag("speculative_attention_mode", other)


def unpair(flags: ServerFlags) -> Remedy | None:
    """Return the remedy that names decode's backend for prefill: no wrapper then."""
    decode = flags.decode_attention_backend or flags.attention_backend
    return None if decode is None else _with_flag("prefill_attention_backend", decode)


def swap(uses: Iterable[Use], name: str) -> Iterator[Remedy]:
    """Yield a remedy for each slot of these uses that names another backend."""
    for slot in sorted({use.slot for use in uses}):
        field = slot.removeprefix("no ").removeprefix("--").replace("-", "_")
        yield _with_flag(field, name)


def redeclare(
    uses: Collection[Use], capability: str, target: object, situation: Situation
) -> Iterator[Remedy]:
    """Yield what each backend must declare for the target, and no more.

    A claim that it declares already without evidence is to be verified instead.
    """
    required = CAPABILITIES[capability].requires
    wanted = {capability: target}
    if required is not None:
        wanted[required] = CAPABILITIES[required].best
    for name, use in sorted({use.backend: use for use in uses}.items()):
        lacking = {
            key: value
            for each in uses
            for key, value in wanted.items()
            if each.backend == name and each.declaration is not None
            if not _reaches(key, declared(each.declaration, key, each.placed(situation))[0], value)
        }
        claimed = {key: use.unverified[key].value for key in lacking if key in use.unverified}
        if claimed.keys() != lacking.keys() or any(
            value is UNDECLARED or not _reaches(key, value, lacking[key])
            for key, value in claimed.items()
        ):
            claimed = {}
        values = claimed or lacking
        claims = " and ".join(f"{key}={text_of(value)}" for key, value in values.items())
        text = f"Have {name!r} declare {claims}, if that is true."
        if claimed:
            text = f"Verify {claims}: backend-caps check {name} --write-evidence."
        if not claimed or not use.readings:  # the kit writes no evidence for an engine's class
            yield Remedy(text=text, backend=name, declares=Capabilities.model_validate(values))


def with_declared(use: Use, remedies: Iterable[Remedy]) -> Use:
    """Return a use whose backend declares what the remedies name."""
    for remedy in remedies:
        if remedy.backend == use.backend and remedy.declares and use.declaration:
            return replace(use, declaration=use.declaration.restated(remedy.declares.stated()))
    return use
