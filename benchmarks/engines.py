"""Reading SGLang whole, beside `ast.parse` alone: of the files that are needed, and of every one.

The three are measured in turn, round by round, in one process. The reader takes the files from
the disk, as an installed engine has them, or out of the wheel; the parser gets them in memory.
It is given twice: with Python's garbage collector held, as the reader holds it, and as it comes.
"""

from __future__ import annotations

import ast
import gc
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import median
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from backend_caps.engines.read import read_engine
from backend_caps.engines.sglang.read import is_wanted
from benchmarks.recorded import Ratio, Record, keep, path_asked

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


def measured(version: str, folder: Path) -> Iterator[Ratio]:
    """Measure one version."""
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
    files = f"{len(needed)} of {len(every):,} files parsed"
    for ours in ("installed", "wheel"):
        for theirs in ("needed", "needed, collector on", "every file"):
            what = f"SGLang {version}, {ours} / ast.parse of {theirs}"
            told = f"{1e3 * median(seconds[ours]):.0f} ms; {files}"
            yield Ratio.from_rounds(what, seconds[ours], seconds[theirs], told)


def _is_read(name: str) -> bool:
    return name.endswith(".py") and is_wanted(name)


def main() -> None:
    """Measure each version, and print the ratios."""
    path = path_asked(__doc__)
    found = Record(
        compares="reading an engine / `ast.parse` alone",
        ratios=tuple(ratio for version in VERSIONS for ratio in _of(version)),
    )
    for each in found.ratios:
        print(f"{each.what:<62} {each.ratio:5.2f}   {each.told}")
    keep(found, "engines", path)


def _of(version: str) -> list[Ratio]:
    with tempfile.TemporaryDirectory() as folder:
        return list(measured(version, Path(folder)))


if __name__ == "__main__":
    main()
