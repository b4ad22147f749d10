"""An engine's rules as data: the values that flags force, and the effects of values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Annotated, Self

from pydantic import model_validator

from backend_caps.capability.facts import Given, Situation, Truth
from backend_caps.capability.model import FrozenModel, Text
from backend_caps.capability.provenance import Problem
from backend_caps.capability.sets import STORED_AS_SET, STORED_AS_TUPLE
from backend_caps.capability.vocabulary import IN_PLANS, Capabilities, GraphMetadata, HostSeqLens
from backend_caps.resolution.engine import installed_engine, read_data
from backend_caps.resolution.errors import ResolutionError


class Rule(FrozenModel):
    """Force values where a condition over flags and facts holds; only ever towards worse.

    `engines` names the rule sets that the rule belongs to; empty is every one.
    """

    name: Text
    """The name that causes show."""
    given: Given
    """The condition."""
    unless: Annotated[Sequence[Given], STORED_AS_TUPLE] = ()
    """The rule forces nothing where any of these is known to hold."""
    forces: Capabilities
    """The values that it joins in."""
    reason: Text
    """Why, in words that a report repeats."""
    engines: Annotated[AbstractSet[str], *STORED_AS_SET] = frozenset()
    """The rule sets that it belongs to."""

    def truth(self, situation: Situation) -> Truth:
        """Evaluate the rule's condition and its exceptions."""
        if any(given.truth(situation) is Truth.TRUE for given in self.unless):
            return Truth.FALSE
        return self.given.truth(situation)

    @model_validator(mode="after")
    def _forces_a_plan_value(self) -> Self:
        forced = self.forces.stated()
        if not forced:
            raise ValueError(f"rule {self.name!r} forces nothing; state what it forces.")
        checked = sorted(name for name in forced if name not in IN_PLANS)
        if checked:
            raise ValueError(
                f"rule {self.name!r} forces {', '.join(checked)}, which a plan does not hold; "
                "a rule forces capabilities of scope server or phase."
            )
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSet:
    """The rules of one version of an engine, and the algorithms that it overlaps.

    `relays` names the speculative algorithms whose steps the engine overlaps: only in them is
    the accepted length unknown to the scheduler when it prepares the next step.
    """

    name: str
    rules: tuple[Rule, ...]
    relays: frozenset[str]
    algorithms: frozenset[str]
    """Every algorithm the engine has built in; an unknown one counts as overlapped."""
    mixes_relayed_rows: bool = False
    """With `enable_mixed_chunk`, steps of prompts carry rows whose lengths come from the relay, so
    prefill backends count for what is read of lengths on the host."""
    builders_copy: bool = False
    """What reads the exact lengths on the host copies them itself, whatever the algorithm."""
    problems: tuple[Problem, ...] = ()
    """Why the set may lack rules: third-party rules that could not be read."""
    chosen_because: str | None = field(default=None, compare=False)
    """Why the engine version was chosen; None where it was named."""
    unchecked_for: str | None = None
    """The engine with its version that the rules were not checked with; None where they were."""

    def __str__(self) -> str:
        if self.unchecked_for is not None:
            return f"{self.name}, which nobody checked with {self.unchecked_for}"
        return self.name if self.chosen_because is None else f"{self.name} ({self.chosen_because})"

    @classmethod
    def builtin(cls, name: str) -> RuleSet:
        """Return one of the rule sets that come with the package.

        Raises:
            ResolutionError: there is none of that name.
        """
        known = _builtin()
        if name not in known:
            raise ResolutionError(
                "unknown-rules",
                f"no rule set {name!r} is known; known: {', '.join(sorted(known))}. "
                "Name one of them, or make a RuleSet of your own.",
            )
        return known[name]

    @classmethod
    def installed(cls) -> RuleSet:
        """Return the rules of the installed SGLang; the newest built-in where there are none."""
        name, why = installed_engine()
        return replace(cls.builtin(name), chosen_because=why)

    def with_rules(self, rules: Iterable[Rule]) -> RuleSet:
        """Return the set with the rules that belong to this engine added."""
        added = (rule for rule in rules if not rule.engines or self.name in rule.engines)
        return replace(self, rules=(*self.rules, *added))

    def with_problems(self, problems: Iterable[Problem]) -> RuleSet:
        """Return the set with reasons why rules may be missing."""
        return replace(self, problems=(*self.problems, *problems))

    def relays_prompts(self, situation: Situation) -> bool:
        """Return whether prefill steps carry rows whose lengths come from the relay."""
        algorithm = str(situation["speculative_algorithm"])
        return (
            self.mixes_relayed_rows
            and situation.get("enable_mixed_chunk") is True
            and situation.get("disable_overlap_schedule") is False
            and algorithm != "NONE"
            and self.overlaps(algorithm)
        )

    def overlaps(self, algorithm: str) -> bool:
        """Return whether the engine overlaps the steps of `algorithm`."""
        return algorithm in self.relays or algorithm not in self.algorithms


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What a value does on this server."""

    active: bool
    text: str
    """What the value does, or why it does nothing."""

    def __str__(self) -> str:
        return self.text if self.active else f"no effect: {self.text}"


_NO_SPECULATION = ("speculative_algorithm", "NONE")
_NO_OVERLAP = ("disable_overlap_schedule", True)
_NO_GRAPHS = ("disable_cuda_graph", True)
_COPIES = "a D2H copy and a host wait in every step in which a builder reads them"
_WAITS = "without overlap the host waits anyway"
_NOT_ASKED = ("enable_deterministic_inference", False)

_IDLE: Mapping[str, Mapping[tuple[str, object], str]] = {
    "host_seq_lens": {
        _NO_SPECULATION: "without speculative decoding the scheduler knows the lengths",
        _NO_OVERLAP: "without overlap the lengths are known when the next step is prepared",
    },
    "graph_replay": {_NO_GRAPHS: "CUDA graphs are switched off"},
    "graph_metadata": {_NO_GRAPHS: "CUDA graphs are switched off"},
    "sync_free_prepare": {_NO_OVERLAP: _WAITS},
    "shared_reads_end": {_NO_OVERLAP: "without overlap nothing is overwritten meanwhile"},
    "two_batch_overlap": {("enable_two_batch_overlap", False): "two-batch overlap is switched off"},
    "deterministic": {_NOT_ASKED: "deterministic inference is switched off"},
    "batch_invariant": {_NOT_ASKED: "deterministic inference is switched off"},
    "max_speculative_topk": {_NO_SPECULATION: "there are no draft trees"},
}
"""The flags under which a capability's value does nothing, and why."""

