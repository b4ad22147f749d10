"""Pairs of engines of which one runs prompts and the other goes on, and the one that does both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from backend_caps import HostSeqLens, Plan, ServerFlags, discover, resolve
from backend_caps.runtime import Engine, EngineOptions, Handover, Request, Sampling
from backend_caps.runtime.model.random_models import eagle_of, first_layers, random_llama
from tests.runtime.engines import rules_forcing

VOCAB_SIZE = 97
CONTEXT_LEN = 64
DRAFTS = {"EAGLE": "head", "STANDALONE": "small"}
PROMPTS = tuple(
    tuple((7 * place + spot * spot) % VOCAB_SIZE for spot in range(1 + 4 * place))
    for place in range(7)
)
GREEDY = Sampling(max_new_tokens=12)
SEEDED = Sampling(max_new_tokens=12, temperature=1.0, top_k=20, top_p=0.95, seed=5)
EAGER = EngineOptions(graph_batch_sizes=())
CHUNKED = EngineOptions(graph_batch_sizes=(), chunked_prefill_size=8)
FEW_ROWS = EngineOptions(graph_batch_sizes=(), max_running_requests=2)
LONG = Sampling(max_new_tokens=30, stop_token_ids=frozenset())
SMALL_CACHE = EngineOptions(graph_batch_sizes=(), max_total_tokens=80, chunked_prefill_size=8)
"""Room for two of the prompts to begin, and for one to end with a long output."""


def write_models(folder: Path) -> Path:
    """Write a target, and beside it what drafts for it, often right."""
    target = folder / "target"
    random_llama(
        target,
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        later_gain=0.2,
    )
    eagle_of(folder / DRAFTS["EAGLE"], target)
    first_layers(folder / DRAFTS["STANDALONE"], target)
    return folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How engines go on: flags that both have, and what the host knows of lengths."""

    algorithm: str | None = None
    topk: int = 1
    num_steps: int = 2
    level: HostSeqLens = HostSeqLens.NONE
    flags: tuple[str, ...] = ()
    page_size: int = 1

    def __str__(self) -> str:
        words = [self.algorithm or "plain", f"top-{self.topk}", self.level.value, *self.flags]
        return " ".join(words)

    def plan(self, mode: str = "null") -> Plan:
        """Resolve the plan of one engine."""
        argv = [
            *("--attention-backend", "torch_padded", "--context-length", str(CONTEXT_LEN)),
            *("--page-size", str(self.page_size), "--disaggregation-mode", mode),
            *self.flags,
        ]
        if self.algorithm is not None:
            argv += ["--speculative-algorithm", self.algorithm]
            argv += ["--speculative-eagle-topk", str(self.topk)]
            argv += ["--speculative-num-steps", str(self.num_steps)]
        return _resolved(tuple(argv), self.level)


@cache
def _resolved(argv: tuple[str, ...], level: HostSeqLens) -> Plan:
    registry, flags = discover(), ServerFlags.from_argv(argv)
    return resolve(registry.uses(flags), flags, rules=rules_forcing(level), policy="quiet")


def make_engine(
    models: Path,
    way: Way,
    mode: str = "null",
    *,
    options: EngineOptions = EAGER,
    device: str = "cpu",
) -> Engine:
    """Make one engine; the models are those that `write_models` wrote."""
    drafting = DRAFTS.get(way.algorithm or "")
    return Engine.from_plan(
        models / "target",
        way.plan(mode),
        device,
        options=options,
        draft_model_path=None if drafting is None else models / drafting,
    )


def hand_over_all(
    models: Path,
    way: Way,
    prompts: Sequence[Sequence[int]] = PROMPTS,
    sampling: Sampling = GREEDY,
    *,
    device: str = "cpu",
) -> list[Handover]:
    """Run prompts by an engine of their own."""
    engine = make_engine(models, way, "prefill", options=CHUNKED, device=device)
    return list(engine.hand_over(prompts, sampling))


def go_on(engine: Engine, handovers: Sequence[Handover]) -> list[Request]:
    """Take requests over, and run them to their end."""
    requests = [engine.take_over(handover) for handover in handovers]
    engine.drain()
    return requests


def outputs(requests: Sequence[Request]) -> list[list[int]]:
    """List what requests have put out."""
    return [request.output for request in requests]
