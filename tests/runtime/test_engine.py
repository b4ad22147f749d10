from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from backend_caps import Capabilities, Declaration, Phase, Role, ServerFlags, Use, resolve
from backend_caps.capability.kind import ANY
from backend_caps.capability.sets import Exact, MultipleOf, OneOf, Sizes
from backend_caps.resolution.engine import RUNTIME
from backend_caps.resolution.rules import RuleSet
from backend_caps.runtime import (
    Engine,
    EngineError,
    EngineOptions,
    PromptError,
    RequestTooLongError,
    Sampling,
)
from tests.runtime.engines import leaks, make_engine
from tests.runtime.oracle import CONTEXT_LEN, VOCAB_SIZE, Oracle

IMPLEMENTATION = "backend_caps_torch_native.native:TorchNative"


def _engine_of_sizes(oracle: Oracle, *arguments: str, prefill: Sizes, decode: Sizes) -> Engine:
    """Make an engine whose backends for prefill and decode take these page sizes."""
    uses = [
        Use(
            backend=f"of_{phase.value}",
            role=Role.TARGET,
            phase=phase,
            declaration=Declaration(
                capabilities=Capabilities(page_sizes=sizes), implementation=IMPLEMENTATION
            ),
        )
        for phase, sizes in ((Phase.PREFILL, prefill), (Phase.DECODE, decode))
    ]
    flags = ServerFlags.from_argv(arguments)
    rules = RuleSet.builtin(RUNTIME)
    return Engine.from_plan(oracle.folder, resolve(uses, flags, rules=rules, policy="quiet"), "cpu")


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ((), "a prompt holds no token; at least one was expected."),
        ((5, VOCAB_SIZE), f"a prompt holds token {VOCAB_SIZE}; the model's are 0 to 198."),
        ((5, -1, -7), "a prompt holds token -7; the model's are 0 to 198."),
    ],
)
def test_engine_refuses_a_prompt_that_is_none(
    oracle: Oracle, prompt: Sequence[int], text: str
) -> None:
    """No token, or one that the model does not have, is refused before anything runs."""
    engine = make_engine(oracle.folder)

    with pytest.raises(PromptError) as caught:
        engine.submit(prompt, Sampling(max_new_tokens=4))

    assert str(caught.value) == f"{text} Check the tokenizer that made it."
    assert not engine.scheduler.has_work


@pytest.mark.parametrize(
    ("options", "arguments", "limit", "limited_by"),
    [
        (EngineOptions(), (), CONTEXT_LEN, "the context"),
        (EngineOptions(), ("--context-length", "64"), 64, "the context"),
        (EngineOptions(max_total_tokens=50), (), 50, "the KV cache"),
        (EngineOptions(max_total_tokens=50), ("--page-size", "16"), 48, "the KV cache"),
    ],
)
def test_engine_refuses_a_request_that_can_never_run(
    oracle: Oracle, options: EngineOptions, arguments: tuple[str, ...], limit: int, limited_by: str
) -> None:
    """One token more than context or KV cache hold is refused, and says by which."""
    engine = make_engine(oracle.folder, *arguments, options=options)

    with pytest.raises(RequestTooLongError) as caught:
        engine.submit([5] * (limit - 2), Sampling(max_new_tokens=4))

    assert (caught.value.limit, caught.value.limited_by) == (limit, limited_by)


def test_engine_runs_a_request_that_fits_exactly(oracle: Oracle) -> None:
    """A request as long as context and KV cache runs to its end, alone."""
    engine = make_engine(oracle.folder, options=EngineOptions(max_total_tokens=CONTEXT_LEN))
    sampling = Sampling(max_new_tokens=4, stop_token_ids=frozenset())

    (output,) = engine.generate([[5] * (CONTEXT_LEN - 3)], sampling=sampling)

    assert len(output) == 4


def test_request_too_long_error_says_all_lengths(oracle: Oracle) -> None:
    """The text has the prompt, what was asked for, their sum and the limit."""
    engine = make_engine(oracle.folder)

    with pytest.raises(RequestTooLongError) as caught:
        engine.submit([5] * 250, Sampling(max_new_tokens=10))

    assert str(caught.value) == (
        "a prompt of 250 tokens with max_new_tokens=10 needs 259 tokens, the last one's "
        "keys aside; the context has 256. Shorten one of them, or enlarge that."
    )


