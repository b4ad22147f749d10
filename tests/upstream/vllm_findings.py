"""What the kit finds in vLLM's own backends: run anew, kept as JSON, and shown on a page.

Runs in the environment that `make upstream` builds, which has vLLM in it:

    python -m tests.upstream.vllm_findings [--write] [NAME ...]

It prints what was found, and ends with status 1 where that is not what is kept. `--write` keeps
it, where the page reads it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.upstream.engine_findings import ROOT, EngineFindings

VERSION = "0.33.0"
_STATES = ("--only", "linear-states", "--only", "linear-states-graphs")
_FIRST_RUNNER = {"VLLM_USE_V2_MODEL_RUNNER": "0"}
_INVARIANT = {"VLLM_BATCH_INVARIANT": "1"}
RUNS: Mapping[str, Sequence[str]] = {
    "triton": ("TritonAttentionBackend", "--quick"),
    "triton-diffkv": ("TritonAttentionDiffKVBackend", "--quick"),
    "flex": ("FlexAttentionBackend", "--quick"),
    "mla": ("TritonMLABackend", "--quick"),
    "linear": ("LinearAttentionBackend", "--quick"),
    "bailing": ("BailingLinearAttentionBackend", "--quick"),
    "bailing-first-runner": ("BailingLinearAttentionBackend", "--quick", *_STATES),
    "gated-delta": ("GDNAttentionBackend", "--quick"),
    "mamba2": ("Mamba2AttentionBackend", "--quick"),
    "short-conv": ("ShortConvAttentionBackend", "--quick"),
    **{
        f"{name}-invariant": (backend, "--quick", "--only", "batch-invariance")
        for name, backend in (
            ("triton", "TritonAttentionBackend"),
            ("flex", "FlexAttentionBackend"),
            ("mla", "TritonMLABackend"),
        )
    },
}
"""What is asked of `backend-caps check --engine vllm`."""
FINDINGS = EngineFindings(
    engine="vllm",
    version=VERSION,
    kept=Path(__file__).with_suffix(".json"),
    runs=RUNS,
    environments={
        **{name: _INVARIANT for name in RUNS if name.endswith("-invariant")},
        "bailing-first-runner": _FIRST_RUNNER,
    },
    # Installed, the plugin would act in servers that other tests start in this environment.
    paths=(ROOT / "plugins" / "vllm",),
)

if __name__ == "__main__":
    sys.exit(FINDINGS.main(sys.argv[1:]))
