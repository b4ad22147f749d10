"""What discovery finds wrong: each problem by its code, and the error of a caller's mistake.

`problems.toml` has the texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from backend_caps.capability.provenance import Problem, problem_texts
from backend_caps.errors import CodedError


def problem(code: str, **values: object) -> Problem:
    """Fill in the texts of a code."""
    return problem_texts(__file__)[code].problem(code, **values)


def installed_release(distribution: str = "backend-caps") -> str:
    """Return this package's name with its version."""
    # Only some problems need it, and this import takes half as long as a scan.
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    try:
        return f"{distribution} {version(distribution)}"
    except PackageNotFoundError:
        return f"{distribution} (not installed, run from its source)"


class DiscoveryError(CodedError):
    """A caller of discovery gave what it cannot use; a plugin's fault is a `Problem`."""

    codes: ClassVar[Mapping[str, str]] = {
        "string-instead-of-list": "an argument that takes several strings was given one",
        "deadline": "a deadline leaves no time at all, or has no end",
        "repeated-backend": "two backends of a registry made by hand have one name",
    }
