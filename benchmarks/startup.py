"""`backend-caps report` beside `import torch`, in an environment of 300 distributions.

Both are whole processes of this environment, started in turn, so that what else the machine does
falls on both. Twenty distributions declare a backend, each in a module of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.discovery import NUM_OURS, install
from benchmarks.recorded import Ratio, Record, keep, path_asked

NUM_DISTRIBUTIONS = 300
NUM_ROUNDS = 15
PROGRAM = str(Path(sys.executable).with_name("backend-caps"))
REPORTS: Mapping[str, Sequence[str]] = {
    "report (json)": (PROGRAM, "report", "--format", "json"),
    "report (table)": (PROGRAM, "report"),
    "resolve (json)": (PROGRAM, "resolve", "--format", "json", "--", "--attention-backend", "x"),
}
TORCH = (sys.executable, "-c", "import torch")
BARE = (sys.executable, "-c", "pass")
DECLARATION = """\
from backend_caps import Capabilities, Declaration

DECLARATION = Declaration(capabilities=Capabilities(needs_cpu_seq_lens=True))
"""


def environment(site: Path) -> Mapping[str, str]:
    """Fill a folder so that this environment has 300 distributions, and put it on the path.

    Bytecode is kept, as an installer keeps it: else ours alone would be compiled at each start.
    """
    install(site, NUM_DISTRIBUTIONS - sum(1 for _ in distributions()))
    for number in range(NUM_OURS):
        (site / f"package_{number}.py").write_text(DECLARATION)
    kept = {name: os.environ[name] for name in os.environ if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": str(site)}


def timed(command: Sequence[str], environ: Mapping[str, str]) -> float:
    """Return how long a command takes, in seconds."""
    start = time.perf_counter()
    subprocess.run(command, env=environ, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def check(environ: Mapping[str, str]) -> None:
    """Make sure that the report has every backend, so that the time is for the whole of it."""
    output = subprocess.check_output(REPORTS["report (json)"], env=environ)
    backends = [b for b in json.loads(output)["backends"] if b["name"].startswith("backend_")]
    assert len(backends) == NUM_OURS, len(backends)
    assert {backend["status"] for backend in backends} == {"ok"}


def main() -> None:
    """Print each command's ratio to `import torch`, and keep them where it is asked for."""
    path = path_asked(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        environ = environment(Path(folder))
        check(environ)
        commands = {**REPORTS, "bare Python": BARE, "import torch": TORCH}
        rounds = [
            {name: timed(command, environ) for name, command in commands.items()}
            for _ in range(NUM_ROUNDS)
        ]
    found = Record(
        compares=f"a command's process, beside {NUM_DISTRIBUTIONS} distributions / "
        "one that imports torch",
        ratios=tuple(_ratio(name, rounds) for name in commands if name != "import torch"),
    )
    print(f"start-up: {found.compares}")
    for each in found.ratios:
        print(f"{each.what:>16} {each.ratio:6.3f}   {each.told:>10}")
    keep(found, "startup", path)


def _ratio(name: str, rounds: Sequence[Mapping[str, float]]) -> Ratio:
    ours, torch = ([times[side] for times in rounds] for side in (name, "import torch"))
    return Ratio.from_rounds(name, ours, torch, f"{1e3 * median(ours):.0f} ms")


if __name__ == "__main__":
    main()
