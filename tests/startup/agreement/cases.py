"""Random cases of agreement: which ranks of a group are started with what instead."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from backend_caps import Capabilities, Facts, Given, Registry, Rule, RuleSet
from backend_caps.relay import DraftShape
from tests.startup.agreement.made import FLAGS, OPTS_OUT, READS, SERVER, Server, flagged, registry

Change = Callable[[random.Random], Server]
"""Makes what a rank is started with instead."""
_RULE = Rule(
    name="acme-eagle",
    given=Given(speculative_algorithm={"EAGLE"}),
    forces=Capabilities(needs_cpu_seq_lens=True),
    reason="the house's own",
)
_SET = RuleSet.builtin("sglang-0.5.13")
_REWORDED = tuple(rule.model_copy(update={"reason": "the house's own"}) for rule in _SET.rules)
DIFFERENCES: Mapping[str, Change] = {
    "flag speculative_eagle_topk": lambda dice: flagged(speculative_eagle_topk=dice.randint(2, 8)),
    "flag enable_two_batch_overlap": lambda _: flagged(enable_two_batch_overlap=True),
    "flag speculative_algorithm": lambda _: flagged(speculative_algorithm="EAGLE3"),
    "flag page_size": lambda dice: flagged(page_size=dice.choice((16, 64))),
    "flag context_length": lambda dice: flagged(context_length=dice.randint(100, 9_999)),
    "rules": lambda _: replace(SERVER, rules="sglang-0.5.23"),
    "rules of that set": lambda _: replace(SERVER, registry=registry(rules=[_RULE])),
    "overlapped algorithms": lambda _: replace(SERVER, rules=replace(_SET, relays=frozenset())),
    "rule two-batch-overlap": lambda _: replace(SERVER, rules=replace(_SET, rules=_REWORDED)),
    "fact dtype": lambda _: replace(SERVER, facts=Facts(dtype="float16")),
    "policy": lambda _: replace(SERVER, policy="warn"),
    "unsafe_override": lambda _: replace(
        SERVER, unsafe_override=Capabilities(needs_cpu_seq_lens=True)
    ),
    "pool_size": lambda dice: replace(SERVER, pool_size=dice.randint(9, 99)),
    "draft": lambda dice: replace(
        SERVER, draft=DraftShape(topk=1, accept_tokens=dice.randint(1, 9))
    ),
    "backend acme": lambda dice: replace(
        SERVER,
        registry=dice.choice(
            (
                registry(version=f"1.{dice.randint(1, 9)}"),
                registry({"acme": READS}),
                Registry.of([]),
            )
        ),
    ),
}
"""By the field that differs, what makes it differ."""
FAILURES: Mapping[str, Change] = {
    "StartupError": lambda _: replace(SERVER, device="xla"),
    "PlanRefusedError": lambda _: replace(SERVER, policy="strict", registry=Registry.of([])),
    "LockError": lambda dice: replace(SERVER, lock=f"no-{dice.randint(1, 9)}.lock"),
}
"""By the error, what a rank cannot start with."""


def _reordered(dice: random.Random) -> Server:
    """Give the same flags, more of them in words."""
    said = [*dict(FLAGS)]
    dice.shuffle(said)
    return replace(SERVER, flags=FLAGS.updated({name: dict(FLAGS)[name] for name in said[:5]}))


def _staged(dice: random.Random) -> Server:
    """Run another backend, where that is allowed."""
    known = registry({"acme": OPTS_OUT, "stage": dice.choice((READS, OPTS_OUT))})
    own = flagged(attention_backend="stage")
    return replace(own, registry=known, per_rank=frozenset({"attention_backend"}))


HARMLESS: Mapping[str, Change] = {
    "another path": lambda dice: replace(
        SERVER, registry=registry(folder=f"/node-{dice.randint(1, 9)}")
    ),
    "the same flags": _reordered,
    "more plugins": lambda dice: replace(
        SERVER, registry=registry({"acme": OPTS_OUT, f"other-{dice.randint(1, 9)}": READS})
    ),
    "another stage": _staged,
    "facts that are not known": lambda dice: replace(
        SERVER, facts=dice.choice((Facts(), Facts(dtype="bfloat16", head_size=64)))
    ),
    "nothing": lambda _: SERVER,
}
"""By what it is, what ranks may have of their own."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """Ranks of a group, and what some of them are started with instead."""

    size: int
    what: str
    servers: tuple[Server, ...]
    """By rank."""
    others: frozenset[int]
    """The ranks that are started with something else."""


def drawn(changes: Mapping[str, Change], num_cases: int, seed: int) -> Iterator[Case]:
    """Draw cases: each change in turn, on some ranks of groups of two to four, never on all."""
    for number in range(num_cases):
        dice = random.Random(f"{seed}/{number}")  # noqa: S311 - found again by its seed
        what = [*changes][number % len(changes)]
        size = dice.randint(2, 4)
        others = frozenset(dice.sample(range(size), dice.randint(1, size - 1)))
        other = changes[what](dice)
        rest = replace(SERVER, per_rank=other.per_rank)
        servers = tuple(other if rank in others else rest for rank in range(size))
        yield Case(size=size, what=what, servers=servers, others=others)
