"""What the kit finds in SGLang's own backends: run anew, kept as JSON, and shown on a page.

Runs in the environment that `make upstream` builds, which has SGLang in it:

    python -m tests.upstream.sglang_findings [--write] [NAME ...]

It prints what was found, and ends with status 1 where that is not what is kept. `--write` keeps
it, where the page reads it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.upstream.engine_findings import ROOT, EngineFindings

VERSION = "0.5.23"
RUNS: Mapping[str, Sequence[str]] = {
    "triton": ("TritonAttnBackend", "--quick"),
    "triton-drafts": ("TritonMultiStepDraftBackend", "--quick"),
    "torch-native": ("TorchNativeAttnBackend", "--quick"),
    "torch-native-rest": ("TorchNativeAttnBackend", "--quick", "--without", "verify"),
    "torch-flex-rest": ("TorchFlexAttnBackend", "--quick", "--without", "verify"),
    "hybrid": ("HybridAttnBackend", "--quick"),
    "two-batch": ("TboAttnBackend", "--quick"),
    "lightning": ("LightningAttentionBackend", "--quick"),
    "gated-delta": ("GDNAttnBackend", "--quick"),
}
"""What is asked of `backend-caps check --engine sglang`."""
FINDINGS = EngineFindings(
    engine="sglang", version=VERSION, kept=Path(__file__).with_suffix(".json"), runs=RUNS
)
PYTHON = FINDINGS.python
read_kept, found_in = FINDINGS.read_kept, FINDINGS.found_in
findings_table, checks_table = FINDINGS.findings_table, FINDINGS.checks_table
reasons_table = FINDINGS.reasons_table
versions_line, scripts_list = FINDINGS.versions_line, FINDINGS.scripts_list

__all__ = [
    "FINDINGS",
    "PYTHON",
    "ROOT",
    "VERSION",
    "checks_table",
    "findings_table",
    "found_in",
    "read_kept",
    "reasons_table",
    "scripts_list",
    "versions_line",
]

if __name__ == "__main__":
    sys.exit(FINDINGS.main(sys.argv[1:]))
