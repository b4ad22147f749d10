"""A started server of vLLM with the plugin in it, and clients that ask it."""

from __future__ import annotations

from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.upstream.sglang_server import asked, draw_prompts, greedy_tokens, make_model
from tests.upstream.vllm_cpu_server import HEAD_SIZE, PADDED, READY, install, python, started

pytestmark = [pytest.mark.upstream, pytest.mark.installed_engine, pytest.mark.timeout(600)]

CLOSEST = 1e-4
"""The lead in logits that transformers' tokens have; float32 sums differ by less than 1e-5."""
OWN = "vllm.v1.attention.backends.cpu_attn.CPUAttentionBackend"
STRICT = {"BACKEND_CAPS_POLICY": "strict"}
REFUSED = "this server does not start under the policy strict: "


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A tiny random model, with its tokenizer."""
    folder = tmp_path / "model"
    make_model(folder, HEAD_SIZE)
    return folder


@pytest.mark.parametrize(
    ("slot", "path", "told"),
    [
        pytest.param(
            None,
            OWN,
            "2 Attention   target   CPU_ATTN   NEVER    FullAttentionSpec   128     32",
            id="vllms-own",
        ),
        pytest.param(
            "CPU_ATTN",
            PADDED,
            "2 Attention   target   CUSTOM    ALWAYS   FullAttentionSpec   128     32",
            id="a-third-partys",
        ),
    ],
)
def test_server_answers_as_transformers_and_tells_its_plan(
    slot: str | None, path: str, told: str, model: Path, tmp_path: Path
) -> None:
    """200 prompts at once get the greedy tokens; log and /metrics have the plan; SIGTERM ends it.

    The third party's is `torch_padded`, in the slot of vLLM's own backend for CPUs, held to its
    declaration under strict.
    """
    prompts = draw_prompts(200)
    expected, lead = greedy_tokens(model, prompts)
    assert lead > CLOSEST
    if slot is not None:
        install(tmp_path, "padded", slot)

    with started(model, path=[tmp_path], environ=STRICT) as server:
        assert server.wait(), server.log[-4000:]
        answers = asked(server.url, prompts, python())
        metrics = urlopen(f"{server.url}/metrics", timeout=60).read().decode()  # noqa: S310 - ours
        status = server.stop()
        is_left, log = server.leaves_processes(), server.log

    assert [own for own in zip(answers, expected, strict=True) if own[0] != own[1]] == []
    assert told in log
    assert f'layer="Attention",path="{path}",role="target"}} 2.0' in metrics
    assert 'name="scheduler_config.async_scheduling",value="no"} 1.0' in metrics
    assert ("backend 'padded' of padded 1.0 runs as" in log) is (slot is not None)
    assert (status, is_left) == (0, False)


@pytest.mark.parametrize(
    ("slot", "flags", "claims", "words"),
    [
        pytest.param(
            "CUSTOM",
            ("--attention-backend", "CUSTOM"),
            "{}",
            f"The attention backend CUSTOM ({PADDED}) was asked for, and vLLM's platform took "
            f"{OWN}.",
            id="is-not-let-in",
        ),
        pytest.param(
            "CPU_ATTN",
            (),
            "{'graph_replay': frozenset()}",
            f"CUSTOM ({PADDED}): Builder states _cudagraph_support = ALWAYS. Its class replays "
            "{mixed_batch, single_token_decode, uniform_batch}, and backend 'liar' of liar 1.0 "
            "declares graph_replay={}.",
            id="lies-about-graphs",
        ),
        pytest.param(
            "CPU_ATTN",
            (),
            "{'head_sizes': Exact(64)}",
            f"backend 'liar' of liar 1.0 runs as {PADDED}: it declares head_size 64, and here it "
            "is 32.",
            id="takes-other-heads",
        ),
    ],
)
def test_server_does_not_start_with_what_is_not_so(
    slot: str, flags: tuple[str, ...], claims: str, words: str, model: Path, tmp_path: Path
) -> None:
    """Under strict the log has the refusal in its words, and no process is left that could serve.

    vLLM 0.32.0's platform for CPUs takes its own backend, whatever is asked for: that line of it
    is in the log too.
    """
    install(tmp_path, "liar", slot, claims)

    with started(model, *flags, path=[tmp_path], environ=STRICT) as server:
        is_serving = server.wait()
        log, status = server.log, server.process.wait(60)
        is_left = server.leaves_processes()

    assert f"{REFUSED}{words}" in log
    assert ("[cpu.py:178] Cannot use AttentionBackendEnum.CUSTOM" in log) is bool(flags)
    assert (is_serving, READY in log, status != 0, is_left) == (False, False, True, False)
