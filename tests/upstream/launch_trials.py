"""What the reader makes of drawn command lines, beside what SGLang's own processing does.

Each release of SGLang runs in an environment of its own, that `make upstream` builds.
"""

from __future__ import annotations

import gc
import json
import sys
import time
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
from backend_caps.engines.model import in_folders, model_of
from backend_caps.engines.query import ask
from backend_caps.engines.sglang.arguments import read_launch, without_model
from backend_caps.engines.sglang.query import SCRIPT, launch_of
from backend_caps.engines.sglang.read import is_wanted
from backend_caps.engines.source.files import open_tree
from backend_caps.engines.source.index import Index
from backend_caps.resolution.launch import Launch
from tests.process_pool import in_processes
from tests.upstream.launches import HUB, MACHINES, MODELS, Case, cases
from tests.upstream.sglang_environment import python_of
from tests.upstream.sglang_wheel import find_wheel

TABLES = Path(__file__).with_name("tables")
RECORDED = "launches-{}.jsonl"
"""Answers of SGLang itself, by release, which `make test-all` compares the reader with."""
NUM_GPUS = 8
VALUES = (
    *("attention_backend", "prefill_attention_backend", "decode_attention_backend"),
    *("speculative_draft_attention_backend", "page_size", "disable_overlap_schedule"),
    *("cuda_graph_config", "disable_cuda_graph", "enable_mixed_chunk", "chunked_prefill_size"),
    *("speculative_algorithm", "speculative_num_steps", "speculative_eagle_topk"),
    *("speculative_num_draft_tokens", "kv_cache_dtype", "dtype", "disable_radix_cache"),
    *("enable_two_batch_overlap", "attn_dp_size", "tp_size", "dp_size", "ep_size"),
)
"""The final values that are compared, where a release has them."""
_CHUNK = 50


