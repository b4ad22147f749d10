"""What a user can get wrong about a server's flags and backends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from backend_caps.capability.status import Problem
from backend_caps.errors import BackendCapsError
from backend_caps.resolution.choice import Candidate


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
    """List the faults of a group, also of one inside it; what is no fault of the user's goes on.

    Raises:
        ExceptionGroup: as it came, where another error is in it.
    """
    if isinstance(error, BackendCapsError):
        yield error
        return
    for inner in error.exceptions:
        if not isinstance(inner, BackendCapsError | ExceptionGroup):
            raise error
        yield from leaves_of(inner)


def _told(reason: Problem) -> str:
    """Write a reason: its code, what is and what is needed, and what to do."""
    return f"{reason.code}: {reason.message} {reason.remedy}"


def _between(lines: Sequence[str]) -> str:
    """Set one line into a sentence's place, and of several each on its own."""
    if len(lines) == 1:
        return f" {lines[0]} "
    return "".join(f"\n  {line}" for line in lines) + "\n"


@dataclass(eq=False, kw_only=True)
class UnknownFlagError(BackendCapsError):
    """A flag looks like one that matters here, and the engine has none of that name."""

    flag: str
    meant: str

    @property
    def message(self) -> str:
        """The flag, and the one that was probably meant."""
        return (
            f"{self.flag} is no flag of this engine, and looks like {self.meant}. "
            f"Write {self.meant}, or leave it out."
        )


@dataclass(eq=False, kw_only=True)
class OtherEngineError(BackendCapsError):
    """A command line starts an engine that there are no plans for."""

    program: str
    owner: str
    known: str

    @property
    def message(self) -> str:
        """What it starts, whose flags were expected, and where the backends are shown."""
        return (
            f"{self.program!r} starts {self.owner}, whose flags and routing are not read; expected "
            f"the flags of {self.known}. Write them in place of {self.program!r} and what follows "
            f"it; backend-caps report --engine {self.owner}, without server flags, shows what "
            f"{self.owner}'s backends say."
        )


@dataclass(eq=False, kw_only=True)
class AmbiguousFlagError(BackendCapsError):
    """An abbreviation fits several flags, of which one matters here."""

    flag: str
    candidates: tuple[str, ...]

    @property
    def message(self) -> str:
        """The abbreviation, and what it could be."""
        return f"{self.flag} could be {', '.join(self.candidates)}. Write the flag out."


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
class MissingFlagValueError(BackendCapsError):
    """A flag that takes a value has none."""

    flag: str
    expected: str

    @property
    def message(self) -> str:
        """The flag, and what it takes."""
        return f"{self.flag} has no value; expected {self.expected}. Add it after the flag."


@dataclass(eq=False, kw_only=True)
class WordsError(BackendCapsError):
    """A command line was given as one string."""

    given: str

    @property
    def message(self) -> str:
        """The string, and what to do with it."""
        return (
            f"the command line is one string, {self.given!r}; expected a list of its words. "
            "Split it with shlex.split."
        )


@dataclass(eq=False, kw_only=True)
class NoFlagsError(BackendCapsError):
    """An object was given for an engine's arguments that has none of them."""

    kind: str

    @property
    def message(self) -> str:
        """The object's type, and what else there is."""
        return (
            f"an object of type {self.kind!r} has none of a server's arguments as attributes; "
            "expected one such as SGLang's ServerArgs. Read a mapping with "
            "ServerFlags.from_mapping."
        )


@dataclass(eq=False, kw_only=True)
class FlagsFileError(BackendCapsError):
    """A file of flags cannot be read."""

    path: str
    cause: str

    @property
    def message(self) -> str:
        """The file, and why."""
        return (
            f"flags file {self.path!r} cannot be read: {self.cause}. Expected a YAML or JSON "
            "mapping of flag names to values. Correct the file or its path."
        )


@dataclass(eq=False, kw_only=True)
class UnknownBackendError(BackendCapsError):
    """A flag names a backend that there is none of, and one that there is was probably meant."""

    name: str
    flag: str
    declared: tuple[str, ...]
    meant: str

    @property
    def message(self) -> str:
        """The name, what is declared, and which was probably meant."""
        return (
            f"no backend {self.name!r} is declared ({self.flag}); declared: "
            f"{', '.join(self.declared) or 'none'}. Did you mean {self.meant!r}?"
        )


