"""Command lines of vLLM servers, drawn from a seed, each with a machine and a model.

They go over backends, head sizes and numbers of heads, dtypes of model and KV cache, block sizes,
windows, sinks, MLA and sparse attention, graph modes, speculation, parallel sizes, GPUs of compute
capabilities 7.5 to 12.0, and flags that are misspelt; on GPUs of AMD, over the variables too that
switch AITER on.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from tests.upstream.launches import Case

MODELS = (
    *("llama-3.1-8b", "llama-3.1-8b", "llama-3.1-8b", "deepseek-v3", "deepseek-v3.2"),
    *("qwen3-next-80b", "gpt-oss-20b", "gemma-2-9b", "qwen2.5-vl-7b"),
)
"""Llama's is drawn more often, as its sizes are drawn too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """What is drawn for GPUs of one maker."""

    machines: Sequence[str]
    backends: Sequence[str]
    mla_backends: Sequence[str]
    variables: Sequence[Sequence[str]] = ((),)
    """What may stand before a command line."""


CUDA = Platform(
    machines=("T4", "A100", "A10", "L40S", "H100", "B200", "B300", "RTXPRO6000"),
    backends=(
        *("FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION", "TURBOQUANT", "ROCM_ATTN"),
        *("FLASH_ATTN_DIFFKV", "TRITON_FLASH_ATTN", "B12X", "CPU_ATTN", "flash_attn", "FLASHINFR"),
    ),
    mla_backends=(
        *("FLASHMLA", "FLASH_ATTN_MLA", "FLASHINFER_MLA", "TRITON_MLA", "CUTLASS_MLA"),
        *("TOKENSPEED_MLA", "FLASHMLA_SPARSE", "FLASHINFER_MLA_SPARSE", "FLASH_ATTN_MLA_SPARSE"),
    ),
)
_AITER = "VLLM_ROCM_USE_AITER=1"
ROCM = Platform(
    machines=("MI300X", "MI325X", "MI355X"),
    backends=(
        *("ROCM_ATTN", "ROCM_AITER_FA", "ROCM_AITER_UNIFIED_ATTN", "TRITON_ATTN", "TURBOQUANT"),
        *("FLASH_ATTN", "FLASHINFER", "FLEX_ATTENTION", "CPU_ATTN", "rocm_attn", "ROCM_ATN"),
    ),
    mla_backends=(
        *("ROCM_AITER_MLA", "ROCM_AITER_TRITON_MLA", "TRITON_MLA", "ROCM_AITER_MLA_SPARSE"),
        "FLASHMLA",
    ),
    variables=((), (_AITER,), (_AITER, "VLLM_ROCM_USE_AITER_MHA=0")),
)
KV_DTYPES = (
    *("auto", "bfloat16", "fp8", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_ds_mla", "nvfp4"),
    *("turboquant_4bit_nc", "float16", "fp4"),
)
GRAPHS = ("NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")
_WRONG = (
    ("--frobnicate",),
    ("--enable-prefix-cashing",),
    ("--max-num-seqs", "many"),
    ("--attention-config", '{"backends": "FLASH_ATTN"}'),
    ("--compilation-config", "{"),
    ("--speculative-config", '{"method": "eagel"}'),
)


def cases(
    seed: int, number: int, models: Sequence[str] = MODELS, platform: Platform = CUDA
) -> Iterator[Case]:
    """Draw cases; the same seed gives the same ones."""
    draw = random.Random(seed)  # noqa: S311 - cases, no secrets
    for _ in range(number):
        model = draw.choice(models)
        words = [*_backends(draw, model, platform), *_sizes(draw, model), *_cache(draw)]
        words += [*_graphs(draw), *_speculation(draw, model, platform), *_parallel(draw)]
        words += _switches(draw)
        if draw.random() < 0.03:
            words += draw.choice(_WRONG)
        machine = draw.choice(platform.machines)
        has_choice = len(platform.variables) > 1
        variables = draw.choice(platform.variables) if has_choice else platform.variables[0]
        yield Case(machine, model, (*variables, *words))


rocm_cases = partial(cases, platform=ROCM)


def _backends(draw: random.Random, model: str, platform: Platform) -> Iterator[str]:
    kind = draw.random()
    is_mla = model.startswith("deepseek") is not (draw.random() < 0.1)
    backend = draw.choice(platform.mla_backends if is_mla else platform.backends)
    if kind < 0.2:
        yield from ("--attention-backend", backend)
    elif kind < 0.27:
        yield from ("--attention-config", json.dumps({"backend": backend}))
    if kind > 0.97:
        yield from ("--attention-config.flash_attn_version", draw.choice(("2", "3", "4", "5")))


def _sizes(draw: random.Random, model: str) -> Iterator[str]:
    """Draw a model's sizes, and few layers, which are alike."""
    changed: dict[str, object] = {}
    if model == "llama-3.1-8b":
        changed["num_hidden_layers"] = 2
        if draw.random() < 0.5:
            changed["head_dim"] = draw.choice((32, 64, 72, 80, 96, 128, 192, 256, 512))
        if draw.random() < 0.3:
            changed["num_key_value_heads"] = draw.choice((1, 2, 4, 16, 32))
        if draw.random() < 0.3:
            changed["sliding_window"] = draw.choice((128, 4096))
    elif model.startswith("deepseek"):
        changed["num_hidden_layers"] = 4
    if changed:
        yield from ("--hf-overrides", json.dumps(changed))
    if draw.random() < 0.2:
        yield from ("--dtype", draw.choice(("bfloat16", "float16", "float32", "half")))
    if draw.random() < 0.3:
        yield from (
            "--max-model-len",
            draw.choice(("4096", "4096", "4096", "8k", "16K", "1000000")),
        )


def _cache(draw: random.Random) -> Iterator[str]:
    if draw.random() < 0.25:
        yield from ("--kv-cache-dtype", draw.choice(KV_DTYPES))
    if draw.random() < 0.2:
        sizes = (1, 8, 16, 16, 16, 24, 32, 64, 64, 64, 128, 256)
        yield from ("--block-size", str(draw.choice(sizes)))
    if draw.random() < 0.1:
        yield "--no-enable-prefix-caching"


def _graphs(draw: random.Random) -> Iterator[str]:
    kind = draw.random()
    if kind < 0.25:
        mode = {"cudagraph_mode": draw.choice(GRAPHS)}
        yield from ("--compilation-config", json.dumps(mode))
    elif kind < 0.35:
        yield from ("--compilation-config.mode", str(draw.choice((0, 1, 2, 3, 4))))
    elif kind < 0.45:
        yield draw.choice(("-O0", "-O1", "-O3", "--enforce-eager"))
    if draw.random() < 0.05:
        yield from ("--max-cudagraph-capture-size", str(draw.choice((0, 1, 64, 1024))))


def _speculation(draw: random.Random, model: str, platform: Platform) -> Iterator[str]:
    if draw.random() < 0.7:
        return
    method = draw.choice(("ngram", "eagle3", "mtp", "draft_model"))
    config: dict[str, object] = {"method": method, "num_speculative_tokens": draw.choice((1, 3, 7))}
    if method in {"eagle3", "draft_model"}:
        config["model"] = "eagle3-llama-3.1-8b" if method == "eagle3" else model
    if method == "ngram":
        config["prompt_lookup_max"] = draw.choice((2, 4))
    if draw.random() < 0.15:
        config["attention_backend"] = draw.choice(platform.backends)
    for name, value in config.items():
        yield from (f"--speculative-config.{name}", str(value))


def _parallel(draw: random.Random) -> Iterator[str]:
    if draw.random() < 0.4:
        yield from ("--tensor-parallel-size", str(draw.choice((1, 2, 2, 2, 4, 4, 4, 8, 8, 16))))
    if draw.random() < 0.08:
        yield from ("--decode-context-parallel-size", str(draw.choice((2, 4))))
    if draw.random() < 0.05:
        yield from ("--pipeline-parallel-size", "2")
    if draw.random() < 0.08:
        yield from ("--data-parallel-size", str(draw.choice((2, 4))))
    if draw.random() < 0.08:
        yield "--enable-expert-parallel"


def _switches(draw: random.Random) -> Iterator[str]:
    for words, share in (
        (("--no-async-scheduling",), 0.1),
        (("--async-scheduling",), 0.1),
        (("--enable-dbo", "--all2all-backend", "deepep_low_latency"), 0.04),
        (("--no-enable-chunked-prefill",), 0.06),
        (("--disable-hybrid-kv-cache-manager",), 0.06),
        (("--max-num-seqs", "64"), 0.1),
        (("--trust-remote-code",), 0.05),
    ):
        if draw.random() < share:
            yield from words
