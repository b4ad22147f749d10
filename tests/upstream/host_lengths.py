"""What a plan says of host lengths, beside what each release of SGLang decides itself."""

from __future__ import annotations

import gc
import random
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache
from unittest.mock import patch

import click
from rich import box
from rich.console import Console
from rich.table import Table

from backend_caps.capability.facts import Facts
from backend_caps.capability.gpu import gpus
from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.discovery.registry import Registry
from backend_caps.engines.model import model_of
from backend_caps.engines.read import read_engine
from backend_caps.engines.reading import EngineReading, LaunchQuery
from backend_caps.engines.sglang import arguments
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.launch import Launch
from backend_caps.resolution.plan import Cause, Plan
from backend_caps.resolution.resolver import resolve
from tests.upstream.launches import Case
from tests.upstream.sglang_lengths import Recording, sglangs_answer
from tests.upstream.sglang_source import NotComparableError
from tests.upstream.sglang_wheel import find_wheel

RELEASES = (
    *("0.5.13", "0.5.13.post1", "0.5.14", "0.5.15", "0.5.15.post1", "0.5.16", "0.5.17"),
    *("0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23"),
)
MODELS = ("llama-3.1-8b", "llama-3.1-8b", "deepseek-v3", "qwen3-next-80b", "deepseek-v3.2")
BACKENDS = {
    "llama-3.1-8b": ("fa3", "flashinfer", "triton", "torch_native", "flex_attention", "trtllm_mha"),
    "deepseek-v3": ("fa3", "flashinfer", "triton", "flashmla", "trtllm_mla", "cutlass_mla"),
    "deepseek-v3.2": ("dsa", "nsa"),
    "qwen3-next-80b": ("fa3", "flashinfer", "triton", "trtllm_mha"),
}
ALGORITHMS = ("EAGLE", "EAGLE3", "STANDALONE", "NGRAM", "DFLASH", "DSPARK", "FROZEN_KV_MTP")
MACHINES = ("H100", "H100", "B200")
_SWITCHES = {
    "enable-two-batch-overlap": 0.05,
    "disable-cuda-graph": 0.1,
    "disable-piecewise-cuda-graph": 0.7,
    "enable-mixed-chunk": 0.15,
    "disable-overlap-schedule": 0.05,
}
"""Switches, and how often they are drawn where the release has them."""
_MOST = 40
"""Draws for one comparable line, before a release counts as one that starts nothing."""


class Verdict(Enum):
    """How two answers compare."""

    EQUAL = "equal"
    PESSIMISTIC = "pessimistic"
    OPTIMISTIC = "optimistic"
    NOT_COMPARABLE = "not comparable"

    @property
    def is_wrong(self) -> bool:
        """Whether it breaks the promise of equal answers."""
        return self in {Verdict.PESSIMISTIC, Verdict.OPTIMISTIC}

    @property
    def is_counted(self) -> bool:
        """Whether the answers must be equal, and are known."""
        return self is Verdict.EQUAL or self.is_wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Two answers to one command line."""

    case: Case
    plan: Plan
    theirs: bool | None
    why: str = ""
    """Why SGLang's answer is not known."""

    @property
    def verdict(self) -> Verdict:
        """How they compare."""
        ours = self.plan["host_seq_lens"].value is not HostSeqLens.NONE
        if self.theirs is None:
            return Verdict.NOT_COMPARABLE
        if ours is self.theirs:
            return Verdict.EQUAL
        return Verdict.PESSIMISTIC if ours else Verdict.OPTIMISTIC

    def __str__(self) -> str:
        case, causes = self.case, self.plan["host_seq_lens"].causes
        words = f"{case.machine} {case.model} {' '.join(case.argv)}"
        return f"{self.verdict.value}: {words}\n    {self.why or _words_of(causes)}"


def _words_of(causes: Iterable[Cause]) -> str:
    best = HostSeqLens.NONE
    named = {f"{each.name}: {each.reason}" for each in causes if each.value is not best}
    return "; ".join(sorted(named)) or "nothing needs them"


def cases(seed: int, version: str) -> Iterator[Case]:
    """Draw command lines without end; the same seed gives the same ones."""
    line = _reading(version).command_line
    assert line is not None, "SGLang's command line is read"
    gone = {f"--{each}" for each in _SWITCHES} - line.options.keys()
    draw = random.Random(f"{seed} {version}")  # noqa: S311 - cases, no secrets
    while True:
        model = draw.choice(MODELS)
        words = [*_words(draw, model)]
        yield Case(draw.choice(MACHINES), model, tuple(each for each in words if each not in gone))


def _words(draw: random.Random, model: str) -> Iterator[str]:
    backends = BACKENDS[model]
    if model != "llama-3.1-8b":
        yield from ("--tp", "8")
    if (kind := draw.random()) < 0.6:
        yield from ("--attention-backend", draw.choice(backends))
    elif kind < 0.9:
        for phase in ("prefill", "decode"):
            yield from (f"--{phase}-attention-backend", draw.choice(backends))
    if draw.random() < 0.75:
        yield from _speculation(draw, backends)
    for switch, share in _SWITCHES.items():
        if draw.random() < share:
            yield f"--{switch}"


