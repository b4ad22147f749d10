"""Times of steps, read from the results that `make gpu` stores on a machine with a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from backend_caps.insight.errors import InsightError
from backend_caps.report.step_costs import Level, TimeDocument

_CHECKOUT = Path(__file__).resolve().parents[2]
_OF_LOOPS = "gpu"
"""The benchmark that times steps; `make gpu` writes results of others beside it."""


class _Kind(BaseModel):
    model_config = ConfigDict(extra="ignore")

    benchmark: str = _OF_LOOPS


class _Row(BaseModel):
    model_config = ConfigDict(extra="ignore")

    comparison: str
    side: str
    batch_size: int
    step_us: float
    host_wait_us: float | None = None
    lengths_us: float | None = None


class _Result(BaseModel):
    model_config = ConfigDict(extra="ignore")

    hardware: str | None = None
    rows: tuple[_Row, ...]


def stored_times(folder: Path | None) -> list[TimeDocument]:
    """Read what the mirror cost a step on GPUs, from the files that `make gpu` writes.

    Args:
        folder: where results are; None is where a checkout keeps them, and an installed package
            has none.

    Raises:
        InsightError: a file is no result.
    """
    if folder is None:
        if not (_CHECKOUT / "pyproject.toml").exists():
            return []
        folder = _CHECKOUT / "benchmarks" / "results"
    return [time for path in sorted(folder.glob("*.json")) for time in _times(path)]


def _times(path: Path) -> Iterator[TimeDocument]:
    result = _read(path)
    if result is None or result.hardware is None:
        return  # of no steps, or a rehearsal on the simulated device, whose times mean nothing
    for row in result.rows:
        for level in get_args(Level):
            if row.side == level and row.comparison.startswith("mirror"):
                values = row.model_dump(exclude={"side"})
                yield TimeDocument(file=path.name, hardware=result.hardware, level=level, **values)


def _read(path: Path) -> _Result | None:
    """Read a result; None is another benchmark's."""
    try:
        text = path.read_bytes()
        if _Kind.model_validate_json(text).benchmark != _OF_LOOPS:
            return None
        return _Result.model_validate_json(text)
    except (OSError, ValidationError) as error:
        told = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise InsightError(
            "gpu-result",
            f"{str(path)!r} holds no result of a GPU: {told}; a file that make gpu wrote was "
            "expected. Move it elsewhere, or name another folder with --results.",
        ) from error
