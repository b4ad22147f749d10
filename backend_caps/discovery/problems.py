"""What discovery finds wrong: each problem by its code, and the error of a caller's mistake.

`problems.toml` has the texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import ClassVar, NamedTuple

from backend_caps.capability.provenance import Problem
from backend_caps.errors import CodedError


class ProblemText(NamedTuple):
    """The texts of a code, with values to fill in as in `str.format`."""

    meaning: str
    message: str
    remedy: str
    hint: str = ""
    """The remedy where a value `meant` is known."""

    def problem(self, code: str, **values: object) -> Problem:
        """Fill in the values."""
        remedy = self.remedy if values.get("meant") is None else self.hint
        message = self.message.format(**values)
        return Problem(code=code, message=message, remedy=remedy.format(**values))


@cache
def texts(module: str = __file__) -> Mapping[str, ProblemText]:
    """Read the `problems.toml` beside a module: each stable code with its texts."""
    # Only a scan that finds a problem needs them, and these imports take as long as one.
    import tomllib  # noqa: PLC0415
    from pathlib import Path  # noqa: PLC0415

    stored = tomllib.loads(Path(module).with_name("problems.toml").read_text("utf-8"))
    return {code: ProblemText(**own) for code, own in stored.items()}


def problem(code: str, **values: object) -> Problem:
    """Fill in the texts of a code."""
    return texts()[code].problem(code, **values)


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
