"""Command lines of SGLang servers, drawn from a seed, each with a machine and a model.

They go over backends and pairs, speculative algorithms, GPUs, dtypes, page sizes, two-batch
overlap, data-parallel attention, parallel sizes, graphs, kinds of model, and flags that are
misspelt or gone.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

MACHINES = ("A100", "L40S", "H100", "B200", "B300", "RTXPRO6000", "MI300X")
MODELS = (
    "llama-3.1-8b",
    "deepseek-v3",
    "deepseek-v3.2",
    "qwen3-next-80b",
    "gpt-oss-20b",
    "gemma-2-9b",
    "qwen2.5-vl-7b",
)
HUB = tuple(str(each) for each in sorted(Path(__file__).with_name("hub").glob("*.json")))
"""Configurations as their models' files have them, without transformers' defaults."""
BACKENDS = (
    *("fa3", "fa4", "flashinfer", "triton", "torch_native", "flex_attention", "trtllm_mha"),
    *("trtllm_mla", "cutedsl_mla", "flashmla", "dsa", "nsa", "aiter", "wave", "hpc_ops", "ascend"),
    *("intel_amx", "intel_xpu", "dual_chunk_flash_attn", "cutlass_mla"),
)
ALGORITHMS = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM", "DFLASH", "DSPARK")
KV_DTYPES = ("auto", "fp8_e4m3", "fp8_e5m2", "bf16", "bfloat16", "fp4_e2m1", "nvfp4", "fp4_mx")
WRONG = (
    ("--frobnicate",),
    ("--cuda-graph-max-bs", "32"),
    ("--enable-flashinfer-mla",),
    ("--disable-piecewise-cuda-graph",),
    ("--attention-backend", "flashinfr"),
    ("--speculative-algorithm", "EAGEL3"),
    ("--page-sise", "16"),
    ("--prefill-attention", "triton"),
    ("--enable-two-batch", "overlap"),
    ("--tp", "two"),
)


@dataclass(frozen=True, slots=True)
class Case:
    """One launch."""

    machine: str
    model: str
    argv: tuple[str, ...]
    """Without `--model-path`; with the variables before it."""


def cases(seed: int, number: int, models: Sequence[str] = MODELS) -> Iterator[Case]:
    """Draw cases; the same seed gives the same ones."""
    draw = random.Random(seed)  # noqa: S311 - cases, no secrets
    for _ in range(number):
        yield _case(draw, models)


def _case(draw: random.Random, models: Sequence[str]) -> Case:
    words: list[str] = []
    words += _backends(draw)
    words += _speculation(draw)
    words += _parallel(draw)
    words += _cache(draw)
    words += _switches(draw)
    if draw.random() < 0.06:
        words += draw.choice(WRONG)
    return Case(draw.choice(MACHINES), draw.choice(models), tuple(words))


def _backends(draw: random.Random) -> Iterator[str]:
    kind = draw.random()
    if kind < 0.6:
        yield from ("--attention-backend", draw.choice(BACKENDS))
    elif kind < 0.8:
        yield from ("--prefill-attention-backend", draw.choice(BACKENDS))
        if draw.random() < 0.8:
            yield from ("--decode-attention-backend", draw.choice(BACKENDS))


def _speculation(draw: random.Random) -> Iterator[str]:
    if draw.random() < 0.5:
        return
    algorithm = draw.choice(ALGORITHMS)
    yield from ("--speculative-algorithm", algorithm)
    if algorithm in {"EAGLE3", "STANDALONE", "DFLASH", "DSPARK"} and draw.random() < 0.9:
        yield from ("--speculative-draft-model-path", "eagle3-llama-3.1-8b")
    if draw.random() < 0.7:
        steps, topk = draw.choice((1, 2, 3, 5)), draw.choice((1, 1, 1, 2, 4))
        tokens = steps + 1 if topk == 1 else min(steps * topk + 1, 16)
        yield from ("--speculative-num-steps", str(steps), "--speculative-eagle-topk", str(topk))
        yield from ("--speculative-num-draft-tokens", str(tokens))
    if draw.random() < 0.2:
        yield from ("--speculative-draft-attention-backend", draw.choice(BACKENDS))
    if draw.random() < 0.2:
        yield from ("--speculative-attention-mode", draw.choice(("prefill", "decode")))


def _parallel(draw: random.Random) -> Iterator[str]:
    if draw.random() < 0.5:
        yield from ("--tp", str(draw.choice((1, 2, 4, 8))))
    if draw.random() < 0.1:
        yield from ("--pp-size", "2")
    if draw.random() < 0.15:
        yield from ("--dp-size", str(draw.choice((2, 4, 8))))
        if draw.random() < 0.7:
            yield "--enable-dp-attention"
    if draw.random() < 0.1:
        yield from ("--ep-size", str(draw.choice((2, 4, 8))))
    if draw.random() < 0.1:
        yield from ("--moe-a2a-backend", draw.choice(("deepep", "mooncake", "none")))


def _cache(draw: random.Random) -> Iterator[str]:
    if draw.random() < 0.3:
        yield from ("--page-size", str(draw.choice((1, 16, 32, 64, 128))))
    if draw.random() < 0.3:
        yield from ("--kv-cache-dtype", draw.choice(KV_DTYPES))
    if draw.random() < 0.15:
        yield from ("--dtype", draw.choice(("bfloat16", "float16", "float32")))
    if draw.random() < 0.2:
        yield from ("--chunked-prefill-size", str(draw.choice((-1, 2048, 4096, 8192))))
    if draw.random() < 0.1:
        yield from ("--context-length", str(draw.choice((4096, 8192))))


def _switches(draw: random.Random) -> Iterator[str]:
    for option, share in (
        ("--enable-two-batch-overlap", 0.1),
        ("--disable-cuda-graph", 0.1),
        ("--disable-overlap-schedule", 0.1),
        ("--enable-mixed-chunk", 0.15),
        ("--enable-deterministic-inference", 0.1),
        ("--disable-radix-cache", 0.1),
        ("--enable-torch-compile", 0.05),
        ("--trust-remote-code", 0.1),
    ):
        if draw.random() < share:
            yield option