class Verdict(Enum):
    """How two answers to one command line compare."""

    REFUSED = "both refuse"
    ACCEPTED = "both accept, with equal values and classes"
    NOT_CHECKED = "not checked by the reader"
    UNDECIDED = "not decided by SGLang, for want of a package"
    PASSES = "the reader accepts, SGLang refuses"
    REFUSES = "the reader refuses, SGLang accepts"
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

    case: Case
    asked: Launch
    read: Launch
    seconds: float
    """What reading took."""

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
        if found and all(isinstance(each, dict) and "unknown" in each for each in found):
            return Verdict.NOT_CHECKED
        return Verdict.DIFFERS if found else Verdict.ACCEPTED

    @property
    def differences(self) -> dict[str, tuple[object, object]]:
        """List the values and the classes that differ: SGLang's, then the reader's."""
        asked, read = ({**each.values, **each.classes} for each in (self.asked, self.read))
        names = [name for name in VALUES if name in asked] + [*self.asked.classes]
        return {
            name: (asked[name], read.get(name))
            for name in names
            if _listed(asked[name]) != _listed(read.get(name))
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


def _listed(value: object) -> object:
    return json.loads(json.dumps(value, default=str))


def trials(
    seed: int, number: int, version: str, console: Console, models: Sequence[str] = MODELS
) -> Iterator[Trial]:
    """Draw command lines, and give them to SGLang and to the reader."""
    drawn = sorted(cases(seed, number, models), key=lambda case: MACHINES.index(case.machine))
    groups = [[*group] for _, group in groupby(drawn, lambda case: case.machine)]
    starts = [(group, start) for group in groups for start in range(0, len(group), _CHUNK)]
    chunks = [(version, group[start : start + _CHUNK]) for group, start in starts]
    for done in in_processes(_tried, chunks, console, f"SGLang {version}"):
        yield from done


def _tried(work: tuple[str, Sequence[Case]]) -> list[Trial]:
    version, chunk = work
    return list(trials_of(version, chunk, asked(version, chunk)))


def trials_of(version: str, chunk: Sequence[Case], answers: Iterable[Launch]) -> Iterator[Trial]:
    """Read each case, beside SGLang's answer."""
    for case, answer in zip(chunk, answers, strict=True):
        start = time.perf_counter()
        launch = read(version, case)
        seconds = time.perf_counter() - start
        yield Trial(case=case, asked=answer, read=launch, seconds=seconds)


def asked(version: str, chunk: Sequence[Case]) -> list[Launch]:
    """Return SGLang's own answers, for cases of one machine."""
    gpu = gpus()[chunk[0].machine]
    lines, around = [], []
    with ExitStack() as stack:
        for case in chunk:
            model = model_of(case.model)
            place, [words], path = stack.enter_context(in_folders([case.argv], model))
            lines.append([*words, "--model-path", path])
            around.append(f"{place}/")
        answers = ask(python_of(version), SCRIPT, lines, gpu, NUM_GPUS)
    return [
        launch_of(json.loads(json.dumps(answer).replace(place, "")), gpu, case.model)
        for case, answer, place in zip(chunk, answers, around, strict=True)
    ]


@cache
def _index(version: str) -> Index:
    index = Index(open_tree("sglang", find_wheel(version), within=is_wanted))
    read_launch(index, [], gpus()["H100"], NUM_GPUS, model_of("llama-3.1-8b"))
    gc.freeze()  # what is parsed stays, and no collection needs to go through it
    return index


def read(version: str, case: Case) -> Launch:
    """Return the reader's answer."""
    index = _index(version)
    gc.disable()
    gpu, model = gpus()[case.machine], model_of(case.model)
    try:
        return read_launch(index, without_model(case.argv), gpu, NUM_GPUS, model)
    finally:
        gc.enable()
        gc.collect()


def record(version: str, found: Sequence[Trial]) -> None:
    """Keep SGLang's answers to the cases that it decides."""
    lines = [json.dumps(_recorded(each)) for each in found if each.asked.starts is not None]
    (TABLES / RECORDED.format(version)).write_text("".join(f"{line}\n" for line in lines), "utf-8")


def _recorded(trial: Trial) -> Mapping[str, object]:
    case, launch = trial.case, trial.asked
    own: dict[str, object] = {"machine": case.machine, "model": case.model, "argv": case.argv}
    if launch.refusal is not None:
        return {**own, "refused at": launch.refusal.at, "message": launch.refusal.message}
    values = {name: launch.values[name] for name in VALUES if name in launch.values}
    return {**own, "values": values, "classes": launch.classes}


@click.command(help=__doc__)
@click.option("--seed", default=1, show_default=True, help="Where to begin drawing.")
@click.option("--number", default=100, show_default=True, help="How many command lines.")
@click.option("--version", default="0.5.23", show_default=True, help="The release of SGLang.")
@click.option("--hub", "of_hub", is_flag=True, help="Models by their own files on the hub.")
@click.option("--record", "records", is_flag=True, help="Keep SGLang's answers for `test-all`.")
def main(seed: int, number: int, version: str, *, of_hub: bool, records: bool) -> None:
    """Exit with 1 where the reader breaks a promise, or where too much is not decided."""
    console = Console(highlight=False, soft_wrap=True)
    found: list[Trial] = []
    for each in trials(seed, number, version, console, HUB if of_hub else MODELS):
        found.append(each)
        if each.verdict not in {Verdict.REFUSED, Verdict.ACCEPTED}:
            console.print(str(each), markup=False)
    counts = Counter(each.verdict for each in found)
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=f"SGLang {version}, seed {seed}")
    drawn.add_column("verdict")
    drawn.add_column("command lines", justify="right")
    for verdict in Verdict:
        drawn.add_row(verdict.value, str(counts[verdict]))
    console.print(drawn)
    console.print(f"{sum(each.seconds for each in found) / len(found):.2f} s to read one")
    if records:
        record(version, found)
    is_open = any(counts[each] > _OPEN_SHARE * number for each in _OPEN)
    sys.exit(is_open or any(verdict.is_wrong for verdict in counts))


if __name__ == "__main__":
    main()
