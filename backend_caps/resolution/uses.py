"""The uses of a server: which backend runs which role and phase, from flags and backends.

The routing is the engine's: a slot that no flag fills gets the backend that the engine runs there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from backend_caps.capability.backend import Backend, Backends, Problem, Reading, Status, Unverified
from backend_caps.capability.declaration import Declaration
from backend_caps.capability.facts import Given, Situation, Truth
from backend_caps.capability.kind import Phase, Role
from backend_caps.capability.model import AUTO
from backend_caps.capability.provenance import BY_HAND, Origin, Source
from backend_caps.errors import BackendCapsError
from backend_caps.resolution import errors
from backend_caps.resolution.engine import ENGINES, engine, option_of
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.launch import Launch


class UseKind(Enum):
    """How a backend came to be in use."""

    NAMED = "named"
    """A flag names it, or a composite that hands uses to it."""
    ENGINE_DEFAULT = "engine default"
    """No flag names one, so the engine picks a backend that is not known."""
    PAIR = "prefill/decode pair"
    """The engine wraps two backends in one, whose own values differ from theirs."""


PAIR = UseKind.PAIR.value
"""The record's name of such a wrapper, as engine readers make it; no flag names it."""
_DRAFTS_ON_THE_HOST = frozenset({"NGRAM"})
"""Algorithms without a draft model."""

_Composite = tuple[str, Role, Phase, tuple[str, ...]]
"""A composite for one slot, role and phase: the names of its outer composites, then its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """A composite that hands a use on to one of its parts."""

    composite: str
    given: Given | None = None
    """The condition under which it does; None: always."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """One backend in one role and phase."""

    backend: str
    role: Role
    phase: Phase
    declaration: Declaration | None
    """None where it could not be read; `problem` then holds the reason."""
    source: Source = BY_HAND
    slot: str = "by hand"
    """The flag that put the backend there."""
    kind: UseKind = UseKind.NAMED
    via: tuple[Handover, ...] = ()
    """The composites through which it came, outermost first; all their conditions must hold."""
    adds_only: bool = False
    """Whether it is a composite's own capabilities; what it leaves out, its parts declare."""
    problem: Problem | None = None
    readings: Mapping[str, Reading] = field(default_factory=dict, compare=False)
    """The statements of an engine's source by capability, where the backend was read from one."""
    unverified: Mapping[str, Unverified] = field(default_factory=dict, compare=False)
    """Claims that count as undeclared for lack of evidence, by capability."""
    by_auto: bool = field(default=False, compare=False)
    """Whether the flag is `auto` and the backend was chosen for it."""
    unread_engine: str | None = field(default=None, compare=False)
    """For a missing backend, the engine that has it built in, where no engine was read."""

    @property
    def composites(self) -> tuple[str, ...]:
        """The names of the composites through which it came, outermost first."""
        return tuple(each.composite for each in self.via)

    @property
    def named(self) -> str:
        """The name that a flag uses: the outermost composite, or the backend itself."""
        return (*self.composites, self.backend)[0]

    @property
    def conditions(self) -> tuple[Given, ...]:
        """The conditions under which the composites hand it on."""
        return tuple(each.given for each in self.via if each.given is not None)

    def placed(self, situation: Situation) -> Situation:
        """Return the situation with this role and phase."""
        return {**situation, "role": self.role, "phase": self.phase}

    def failing(self, situation: Situation) -> int | None:
        """Return the index in `via` of the first condition known to fail, or None."""
        placed = self.placed(situation)
        truths = (each.given and each.given.truth(placed) for each in self.via)
        return next((at for at, truth in enumerate(truths) if truth is Truth.FALSE), None)

    @property
    def sort_key(self) -> tuple[str, ...]:
        """Order uses by role, phase and backend."""
        place = (self.role.value, self.phase.value)
        conditions = ("" if each.given is None else str(each.given) for each in self.via)
        return (*place, self.backend, str(self.source), self.slot, *self.composites, *conditions)