def _speculation(draw: random.Random, backends: tuple[str, ...]) -> Iterator[str]:
    algorithm = draw.choice((*ALGORITHMS, "EAGLE", "EAGLE3"))
    yield from ("--speculative-algorithm", algorithm)
    if algorithm != "NGRAM":
        yield from ("--speculative-draft-model-path", "eagle3-llama-3.1-8b")
    if algorithm in {"EAGLE", "EAGLE3", "STANDALONE", "FROZEN_KV_MTP"}:
        steps, topk = draw.choice((1, 2, 3)), draw.choice((1, 1, 1, 4))
        tokens = steps + 1 if topk == 1 else min(steps * topk + 1, 16)
        yield from ("--speculative-num-steps", str(steps), "--speculative-eagle-topk", str(topk))
        yield from ("--speculative-num-draft-tokens", str(tokens))
    if draw.random() < 0.3:
        yield from ("--speculative-draft-attention-backend", draw.choice(backends))
    if draw.random() < 0.3:
        yield from ("--speculative-attention-mode", draw.choice(("prefill", "decode")))


def trials(seed: int, number: int, version: str) -> Iterator[Trial]:
    """Draw command lines that are not refused, and compare `number`; half or more speculate."""
    found: Counter[bool] = Counter()
    most = {False: number // 2, True: number}
    for _, case in zip(range(_MOST * number), cases(seed, version), strict=False):
        speculates = "--speculative-algorithm" in case.argv
        if found[speculates] >= most[speculates]:
            continue
        launch = launch_of(version, case)
        if launch.refusal is not None or not launch.classes:
            continue
        trial = trial_of(version, case, launch)
        yield trial
        if trial.verdict.is_counted:
            found[speculates] += 1
        if found.total() == number:
            return


def trial_of(version: str, case: Case, launch: Launch) -> Trial:
    """Compare the answers to a command line that starts, and was read last."""
    plan = plan_of(version, case, launch)
    try:
        return Trial(case=case, plan=plan, theirs=sglangs_answer(Recording.last, version))
    except NotComparableError as error:
        return Trial(case=case, plan=plan, theirs=None, why=str(error))


@cache
def _reading(version: str) -> EngineReading:
    return read_engine("sglang", find_wheel(version))


def launch_of(version: str, case: Case) -> Launch:
    """Follow a command line, as `backend-caps resolve --engine sglang` does."""
    launches = _reading(version).launches
    assert launches is not None, "SGLang's launches are followed"
    gc.freeze()  # what is parsed stays
    gc.disable()
    try:
        with patch.object(arguments, "_Arguments", Recording):
            [launch] = launches(
                LaunchQuery(
                    lines=[case.argv],
                    gpu=gpus()[case.machine],
                    num_gpus=8,
                    model=model_of(case.model),
                )
            )
    finally:
        gc.enable()
    return launch


def plan_of(version: str, case: Case, launch: Launch) -> Plan:
    """Plan a launch, as `backend-caps resolve --engine sglang` does."""
    reading = _reading(version)
    assert reading.rules is not None, "SGLang's rules are read"
    flags = launch.over(ServerFlags.from_argv(case.argv, engine_name=reading.command_line))
    facts = launch.with_facts(Facts(device_name=case.machine))
    uses = Registry.of(reading.backends).uses(flags, launch)
    return resolve(uses, flags, rules=reading.rules, facts=facts, launch=launch, policy="quiet")


@click.command(help=__doc__)
@click.option("--seed", default=1, show_default=True, help="Where to begin drawing.")
@click.option("--number", default=25, show_default=True, help="How many lines of each release.")
@click.option("--release", "releases", multiple=True, help="A release; default: all since 0.5.13.")
def main(seed: int, number: int, releases: tuple[str, ...]) -> None:
    """Exit with 1 where an answer differs."""
    console = Console(highlight=False, soft_wrap=True)
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=f"host lengths, seed {seed}")
    drawn.add_column("release")
    for verdict in Verdict:
        drawn.add_column(verdict.value, justify="right")
    drawn.add_column("with speculation", justify="right")
    is_wrong = False
    for release in releases or RELEASES:
        found = list(trials(seed, number, release))
        for each in found:
            if each.verdict is not Verdict.EQUAL:
                console.print(f"{release} {each}", markup=False)
        counts = Counter(each.verdict for each in found)
        known = [each for each in found if each.verdict.is_counted]
        number_speculating = sum("--speculative-algorithm" in each.case.argv for each in known)
        drawn.add_row(release, *(str(counts[each]) for each in Verdict), str(number_speculating))
        is_wrong = is_wrong or counts[Verdict.EQUAL] < number
    console.print(drawn)
    sys.exit(is_wrong)


if __name__ == "__main__":
    main()
