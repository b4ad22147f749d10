"""Errors of the kit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from backend_caps.errors import BackendCapsError, CodedError


@dataclass(eq=False)
class KitError(CodedError):
    """The conformance kit cannot check a backend, find a case or write evidence."""

    codes: ClassVar[Mapping[str, str]] = {
        "uncheckable": "a backend cannot be run by the kit",
        "unknown-backend": "nothing installed declares a backend of this name",
        "unknown-case": "no check has this case for the backend",
        "evidence": "evidence cannot be written",
        "no-script": "no script shows a finding with the engine alone",
    }

    @staticmethod
    def uncheckable(backend: str, problem: str) -> KitError:
        """Return the error of a backend that cannot be checked."""
        return KitError(
            "uncheckable",
            f"backend {backend!r} cannot be checked: {problem}; a declaration was expected whose "
            f"implementation can be built here. backend-caps report says what is installed.",
        )

    @staticmethod
    def no_script(backend: str, problem: str) -> KitError:
        """Return the error of a finding that no script shows."""
        return KitError(
            "no-script",
            f"no script shows this finding in {backend!r}: {problem}; an eager forward of a chain "
            f"was expected. The command that runs the case again shows it.",
        )

    @staticmethod
    def evidence(backend: str, problem: str) -> KitError:
        """Return the error of evidence that was not written."""
        return KitError(
            "evidence",
            f"the evidence of backend {backend!r} was not written: {problem}; it was expected to "
            f"lie beside the implementation, in files that can be read and written. Name another "
            f"file with --write-evidence FILE, or check an editable installation.",
        )


@dataclass(eq=False, kw_only=True)
class BaselineError(BackendCapsError):
    """A case has no answer, because the run that it compares with failed."""

    problem: str

    @property
    def message(self) -> str:
        """The problem, and how to go on."""
        return (
            f"the run to compare with failed: {self.problem}; a plain eager run with every host "
            f"length was expected to pass. Mend what the check 'numerics' says first."
        )
