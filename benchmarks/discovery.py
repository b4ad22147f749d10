"""The scan beside `importlib.metadata`, in folders of 30, 300 and 1,000 distributions.

Both look at the same `sys.path` and answer the same question. They are measured in turn, round
by round, so that what else the machine does falls on both: warm in one process, and cold in a
process each, imports included and the bare start of Python taken off.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import backend_caps
from benchmarks.recorded import Ratio, Record, keep, path_asked

NUM_DISTRIBUTIONS = (30, 300, 1_000)
NUM_OURS = 20
NUM_WARM_ROUNDS = 25
NUM_COLD_ROUNDS = 15

OURS = """
from backend_caps.discovery.scan import scan
from backend_caps.discovery.process import Search
def ours():
    return len(scan(Search.of_process()).claims)
"""
THEIRS = """
from importlib.metadata import entry_points
def theirs():
    return len(entry_points(group="backend_caps.backends"))
"""
WARM = f"""
import time
{OURS}
{THEIRS}
assert ours() == theirs() == {NUM_OURS}, (ours(), theirs())
for _ in range({NUM_WARM_ROUNDS}):
    for look in (ours, theirs):
        start = time.perf_counter()
        look()
        print(time.perf_counter() - start)
"""


def install(site: Path, num_distributions: int) -> None:
    """Write metadata as a large environment has it: two in five have entry points."""
    for number in range(num_distributions):
        info = site / f"package_{number}-1.{number}.dist-info"
        info.mkdir(parents=True)
        headers = f"Metadata-Version: 2.1\nName: package-{number}\nVersion: 1.{number}\n"
        (info / "METADATA").write_text(headers + "\nIts description.\n" * 50)
        (info / "RECORD").write_text(f"package_{number}/__init__.py,,\n" * 20)
        if number < NUM_OURS:
            text = f"[backend_caps.backends]\nbackend_{number} = package_{number}:DECLARATION\n"
        else:
            text = f"[console_scripts]\nrun-{number} = package_{number}.cli:main\n"
        if number % 5 < 2 or text.startswith("[backend_caps"):
            (info / "entry_points.txt").write_text(text)


def search_path(root: Path, num_distributions: int) -> list[str]:
    """Make a path of one folder of distributions, and one that holds what is measured."""
    site, packages = root / "site", root / "packages"
    install(site, num_distributions)
    packages.mkdir()
    found = find_spec("entrypoints")
    assert found is not None, "backend-caps requires it"
    assert found.origin is not None, "it is one file"
    (packages / "backend_caps").symlink_to(Path(backend_caps.__file__).parent)
    (packages / "entrypoints.py").symlink_to(found.origin)
    return [str(site), str(packages)]


def python(program: str, path: list[str]) -> str:
    """Run a program on the standard library and a path, and nothing else."""
    program = f"import sys; sys.path += {path}\n{program}"
    return subprocess.check_output([sys.executable, "-I", "-S", "-c", program], text=True)


Sides = tuple[list[float], list[float]]
"""Seconds of ours and of theirs, round by round."""


def warm(path: list[str]) -> Sides:
    """Measure repeated looks in one process."""
    times = [float(line) for line in python(WARM, path).split()]
    return times[0::2], times[1::2]


def cold(path: list[str]) -> Sides:
    """Measure the first look of a process, imports included."""
    programs = ("", f"{OURS}\nours()", f"{THEIRS}\ntheirs()")
    rounds = [[timed(program, path) for program in programs] for _ in range(NUM_COLD_ROUNDS)]
    bare = median(times[0] for times in rounds)
    return [times[1] - bare for times in rounds], [times[2] - bare for times in rounds]


def timed(program: str, path: list[str]) -> float:
    """Return how long a program takes in a process of its own, in seconds."""
    start = time.perf_counter()
    python(program, path)
    return time.perf_counter() - start


def main() -> None:
    """Print each size's ratios: below 1, the scan is faster."""
    to = path_asked(__doc__)
    found = Record(
        compares="the scan / `importlib.metadata.entry_points(group=...)`",
        ratios=tuple(ratio for size in NUM_DISTRIBUTIONS for ratio in _ratios(size)),
    )
    print(f"discovery: time of {found.compares}")
    for each in found.ratios:
        print(f"{each.what:>24} {each.ratio:6.2f}   {each.told}")
    keep(found, "discovery", to)


def _ratios(num_distributions: int) -> Iterator[Ratio]:
    with tempfile.TemporaryDirectory() as root:
        path = search_path(Path(root), num_distributions)
        measured = {"warm": warm(path), "cold": cold(path)}
    for how, (ours, theirs) in measured.items():
        told = f"{1e3 * median(ours):.1f} ms and {1e3 * median(theirs):.1f} ms"
        yield Ratio.from_rounds(f"{num_distributions:,} distributions, {how}", ours, theirs, told)


if __name__ == "__main__":
    main()
