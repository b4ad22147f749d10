"""Errors in a server's flags and in its choice of backends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import ClassVar

from backend_caps.capability.provenance import Problem, problem_texts
from backend_caps.errors import BackendCapsError, CodedError


class FlagsError(CodedError):
    """Flags or an override that cannot be read: on the command line, a usage error."""

    codes: ClassVar[Mapping[str, str]] = {
        "ambiguous-flag": "an abbreviation fits several flags, of which one matters here",
        "flags-file": "a file of flags cannot be read, or holds no mapping",
        "missing-value": "a flag that takes a value has none",
        "no-arguments": "an object given for an engine's arguments has none of them",
        "one-string": "a command line is one string, not a list of words",
        "other-engine": "a command line starts an engine whose flags are not read",
        "override": "an override names no value of the plan",
        "unknown-algorithm": "a speculative algorithm is none of the engine's, and nearly one",
        "unknown-backend": "a flag nearly names a declared backend",
        "unknown-flag": "a flag is none of the engine's, and nearly one that matters here",
    }


class ResolutionError(CodedError):
    """Backends that cannot serve together as used, or plans that cannot be joined."""

    codes: ClassVar[Mapping[str, str]] = {
        "arguments-swapped": "`resolve` is given its flags in the place of the uses",
        "broken-backend": "a backend in use is broken, or claimed by two distributions",
        "composite-cycle": "a composite backend is a part of itself",
        "no-backend-fits": "a flag is `auto`, and no installed backend fits",
        "no-use": "there is no use to resolve",
        "plans-differ": "plans of different rules, flags or policies are joined",
        "role": "a backend is used in a role that it does not take",
        "unexpanded-composite": "a use names a composite backend, and not its parts",
        "unfit-backend": "a flag names a backend that cannot run on this machine or model",
        "unknown-rules": "a rule set is named that there is none of",
    }


@dataclass(eq=False, kw_only=True)
class FlagValueError(BackendCapsError):
    """A flag has a value that it cannot have."""

    flag: str
    value: str
    expected: str

    @property
    def message(self) -> str:
        """The flag with its value, and what it takes."""
        return f"{self.flag} is {self.value}; expected {self.expected}. Correct the value."


@dataclass(eq=False, kw_only=True)
class PlanRefusedError(BackendCapsError):
    """The policy is strict, and the plan has a problem."""

    code: str
    """The problem's code: docs/reference/problems.md."""
    problem: str
    remedy: str

    @property
    def message(self) -> str:
        """What is wrong, and what to do."""
        return f"{self.problem} {self.remedy}"


def plan_problem(
    code: str, *, actual: str | None = None, needed: str | None = None, **values: object
) -> Problem:
    """Fill in the texts that a code has in `problems.toml`."""
    text = problem_texts(__file__)[code]
    problem = text.problem(code, actual=actual, needed=needed, **values)
    return replace(problem, actual=actual, needed=needed)


def nearest(name: str, names: Sequence[str], *, cutoff: float = 0.8) -> str | None:
    """Return the one of `names` that `name` was probably meant to be."""
    close = get_close_matches(name, sorted(names), n=1, cutoff=cutoff)
    return close[0] if close else None


def raise_all(what: str, faults: Sequence[BackendCapsError]) -> None:
    """Raise the faults of one input together: one as it is, several as a group."""
    if len(faults) == 1:
        raise faults[0]
    if faults:
        raise ExceptionGroup(f"{what}: {len(faults)} faults", faults)


def leaves_of(error: BackendCapsError | ExceptionGroup[Exception]) -> Iterator[BackendCapsError]:
    """List the faults of a group and of the groups in it.

    Raises:
        ExceptionGroup: the group itself, where it holds another error.
    """
    if isinstance(error, BackendCapsError):
        yield error
        return
    for inner in error.exceptions:
        if not isinstance(inner, BackendCapsError | ExceptionGroup):
            raise error
        yield from leaves_of(inner)
