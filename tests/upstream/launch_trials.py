"""What the reader makes of drawn command lines, beside what an engine's own processing does.

Each release of an engine runs in an environment of its own, that `make upstream` builds.
"""

from __future__ import annotations

import gc
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from functools import cache
from itertools import groupby
from pathlib import Path

import click
from rich import box
from rich.console import Console
from rich.table import Table

from backend_caps.capability.gpu import gpus
from backend_caps.engines.command_line import variables_of
from backend_caps.engines.model import in_folders, model_of
from backend_caps.engines.query import ask
from backend_caps.engines.reading import LaunchQuery
from backend_caps.engines.source.files import open_tree
from backend_caps.engines.source.index import Index
from backend_caps.resolution.launch import Launch
from tests.process_pool import in_processes
from tests.upstream.launches import HUB, Case
from tests.upstream.sglang_environment import python_of
from tests.upstream.sglang_wheel import find_wheel
from tests.upstream.trial_engines import ENGINES, TrialEngine

TABLES = Path(__file__).with_name("tables")
RECORDED = {
    "sglang": "launches-{}.jsonl",
    "vllm": "vllm-launches-{}.jsonl",
    "vllm-rocm": "vllm-rocm-launches-{}.jsonl",
}
"""Answers of engines themselves, by release, which `make test-all` compares the reader with."""
NUM_GPUS = 8
_CHUNK = 400
"""As many command lines of one machine and environment as one process answers, at most."""


class Verdict(Enum):
    """How two answers to one command line compare."""

    REFUSED = "both refuse"
    ACCEPTED = "both accept, with equal values and classes"
    NOT_CHECKED = "not checked by the reader"
    UNDECIDED = "not decided by the engine, for want of a package"
    PASSES = "the reader accepts, the engine refuses"
    REFUSES = "the reader refuses, the engine accepts"
    DIFFERS = "both accept, with different values or classes"

    @property
    def is_wrong(self) -> bool:
        """Whether it breaks a promise."""
        return self in {Verdict.PASSES, Verdict.REFUSES, Verdict.DIFFERS}


_OPEN = (Verdict.NOT_CHECKED, Verdict.UNDECIDED)
_OPEN_SHARE = 0.1
"""As large a share may be left open by either side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Two answers to one command line."""

    engine: TrialEngine
    case: Case
    asked: Launch
    read: Launch

    @property
    def verdict(self) -> Verdict:
        """How they compare."""
        if self.asked.starts is None:
            return Verdict.UNDECIDED
        if self.read.starts is None:
            return Verdict.NOT_CHECKED
        if self.asked.starts is not self.read.starts:
            return Verdict.PASSES if self.read.starts else Verdict.REFUSES
        if not self.asked.starts:
            return Verdict.REFUSED
        found = [read for _, read in self.differences.values()]
        if found and all(map(_is_open, found)):
            return Verdict.NOT_CHECKED
        return Verdict.DIFFERS if found else Verdict.ACCEPTED

    @property
    def differences(self) -> dict[str, tuple[object, object]]:
        """List what differs: the engine's answer, then the reader's."""
        asked, read = map(self.engine.answer, (self.asked, self.read))
        return {
            name: (value, read.get(name))
            for name, value in asked.items()
            if _listed(value) != _listed(read.get(name))
        }

    def __str__(self) -> str:
        words = f"{self.case.machine} {self.case.model} {' '.join(self.case.argv)}"
        why = {
            Verdict.DIFFERS: self.differences,
            Verdict.PASSES: self.asked.refusal,
            Verdict.REFUSES: self.read.refusal,
            Verdict.NOT_CHECKED: self.read.unchecked[:1] or self.differences,
            Verdict.UNDECIDED: self.asked.unchecked,
        }
        return f"{self.verdict.value}: {words}\n    {why.get(self.verdict, '')}"


def _is_open(value: object) -> bool:
    """Return whether a value, or one in it, is not known."""
    return '"unknown": ' in json.dumps(value, default=str)


def _listed(value: object) -> object:
    return json.loads(json.dumps(value, default=str))


def trials(
    engine: TrialEngine, version: str, seed: int, number: int, console: Console, *, of_hub: bool
) -> Iterator[Trial]:
    """Draw command lines, and give them to an engine and to the reader."""
    drawn = engine.cases(seed, number, HUB if of_hub else engine.models)
    chunks = [
        (engine.key, version, part)
        for _, group in groupby(
            sorted(drawn, key=_surroundings_of), lambda c: _surroundings_of(c)[:2]
        )
        for part in _parts([*group])
    ]
    for done in in_processes(_tried, chunks, console, f"{engine.name} {version}"):
        yield from done


