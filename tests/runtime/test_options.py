from __future__ import annotations

import pytest

from backend_caps.runtime import EngineOptions
from backend_caps.runtime.errors import EngineError
from backend_caps.runtime.options import largest_step
from backend_caps.runtime.speculation import Algorithm, SpecSettings
from tests.runtime.engines import make_engine
from tests.runtime.oracle import CONTEXT_LEN, Oracle

CHUNK = {"chunked_prefill_size": 96}
TREES = SpecSettings(algorithm=Algorithm.NGRAM, topk=2, num_steps=3, num_draft_tokens=8)


@pytest.mark.parametrize(
    ("options", "speculation", "mixed", "expected"),
    [
        pytest.param({"max_prefill_tokens": 300}, None, False, 300, id="the budget"),
        pytest.param({"max_prefill_tokens": 50}, None, False, 100, id="a prompt by itself"),
        pytest.param({"chunked_prefill_size": 96}, None, False, 96, id="a chunk"),
        pytest.param({**CHUNK, "max_prefill_tokens": 80}, None, False, 80, id="a budget"),
        pytest.param({"max_running_requests": 3}, None, False, 300, id="a context each"),
        pytest.param({"chunked_prefill_size": 8}, None, False, 64, id="a decode"),
        pytest.param(CHUNK, None, True, 159, id="decode rows join"),
        pytest.param({**CHUNK, "max_running_requests": 20}, TREES, False, 160, id="a verify"),
    ],
)
def test_largest_step_follows_from_the_options(
    options: dict[str, int], speculation: SpecSettings | None, mixed: bool, expected: int
) -> None:
    """A step is as large as its prompts, its chunk or its rows and trees, whichever is the most."""
    made = EngineOptions(**options)  # type: ignore[arg-type] # a table of fields

    assert largest_step(made, 100, speculation, mixed=mixed) == expected


@pytest.mark.parametrize("mixed", [(), ("--enable-mixed-chunk",)], ids=["apart", "mixed"])
def test_engine_refuses_a_graph_of_more_tokens_than_a_step(
    oracle: Oracle, mixed: tuple[str, ...]
) -> None:
    """A graph that nothing would replay is refused, however large, with the largest step."""
    options = EngineOptions(
        max_running_requests=2, chunked_prefill_size=32, graph_token_counts=(16, 10**9)
    )

    with pytest.raises(EngineError) as caught:
        make_engine(oracle.folder, *mixed, options=options)

    assert caught.value.code == "graph-token-count"
    largest = 33 if mixed else 32
    assert f"has {10**9}; at most {largest} was expected" in str(caught.value)


def test_engine_takes_a_graph_of_its_largest_step(oracle: Oracle) -> None:
    """The largest number that is not refused is that of the largest step."""
    options = EngineOptions(max_running_requests=1, graph_token_counts=(CONTEXT_LEN,))

    engine = make_engine(oracle.folder, options=options)

    assert engine.options.graph_token_counts == (CONTEXT_LEN,)
