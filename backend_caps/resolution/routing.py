"""Routing: which backend runs which role and phase of a server, from flags and backends.

The routing is the engine's: a slot that no flag fills gets the backend that the engine runs there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from backend_caps.capability.backend import (
    Backend,
    Backends,
    Problem,
    Reading,
    Status,
    adapters_for,
)
from backend_caps.capability.declaration import Declaration
from backend_caps.capability.facts import Facts
from backend_caps.capability.kind import Phase, Role
from backend_caps.capability.model import AUTO
from backend_caps.capability.provenance import Origin
from backend_caps.errors import BackendCapsError
from backend_caps.resolution import errors
from backend_caps.resolution.engine import ENGINES, engine, option_of
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.launch import LEVELS, Launch, LayerGroup
from backend_caps.resolution.uses import (
    PAIR,
    Handover,
    NamedBy,
    Use,
    UseKind,
    bare,
    use_in,
    without_part,
)

_DRAFTS_ON_THE_HOST = frozenset({"NGRAM"})
"""Algorithms without a draft model."""


def uses_of(
    flags: ServerFlags, backends: Mapping[str, Backend], launch: Launch | None = None
) -> tuple[Use, ...]:
    """List the uses of a server with these flags.

    Args:
        flags: the flags that name backends.
        backends: the known ones, by name.
        launch: what the engine makes of the command line. Where it says which classes the engine
            constructs, or takes for the layers of the models, these are used in place of what the
            names stand for.

    Raises:
        FlagsError: a flag names an unknown backend, and nearly a declared one.
        ResolutionError: a backend in use is broken or claimed by two distributions, or a composite
            is a part of itself. Several come as one group.
    """
    if launch is not None and launch.layers:
        return tuple(_of_layers(launch, flags, backends))
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


def _named_uses(flags: ServerFlags) -> Iterator[Use]:
    """List the backend of each role and phase by name; nothing is read or expanded."""
    prefill = _named(flags, "prefill_attention_backend", "attention_backend")
    decode = _named(flags, "decode_attention_backend", "attention_backend")
    by_phase = {Phase.PREFILL: prefill, Phase.DECODE: decode}
    by_phase[Phase.VERIFY] = by_phase[Phase(flags.speculative_attention_mode)]
    named = _named(flags, "speculative_draft_attention_backend")
    draft = None if named[1] is None else named
    for role, phase in _places(flags):
        own = None if role is Role.TARGET else draft
        yield use_in(role, phase, own or by_phase[phase])


def _places(flags: ServerFlags) -> Iterator[tuple[Role, Phase]]:
    """List the roles and phases that a server with these flags runs."""
    yield Role.TARGET, Phase.PREFILL
    yield Role.TARGET, Phase.DECODE
    if flags.speculative_algorithm is None:
        return
    yield Role.TARGET, Phase.VERIFY
    if flags.speculative_algorithm in _DRAFTS_ON_THE_HOST:
        return
    yield Role.DRAFT, Phase.PREFILL
    if flags.speculative_num_steps != 1:  # with one step, draft-extend has drafted already
        yield Role.DRAFT, Phase.DECODE
    yield Role.DRAFT_EXTEND, Phase.VERIFY


def _of_layers(
    launch: Launch, flags: ServerFlags, backends: Mapping[str, Backend]
) -> Iterator[Use]:
    """List the uses of the backends that the layers of a server's models take.

    Layers that keep nothing of a request have no part in its steps. Where a plugin declares a class
    that they take, as its adapter for the engine, its declaration counts.
    """
    declared = adapters_for(launch.engine.partition("-")[0], backends.values())
    for role, phase in _places(flags):
        own = "target" if role is Role.TARGET else "draft"
        taken = {
            (each.path, Facts.model_validate(each.facts) if each.path in declared else None): each
            for each in launch.layers
            if each.role == own and each.cache
        }
        for (path, facts), group in taken.items():
            slot = f"{group.layer} layers of the {own}"
            use = use_in(role, phase, (slot, group.backend), UseKind.LAYERS)
            if path in declared:
                made = _expanded(_handed(replace(use, facts=facts), declared[path]), backends)
            else:
                made = _constructed(use, (path,), backends, frozenset())
            for each in made:
                yield each if each.declaration is None else _with_graphs(each, group)


def _handed(use: Use, backend: Backend) -> Use:
    """Return the use of a declared backend whose class the engine has under the use's name."""
    is_same = use.backend == backend.name
    return replace(
        use, backend=backend.name, via=() if is_same else (Handover(composite=use.backend),)
    )


def _with_graphs(use: Use, group: LayerGroup) -> Use:
    """Return a use with the batches whose graphs work for a group, as the engine itself found."""
    assert use.declaration is not None, "it was read"
    batches = LEVELS.get(str(group.graph_support), frozenset())
    words = f"the engine finds {group.graph_support} for its {group.layer} layers"
    reading = Reading(origin=Origin.DECLARED, words=words, value=batches)
    declaration = use.declaration.restated({"graph_replay": batches})
    return replace(use, declaration=declaration, found={"graph_replay": reading})


def _pair(flags: ServerFlags, backends: Mapping[str, Backend]) -> Iterator[Use]:
    """List the wrapper of two backends, where flags name two and it has a record."""
    phases = ("prefill", "decode")
    named = {_named(flags, f"{each}_attention_backend", "attention_backend") for each in phases}
    if PAIR in backends and len({backend for _, backend in named}) > 1:
        slot = " and ".join(sorted(flag for flag, _ in named))
        yield use_in(Role.TARGET, Phase.DECODE, (slot, PAIR), UseKind.PAIR)


def _named(flags: ServerFlags, *names: str) -> NamedBy:
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
        yield from _expanded(replace(bare(use), backend=part.backend, via=via), backends)
    if is_composite and not parts:
        yield without_part(use)


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
                kind=use.kind if use.kind is UseKind.LAYERS else UseKind.NAMED,
            )


def _states_bound(backend: Backend | None) -> bool:
    declaration = None if backend is None else backend.declaration
    return declaration is not None and declaration.capabilities.max_context_len_known is True


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
