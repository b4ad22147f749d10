"""What the kit cannot do."""

from __future__ import annotations

from dataclasses import dataclass

from backend_caps.errors import BackendCapsError


@dataclass(eq=False, kw_only=True)
class UncheckableError(BackendCapsError):
    """A backend that the kit cannot run."""

    backend: str
    problem: str

    @property
    def message(self) -> str:
        """The backend, and what stands in the way."""
        return (
            f"backend {self.backend!r} cannot be checked: {self.problem}; a declaration was "
            f"expected whose implementation can be built here. backend-caps report says what is "
            f"installed."
        )


@dataclass(eq=False, kw_only=True)
class UnknownSubjectError(BackendCapsError):
    """A backend that nothing installed declares."""

    name: str
    declared: tuple[str, ...]
    meant: str | None

    @property
    def message(self) -> str:
        """The name, what is declared, and which was probably meant."""
        remedy = "Install its plugin." if self.meant is None else f"Did you mean {self.meant!r}?"
        return (
            f"no backend {self.name!r} is declared; declared: "
            f"{', '.join(self.declared) or 'none'}. {remedy}"
        )


@dataclass(eq=False, kw_only=True)
class UnknownCheckError(BackendCapsError):
    """A name that no check has."""

    name: str
    known: tuple[str, ...]

    @property
    def message(self) -> str:
        """The name, those that there are, and where they are explained."""
        return (
            f"there is no check {self.name!r}; expected one of: {', '.join(self.known)}. "
            f"backend-caps check --list says what each asks."
        )


@dataclass(eq=False, kw_only=True)
class UnknownCaseError(BackendCapsError):
    """A case that a check does not have for this backend."""

    backend: str
    case: str

    @property
    def message(self) -> str:
        """The case, its form, and where to copy one from."""
        return (
            f"backend {self.backend!r} has no case {self.case!r}; a case as a finding prints it "
            f"was expected: CHECK/SCENARIO@SCHEDULE#SEED. Copy it from the run that found it, of "
            f"the same declaration."
        )


@dataclass(eq=False, kw_only=True)
class BaselineError(BackendCapsError):
    """What a case is compared with could not be had, so the case says nothing."""

    problem: str

    @property
    def message(self) -> str:
        """What went wrong."""
        return (
            f"the run to compare with failed: {self.problem}; a plain eager run with every host "
            f"length was expected to pass. Mend what the check 'numerics' says first."
        )


@dataclass(eq=False, kw_only=True)
class EvidenceError(BackendCapsError):
    """Evidence that cannot be written down."""

    backend: str
    problem: str

    @property
    def message(self) -> str:
        """The backend, what stands in the way, and where else it may lie."""
        return (
            f"the evidence of backend {self.backend!r} was not written: {self.problem}; it was "
            f"expected to lie beside the implementation, in files that can be read and written. "
            f"Name another file with --write-evidence FILE, or check an editable installation."
        )
