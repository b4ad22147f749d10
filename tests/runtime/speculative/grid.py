"""All ways to speculate that must give the same tokens: a grid, and few that hold every pair."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from itertools import product

import torch
from backend_caps_torch_native import TorchPadded
from torch_native_caps import TORCH_PADDED

from backend_caps import (
    Capabilities,
    Given,
    HostSeqLens,
    Plan,
    Registry,
    Rule,
    RuleSet,
    ServerFlags,
    discover,
    resolve,
)
from backend_caps.runtime import Engine, EngineOptions, StepObserver
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.speculation import Algorithm
from tests.runtime.engines import PLAIN_LOOP
from tests.runtime.speculative.oracle import CONTEXT_LEN, Targets
from tests.runtime.speculative.pairwise import Row, pairwise_cover


class Bounded(TorchPadded):
    """`torch_padded`, whose page table ends where the host says that each context does.

    A bound below the truth cuts tokens off, and the output is another one.
    """

    def init_forward_metadata_in_graph(self, batch: ForwardBatch) -> None:  # type: ignore[override]
        """Pad to the largest bound, and leave nothing of a row behind its own."""
        bounds = batch.seq_lens_cpu_upper_bound
        assert bounds is not None, "the plan asks for upper bounds"
        whole = self._req_to_token
        table = whole[:, : int(bounds.max())].clone()
        is_behind = (torch.arange(table.shape[1]) >= bounds[:, None]).to(table.device)
        rows = batch.req_pool_indices
        table[rows] = table[rows].masked_fill(is_behind, 0)
        self._req_to_token = table
        super().init_forward_metadata_in_graph(batch)
        self._req_to_token = whole


BOUNDED = TORCH_PADDED.model_copy(
    update={
        "capabilities": TORCH_PADDED.capabilities.model_copy(
            # A graph would keep the bounds of its capture.
            update={"host_seq_lens": HostSeqLens.UPPER_BOUND, "graph_replay": frozenset()}
        ),
        "implementation": f"{__name__}:{Bounded.__name__}",
    }
)


class Mirror(Enum):
    """What the host has of lengths, and who asks for it."""

    NONE = "nothing"
    """`torch_padded` reads lengths on the device."""
    UPPER_BOUND = "upper bounds"
    """`Bounded` reads bounds."""
    OF_BACKEND = "lengths for the backend"
    """`torch_native` slices by them."""
    OF_HALVES = "lengths for halves"
    """`torch_padded`, under two-batch overlap."""
    OF_RULE = "lengths by a rule"
    """`torch_padded`, under a rule that forces them."""

    @property
    def level(self) -> HostSeqLens:
        """What a plan says of it."""
        levels = {Mirror.NONE: HostSeqLens.NONE, Mirror.UPPER_BOUND: HostSeqLens.UPPER_BOUND}
        return levels.get(self, HostSeqLens.EXACT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to speculate."""

    algorithm: Algorithm
    topk: int = 1
    num_steps: int = 3
    mirror: Mirror = Mirror.NONE
    overlapped: bool = True
    """Whether a step is launched before the result of the last one is processed."""
    mixed: bool = False
    """Whether decode rows join steps of prompts."""
    chunked: bool = False
    """Whether prompts are cut."""
    page_size: int = 1
    least: bool = False
    """Whether a tree has no more tokens than one path of it."""

    @property
    def is_legal(self) -> bool:
        """Whether there is such a server."""
        if self.topk == 1 and self.least:
            return False  # a chain is one path
        if self.mirror is Mirror.OF_BACKEND:
            return self.topk == 1
        is_forced = self.mixed and self.algorithm in {Algorithm.EAGLE, Algorithm.EAGLE3}
        return not is_forced or self.mirror.level is HostSeqLens.EXACT

    @property
    def relays(self) -> HostSeqLens:
        """What the relay brings to the host: the plain loop has lengths by itself."""
        is_relayed = self.overlapped and self._engine == "sglang-0.5.23"
        return self.mirror.level if is_relayed else HostSeqLens.NONE

    @property
    def plan(self) -> Plan:
        """Resolve what it is."""
        plan = _plan(self.arguments, self._engine, self.mirror)
        assert plan["host_seq_lens"].value is self.mirror.level, f"{self} is none"
        return plan

    @property
    def arguments(self) -> tuple[str, ...]:
        """Say it in a server's flags."""
        backend = "torch_native" if self.mirror is Mirror.OF_BACKEND else "torch_padded"
        switches = {
            "--disable-overlap-schedule": not self.overlapped,
            "--enable-mixed-chunk": self.mixed,
            "--enable-two-batch-overlap": self.mirror is Mirror.OF_HALVES,
        }
        values = {
            "--attention-backend": backend,
            "--speculative-algorithm": self.algorithm.value,
            "--speculative-eagle-topk": self.topk,
            "--speculative-num-steps": self.num_steps,
            "--page-size": self.page_size,
            "--context-length": CONTEXT_LEN,
        }
        if self.least:
            values["--speculative-num-draft-tokens"] = self.num_steps + 1
        said = (word for flag, value in values.items() for word in (flag, str(value)))
        return (*said, *(flag for flag, is_on in switches.items() if is_on), _NO_PIECES)

    @property
    def _engine(self) -> str:
        """Name whose rules it is under: the later engine relays n-grams, with lengths alone."""
        is_exact = self.mirror.level is HostSeqLens.EXACT
        is_relayed = self.algorithm is not Algorithm.NGRAM or is_exact
        return "sglang-0.5.23" if is_relayed else "sglang-0.5.13"

    def __str__(self) -> str:
        words = {
            "plain loop": not self.overlapped,
            "mixed": self.mixed,
            "chunked": self.chunked,
            "least tree": self.least,
        }
        size = f"{self.algorithm.value} {self.topk} x {self.num_steps}"
        said = [word for word, is_so in words.items() if is_so]
        return ", ".join([size, self.mirror.value, f"pages of {self.page_size}", *said])


