"""Whatever the loop, the cutting and the pages: the tokens are those of transformers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from backend_caps import Plan
from backend_caps.runtime.engine import Engine
from backend_caps.runtime.options import EngineOptions
from tests.cases import axis
from tests.runtime import engines
from tests.runtime.churn import is_aborted, num_retractions, run_with_churn, up_to_aborts
from tests.runtime.oracle import Oracle

pytestmark = pytest.mark.no_cover  # run by other tests too, and twice as fast untraced

MIXES = [pytest.param((), id="not mixed"), pytest.param(("--enable-mixed-chunk",), id="mixed")]
PAIR = (
    *("--prefill-attention-backend", "torch_native"),
    *("--decode-attention-backend", "torch_padded"),
)
BACKENDS = [
    pytest.param(("--attention-backend", "torch_padded"), id="torch_padded"),
    pytest.param(PAIR, id="torch_native prefills, torch_padded decodes"),
    pytest.param(("--attention-backend", "flex_attention"), id="flex_attention"),
]
# One request at a time: how bfloat16 rounds may depend on what else is in a batch.
BF16 = EngineOptions(dtype=torch.bfloat16, max_running_requests=1)
# Its longest request needs 124 tokens: two requests are often too many.
BARELY = EngineOptions(max_total_tokens=128, max_running_requests=8, chunked_prefill_size=24)


@axis("loop", engines.LOOPS)
@axis("mixed", MIXES)
@axis("chunk", [pytest.param(None, id="whole prompts"), pytest.param(48, id="chunked")])
@axis("page_size", [1, 16])
def test_tokens_equal_those_of_transformers(
    oracle: Oracle,
    device: torch.device,
    loop: tuple[str, ...],
    mixed: tuple[str, ...],
    chunk: int | None,
    page_size: int,
) -> None:
    """In every loop, cutting, page size and mix, the tokens of 200 prompts are transformers'."""
    arguments = (*loop, *mixed, "--page-size", str(page_size))
    options = EngineOptions(chunked_prefill_size=chunk)
    engine = engines.make_engine(oracle.folder, *arguments, device=device, options=options)

    tokens = engines.run(engine, oracle.jobs)

    assert (tokens, engines.leaks(engine)) == (oracle.tokens, (0, 0))


@axis("loop", engines.LOOPS)
@axis("mixed", MIXES)
@axis("page_size", [1, 4])
def test_retracted_requests_end_with_the_tokens_of_transformers(
    oracle: Oracle,
    device: torch.device,
    loop: tuple[str, ...],
    mixed: tuple[str, ...],
    page_size: int,
) -> None:
    """A KV cache so small that requests are taken out and computed anew changes no token."""
    arguments = (*loop, *mixed, "--page-size", str(page_size))
    engine = engines.make_engine(
        oracle.folder, *arguments, device=device, options=engines.SMALL_CACHE
    )
    requests = [engines.submit(engine, job) for job in oracle.jobs[:100]]

    engine.drain()

    assert num_retractions(requests) > 2
    assert [request.output for request in requests] == oracle.tokens[:100]
    assert engines.leaks(engine) == (0, 0)


@axis("loop", engines.LOOPS)
@axis("mixed", MIXES)
@axis(
    "options",
    [pytest.param(EngineOptions(), id="roomy"), pytest.param(BARELY, id="barely room for one")],
)
def test_churn_changes_no_token(
    oracle: Oracle,
    device: torch.device,
    loop: tuple[str, ...],
    mixed: tuple[str, ...],
    options: EngineOptions,
) -> None:
    """Whoever comes or is given up meanwhile: tokens stay right, up to where one was given up."""
    engine = engines.make_engine(oracle.folder, *loop, *mixed, device=device, options=options)

    requests = run_with_churn(engine, oracle.jobs[:100], seed=1)

    assert sum(len(own.output) > 0 for own in requests if is_aborted(own)) > 1
    assert [own.output for own in requests] == up_to_aborts(requests, oracle.tokens[:100])
    assert engines.leaks(engine) == (0, 0)


@axis("loop", engines.LOOPS)
@axis("backends", BACKENDS)
def test_backends_give_the_tokens_of_transformers(
    oracle: Oracle, device: torch.device, loop: tuple[str, ...], backends: tuple[str, ...]
) -> None:
    """Other plugins, and a pair of two, give transformers' tokens too, chunked and mixed."""
    options = EngineOptions(chunked_prefill_size=48)
    arguments = (*loop, *backends, "--enable-mixed-chunk", "--page-size", "16")
    engine = engines.make_engine(oracle.folder, *arguments, device=device, options=options)

    tokens = engines.run(engine, oracle.jobs[:100])

    assert (tokens, engines.leaks(engine)) == (oracle.tokens[:100], (0, 0))


@pytest.mark.slow
@pytest.mark.parametrize(
    "num_jobs", [3, pytest.param(200, marks=[pytest.mark.soak, pytest.mark.timeout(7200)])]
)
def test_interpreted_kernels_give_the_tokens_of_transformers(
    oracle: Oracle, monkeypatch: pytest.MonkeyPatch, num_jobs: int
) -> None:
    """So does `triton` on the host, whose interpreter takes seconds for each prompt."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    plan = _on_the_host(engines.plan_of("--attention-backend", "triton", "--page-size", "16"))

    with Engine.from_plan(oracle.folder, plan, "cpu") as engine:
        tokens = engines.run(engine, oracle.jobs[:num_jobs])

    assert (tokens, engines.leaks(engine)) == (oracle.tokens[:num_jobs], (0, 0))


@pytest.mark.slow
def test_bfloat16_tokens_are_the_same_in_both_loops(oracle: Oracle, device: torch.device) -> None:
    """In bfloat16 the overlapped loop gives the tokens of the plain one."""
    overlapped = engines.make_engine(oracle.folder, device=device, options=BF16)
    plain = engines.make_engine(oracle.folder, *engines.PLAIN_LOOP, device=device, options=BF16)

    tokens = engines.run(overlapped, oracle.jobs[:50])

    assert tokens == engines.run(plain, oracle.jobs[:50])
    assert engines.leaks(overlapped) == (0, 0)


def _on_the_host(plan: Plan) -> Plan:
    """Let backends run where they are interpreted, which none declares."""
    uses = []
    for use in plan.uses:
        assert use.declaration is not None, "a plan of installed backends"
        capabilities = use.declaration.capabilities.model_copy(update={"devices": {"cpu"}})
        own = use.declaration.model_copy(update={"capabilities": capabilities})
        uses.append(replace(use, declaration=own))
    return replace(plan, uses=tuple(uses))
