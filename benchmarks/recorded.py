"""What a benchmark found, kept as JSON with all that is needed to repeat it.

`make bench` writes `benchmarks/results/cpu/NAME.json`; `docs/reference/benchmarks.md` is made of
these files.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import quantiles
from typing import Self

RESULTS = Path(__file__).resolve().parent / "results" / "cpu"
_VERSIONS = ("backend-caps", "torch", "numpy", "pydantic")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """What one side takes over what the other takes; below 1, ours takes less."""

    what: str
    ratio: float
    """The median of what was measured."""
    low: float
    high: float
    """Half of what was measured lies between them."""
    measured: str
    """What was measured so often: `15 rounds`."""
    told: str = ""
    """What it was in seconds or bytes, for a sense of size."""

    @classmethod
    def from_rounds(
        cls, what: str, ours: Sequence[float], theirs: Sequence[float], told: str = ""
    ) -> Self:
        """Compare two sides that took turns, round by round."""
        pairs = [one / other for one, other in zip(ours, theirs, strict=True)]
        low, middle, high = quantiles(pairs, n=4, method="inclusive")
        return cls(
            what=what, ratio=middle, low=low, high=high, measured=f"{len(pairs)} rounds", told=told
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """What is counted, and the same on every machine."""

    what: str
    ours: int
    theirs: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What a benchmark found."""

    compares: str
    """What is divided by what."""
    ratios: tuple[Ratio, ...] = ()
    counts: tuple[Count, ...] = ()


def path_asked(description: str | None) -> Path | None:
    """Read the command line of a benchmark: where to write what it finds, if anywhere."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, help="write what was found here")
    path: Path | None = parser.parse_args().json
    return path


def keep(found: Record, name: str, path: Path | None) -> None:
    """Write what was found; nothing where no path was asked for."""
    if path is None:
        return
    document = {
        "schema": "backend-caps/benchmark@1",
        "name": name,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": machine(),
        "repeat": f"python benchmarks/{name}.py --json PATH",
        **asdict(found),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n", "utf-8")


def machine() -> dict[str, object]:
    """Name processor and versions."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: version(name) for name in _VERSIONS},
    }


def _processor() -> str:
    """Name the processor as Linux does; elsewhere as Python does."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