def uses_of(
    flags: ServerFlags, backends: Mapping[str, Backend], launch: Launch | None = None
) -> tuple[Use, ...]:
    """List the uses of a server with these flags.

    Args:
        flags: the flags that name backends.
        backends: the known ones, by name.
        launch: what the engine makes of the command line. Where it says which classes the engine
            constructs, these are used in place of what the names stand for.

    Raises:
        FlagsError: a flag names an unknown backend, and nearly a declared one.
        ResolutionError: a backend in use is broken or claimed by two distributions, or a composite
            is a part of itself. Several come as one group.
    """
    uses: list[Use] = []
    faults: dict[str, BackendCapsError] = {}
    classes = {} if launch is None else launch.classes
    pair = () if {"prefill", "decode"} & classes.keys() else _pair(flags, backends)
    for use in (*_named_uses(flags), *pair):
        try:
            constructed = classes.get(_slot(use, flags))
            if launch is None or constructed is None:
                uses.extend(_expanded(use, backends))
            else:
                uses.extend(_constructed(use, constructed, backends, launch.wrappers))
        except BackendCapsError as fault:
            faults.setdefault(str(fault), fault)
    errors.raise_all("backends in use", list(faults.values()))
    return tuple(uses)


def made_of(uses: Iterable[Use], situation: Situation) -> Iterator[Use]:
    """Leave out the uses whose conditions are known to fail.

    Where none of a composite's parts is left for a role and phase, the composite itself is used
    there, with a problem.
    """
    stopped: list[tuple[Use, int]] = []
    handing: set[_Composite] = set()
    for use in uses:
        failing = use.failing(situation)
        if failing is None:
            yield use
        else:
            stopped.append((use, failing))
        if not use.adds_only:
            handing.update(_composites(use)[:failing])
    # The composites that hand no use on, each with its failing conditions.
    failed: dict[Use, set[str]] = {}
    for use, end in stopped:
        if _composites(use)[end] not in handing:
            # A use holds only its backend's source, so the composite has none.
            whole = replace(_bare(use), backend=use.via[end].composite, via=use.via[:end])
            failed.setdefault(whole, set()).add(str(use.via[end].given))
    for whole, conditions in failed.items():
        word = "not" if len(conditions) == 1 else "neither"
        yield _without_part(whole, f": {word} {' nor '.join(sorted(conditions))}")


def _composites(use: Use) -> tuple[_Composite, ...]:
    """List the composites that hand a use on, outermost first."""
    names = use.composites
    return tuple((use.slot, use.role, use.phase, names[: end + 1]) for end in range(len(names)))


def _without_part(use: Use, why: str = "") -> Use:
    values = {"name": use.backend, "slot": use.slot, "why": why}
    place = {"role": use.role.value, "phase": use.phase.value}
    return replace(use, declaration=None, problem=errors.plan_problem("no-part", **values, **place))


_Name = tuple[str, str | None]
"""A flag, and the backend that it names."""


def _named_uses(flags: ServerFlags) -> Iterator[Use]:
    """List the backend of each role and phase by name; nothing is read or expanded."""
    prefill = _named(flags, "prefill_attention_backend", "attention_backend")
    decode = _named(flags, "decode_attention_backend", "attention_backend")
    yield _use(Role.TARGET, Phase.PREFILL, prefill)
    yield _use(Role.TARGET, Phase.DECODE, decode)
    if flags.speculative_algorithm is None:
        return
    verify = prefill if flags.speculative_attention_mode == "prefill" else decode
    yield _use(Role.TARGET, Phase.VERIFY, verify)
    if flags.speculative_algorithm in _DRAFTS_ON_THE_HOST:
        return
    named = _named(flags, "speculative_draft_attention_backend")
    draft = None if named[1] is None else named
    yield _use(Role.DRAFT, Phase.PREFILL, draft or prefill)
    if flags.speculative_num_steps != 1:  # with one step, draft-extend has drafted already
        yield _use(Role.DRAFT, Phase.DECODE, draft or decode)
    yield _use(Role.DRAFT_EXTEND, Phase.VERIFY, draft or verify)