_NO_PIECES = "--disable-piecewise-cuda-graph"
_CORE: Mapping[str, Sequence[object]] = {
    "algorithm": tuple(Algorithm),
    "topk": (1, 2, 4),
    "num_steps": (1, 2, 3, 4, 5),
    "mirror": tuple(Mirror),
    "overlapped": (True, False),
}
"""The axes that the grid holds all combinations of."""
_OTHERS: Mapping[str, Sequence[object]] = {
    "mixed": (False, True),
    "chunked": (False, True),
    "page_size": (1, 4, 16),
    "least": (False, True),
}
"""Axes that must not matter."""
_ASKS_FOR_LENGTHS = Rule(
    name="grid",
    given=Given(speculative_algorithm=frozenset(own.value for own in Algorithm)),
    forces=Capabilities(host_seq_lens=HostSeqLens.EXACT),
    reason="the grid has a way in which a rule alone asks for lengths",
)


def way_of(row: Row) -> Way:
    """Make a way of a value of each axis."""
    return Way(**row)  # type: ignore[arg-type] # a table of names


@cache
def cover() -> Sequence[Way]:
    """Choose ways that hold every pair of values that goes together."""
    rows = pairwise_cover({**_CORE, **_OTHERS}, lambda row: way_of(row).is_legal)
    return [way_of(row) for row in rows]


def grid(draw: random.Random) -> Sequence[Way]:
    """List a way for every combination of what matters; what must not matter is drawn."""
    ways = ([way_of({**core, **others}) for others in _rows(_OTHERS)] for core in _rows(_CORE))
    legal = ([way for way in some if way.is_legal] for some in ways)
    return [draw.choice(some) for some in legal if some]


def make_engine(
    targets: Targets,
    way: Way,
    *,
    device: torch.device | str = "cpu",
    options: EngineOptions | None = None,
    observer: StepObserver | None = None,
) -> Engine:
    """Make an engine that goes that way, for the target that its algorithm drafts for."""
    target = targets.of(way.algorithm)
    options = options or EngineOptions()
    if way.chunked:
        options = replace(options, chunked_prefill_size=24)
    return Engine.from_plan(
        target.folder,
        way.plan,
        device,
        options=options,
        draft_model_path=target.drafts.get(way.algorithm),
        observer=observer,
    )


def make_plain_engine(targets: Targets, algorithm: Algorithm) -> Engine:
    """Make an engine that does not speculate, for the target of an algorithm."""
    arguments = ("--attention-backend", "torch_padded", "--context-length", str(CONTEXT_LEN))
    plan = _plan((*arguments, *PLAIN_LOOP, _NO_PIECES), "sglang-0.5.23", Mirror.NONE)
    return Engine.from_plan(targets.of(algorithm).folder, plan, "cpu")


def _rows(axes: Mapping[str, Sequence[object]]) -> Sequence[Row]:
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


@cache
def _plan(arguments: tuple[str, ...], engine: str, mirror: Mirror) -> Plan:
    flags = ServerFlags.from_argv(arguments)
    uses, rules = _registry().uses(flags), RuleSet.builtin(engine)
    if mirror is Mirror.UPPER_BOUND:
        uses = tuple(replace(use, backend="bounded", declaration=BOUNDED) for use in uses)
    if mirror is Mirror.OF_RULE:
        rules = rules.with_rules([_ASKS_FOR_LENGTHS])
    return resolve(uses, flags, rules=rules, policy="quiet")


@cache
def _registry() -> Registry:
    return discover()
