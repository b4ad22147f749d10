"""Cases of checks that cannot try everything at each seed: what one leaves out the next one tries.

A case depends on its own seed alone, so that it is found again by its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from backend_caps.capability.vocabulary import BatchKind
from backend_caps.kit.check import Case, Effort
from backend_caps.kit.scenarios import Forward, forwards_of, scenarios_of
from backend_caps.kit.subject import Subject

_LONG = 400
"""Tokens of a long context: more than a width that a backend rounds short ones up to."""


def rotated_cases(
    code: str, subject: Subject, forwards: Sequence[Forward], effort: Effort, *, share: int = 1
) -> Iterator[Case]:
    """Try each forward at one page size a seed, or at each second seed where `share` is 2."""
    for seed in effort.seeds:
        for place, forward in enumerate(forwards):
            scenarios = list(scenarios_of(subject, [forward]))
            if scenarios and place % share == seed % share:
                # So that both page sizes come up among the forwards of one seed.
                turn = place // share + seed // share
                scenario = scenarios[turn % len(scenarios)]
                yield Case(check=code, scenario=scenario, seed=seed)


def long_cases(cases: Sequence[Case], effort: Effort) -> Iterator[Case]:
    """Take one case of each seed again, over long contexts."""
    for seed in effort.seeds:
        of_seed = [own.scenario for own in cases if own.seed == seed and own.scenario is not None]
        if of_seed:
            long = replace(of_seed[seed % len(of_seed)], min_context_len=_LONG)
            yield Case(check=cases[0].check, scenario=long, seed=seed)


def replayed_forwards(subject: Subject) -> tuple[Forward, ...]:
    """List the forwards whose batches a backend claims to replay."""
    return tuple(
        forward
        for forward in forwards_of(subject)
        if forward.batch_kind in _kinds(subject, forward)
    )


def _kinds(subject: Subject, forward: Forward) -> frozenset[BatchKind]:
    claimed = subject.claim("graph_replay", forward.role, forward.phase)
    assert isinstance(claimed, frozenset), "kinds are a set"
    return claimed