def _use(role: Role, phase: Phase, name: _Name, kind: UseKind = UseKind.NAMED) -> Use:
    slot, backend = name
    if backend is None:
        kind = UseKind.ENGINE_DEFAULT
        backend = kind.value
    return Use(backend=backend, role=role, phase=phase, declaration=None, slot=slot, kind=kind)


def _pair(flags: ServerFlags, backends: Mapping[str, Backend]) -> Iterator[Use]:
    """List the wrapper of two backends, where flags name two and it has a record."""
    phases = ("prefill", "decode")
    named = {_named(flags, f"{each}_attention_backend", "attention_backend") for each in phases}
    if PAIR in backends and len({backend for _, backend in named}) > 1:
        slot = " and ".join(sorted(flag for flag, _ in named))
        yield _use(Role.TARGET, Phase.DECODE, (slot, PAIR), UseKind.PAIR)


def _named(flags: ServerFlags, *names: str) -> _Name:
    """Return the first of these flags that names a backend, and the backend."""
    chosen = dict(flags)
    for name in names:
        if chosen[name] is not None:
            return option_of(name), chosen[name]
    return f"no {option_of(names[-1])}", None


def _expanded(use: Use, backends: Mapping[str, Backend]) -> Iterator[Use]:
    """Read the declaration of a named backend; expand a composite to its parts."""
    if use.kind is UseKind.ENGINE_DEFAULT:
        yield replace(use, declaration=Declaration())
        return
    name, names = use.backend, use.composites
    if name in names:
        cycle = (*names[names.index(name) :], name)
        raise errors.ResolutionError(
            "composite-cycle",
            f"composite backend {name!r} is a part of itself: {' -> '.join(cycle)}. "
            "Take one of these parts out of its declaration.",
        )
    # `auto` has a meaning in flags alone: in a composite it is an unknown name.
    backend = None if names and name == AUTO else backends.get(name)
    if backend is None or (backend.engine_class is not None and not names):
        yield _missing(use, backends)
        return
    declaration = _declaration(backend, use.slot)
    use = replace(
        use,
        declaration=declaration,
        source=backend.source,
        unverified=backend.unverified,
        readings={} if backend.engine_class is None else backend.engine_class.readings,
    )
    parts = [part for part in declaration.parts if part.takes(use.role, use.phase)]
    is_composite = bool(declaration.parts)
    if not is_composite or declaration.capabilities.stated() or declaration.conditions:
        yield replace(use, adds_only=is_composite)
    for part in parts:
        via = (*use.via, Handover(composite=name, given=part.given))
        yield from _expanded(replace(_bare(use), backend=part.backend, via=via), backends)
    if is_composite and not parts:
        yield _without_part(use)


def _slot(use: Use, flags: ServerFlags) -> str:
    """Return the slot of a launch in which a use's backend is constructed."""
    if use.role is Role.DRAFT_EXTEND:
        return "draft_extend"
    if use.role is Role.DRAFT:
        return "draft_prefill" if use.phase is Phase.PREFILL else "draft"
    is_prefill = use.phase is Phase.PREFILL or (
        use.phase is Phase.VERIFY and flags.speculative_attention_mode == "prefill"
    )
    return "prefill" if is_prefill else "decode"