@dataclass(eq=False, kw_only=True)
class UnusableBackendError(BackendCapsError):
    """A backend is in use whose declaration could not be read."""

    name: str
    flag: str
    problem: str
    remedy: str

    @property
    def message(self) -> str:
        """The backend, what uses it, and what stood in the way."""
        return f"{self.flag} names a backend that cannot be used: {self.problem} {self.remedy}"


@dataclass(eq=False, kw_only=True)
class NoFittingBackendError(BackendCapsError):
    """A flag says `auto`, and no installed backend fits."""

    flag: str
    rejected: tuple[Candidate, ...]
    """Every backend that was tried, with all that speaks against it."""

    @property
    def message(self) -> str:
        """The flag, what speaks against each backend there is, and what to do about each."""
        told = [
            f"{each.name}, {_told(reason)}" for each in self.rejected for reason in each.reasons
        ]
        return (
            f"{self.flag} is auto, and no installed backend fits:"
            f"{_between(told or ['None is installed.'])}Install one that does, or change what "
            "they do not take; backend-caps select shows each."
        )


@dataclass(eq=False, kw_only=True)
class UnfitChoiceError(BackendCapsError):
    """A flag names a backend that declares that it does not take this machine or model."""

    flag: str
    name: str
    reasons: tuple[Problem, ...]
    fitting: tuple[str, ...]
    """The installed backends that would do in its place, best first."""

    @property
    def message(self) -> str:
        """The flag, every reason against its backend, and what would do."""
        instead = (
            f"these fit: {', '.join(self.fitting)}. Name one of them, or auto"
            if self.fitting
            else "no installed backend fits. Install one that does"
        )
        return (
            f"{self.flag} names {self.name!r}, which cannot run here:"
            f"{_between([_told(reason) for reason in self.reasons])}In its place {instead}, or "
            "change what it does not take."
        )


@dataclass(eq=False, kw_only=True)
class CompositeCycleError(BackendCapsError):
    """Composites name each other as parts."""

    cycle: tuple[str, ...]

    @property
    def message(self) -> str:
        """The way round."""
        return (
            f"composite backend {self.cycle[0]!r} is a part of itself: "
            f"{' -> '.join(self.cycle)}. Take one of these parts out of its declaration."
        )


@dataclass(eq=False, kw_only=True)
class UnexpandedCompositeError(BackendCapsError):
    """A use names a composite whose parts nobody looked up."""

    name: str
    parts: tuple[str, ...]

    @property
    def message(self) -> str:
        """The composite, and how to expand it."""
        return (
            f"backend {self.name!r} is a composite of {', '.join(self.parts)} and stands in a "
            "use unexpanded. Take uses from registry.uses(flags), or write one for each part."
        )


@dataclass(eq=False, kw_only=True)
class NoUseError(BackendCapsError):
    """There is nothing to resolve."""

    @property
    def message(self) -> str:
        """What was expected, and where to get it."""
        return (
            "no use of a backend was given; a server runs at least one. Take uses from "
            "registry.uses(flags), or write Use(backend=..., role=..., phase=...)."
        )


@dataclass(eq=False, kw_only=True)
class RoleError(BackendCapsError):
    """A backend is used in a role that it does not take."""

    backend: str
    role: str
    slot: str
    takes: tuple[str, ...]

    @property
    def message(self) -> str:
        """The backend, the slot, and the roles it takes."""
        return (
            f"backend {self.backend!r} does not take the role {self.role!r} ({self.slot}); "
            f"it takes: {', '.join(self.takes)}. Name another backend for that role."
        )


@dataclass(eq=False, kw_only=True)
class PlanRefusedError(BackendCapsError):
    """The policy is strict, and something about the plan is not as it should be."""

    code: str
    problem: str
    remedy: str

    @property
    def message(self) -> str:
        """What is wrong, and what to do."""
        return f"{self.problem} {self.remedy}"


@dataclass(eq=False, kw_only=True)
class OverrideError(BackendCapsError):
    """An override names no value of the plan, or one of the wrong type."""

    name: str
    value: str
    expected: str

    @property
    def message(self) -> str:
        """The override, and what it can be."""
        return (
            f"unsafe_override {self.name}={self.value} cannot be applied; "
            f"expected {self.expected}. Correct its name or value."
        )


@dataclass(eq=False, kw_only=True)
class PlansDifferError(BackendCapsError):
    """Two plans were resolved under different rules, and have no join."""

    field: str
    one: str
    other: str

    @property
    def message(self) -> str:
        """The field, and both values."""
        return (
            f"plans with {self.field} {self.one!r} and {self.other!r} cannot be joined; "
            "expected the same on every rank. Resolve both under one of them."
        )
