"""`auto` on the command line: what is chosen, what is shown, and the status."""

from __future__ import annotations

import pytest

from tests.cases import cases_of, compare
from tests.cli.conftest import CASES, CommandLine

_SELECT = CASES / "select.txt"

AUTO = "--attention-backend auto"
SPECULATIVE = "--speculative-algorithm EAGLE --disable-piecewise-cuda-graph"
TOPK = "--speculative-eagle-topk 1"
FAST = """\
from backend_caps import Capabilities, Declaration, Role

FAST = Declaration(
    capabilities=Capabilities(
        needs_cpu_seq_lens=False,
        max_context_len_known=True,
        roles=set(Role),
        page_sizes="any",
        devices={"cuda"},
        max_speculative_topk=8,
        auto_priority=80,
    )
)
EVEN = FAST.model_copy(
    update={"capabilities": FAST.capabilities.model_copy(update={"devices": "any"})}
)
"""


@pytest.fixture
def fast(acme: CommandLine) -> CommandLine:
    """Two more backends, of a priority: one for CUDA alone."""
    entry_points = "[backend_caps.backends]\nfast = fast_caps:FAST\neven = fast_caps:EVEN\n"
    acme.install("fast", entry_points, FAST)
    return acme


@pytest.mark.parametrize(("line", "answer"), cases_of(_SELECT))
def test_auto_is_answered_in_words(fast: CommandLine, line: str, answer: str) -> None:
    """Every candidate is shown with its rank, and with each reason that speaks against it."""
    compare(_SELECT, line, answer, fast.transcript(line))


def test_select_is_json_on_request(fast: CommandLine) -> None:
    """The document has the facts, and each candidate with its rank, reasons and what it costs."""
    asked = f"-- {AUTO} {SPECULATIVE} {TOPK}"

    document = fast.json(f"select --path @ --fact device=cpu --format json {asked}")

    assert document["schema"] == "backend-caps/selection@1"
    assert document["facts"] == {"device": "cpu"}
    (choice,) = document["choices"]
    assert (choice["flag"], choice["chosen"]) == ("--attention-backend", "even")
    found = [(c["name"], c["rank"], c["host_seq_lens"]) for c in choice["candidates"]]
    assert found == [
        ("even", 1, "none"),
        ("acme_lean", 2, "exact"),
        ("acme_reads", 3, "exact"),
        ("fast", None, "none"),
    ]


@pytest.mark.parametrize(
    ("server", "asked"),
    [
        pytest.param("", ["--attention-backend"], id="nothing"),
        pytest.param("--attention-backend even", ["--attention-backend"], id="a name"),
        pytest.param(
            "--prefill-attention-backend even --decode-attention-backend fast",
            ["--prefill-attention-backend", "--decode-attention-backend"],
            id="a pair",
        ),
        pytest.param(
            "--attention-backend even --decode-attention-backend auto",
            ["--decode-attention-backend"],
            id="auto beside a name",
        ),
    ],
)
def test_select_asks_what_would_do(fast: CommandLine, server: str, asked: list[str]) -> None:
    """Without auto, the flags that name a backend are asked what would do in their place."""
    document = fast.json(f"select --path @ --format json -- {server}")

    assert [choice["flag"] for choice in document["choices"]] == asked


def test_select_of_nothing_says_so(fast: CommandLine) -> None:
    """A folder without plugins has no candidates."""
    empty = fast.root.parent / "empty"
    empty.mkdir()

    result = fast.run(f"select --path {empty}")

    assert result.exit_code == 1
    assert "Install a plugin, or name the folder that one is in with --path." in result.stdout


def test_resolve_keeps_the_choice_in_its_document(fast: CommandLine) -> None:
    """The JSON of a plan has the candidates with their reasons; without auto it has none."""
    chosen, named = (
        fast.json(f"resolve --path @ --format json -- --attention-backend {name}")
        for name in ("auto", "even")
    )

    assert chosen["choices"][0]["chosen"] == "even"
    assert "choices" not in named


def test_relay_takes_auto(fast: CommandLine) -> None:
    """A FutureMap is configured by what was chosen for the device."""
    document = fast.json(f"relay --path @ --format json -- {AUTO} {SPECULATIVE} {TOPK}")

    assert document["plan"]["choices"][0]["chosen"] == "even"
    assert document["plan"]["needs_cpu_seq_lens"] is False


def test_relay_rehearses_for_another_device(fast: CommandLine) -> None:
    """A rehearsal runs no backend, so that one for CUDA alone is no reason to refuse it."""
    result = fast.run(f"relay --path @ -- --attention-backend fast {SPECULATIVE} {TOPK}")

    assert result.exit_code == 0
