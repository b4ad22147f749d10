"""The changes that may take a cause out of the way, each for flips to try."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from backend_caps.capability.backend import Unverified
from backend_caps.capability.declaration import Declaration
from backend_caps.capability.facts import Given, Situation, Truth
from backend_caps.capability.fit import text_of
from backend_caps.capability.scale import UNDECLARED
from backend_caps.capability.vocabulary import CAPABILITIES, Capabilities
from backend_caps.resolution.contributions import declared
from backend_caps.resolution.engine import option_of
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.rules import Rule
from backend_caps.resolution.uses import Use

_USUAL_DTYPE = "bfloat16"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One change: a flag to set, or what a backend would have to declare, truly."""

    text: str
    flags: Mapping[str, object] | None = None
    """Flags to change, by the names of `ServerFlags`."""
    backend: str | None = None
    declares: Capabilities | None = None
    """What `backend` would have to declare."""


def undo(rule: Rule) -> Remedy | None:
    """Turn over the first switch that a rule asks for."""
    return next(_turned_switches(rule.given), None)


def avoid(use: Use, capability: str, situation: Situation) -> Iterator[Remedy | None]:
    """Make false each condition on a capability that holds or is open; None where nothing can."""
    if use.declaration is None:
        return
    own = {**situation, "role": use.role, "phase": use.phase}
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
    """Name a KV-cache dtype that the backend takes and the condition does not ask for."""
    if given.kv_cache_dtype is None:
        return
    takes = declaration.capabilities.kv_cache_dtypes
    names = takes if isinstance(takes, frozenset) else frozenset({_USUAL_DTYPE})
    for name in sorted(names - given.kv_cache_dtype):
        yield Remedy(text=f"Set --kv-cache-dtype {name}.", flags={"kv_cache_dtype": name})


def reroute(flags: ServerFlags) -> Remedy | None:
    """Have verify and draft-extend run by the other of a prefill/decode pair."""
    if flags.speculative_algorithm is None:
        return None
    other = "decode" if flags.speculative_attention_mode == "prefill" else "prefill"
    text = f"Set --speculative-attention-mode {other}."
    return Remedy(text=text, flags={"speculative_attention_mode": other})


def unpair(flags: ServerFlags) -> Remedy | None:
    """Have prefill run on what decode runs on, so that no wrapper stands before the two."""
    decode = flags.decode_attention_backend or flags.attention_backend
    if decode is None:
        return None
    text = f"Set --prefill-attention-backend {decode}."
    return Remedy(text=text, flags={"prefill_attention_backend": decode})


def swap(uses: Iterable[Use], name: str) -> Iterator[Remedy]:
    """Name another backend in every slot that these uses come from."""
    for slot in sorted({use.slot for use in uses}):
        option = slot.removeprefix("no ")
        field = option.removeprefix("--").replace("-", "_")
        yield Remedy(text=f"Set {option} {name}.", flags={field: name})


def redeclare(
    uses: Collection[Use], capability: str, target: object, situation: Situation
) -> Iterator[Remedy]:
    """Have each backend declare what it lacks for the target, and no more.

    Of what it declares already and nobody verified, have that verified.
    """
    lacking: dict[str, dict[str, object]] = {}
    unverified = {use.backend: use.unverified for use in uses}
    of_engine = {use.backend for use in uses if use.readings}
    for use in uses:
        assert use.declaration is not None, f"{use.backend} has nothing to declare over"
        own = {**situation, "role": use.role, "phase": use.phase}
        values = dict(_lacking(use.declaration, capability, target, own))
        lacking.setdefault(use.backend, {}).update(values)
    for name, values in sorted(lacking.items()):
        claimed = _claimed(values, unverified[name])
        if claimed is not None:
            if name not in of_engine:  # whose classes have no evidence of their own
                yield _verify(name, claimed)
            continue
        says = " and ".join(f"{key}={text_of(value)}" for key, value in values.items())
        yield Remedy(
            text=f"Have {name!r} declare {says}, if that is true.",
            backend=name,
            declares=Capabilities.model_validate(values),
        )


def _claimed(
    values: Mapping[str, object], unverified: Mapping[str, Unverified]
) -> Mapping[str, object] | None:
    """List what is claimed of these capabilities, where that is as good; None where it is not."""
    claimed = {name: unverified[name].value for name in values if name in unverified}
    is_enough = claimed.keys() == values.keys() and all(
        value is not UNDECLARED and CAPABILITIES[name].join(value, values[name]) == values[name]
        for name, value in claimed.items()
    )
    return claimed if is_enough else None


def _verify(name: str, claimed: Mapping[str, object]) -> Remedy:
    says = " and ".join(f"{key}={text_of(value)}" for key, value in claimed.items())
    return Remedy(
        text=f"Verify {says}: backend-caps check {name} --write-evidence.",
        backend=name,
        declares=Capabilities.model_validate(claimed),
    )


def _lacking(
    declaration: Declaration, capability: str, target: object, situation: Situation
) -> Iterator[tuple[str, object]]:
    kind = CAPABILITIES[capability]
    value, *_ = declared(declaration, capability, situation)
    if kind.join(value, target) != target:
        yield capability, target
    if kind.requires is not None:
        best = CAPABILITIES[kind.requires].best
        if declared(declaration, kind.requires, situation)[0] != best:
            yield kind.requires, best


def with_declared(use: Use, remedies: Iterable[Remedy]) -> Use:
    """Return a use whose backend declares what the remedies ask of it."""
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
