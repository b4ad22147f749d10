"""The tables of `docs/reference/liars.md`."""

from __future__ import annotations

import re

from docs.tools.markdown import table
from tests.kit.honest_backends import HONEST_BACKENDS
from tests.kit.specimen import Specimen
from tests.kit.specimens import LIARS

_REPOSITORIES = {
    "airflow": "apache/airflow",
    "diffusers": "huggingface/diffusers",
    "flashinfer": "flashinfer-ai/flashinfer",
    "mini-sglang": "sgl-project/mini-sglang",
    "opentelemetry-python": "open-telemetry/opentelemetry-python",
    "sglang": "sgl-project/sglang",
    "torch-spyre": "torch-spyre/torch-spyre",
    "torchtitan": "pytorch/torchtitan",
    "vllm": "vllm-project/vllm",
    "vllm-ascend": "vllm-project/vllm-ascend",
}
"""Where the threads are that liars are modelled on."""
_THREAD = re.compile(r"\b([a-z-]+)#(\d+)")


def liars_table() -> str:
    """Give each liar a row: what it claims and does, where that was met, and what finds it."""
    rows = [(f"`{own.name}`", own.behaviour, _seen(own), _check(own.check)) for own in LIARS]
    return table(("liar", "claims, and does", "seen", "found by"), rows)


def honest_table() -> str:
    """Give each odd backend that keeps its claims a row."""
    rows = [(f"`{own.name}`", own.behaviour, _check(own.check)) for own in HONEST_BACKENDS]
    return table(("backend", "claims, and does", "not failed by"), rows)


def _check(code: str) -> str:
    return f"[`{code}`](checks.md#{code})"


def _seen(own: Specimen) -> str:
    return _THREAD.sub(_link, own.seen)


def _link(thread: re.Match[str]) -> str:
    return f"[{thread[0]}](https://github.com/{_REPOSITORIES[thread[1]]}/issues/{thread[2]})"
