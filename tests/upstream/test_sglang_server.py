"""A started server of SGLang with the plugin in it, and clients that ask it."""

from __future__ import annotations

from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.upstream.sglang_liars import LIES, NAME, install_liar
from tests.upstream.sglang_server import (
    READY,
    asked,
    draw_prompts,
    greedy_tokens,
    make_model,
    started,
)

pytestmark = [pytest.mark.upstream, pytest.mark.installed_engine, pytest.mark.timeout(600)]

# Prompts of up to 40 tokens are cut, and most of 200 requests wait for a row or for room.
SMALL = ("--chunked-prefill-size", "16", "--max-running-requests", "32")
ROOM = ("--max-total-tokens", "1024")
CLOSEST = 1e-4
"""The lead in logits that transformers' tokens have; float32 sums differ by less than 1e-5."""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A tiny random model, with its tokenizer."""
    folder = tmp_path / "model"
    make_model(folder)
    return folder


@pytest.mark.parametrize(
    ("backend", "needs", "told"),
    [
        pytest.param(
            "torch_padded",
            0,
            'capability="host_seq_lens",cause="torch_padded",phase="server",'
            'reason="declares host_seq_lens=none",role="target",states="none",value="none"',
            id="opts-out",
        ),
        pytest.param(
            "torch_native",
            1,
            'capability="host_seq_lens",cause="TorchNativeAttnBackend",phase="server",',
            id="sglangs-own",
        ),
    ],
)
def test_server_answers_as_transformers_and_reports_its_plan(
    backend: str, needs: int, told: str, model: Path
) -> None:
    """200 prompts at once get the greedy tokens; /metrics has the plan; SIGTERM ends it all."""
    prompts = draw_prompts(200)
    expected, lead = greedy_tokens(model, prompts)
    assert lead > CLOSEST

    flags = ("--attention-backend", backend, "--enable-metrics", *SMALL, *ROOM)
    with started(model, *flags) as server:
        assert server.wait(), server.log[-4000:]
        answers = asked(server.url, prompts)
        metrics = urlopen(f"{server.url}/metrics", timeout=60).read().decode()  # noqa: S310 - ours
        status = server.stop()
        is_left, log = server.leaves_processes(), server.log

    assert [own for own in zip(answers, expected, strict=True) if own[0] != own[1]] == []
    assert f"backend_caps_needs_cpu_seq_lens {needs:.1f}" in metrics
    assert "backend_caps_plan_info{" + told in metrics
    assert "registered in SGLang 0.5.23: backend 'torch_padded' is torch_native_sglang:" in log
    assert (status, is_left) == (0, False)


@pytest.mark.parametrize("lie", LIES)
def test_server_does_not_start_with_a_backend_that_lies(
    lie: str, model: Path, tmp_path: Path
) -> None:
    """The log has the refusal in its words, and no process is left that could serve."""
    _, words = LIES[lie]
    install_liar(tmp_path, lie)

    with started(model, "--attention-backend", NAME, *ROOM, path=[tmp_path]) as server:
        is_serving = server.wait()
        log, status = server.log, server.process.wait(60)
        is_left = server.leaves_processes()

    assert words in log
    assert (is_serving, READY in log, status != 0, is_left) == (False, False, True, False)
