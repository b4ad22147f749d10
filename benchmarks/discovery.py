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
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import backend_caps

NUM_DISTRIBUTIONS = (30, 300, 1_000)
NUM_OURS = 20
NUM_WARM_ROUNDS = 25
NUM_COLD_ROUNDS = 15

OURS = """
from backend_caps.discovery.scan import scan
from backend_caps.discovery.search import Search
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


def warm(path: list[str]) -> tuple[float, float]:
    """Measure repeated looks in one process: medians of ours and theirs, in seconds."""
    times = [float(line) for line in python(WARM, path).split()]
    return median(times[0::2]), median(times[1::2])


def cold(path: list[str]) -> tuple[float, float]:
    """Measure the first look of a process, imports included: medians, in seconds."""
    programs = ("", f"{OURS}\nours()", f"{THEIRS}\ntheirs()")
    rounds = [[timed(program, path) for program in programs] for _ in range(NUM_COLD_ROUNDS)]
    bare, ours, theirs = (median(times) for times in zip(*rounds, strict=True))
    return ours - bare, theirs - bare


def timed(program: str, path: list[str]) -> float:
    """Return how long a program takes in a process of its own, in seconds."""
    start = time.perf_counter()
    python(program, path)
    return time.perf_counter() - start


def main() -> None:
    """Print each size's ratios: below 1, the scan is faster."""
    print("discovery: time of the scan / time of importlib.metadata.entry_points(group=...)")
    print(f"{'distributions':>13} {'warm':>6} {'cold':>6}   ms: ours, theirs; ours, theirs")
    for num_distributions in NUM_DISTRIBUTIONS:
        with tempfile.TemporaryDirectory() as root:
            path = search_path(Path(root), num_distributions)
            measured = (*warm(path), *cold(path))
        ours, theirs, ours_cold, theirs_cold = measured
        times = ", ".join(f"{1e3 * seconds:.1f}" for seconds in measured)
        ratios = f"{ours / theirs:6.2f} {ours_cold / theirs_cold:6.2f}"
        print(f"{num_distributions:>13} {ratios}   {times}")


if __name__ == "__main__":
    main()
