"""The algebra of a capability as data: scale, states, polarity, extremes, join and scope."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial, total_ordering
from typing import Self


@total_ordering
class Scale(Enum):
    """Order the members as they are defined.

    Not an `IntEnum`: `True == 1` would make `needs_cpu_seq_lens=True` mean the second
    member. Not a `StrEnum`: its `max` is alphabetical.
    """

    rank: int

    def __new__(cls, value: str) -> Self:
        """Number the member by its place in the class body."""
        member = object.__new__(cls)
        member._value_ = value
        member.rank = len(cls.__members__)
        return member

    def __lt__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self.rank < other.rank


class Undeclared(Enum):
    """The state of a value that is not stated; only `declared` makes it the worst."""

    UNDECLARED = "undeclared"

    def __repr__(self) -> str:
        return "UNDECLARED"


class Anything(Enum):
    """The state of a support that takes every value; unlike `UNDECLARED`, it is stated."""

    ANY = "any"

    def __contains__(self, value: object) -> bool:
        return True

    def __repr__(self) -> str:
        return "ANY"

    def __str__(self) -> str:
        return "any"


UNDECLARED = Undeclared.UNDECLARED
"""The value is not stated; it resolves to the worst value."""
ANY = Anything.ANY
"""Every value is taken; unlike `UNDECLARED`, this is stated."""
STATES = frozenset({ANY, UNDECLARED, ANY.value, UNDECLARED.value})
"""The states that may replace any value, in Python and in JSON."""


class Role(Enum):
    """The place of a backend in a server."""

    TARGET = "target"
    """Runs the served model."""
    DRAFT = "draft"
    """Runs the draft model's own steps."""
    DRAFT_EXTEND = "draft_extend"
    """Extends the draft model's KV cache by the tokens that verify accepted."""


class Phase(Enum):
    """The shape of the batch that a forward runs on."""

    PREFILL = "prefill"
    """New prompt tokens, over a cached prefix or none."""
    DECODE = "decode"
    """One token a request."""
    VERIFY = "verify"
    """Several draft tokens a request: target verify, and the draft-extend after it."""


class Scope(Enum):
    """How many values a plan keeps of a capability."""

    SERVER = "server"
    """One."""
    PHASE = "phase"
    """One a phase, so that a graphless prefill backend takes no graphs from decode."""
    USE = "use"
    """None: each use is checked by itself."""


class Polarity(Enum):
    """Which way a capability is conservative."""

    NEED = "need"
    """What the engine must supply; joins towards more."""
    SUPPORT = "support"
    """What the backend can do; joins towards less."""


Counted = frozenset[tuple[Role, Phase]]

EVERY_USE: Counted = frozenset((role, phase) for role in Role for phase in Phase)
RELAY_LOOP: Counted = frozenset(
    (role, phase) for role, phase in EVERY_USE if phase is not Phase.PREFILL
)
"""The forwards that take their lengths from the relay. At a prefill the scheduler knows them."""
DRAFT_TREES: Counted = frozenset(
    {(Role.TARGET, Phase.VERIFY), (Role.DRAFT, Phase.DECODE), (Role.DRAFT_EXTEND, Phase.VERIFY)}
)
"""The forwards whose rows are draft trees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """The algebra of one capability.

    `join` is commutative, associative and idempotent. `counted` holds the (role, phase) pairs
    whose uses take part. A value other than `worst` counts only where the same use has the
    capability that `requires` names. `since` is the version of backend-caps that brought the
    capability. A former name is still read, with a warning. `replaced_by` names the capability
    to state instead of one that is deprecated.
    """

    polarity: Polarity
    worst: object
    best: object
    join: Callable[..., object]
    scope: Scope
    counted: Counted = EVERY_USE
    requires: str | None = None
    since: str = "0.1.0"
    former_names: tuple[str, ...] = ()
    replaced_by: str | None = None


need = partial(Kind, polarity=Polarity.NEED)
"""Describe what the engine must supply."""
support = partial(Kind, polarity=Polarity.SUPPORT)
"""Describe what the backend can do."""


def highest(one: Scale, other: Scale) -> Scale:
    """Join two levels to the later one."""
    return max(one, other)


def lowest(one: Scale, other: Scale) -> Scale:
    """Join two levels to the earlier one."""
    return min(one, other)


def both(one: bool, other: bool) -> bool:
    """Join two permissions: granted where both grant."""
    return one and other


_Some = frozenset[object] | Anything


def common(one: _Some, other: _Some) -> _Some:
    """Join two sets to what they share."""
    if isinstance(one, Anything):
        return other
    return one if isinstance(other, Anything) else one & other


def least(one: int, other: int) -> int:
    """Join two limits to the smaller."""
    return min(one, other)
