"""The paths of a function: what it returns or raises, and the decisions that lead there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from backend_caps.engines.source.calls import NotFollowedError
from backend_caps.engines.source.index import Index
from backend_caps.engines.source.interpreter import Interpreter
from backend_caps.engines.source.values import MISSING, External, Native, Raised, Unknown

_MOST_PATHS = 64


class Flag(Unknown):
    """A value that is true or false, and is decided where the program reads it."""


class Attributes(dict[str, Native]):
    """Attributes of an object; a flag is decided on each path, under its name."""

    def __init__(self, run: Paths, values: Mapping[str, Native]) -> None:
        super().__init__(values)
        self._run = run

    def get(self, name: str, default: Native = None) -> Native:
        """Read an attribute."""
        return self[name] if name in self else default  # noqa: SIM401 - it is this very method

    def __getitem__(self, name: str) -> Native:
        value = super().__getitem__(name)
        return self._run.decide(name) if isinstance(value, Flag) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """One way through a function."""

    decisions: Mapping[str, bool]
    """The truth of each condition that nothing decides, in the source's words."""
    outcome: Native = None
    """The value that is returned, or the error that is raised."""

    @property
    def words(self) -> str:
        """The decisions as one condition; empty where there is none."""
        return " and ".join(
            words if truth else f"not {f'({words})' if ' ' in words else words}"
            for words, truth in self.decisions.items()
        )


class Paths(Interpreter):
    """An interpreter that follows a call down each of its paths, one after the other.

    Where a condition is unknown it is decided, once for each path, and both ways are followed.
    Modules are imported as by `Interpreter`, which decides nothing.
    """

    def __init__(self, index: Index, natives: Mapping[str, object]) -> None:
        """Start with nothing imported; the arguments are those of `Interpreter`."""
        super().__init__(index, natives)
        self._decisions: dict[str, bool] | None = None

    def of_call(self, call: Callable[[], Native]) -> list[Path]:
        """Follow a call down all of its paths.

        Paths with one outcome that a single decision tells apart are merged.

        Raises:
            NotFollowedError: there are too many paths.
        """
        waiting: list[dict[str, bool]] = [{}]
        found: list[Path] = []
        while waiting:
            given = waiting.pop()
            if len(found) == _MOST_PATHS:
                raise NotFollowedError(f"it has more than {_MOST_PATHS} paths", self.at)
            found.append(self._followed(call, given))
            taken = list(found[-1].decisions.items())
            waiting += [
                {**dict(taken[:at]), words: not truth}
                for at, (words, truth) in enumerate(taken)
                if at >= len(given)
            ]
        return _merged(found)

    def decide(self, words: str) -> bool:
        """Return whether a condition holds on this path: true, where it is asked first."""
        assert self._decisions is not None, "a call is followed"
        return self._decisions.setdefault(words, True)

    def truth(self, value: Native) -> bool | None:
        """Decide what is unknown, while a call is followed."""
        known = super().truth(value)
        return self.decide(str(value)) if known is None and self._decisions is not None else known

    def contains(self, container: Native, value: Native) -> bool | None:
        """Leave open whether a container has a name outside of the tree, as `_equal` does."""
        return None if isinstance(value, External) else super().contains(container, value)

    def _equal(self, left: Native, right: Native) -> bool | None:
        """Leave open what equals a name outside of the tree, which may be a constant there."""
        may_be_constant = isinstance(left, External) != isinstance(right, External)
        return None if may_be_constant else super()._equal(left, right)

    def import_module(self, name: str) -> Native:
        """Import a module without a decision."""
        decisions, self._decisions = self._decisions, None
        try:
            return super().import_module(name)
        finally:
            self._decisions = decisions

    def _followed(self, call: Callable[[], Native], given: Mapping[str, bool]) -> Path:
        self._decisions = decisions = dict(given)
        self._place = (None, 0)  # arguments that do not fit have no line of the program
        outcome: Native = MISSING
        try:
            outcome = call()
        except Raised as error:
            outcome = error
        except NotFollowedError as error:
            outcome = Unknown(f"{error} ({error.at})")
        finally:
            self._decisions = None
        return Path(decisions=decisions, outcome=outcome)


def _merged(paths: Sequence[Path]) -> list[Path]:
    """Merge two paths of one outcome that differ in one decision, until there are no such two."""
    left = [*paths]
    while True:
        pairs = ((*pair, _differing(*pair)) for pair in combinations(left, 2))
        one, other, name = next((each for each in pairs if each[2] is not None), (None, None, None))
        if one is None:
            return left
        without = {words: truth for words, truth in one.decisions.items() if words != name}
        left = [each for each in left if each not in (one, other)]
        left.append(replace(one, decisions=without))


def _differing(one: Path, other: Path) -> str | None:
    """Return the one decision in which two paths of an outcome differ; else None."""
    same_names = one.decisions.keys() == other.decisions.keys()
    if not same_names or outcome_key(one.outcome) != outcome_key(other.outcome):
        return None
    names = [name for name in one.decisions if one.decisions[name] != other.decisions[name]]
    return names[0] if len(names) == 1 else None


def outcome_key(outcome: Native) -> object:
    """Return what is equal for equal outcomes."""
    if isinstance(outcome, Raised):
        return outcome.error, outcome.message, outcome.at
    return outcome.why if isinstance(outcome, Unknown) else outcome
