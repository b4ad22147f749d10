"""SGLang's own backends under the kit, in the environment that has SGLang in it."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import zipfile
from dataclasses import replace

import pytest

from backend_caps import HostSeqLens
from benchmarks.gpu import Timing, mirrors, opened
from benchmarks.waits import measured
from tests.upstream.sglang_findings import PYTHON, ROOT, VERSION, found_in, read_kept
from tests.upstream.sglang_wheel import find_wheel

pytestmark = pytest.mark.upstream

PAGE = ROOT / "docs" / "reference" / "sglang-findings.md"
LINES = {
    "sglang/kernels/ops/attention/fla/index.py:23": ".tolist()",
    "sglang/kernels/ops/attention/linear/lightning_attn.py:377": "q_decay = tl.exp(",
    "sglang/srt/layers/attention/base_attn_backend.py:355": "self.forward_extend(",
    "sglang/srt/layers/attention/torch_native_backend.py:127": "query[:, start_q:end_q, :]",
    "sglang/srt/layers/attention/torch_flex_backend.py:134": "query[:, start_q:end_q, :]",
    "sglang/srt/layers/attention/torch_native_backend.py:262": "scaled_dot_product_attention(",
    "sglang/kernels/ops/attention/extend_attention.py:769": "SLIDING_WINDOW_SIZE",
    "sglang/srt/arg_groups/speculative_hook.py:1287": '("cuda", "cpu", "xpu")',
    "sglang/srt/layers/attention/base_attn_backend.py:163": "needs_cpu_seq_lens",
    "sglang/srt/layers/attention/torch_native_backend.py:48": "- sliding_window_size",
    "sglang/srt/layers/attention/torch_native_backend.py:101": "extend_prefix_lens.shape",
    "sglang/srt/layers/attention/torch_native_backend.py:139": "req_to_token[req_pool_idx",
    "sglang/srt/layers/attention/torch_native_backend.py:240": "req_to_token[req_pool_idx",
    "sglang/srt/mem_cache/swa_memory_pool.py:270": "swa_loc is not None",
    "sglang/srt/arg_groups/model_overrides/gemma2_gemma3.py:26": "disable_hybrid_swa_memory",
    "sglang/srt/layers/attention/triton_backend.py:2869": "torch.minimum",
    "sglang/srt/model_executor/forward_batch_info.py:1226": "is_target_verify()",
    "sglang/srt/models/gemma2.py:53": "sliding_window - 1",
    "sglang/srt/speculative/draft_utils.py:118": "EAGLE is not supported",
}
"""Lines of SGLang that the page rests on, and what makes each the one that is meant."""


def checked(*words: str) -> dict[str, object]:
    """Run `backend-caps check --engine sglang` beside SGLang, and return its document.

    Raises:
        FileNotFoundError: there is no such environment; the message has the command.
    """
    if not PYTHON.exists():
        raise FileNotFoundError(f"no environment at {PYTHON}. Build it: make upstream")
    command = [str(PYTHON), "-m", "backend_caps", "check", "--engine", "sglang", *words]
    done = subprocess.run(
        [*command, "--format", "json"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode < 2, done.stderr
    document: dict[str, object] = json.loads(done.stdout)
    return document


@pytest.mark.installed_engine
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("run", "check"),
    [
        pytest.param("torch-native", "numerics", id="verify-of-torch-native"),
        pytest.param("triton", "sliding-window", id="window-of-triton"),
    ],
)
def test_finding_is_found_again_by_its_command(run: str, check: str) -> None:
    """The command that a finding tells runs it again, alone."""
    found = next(own for own in found_in(read_kept()) if (own.run, own.check) == (run, check))
    words = shlex.split(found.replay)

    assert checked(*words[words.index("sglang") + 1 :])["status"] == "failed"


@pytest.mark.parametrize("place", LINES)
def test_line_of_sglang_is_the_one_that_is_meant(place: str) -> None:
    """A line that the page names is in the wheel what the page takes it for."""
    file, _, number = place.partition(":")
    with zipfile.ZipFile(find_wheel(VERSION)) as wheel:
        line = wheel.read(file).decode().splitlines()[int(number) - 1]

    assert LINES[place] in line


def test_page_rests_on_those_lines_alone() -> None:
    """Each line of SGLang that the page names is one of those."""
    named = re.findall(r"`(sglang/[\w/]+\.py:\d+)`", PAGE.read_text("utf-8"))

    assert sorted({*named}) == sorted(LINES)


def test_page_has_a_command_for_each_finding() -> None:
    """What is kept names the case of each finding, and no path of a machine."""
    found = list(found_in(read_kept()))

    assert any(own.replay for own in found)
    assert all(own.place.startswith("sglang/") for own in found if own.place)


SIDES = ["sglang exact", "sglang none", "none", "upper_bound", "exact"]


@pytest.fixture(scope="module")
def timings() -> list[Timing]:
    """Rehearse one batch size on both pools."""
    with opened("sim") as (device, scale, gather):
        return mirrors(device, 10, replace(scale, batches=(3,)), gather)


def test_rehearsal_has_every_side_of_every_pool(timings: list[Timing]) -> None:
    """Both of SGLang's modes and our three stand side by side, on a small pool and a large one."""
    sides = [(own.comparison, own.side) for own in timings]

    assert sides == [(f"mirror {pool}", side) for pool in (4096, 65536) for side in SIDES]


def test_rehearsal_times_lengths_where_they_come_to_the_host(timings: list[Timing]) -> None:
    """The time from publish to host lengths is there where a side has an exact mirror."""
    timed = {own.side for own in timings if own.lengths_us is not None}

    assert timed == {"sglang exact", "exact"}
    assert all(own.lengths_us is None or own.lengths_us > 0 for own in timings)


@pytest.mark.parametrize("host_seq_lens", HostSeqLens)
def test_rehearsal_counts_what_the_counts_are(
    timings: list[Timing], host_seq_lens: HostSeqLens
) -> None:
    """Kernels and copies of our relay are those that the simulated device counts for a step."""
    found = [own for own in timings if own.side == host_seq_lens.value]

    for timing, pool_size in zip(found, (4096, 65536), strict=True):
        counts = measured(pool_size, 3, host_seq_lens).ours
        copies = counts.num_copies_to_host + counts.num_copies_to_device
        assert (timing.relay_kernels, timing.relay_copies) == (counts.num_ops - copies, copies)
