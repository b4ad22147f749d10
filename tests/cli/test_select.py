"""`auto` on the command line: what is chosen, what is shown, and the status."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import CommandLine

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


def test_select_shows_every_candidate(fast: CommandLine) -> None:
    """The table has each backend with its priority, and whether it fits."""
    result = fast.run(f"select --path @ --fact device=cpu -- {AUTO}")

    assert result.exit_code == 0
    rows = [line.split()[:3] for line in result.stdout.splitlines()]
    assert [row for row in rows if row[2:] in (["0"], ["80"])] == [
        ["even", "chosen", "80"],
        ["acme_lean", "yes", "0"],
        ["acme_reads", "yes", "0"],
        ["fast", "no", "80"],
    ]


def test_select_shows_every_reason(fast: CommandLine) -> None:
    """Each reason has its code, the backend, what is, what it needs, and what to do."""
    result = fast.run(f"select --path @ --fact device=cpu --format markdown -- {AUTO}")

    rows = result.stdout.splitlines()
    assert "| reason | backend | is | needs | what to do |" in rows
    assert (
        "| device-unsupported | fast | cpu | cuda | Use another backend, or device cuda. |" in rows
    )


def test_select_tells_what_is_wrong_where_no_value_does(fast: CommandLine) -> None:
    """A plugin that cannot be read is a candidate, with its problem and the remedy."""
    fast.install("bad", "[backend_caps.backends]\nbad = bad_caps:X\n", "raise RuntimeError('no')")

    result = fast.run("select --path @ --format markdown")

    (row,) = [line for line in result.stdout.splitlines() if line.startswith("| raises | bad |")]
    assert "raises RuntimeError" in row


def test_select_tells_what_the_allow_list_leaves_out(
    fast: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is installed and not let in is a candidate, with the list that leaves it out."""
    monkeypatch.setenv("BACKEND_CAPS_PLUGINS", "fast")

    result = fast.run(f"select --path @ --fact device=cpu --format markdown -- {AUTO}")

    rows = [line for line in result.stdout.splitlines() if line.startswith("| not-allowed |")]
    assert [row.split(" | ")[1].replace("\\", "") for row in rows] == ["acme_lean", "acme_reads"]
    assert all("Add acme to BACKEND" in row for row in rows)


@pytest.mark.parametrize(
    ("flags", "status", "told"),
    [
        pytest.param(
            AUTO,
            1,
            "error: --attention-backend is auto, and no installed backend fits:\n"
            "  acme_lean, not-allowed: backend 'acme_lean' of acme 1.0 (acme_caps:LEAN) is not "
            "in BACKEND_CAPS_PLUGINS, which names: nothing. Add acme to BACKEND_CAPS_PLUGINS "
            "to use it.\n"
            "  acme_reads, not-allowed: backend 'acme_reads' of acme 1.0 (acme_caps:READS) is "
            "not in BACKEND_CAPS_PLUGINS, which names: nothing. Add acme to "
            "BACKEND_CAPS_PLUGINS to use it.\n"
            "Install one that does, or change what they do not take; backend-caps select "
            "shows each.",
            id="auto",
        ),
        pytest.param(
            "--attention-backend acme_lean",
            1,
            "error: --attention-backend names a backend that is left out: backend 'acme_lean' "
            "of acme 1.0 (acme_caps:LEAN) is not in BACKEND_CAPS_PLUGINS, which names: "
            "nothing. Add acme to BACKEND_CAPS_PLUGINS to use it.",
            id="a name",
        ),
        pytest.param(
            "--attention-backend acme_leen",
            2,
            "error: no backend 'acme_leen' is declared (--attention-backend); declared: none. "
            "Did you mean 'acme_lean'?",
            id="a misspelled name",
        ),
    ],
)
def test_error_names_the_list_that_leaves_a_backend_out(
    acme: CommandLine, monkeypatch: pytest.MonkeyPatch, flags: str, status: int, told: str
) -> None:
    """Where nothing is let in, it is said that something is installed, and what keeps it out."""
    monkeypatch.setenv("BACKEND_CAPS_PLUGINS", "")

    result = acme.run(f"resolve --path @ --policy strict -- {flags}")

    assert (result.exit_code, result.stderr) == (status, f"{told}\n")


def test_select_states_a_tie(fast: CommandLine) -> None:
    """That only the name decided between equals is said."""
    result = fast.run(f"select --path @ --format markdown -- {AUTO}")

    heading = result.stdout.splitlines()[0]
    assert heading == (
        "## --attention-backend auto is even (priority 80; 4 of 4 installed backends fit; by name "
        "before fast, of the same priority)"
    )


def test_select_is_json_on_request(fast: CommandLine) -> None:
    """The document has the facts, and each candidate with its rank, reasons and what it costs."""
    result = fast.run(
        f"select --path @ --fact device=cpu --format json -- {AUTO} {SPECULATIVE} {TOPK}"
    )

    document = json.loads(result.stdout)
    assert (document["schema"], document["facts"]) == (
        "backend-caps/selection@1",
        {"device": "cpu"},
    )
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
    result = fast.run(f"select --path @ --format json -- {server}")

    assert [choice["flag"] for choice in json.loads(result.stdout)["choices"]] == asked


