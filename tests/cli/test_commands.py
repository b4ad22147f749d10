"""What each command prints, and the status it exits with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backend_caps.simulator import simulate
from tests.cases import cases_of, compare
from tests.cli.conftest import CASES, DECLARATIONS, ENTRY_POINTS, CommandLine

_COMMANDS = CASES / "commands.txt"

READS = "--attention-backend acme_reads"
LEAN = "--attention-backend acme_lean"
SPECULATIVE = "--speculative-algorithm EAGLE --disable-piecewise-cuda-graph"


@pytest.mark.parametrize(("line", "answer"), cases_of(_COMMANDS))
def test_command_answers_in_words(acme: CommandLine, line: str, answer: str) -> None:
    """What a command prints for people is known to the last letter, and its exit status."""
    more = CommandLine(acme.root / "more")
    more.install("bad", "[backend_caps.backends]\nbad = bad_caps:X\n", "raise RuntimeError('no')")
    (acme.root / "empty").mkdir()

    with simulate():
        answered = acme.transcript(line)

    compare(_COMMANDS, line, answer, answered)


@pytest.mark.parametrize("command", ["report", "resolve", "lock"])
def test_json_with_a_path_and_words_that_are_not_utf8_is_whole(
    tmp_path: Path, command: str
) -> None:
    """A folder whose name is no UTF-8, and a plugin's lone surrogate, are written out."""
    site = CommandLine(tmp_path / "named\udce9")
    site.install("acme", ENTRY_POINTS, DECLARATIONS)
    rude = "[backend_caps.backends]\nrude = rude_caps:DECLARATION\n"
    site.install("rude", rude, "raise ValueError('\\udc80')\n")
    options = "" if command == "lock" else " --format json"

    done = site.run(f"{command} --path @{options} -- --attention-backend acme_lean")

    assert done.exit_code == 0
    assert json.loads(done.stdout_bytes)
    assert command != "report" or b"ValueError: \\\\udc80 at " in done.stdout_bytes


def test_report_with_flags_has_a_plan(acme: CommandLine) -> None:
    """Server flags after -- add the plan of that server to the report."""
    plan = acme.json(f"report --path @ --format json -- {READS} {SPECULATIVE}")["plan"]

    assert plan["schema"] == "backend-caps/plan@1"
    assert plan["needs_cpu_seq_lens"] is True


@pytest.mark.parametrize(
    ("options", "flags", "needs"),
    [
        ("--rules sglang-0.5.13", SPECULATIVE, True),
        ("--rules sglang-0.5.13 --fact kv_cache_dtype=bfloat16", SPECULATIVE, False),
        ("--rules sglang-0.5.13", "--kv-cache-dtype bf16 --speculative-algorithm EAGLE", True),
        ("--rules sglang-0.5.23", "--kv-cache-dtype bf16 --speculative-algorithm EAGLE", False),
    ],
    ids=["unknown", "a fact", "older rules", "newer rules"],
)
def test_resolve_takes_facts_and_rules(
    acme: CommandLine, options: str, flags: str, *, needs: bool
) -> None:
    """A fact decides what the flags leave open; another version's rules hold where asked for."""
    plan = acme.json(f"resolve --path @ {options} --format json -- {LEAN} {flags}")

    assert plan["needs_cpu_seq_lens"] is needs


def test_explain_takes_sglangs_name(acme: CommandLine) -> None:
    """`needs_cpu_seq_lens` explains the capability that it is a name of."""
    line = "--path @ --format json -- --attention-backend acme_reads"

    by_name = acme.run(f"explain needs_cpu_seq_lens {line}")

    assert by_name.stdout == acme.run(f"explain host_seq_lens {line}").stdout


@pytest.mark.parametrize(
    ("flags", "crossed", "is_mirrored"),
    [
        pytest.param(f"{READS} {SPECULATIVE}", [24, 24], True, id="exact"),
        pytest.param(READS, [0, 0], True, id="no speculation"),
        pytest.param(f"{LEAN} {SPECULATIVE}", [0, 0], False, id="every backend opts out"),
    ],
)
def test_relay_shows_what_crosses(
    acme: CommandLine, flags: str, crossed: list[int], *, is_mirrored: bool
) -> None:
    """The steps of a relay say how many bytes crossed to the host, and what the host knows."""
    known = "--fact kv_cache_dtype=bfloat16"

    document = acme.json(f"relay --path @ --steps 2 {known} --format json -- {flags}")

    steps = document["steps"]
    assert document["schema"] == "backend-caps/relay@1"
    assert [step["bytes_to_host"] for step in steps] == crossed
    assert {step["seq_lens_cpu"] is not None for step in steps} == {is_mirrored}
