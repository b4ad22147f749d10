"""What keeps a server's configuration from being started, measured or recorded here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from backend_caps.errors import BackendCapsError, CodedError


class InsightError(CodedError):
    """A configuration cannot be run here, or nothing can be read off its run."""

    codes: ClassVar[Mapping[str, str]] = {
        "model-dtype": "`generate`: the engine does not compute in the model's dtype",
        "not-measured": "`explain --measure`: the plan cannot be run on the simulated device",
        "cannot-run": "`dry-run`, `trace`: backends that the server uses cannot run here",
        "unfit-stand-in": "`dry-run`, `trace`: with a stand-in it would be another server",
        "engine-refuses": "`dry-run`: the engine itself does not start such a server",
        "no-engine": "`dry-run`, `trace`: the engine could not be made for the plan",
        "no-timeline": "`trace`: the device has no streams, or its records are not read",
        "too-many-steps": "`trace`: the server's longest request has fewer decode steps",
        "gpu-result": "`explain --measure`: a file in the folder of GPU results is none",
        "step-failed": "`explain --measure`, `trace`: a step raised what a plugin made up",
    }


def faults_in(error: Exception) -> Iterator[str]:
    """Write each error of a group, or the only one; what a plugin raised with its class."""
    if isinstance(error, ExceptionGroup):
        for inner in error.exceptions:
            yield from faults_in(inner)
    elif isinstance(error, BackendCapsError):
        yield str(error).removesuffix(".")
    else:
        yield f"{type(error).__name__}: {error}".rstrip(".")


def sentence_of(error: Exception) -> str:
    """Write an error in one sentence without its full stop, each error of a group in turn."""
    return "; ".join(faults_in(error))
