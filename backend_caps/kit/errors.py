"""What the kit cannot do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from backend_caps.errors import BackendCapsError, CodedError


@dataclass(eq=False)
class KitError(CodedError):
    """What was asked of the conformance kit cannot be done."""

    codes: ClassVar[Mapping[str, str]] = {
        "uncheckable": "a backend cannot be run by the kit",
        "unknown-backend": "nothing installed declares a backend of this name",
        "unknown-case": "no check has this case for the backend",
        "evidence": "evidence cannot be written",
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
    """What a case is compared with could not be had, so the case says nothing."""

    problem: str

    @property
    def message(self) -> str:
        """What went wrong."""
        return (
            f"the run to compare with failed: {self.problem}; a plain eager run with every host "
            f"length was expected to pass. Mend what the check 'numerics' says first."
        )