@pytest.mark.parametrize(
    ("prefill", "decode", "page_size"),
    [
        (ANY, ANY, 1),
        (ANY, Exact(32), 32),
        (MultipleOf(8), ANY, 8),
        (OneOf({16, 64}), ANY, 16),
        (MultipleOf(8), OneOf({4, 24, 32}), 24),
    ],
)
def test_engine_takes_the_smallest_page_that_suits_every_backend(
    oracle: Oracle, prefill: Sizes, decode: Sizes, page_size: int
) -> None:
    """Without a flag, the page size is the least that prefill and decode share."""
    engine = _engine_of_sizes(oracle, prefill=prefill, decode=decode)

    assert engine.memory.page_size == page_size


def test_engine_refuses_backends_that_share_no_page_size(oracle: Oracle) -> None:
    """Where no page size suits both backends, the error names them and theirs."""
    with pytest.raises(EngineError) as caught:
        _engine_of_sizes(oracle, prefill=Exact(16), decode=Exact(32))

    text = str(caught.value)
    assert "of_prefill" in text
    assert "of_decode" in text


@pytest.mark.parametrize(
    "arguments",
    [
        ("--enable-dp-attention",),
        ("--enable-deterministic-inference",),
        ("--pp-size", "2"),
        ("--tp-size", "2"),
        ("--kv-cache-dtype", "fp8_e5m2"),
        ("--enable-hierarchical-cache",),
        ("--enable-lora",),
        ("--enable-multimodal",),
        ("--grammar-backend=xgrammar",),
        ("--constrained-json-whitespace-pattern=x",),
        ("--quantization=fp8",),
        ("--torchao-config=int4wo",),
    ],
)
def test_engine_refuses_flags_of_another_server(oracle: Oracle, arguments: tuple[str, ...]) -> None:
    """What this engine does not do is refused by the flag that asks for it."""
    with pytest.raises(EngineError) as caught:
        make_engine(oracle.folder, *arguments)

    assert " ".join(arguments).partition("=")[0] in str(caught.value)


def test_engine_takes_flags_that_switch_features_off(oracle: Oracle) -> None:
    """A server without prefix caching is one that this engine is."""
    with make_engine(oracle.folder, "--disable-radix-cache") as engine:
        assert engine.plan.flags.unrelated == ("--disable-radix-cache",)


@pytest.mark.parametrize("name", ["max_total_tokens", "max_prefill_tokens", "chunked_prefill_size"])
@pytest.mark.parametrize("value", [0, -1])
def test_engine_refuses_steps_and_caches_of_no_token(name: str, value: int) -> None:
    """A size that would let no request run is refused, not run for ever."""
    sizes = {name: value}

    with pytest.raises(EngineError, match=f"{name} is {value}; at least 1"):
        EngineOptions(**sizes)  # type: ignore[arg-type] # a table of names


def test_generate_submits_nothing_where_a_prompt_is_refused(oracle: Oracle) -> None:
    """One bad prompt of several leaves none of the others behind, to run with later ones."""
    engine = make_engine(oracle.folder)

    with pytest.raises(PromptError):
        engine.generate([[5, 6], [7, 8], []])

    assert not engine.scheduler.has_work


def test_generate_gives_outputs_in_the_order_of_prompts(
    oracle: Oracle, device: torch.device
) -> None:
    """However early each ends, outputs stand where their prompts do; by default 16 tokens."""
    engine = make_engine(oracle.folder, device=device)
    jobs = [job for job in oracle.jobs if job.max_new_tokens >= 16][:5]

    outputs = engine.generate([job.prompt for job in jobs])

    assert outputs == [oracle.tokens[oracle.jobs.index(job)][:16] for job in jobs]


def test_engine_has_everything_back_after_generate(oracle: Oracle) -> None:
    """Once an engine is drained, whatever `generate` left under way is back."""
    engine = make_engine(oracle.folder)
    engine.generate([job.prompt for job in oracle.jobs[:9]], 7)

    engine.drain()

    assert leaks(engine) == (0, 0)
    assert not engine.scheduler.has_work
