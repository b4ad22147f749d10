"""Reading SGLang whole, beside `ast.parse` alone: of the files that are needed, and of every one.

The three are measured in turn, round by round, in one process. The reader takes the files from
the disk, as an installed engine has them, or out of the wheel; the parser gets them in memory.
It is given twice: with Python's garbage collector held, as the reader holds it, and as it comes.
"""

from __future__ import annotations

import ast
import gc
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from unittest.mock import patch

from backend_caps.engines.read import read_engine
from backend_caps.engines.sglang.read import is_wanted

VERSIONS = ("0.5.13", "0.5.23")
NUM_ROUNDS = 7
WHEELS = Path(__file__).resolve().parents[1] / ".cache" / "wheels"


def parsed_by(source: Path) -> list[bytes]:
    """List the texts that the reader parses."""
    parse, seen = ast.parse, []

    def recorded(text: bytes) -> ast.Module:
        seen.append(text)
        return parse(text)

    with patch("ast.parse", recorded):
        read_engine("sglang", source)
    return seen


def parse_all(texts: Iterable[bytes], *, collect: bool) -> None:
    """Parse texts and throw the trees away, one by one."""
    if not collect:
        gc.disable()
    for text in texts:
        ast.parse(text)
    gc.enable()


def timed(work: Callable[[], object]) -> float:
    """Run once, and return seconds; what others left is collected before."""
    gc.collect()
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(version: str, folder: Path) -> None:
    """Print the ratios of one version."""
    wheel = next(WHEELS.glob(f"sglang-{version}-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        every = {name: archive.read(name) for name in archive.namelist() if _is_read(name)}
        archive.extractall(folder, members=["sglang/__init__.py", *every])
    needed = parsed_by(folder)
    sides: dict[str, Callable[[], object]] = {
        "installed": lambda: read_engine("sglang", folder),
        "wheel": lambda: read_engine("sglang", wheel),
        "needed": lambda: parse_all(needed, collect=False),
        "needed, collector on": lambda: parse_all(needed, collect=True),
        "every file": lambda: parse_all(every.values(), collect=False),
    }
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(NUM_ROUNDS):
        for name, work in sides.items():
            seconds[name].append(timed(work))
    print(f"sglang {version}: {len(needed)} of {len(every):,} files are parsed")
    for ours in ("installed", "wheel"):
        for theirs in ("needed", "needed, collector on", "every file"):
            pairs = zip(seconds[ours], seconds[theirs], strict=True)
            ratio = median(one / other for one, other in pairs)
            print(f"  reading it {ours:9} / ast.parse of {theirs:20}  {ratio:.2f}")


def _is_read(name: str) -> bool:
    return name.endswith(".py") and is_wanted(name)


def main() -> None:
    """Measure each version."""
    for version in VERSIONS:
        with tempfile.TemporaryDirectory() as folder:
            measure(version, Path(folder))


if __name__ == "__main__":
    main()
