"""vLLM's own backends under the kit, in the environment that has vLLM in it."""

from __future__ import annotations

import json
import re
import subprocess
import zipfile
from collections.abc import Mapping

import pytest

from tests.upstream.engine_findings import ROOT
from tests.upstream.sglang_wheel import find_wheel
from tests.upstream.vllm_findings import FINDINGS, VERSION

pytestmark = pytest.mark.upstream

PAGE = ROOT / "docs" / "reference" / "vllm-findings.md"
LINES = {
    "vllm/model_executor/layers/lightning_attn.py:381": "off_c * CBLOCK + c_array",
    "vllm/model_executor/layers/mamba/linear/bailing_linear_attn.py:77": "context_len == 0",
    "vllm/model_executor/layers/mamba/linear/minimax_linear_attn.py:44": "context_len == 0",
    "vllm/model_executor/layers/mamba/ops/mamba_ssm.py:821": "ops.selective_scan_fwd",
    "vllm/v1/attention/backend.py:217": "supports_device_cpu_query_lens_mismatch",
    "vllm/v1/attention/backends/flex_attention.py:826": "query_start_loc_cpu",
    "vllm/v1/attention/backends/linear_attn.py:80": "split_decodes_and_prefills",
    "vllm/v1/attention/backends/mla/triton_mla.py:78": "QueryLenSupport.UNIFORM",
    "vllm/v1/attention/backends/mla/triton_mla.py:128": "supports_batch_invariance",
    "vllm/v1/attention/backends/utils.py:892": "query_lens != query_lens[0]",
    "vllm/v1/attention/ops/triton_unified_attention.py:432": "block_tables_ptr",
    "vllm/v1/worker/block_table.py:33": "token_alignment: int | None = 128",
    "vllm/v1/worker/gpu/model_states/mamba_hybrid.py:54": "if not isinstance",
    "vllm/v1/worker/utils.py:138": "Mamba layers are skipped",
}
"""Lines of vLLM that the page rests on, and what makes each the one that is meant."""
UNASKED = {
    "Mamba1AttentionBackend": "an operator of CUDA",
    "RocmAttentionBackend": "packs parts of keys apart",
    "FlashAttentionBackend": "built for CUDA",
}
"""Classes without an adapter, and words of the reason."""


def run_beside(*words: str, environment: Mapping[str, str] | None = None) -> str:
    """Run a module beside vLLM, and return what it prints.

    Raises:
        FileNotFoundError: there is no such environment; the message has the command.
    """
    if not FINDINGS.python.exists():
        raise FileNotFoundError(f"no environment at {FINDINGS.python}. Build it: make upstream")
    done = subprocess.run(
        [str(FINDINGS.python), "-m", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**FINDINGS.environment(), "OMP_NUM_THREADS": "1", **(environment or {})},
    )
    return done.stdout if done.returncode < 2 else done.stderr


@pytest.mark.installed_engine
@pytest.mark.timeout(900)
def test_finding_is_found_again_by_its_command() -> None:
    """The command that a finding tells runs it again, alone."""
    found = [own for own in FINDINGS.found_in(FINDINGS.read_kept()) if own.replay]
    case = next(own.replay.split("'")[1] for own in found if own.run == "mla-invariant")
    words = ("check", "--engine", "vllm", "TritonMLABackend", "--case", case, "--format", "json")
    printed = run_beside("backend_caps", *words, environment=FINDINGS.environments["mla-invariant"])

    assert json.loads(printed)["status"] == "failed"


@pytest.mark.installed_engine
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", UNASKED)
def test_class_without_an_adapter_has_a_reason(name: str) -> None:
    """What cannot be asked is refused with the reason."""
    refusal = run_beside("backend_caps", "check", "--engine", "vllm", name)

    assert UNASKED[name] in " ".join(refusal.split())


@pytest.mark.vllm_wheel
@pytest.mark.parametrize("place", LINES)
def test_line_of_vllm_is_the_one_that_is_meant(place: str) -> None:
    """A line that the page names is in the wheel what the page takes it for."""
    file, _, number = place.partition(":")
    with zipfile.ZipFile(find_wheel(VERSION, "vllm")) as wheel:
        line = wheel.read(file).decode().splitlines()[int(number) - 1]

    assert LINES[place] in line


def test_page_rests_on_those_lines_alone() -> None:
    """Each line of vLLM that the page names is one of those."""
    named = re.findall(r"`(vllm/[\w/]+\.py:\d+)`", PAGE.read_text("utf-8"))

    assert sorted({*named}) == sorted(LINES)


def test_page_has_a_command_for_each_finding() -> None:
    """What is kept names the case of each finding, and no path of a machine."""
    found = list(FINDINGS.found_in(FINDINGS.read_kept()))

    assert any(own.replay for own in found)
    assert all(own.place.startswith("vllm/") for own in found if own.place)
