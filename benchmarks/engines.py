"""Reading SGLang whole, beside `ast.parse` alone: of the files that are needed, and of every one.

The three are measured in turn, round by round, in one process. The reader takes the files from
the disk, as an installed engine has them, or out of the wheel; the parser gets them in memory.
It is given twice: with Python's garbage collector held, as the reader holds it, and as it comes.

Before them whole commands: `resolve` of a command line that is followed through the engine, beside
`resolve` without; and where `make upstream` has built an environment of the version, `resolve` that
asks it, beside importing its arguments. Last, where `make vllm` has fetched vLLM's wheel, `resolve`
of a command line of vLLM's, beside `report` of the same wheel.
"""

from __future__ import annotations

import ast
import gc
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from backend_caps.engines.read import read_engine
from backend_caps.engines.sglang.read import is_wanted
from benchmarks.recorded import Ratio, Record, keep, path_asked

VERSIONS = ("0.5.13", "0.5.23")
VLLM_VERSION = "0.33.0"
NUM_ROUNDS = 7
LINE = (
    *("--speculative-algorithm", "EAGLE3"),
    *("--speculative-draft-model-path", "eagle3-llama-3.1-8b"),
)
FOLLOWED = ("--model-config", "llama-3.1-8b", "--fact", "device_name=H100")
_COMMAND = (sys.executable, "-m", "backend_caps")
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
    yield from _of_plans(version, wheel)
    for ours in ("installed", "wheel"):
        for theirs in ("needed", "needed, collector on", "every file"):
            what = f"SGLang {version}, {ours} / ast.parse of {theirs}"
            told = f"{1e3 * median(seconds[ours]):.0f} ms; {files}"
            yield Ratio.from_rounds(what, seconds[ours], seconds[theirs], told)


def _of_plans(version: str, wheel: Path) -> Iterator[Ratio]:
    """Measure whole commands: what following a command line adds, and what asking for it does."""
    python = WHEELS.with_name("engines") / f"sglang-{version}" / "bin" / "python"
    read, asked = ("--source", str(wheel)), ("--engine-python", str(python))
    importing = (str(python), "-c", "import sglang.srt.server_args")
    sides = [("resolve, followed / resolve", _resolve(*read, *FOLLOWED), _resolve(*read))]
    if python.exists():
        what = "resolve, asked / importing its arguments"
        sides.append((what, _resolve(*asked, *FOLLOWED), importing))
    for what, ours, theirs in sides:
        yield _of_commands(f"SGLang {version}, {what}", ours, theirs)


def _of_commands(what: str, ours: Sequence[str], theirs: Sequence[str]) -> Ratio:
    """Measure two whole commands in turn."""
    rounds = [(timed(partial(_run, ours)), timed(partial(_run, theirs))) for _ in range(NUM_ROUNDS)]
    own, other = ([*each] for each in zip(*rounds, strict=True))
    told = f"{1e3 * median(own):.0f} ms / {1e3 * median(other):.0f} ms"
    return Ratio.from_rounds(what, own, other, told)


def _of_vllm() -> Iterator[Ratio]:
    """Measure a plan of vLLM from its wheel, beside a report of the wheel."""
    for wheel in WHEELS.glob(f"vllm-{VLLM_VERSION}-*.whl"):
        read = ("--engine", "vllm", "--source", str(wheel))
        plan = (*_COMMAND, "resolve", *read, *FOLLOWED, "--", "--attention-backend", "FLASHINFER")
        what = f"vLLM {VLLM_VERSION}, resolve, followed / report"
        yield _of_commands(what, plan, (*_COMMAND, "report", *read))


def _resolve(*options: str) -> tuple[str, ...]:
    return (*_COMMAND, "resolve", "--engine", "sglang", *options, "--", *LINE)


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _is_read(name: str) -> bool:
    return name.endswith(".py") and is_wanted(name)


def main() -> None:
    """Measure each version, and print the ratios."""
    path = path_asked(__doc__)
    found = Record(
        compares="reading an engine / `ast.parse` alone",
        ratios=(*(ratio for version in VERSIONS for ratio in _of(version)), *_of_vllm()),
    )
    for each in found.ratios:
        print(f"{each.what:<62} {each.ratio:5.2f}   {each.told}")
    keep(found, "engines", path)


def _of(version: str) -> list[Ratio]:
    with tempfile.TemporaryDirectory() as folder:
        return list(measured(version, Path(folder)))


if __name__ == "__main__":
    main()