_DOES: Mapping[object, str] = {
    HostSeqLens.EXACT: "a D2H copy and a host wait in every overlapped speculative step",
    HostSeqLens.UPPER_BOUND: "a bound is kept on the host; no copy, no wait",
    HostSeqLens.NONE: "no copy, no wait",
    GraphMetadata.HOST: "host code runs before every replay",
    GraphMetadata.DEVICE: "device work runs before every replay",
    GraphMetadata.IN_GRAPH: "nothing runs before a replay",
}
"""The effect of a value, where its name does not tell."""


_UNDECLARED: Mapping[str, str] = {
    "host_seq_lens": _DOES[HostSeqLens.EXACT],
    "graph_replay": "no batch replays a captured graph",
    "graph_metadata": _DOES[GraphMetadata.HOST],
    "sync_free_prepare": "reports and checks take it that the host waits in every preparation",
    "shared_reads_end": "what the scheduler shares is free behind the whole forward",
    "two_batch_overlap": "two-batch overlap with it is a problem of the plan",
    "deterministic": "deterministic inference with it is a problem of the plan",
    "batch_invariant": "deterministic inference with it is a problem of the plan",
    "max_context_len_known": "an opt-out from the mirror does not count",
    "roles": "it runs the target alone",
    "max_speculative_topk": "it drafts and verifies chains alone",
    "attention_types": "it serves decoders alone",
}
_UNKNOWN = "no plan can check what a server asks of it"


def cost_of_undeclared(capability: str) -> str:
    """Return what it costs that a backend leaves a capability out."""
    return _UNDECLARED.get(capability, _UNKNOWN)


def effect_of(capability: str, value: object, rules: RuleSet, situation: Situation) -> Effect:
    """Return the effect on a server of a value that some use reads."""
    if rules.builders_copy and value is HostSeqLens.EXACT:
        waits_anyway = situation.get("disable_overlap_schedule") is True
        return Effect(active=not waits_anyway, text=_WAITS if waits_anyway else _COPIES)
    for (flag, setting), why in _IDLE.get(capability, {}).items():
        if situation.get(flag) == setting:
            return Effect(active=False, text=why)
    algorithm = str(situation["speculative_algorithm"])
    if capability == "host_seq_lens" and not rules.overlaps(algorithm):
        return Effect(active=False, text=f"{rules.name} does not overlap the steps of {algorithm}")
    return Effect(active=True, text=_DOES.get(value, ""))


@cache
def _builtin() -> Mapping[str, RuleSet]:
    stored = json.loads(read_data("rule_sets.json"))
    rules = [Rule.model_validate(rule) for rule in stored["rules"]]
    empty = (
        RuleSet(
            name=name,
            rules=(),
            relays=frozenset(steps["relays"]),
            algorithms=frozenset(steps["algorithms"]),
            mixes_relayed_rows=steps.get("mixes_relayed_rows", False),
        )
        for name, steps in stored["engines"].items()
    )
    return {each.name: each.with_rules(rules) for each in empty}