def _constructed(
    use: Use, paths: Sequence[str], backends: Mapping[str, Backend], wrappers: Collection[str]
) -> Iterator[Use]:
    """List the uses of the classes that are constructed for a named backend.

    A wrapper adds what it states itself; where that depends on the classes in it, it adds nothing.
    It takes the bound of lengths from whichever of them has one.
    """
    known = {each.engine_class.path: each for each in backends.values() if each.engine_class}
    is_wrapped = any(path in wrappers for path in paths)
    is_bounded = is_wrapped and any(_states_bound(known.get(path)) for path in paths)
    for path in paths:
        backend, via = known.get(path), (Handover(composite=use.backend),)
        if backend is None:
            problem = errors.plan_problem("class-not-read", path=path, slot=use.slot)
            yield replace(use, backend=path.rpartition(".")[2], problem=problem, via=via)
            continue
        assert backend.engine_class is not None, "it was found by its class"
        readings = backend.engine_class.readings
        lengths = readings.get("host_seq_lens")
        is_wrapper = path in wrappers
        if not (is_wrapper and lengths and lengths.origin is Origin.CONDITIONAL):
            declaration = _declaration(backend, use.slot)
            if is_bounded:
                bound = {"max_context_len_known": True}
                capabilities = declaration.capabilities.model_copy(update=bound)
                declaration = declaration.model_copy(update={"capabilities": capabilities})
            yield replace(
                use,
                backend=backend.name,
                via=via,
                declaration=declaration,
                source=backend.source,
                unverified=backend.unverified,
                readings=readings,
                adds_only=is_wrapper,
                kind=UseKind.NAMED,
            )


def _states_bound(backend: Backend | None) -> bool:
    declaration = None if backend is None else backend.declaration
    return declaration is not None and declaration.capabilities.max_context_len_known is True


def _bare(use: Use) -> Use:
    """Return a use without what was read of its backend."""
    return _use(use.role, use.phase, (use.slot, use.backend), use.kind)


def _declaration(backend: Backend, slot: str) -> Declaration:
    if backend.declaration is not None and backend.status is Status.OK:
        return backend.declaration
    first, *_ = unread(backend)
    raise errors.ResolutionError(
        "broken-backend",
        f"{slot} names a backend that cannot be used: {first.message} {first.remedy}",
    )


def unread(backend: Backend) -> tuple[Problem, ...]:
    """List why a backend's declaration was not read."""
    return backend.problems or (errors.plan_problem("broken", name=backend.name),)


def named_by_flags(backends: Mapping[str, Backend]) -> Mapping[str, Backend]:
    """Leave out an engine's classes; flags use their registered names instead."""
    return {
        name: each
        for name, each in backends.items()
        if each.engine_class is None and name not in {PAIR, AUTO}
    }


def left_out(backends: Mapping[str, Backend]) -> Mapping[str, Backend]:
    """List the backends that the allow-list keeps out, where that is known."""
    return backends.left_out if isinstance(backends, Backends) else {}


def _missing(use: Use, known: Mapping[str, Backend]) -> Use:
    """Return the use with the problem of its missing backend."""
    name, slot, kept_out = use.backend, use.slot, left_out(known)
    has_engine = any(backend.engine_class is not None for backend in known.values())
    if name == AUTO and not use.via and not has_engine:
        return replace(use, problem=errors.plan_problem("auto-undecided", slot=slot))
    if name in kept_out:
        first, *_ = unread(kept_out[name])
        message = f"{slot} names a backend that is left out: {first.message}"
        return replace(use, problem=replace(first, message=message))
    declared = sorted(named_by_flags(known))
    # A name of an engine's built-in backend is never taken for a misspelled plugin's.
    having = (each for each in ENGINES if name in engine(each).attention_backends)
    owner = next((version.partition("-")[0] for version in having), None)
    meant = errors.nearest(name, [*declared, *kept_out]) if owner is None else None
    if meant is not None:
        raise errors.FlagsError(
            "unknown-backend",
            f"no backend {name!r} is declared ({slot}); declared: {', '.join(declared) or 'none'}. "
            f"Did you mean {meant!r}?",
        )
    who = "neither the engine nor a plugin has" if has_engine else "no installed plugin declares"
    unread_engine = None if has_engine else owner
    others = ", ".join(declared) or "there is none"
    values = {"who": who, "name": name, "slot": slot, "others": others}
    problem = errors.plan_problem("backend-missing", meant=unread_engine, **values)
    return replace(use, problem=problem, unread_engine=unread_engine)
