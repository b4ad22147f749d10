"""What a server's flags force, whatever its backends say: rules as versioned data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Annotated, Self

from pydantic import AfterValidator, PlainSerializer, model_validator

from backend_caps.capability.declaration import Sentence
from backend_caps.capability.facts import Given
from backend_caps.capability.kind import Scope
from backend_caps.capability.model import FrozenModel
from backend_caps.capability.vocabulary import CAPABILITIES, Capabilities, HostSeqLens
from backend_caps.errors import BackendCapsError


class Rule(FrozenModel):
    """Force values where a condition over flags and facts holds; only ever towards worse.

    `engines` names the rule sets that the rule belongs to; empty is every one.
    """

    name: Sentence
    """What a cause calls it."""
    given: Given
    """The condition."""
    forces: Capabilities
    """The values that it joins in."""
    reason: Sentence
    """Why, in words that a report repeats."""
    engines: Annotated[AbstractSet[str], AfterValidator(frozenset), PlainSerializer(sorted)] = (
        frozenset()
    )
    """The rule sets that it belongs to."""

    @model_validator(mode="after")
    def _forces_a_plan_value(self) -> Self:
        forced = self.forces.stated()
        if not forced:
            raise ValueError(f"rule {self.name!r} forces nothing; state what it forces.")
        checked = sorted(name for name in forced if CAPABILITIES[name].scope is Scope.USE)
        if checked:
            raise ValueError(
                f"rule {self.name!r} forces {', '.join(checked)}, which a plan does not hold; "
                "a rule forces capabilities of scope server or phase."
            )
        return self


@dataclass(eq=False, kw_only=True)
class UnknownRuleSetError(BackendCapsError):
    """A rule set was asked for by a name that there is none of."""

    name: str
    known: tuple[str, ...]

    @property
    def message(self) -> str:
        """What was asked for, and what there is."""
        return (
            f"no rule set {self.name!r} is known; known: {', '.join(self.known)}. "
            "Name one of them, or make a RuleSet of your own."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSet:
    """The rules of one version of an engine, and what it overlaps.

    `relays` names the speculative algorithms whose steps the engine overlaps: only in them is
    the accepted length unknown to the scheduler when it prepares the next step.
    """

    name: str
    rules: tuple[Rule, ...]
    relays: frozenset[str]
    algorithms: frozenset[str]
    """Every algorithm the engine has built in; of another nothing is known, so it counts as
    overlapped."""

    @classmethod
    def builtin(cls, name: str) -> RuleSet:
        """Return one of the rule sets that come with the package.

        Raises:
            UnknownRuleSetError: there is none of that name.
        """
        if name not in _BUILTIN:
            raise UnknownRuleSetError(name=name, known=tuple(sorted(_BUILTIN)))
        return _BUILTIN[name]

    def with_rules(self, rules: Iterable[Rule]) -> RuleSet:
        """Add rules, of those that belong to this engine."""
        mine = (rule for rule in rules if not rule.engines or self.name in rule.engines)
        return replace(self, rules=(*self.rules, *mine))

    def overlaps(self, algorithm: str) -> bool:
        """Tell whether the engine prepares a step of `algorithm` while the last one runs."""
        return algorithm in self.relays or algorithm not in self.algorithms


DEFAULT_RULES = "sglang-0.5.13"
"""The rule set of the documents that the project comes from."""

_EXACT = Capabilities(host_seq_lens=HostSeqLens.EXACT)
_SGLANG_0_5_13 = frozenset({"sglang-0.5.13"})
_SGLANG_0_5_23 = frozenset({"sglang-0.5.23"})

_TWO_BATCH_OVERLAP = Rule(
    name="two-batch-overlap",
    given=Given(enable_two_batch_overlap=True),
    forces=_EXACT,
    reason="each half of the split batch takes its offsets and sums from host lengths",
)
_PIECEWISE_CUDA_GRAPH = Rule(
    name="piecewise-cuda-graph",
    given=Given(disable_piecewise_cuda_graph=False),
    forces=_EXACT,
    reason="the piecewise CUDA graph reads the lengths on the host, outside the backends",
    engines=_SGLANG_0_5_13,
)
_MIXED_CHUNK = Rule(
    name="mixed-chunk-with-speculation",
    given=Given(
        enable_mixed_chunk=True, speculative_algorithm={"EAGLE", "EAGLE3", "DFLASH", "DSPARK"}
    ),
    forces=_EXACT,
    reason="a mixed chunk carries speculative rows, whose prefix lengths are read on the host",
)
_NGRAM = Rule(
    name="ngram",
    given=Given(speculative_algorithm={"NGRAM"}),
    forces=_EXACT,
    reason="ngram's verify sizes its full tree mask by host lengths, whatever the backend",
    engines=_SGLANG_0_5_23,
)
_RULES = (_TWO_BATCH_OVERLAP, _PIECEWISE_CUDA_GRAPH, _MIXED_CHUNK, _NGRAM)


def _engine(name: str, *, relays: frozenset[str], algorithms: frozenset[str]) -> RuleSet:
    empty = RuleSet(name=name, rules=(), relays=relays, algorithms=algorithms)
    return empty.with_rules(_RULES)


_BUILTIN: Mapping[str, RuleSet] = {
    rules.name: rules
    for rules in (
        _engine(
            "sglang-0.5.13",
            relays=frozenset({"EAGLE", "EAGLE3", "STANDALONE"}),
            algorithms=frozenset(
                {"DFLASH", "EAGLE", "EAGLE3", "FROZEN_KV_MTP", "NGRAM", "STANDALONE"}
            ),
        ),
        _engine(
            "sglang-0.5.23",
            relays=frozenset(
                {
                    "DFLASH",
                    "DSPARK",
                    "EAGLE",
                    "EAGLE3",
                    "FROZEN_KV_MTP",
                    "NGRAM",
                    "STANDALONE",
                    "UNO",
                }
            ),
            algorithms=frozenset(
                {
                    "DFLASH",
                    "DSPARK",
                    "EAGLE",
                    "EAGLE3",
                    "FROZEN_KV_MTP",
                    "NGRAM",
                    "STANDALONE",
                    "UNO",
                }
            ),
        ),
    )
}