def _parts(group: Sequence[Case]) -> Iterator[Sequence[Case]]:
    """Share a group evenly between processes, models together: importing takes long."""
    size = -(-len(group) // -(-len(group) // _CHUNK))
    return (group[at : at + size] for at in range(0, len(group), size))


def _surroundings_of(case: Case) -> tuple[str, list[tuple[str, str]], str]:
    return case.machine, sorted(variables_of(case.argv).items()), case.model


def _tried(work: tuple[str, str, Sequence[Case]]) -> list[Trial]:
    key, version, chunk = work
    engine = ENGINES[key]
    return list(trials_of(engine, version, chunk, asked(engine, version, chunk)))


def trials_of(
    engine: TrialEngine, version: str, chunk: Sequence[Case], answers: Iterable[Launch]
) -> Iterator[Trial]:
    """Read each case, beside the engine's answer."""
    for case, answer, launch in zip(chunk, answers, reads(engine, version, chunk), strict=True):
        yield Trial(engine=engine, case=case, asked=answer, read=launch)


def asked(engine: TrialEngine, version: str, chunk: Sequence[Case]) -> list[Launch]:
    """Return an engine's own answers, for cases of one machine and one environment."""
    gpu, environ = gpus()[chunk[0].machine], variables_of(chunk[0].argv)
    lines, around = [], []
    with ExitStack() as stack:
        for case in chunk:
            model = model_of(case.model)
            place, [words], path = stack.enter_context(in_folders([case.argv], model))
            lines.append([*words[len(environ) :], engine.model_option, path])
            around.append(f"{place}/")
        python = python_of(version, engine.package)
        answers = ask(python, engine.script, lines, gpu, NUM_GPUS, environ)
    return [
        engine.launch_of(json.loads(json.dumps(answer).replace(place, "")), gpu, case.model)
        for case, answer, place in zip(chunk, answers, around, strict=True)
    ]


@cache
def _index(engine: TrialEngine, version: str) -> Index:
    wheel = find_wheel(version, engine.package)
    return Index(open_tree(engine.package, wheel, within=engine.is_wanted, lazily=True))


def read(engine: TrialEngine, version: str, case: Case) -> Launch:
    """Return the reader's answer."""
    [launch] = reads(engine, version, [case])
    return launch


def reads(engine: TrialEngine, version: str, cases: Iterable[Case]) -> Iterator[Launch]:
    """Yield the reader's answers; those of one machine, environment and model share a beginning."""
    for (machine, _, name), group in groupby(cases, _surroundings_of):
        query = LaunchQuery(
            lines=[case.argv for case in group],
            gpu=gpus()[machine],
            num_gpus=NUM_GPUS,
            model=model_of(name),
        )
        gc.disable()  # of what is parsed nothing is garbage
        try:
            yield from engine.read_launches(_index(engine, version), query)
        finally:
            gc.enable()


def record(version: str, found: Sequence[Trial]) -> None:
    """Keep an engine's answers to the cases that it decides."""
    lines = [json.dumps(_recorded(each)) for each in found if each.asked.starts is not None]
    engine = found[0].engine
    (TABLES / RECORDED[engine.key].format(version)).write_text(
        "".join(f"{line}\n" for line in lines), "utf-8"
    )


def _recorded(trial: Trial) -> Mapping[str, object]:
    case, launch = trial.case, trial.asked
    own: dict[str, object] = {"machine": case.machine, "model": case.model, "argv": case.argv}
    if launch.refusal is not None:
        return {**own, "refused at": launch.refusal.at, "message": launch.refusal.message}
    return {**own, **trial.engine.recorded(launch)}


@click.command(help=__doc__)
@click.option("--seed", default=1, show_default=True, help="Where to begin drawing.")
@click.option("--number", default=100, show_default=True, help="How many command lines.")
@click.option("--engine", "key", type=click.Choice([*ENGINES]), default="sglang")
@click.option("--version", default="0.5.23", show_default=True, help="The engine's release.")
@click.option("--hub", "of_hub", is_flag=True, help="Models by their own files on the hub.")
@click.option("--record", "records", is_flag=True, help="Keep the engine's answers for `test-all`.")
def main(seed: int, number: int, key: str, version: str, *, of_hub: bool, records: bool) -> None:
    """Exit with 1 where the reader breaks a promise, or where too much is not decided."""
    console = Console(highlight=False, soft_wrap=True)
    found: list[Trial] = []
    engine = ENGINES[key]
    for each in trials(engine, version, seed, number, console, of_hub=of_hub):
        found.append(each)
        if each.verdict not in {Verdict.REFUSED, Verdict.ACCEPTED}:
            console.print(str(each), markup=False)
    counts = Counter(each.verdict for each in found)
    drawn = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, title=f"{engine.name} {version}, seed {seed}"
    )
    drawn.add_column("verdict")
    drawn.add_column("command lines", justify="right")
    for verdict in Verdict:
        drawn.add_row(verdict.value, str(counts[verdict]))
    console.print(drawn)
    if records:
        record(version, found)
    is_open = any(counts[each] > _OPEN_SHARE * number for each in _OPEN)
    sys.exit(is_open or any(verdict.is_wrong for verdict in counts))


if __name__ == "__main__":
    main()