def test_select_fails_where_nothing_fits(fast: CommandLine) -> None:
    """Where no backend fits, the table has all the reasons and the status is 1."""
    result = fast.run(f"select --path @ --policy strict --fact dtype=float32 -- {AUTO}")

    assert result.exit_code == 1
    assert "--attention-backend auto finds no backend (0 of 4 installed" in result.stdout


def test_select_of_nothing_says_so(fast: CommandLine) -> None:
    """A folder without plugins has no candidates."""
    empty = fast.root.parent / "empty"
    empty.mkdir()

    result = fast.run(f"select --path {empty}")

    assert result.exit_code == 1
    assert "Install a plugin, or name the folder that one is in with --path." in result.stdout


@pytest.mark.parametrize(
    "server",
    [
        pytest.param("--speculative-draft-attention-backend even", id="a draft's"),
        pytest.param(
            f"{AUTO} --prefill-attention-backend even --decode-attention-backend even",
            id="gone before",
        ),
    ],
)
def test_select_says_where_no_flag_has_a_use(fast: CommandLine, server: str) -> None:
    """Where the flags that are asked run nothing, that is said, and no backend is missing."""
    result = fast.run(f"select --path @ -- {server}")

    assert result.exit_code == 0
    assert "No flag that was asked puts a backend to use on this server" in result.stdout


def test_select_tells_what_is_not_checked(fast: CommandLine) -> None:
    """What nobody knows is told, with the way to say it."""
    result = fast.run("select --path @ --format markdown --fact device=cuda")

    told = result.stdout.splitlines()
    assert "## Not checked, so it speaks against nobody" in told
    assert "| acme\\_lean | device-not-checked |" in told
    assert told[-1].startswith("- not known: dtype, kv\\_cache\\_dtype, head\\_size, ")


def test_select_names_no_fact_where_all_are_known(fast: CommandLine) -> None:
    """Where every fact is known, only what a backend does not say was not checked."""
    known = {
        "device": "cuda",
        "dtype": "bfloat16",
        "kv_cache_dtype": "bfloat16",
        "head_size": "128",
        "compute_capability": "[9,0]",
        "attention_arch": "mha",
    }
    given = " ".join(f"--fact {name}={value}" for name, value in known.items())

    result = fast.run(f"select --path @ --format markdown {given}")

    assert "## Not checked, so it speaks against nobody" in result.stdout
    assert "not known" not in result.stdout


def test_select_is_quiet_on_request(fast: CommandLine) -> None:
    """Under quiet, what is not checked is left out."""
    result = fast.run("select --path @ --policy quiet --fact device=cuda")

    assert "Not checked" not in result.stdout


def test_resolve_says_what_auto_is(fast: CommandLine) -> None:
    """A plan names the chosen backend, why it was, and that the flag did not name it."""
    result = fast.run(
        f"resolve --path @ --fact device=cpu --format markdown -- {AUTO} {SPECULATIVE} {TOPK}"
    )

    told = result.stdout.splitlines()
    assert "- --attention-backend auto is even (priority 80; 3 of 4 installed backends fit)" in told
    assert (
        "- because backend even: declares host\\_seq\\_lens=none (chosen by --attention-backend "
        "auto)" in told
    )


def test_resolve_keeps_the_choice_in_its_document(fast: CommandLine) -> None:
    """The JSON of a plan has the candidates with their reasons; without auto it has none."""
    chosen, named = (
        json.loads(fast.run(f"resolve --path @ --format json -- --attention-backend {name}").stdout)
        for name in ("auto", "even")
    )

    assert chosen["choices"][0]["chosen"] == "even"
    assert "choices" not in named


def test_resolve_refuses_auto_where_nothing_fits(fast: CommandLine) -> None:
    """Without a backend that fits there is no plan: the reasons, and status 1."""
    result = fast.run(f"resolve --path @ --policy strict --fact dtype=float32 -- {AUTO}")

    assert result.exit_code == 1
    assert "error: --attention-backend is auto, and no installed backend fits:" in result.stderr


def test_relay_takes_auto(fast: CommandLine) -> None:
    """A FutureMap is configured by what was chosen for the device."""
    result = fast.run(f"relay --path @ --format json -- {AUTO} {SPECULATIVE} {TOPK}")

    document = json.loads(result.stdout)
    assert document["plan"]["choices"][0]["chosen"] == "even"
    assert document["plan"]["needs_cpu_seq_lens"] is False


def test_relay_rehearses_for_another_device(fast: CommandLine) -> None:
    """A rehearsal runs no backend, so that one for CUDA alone is no reason to refuse it."""
    result = fast.run(f"relay --path @ -- --attention-backend fast {SPECULATIVE} {TOPK}")

    assert result.exit_code == 0
