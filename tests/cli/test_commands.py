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
    result = acme.run(f"report --path @ --format json -- {READS} {SPECULATIVE}")

    plan = json.loads(result.stdout)["plan"]
    assert plan["schema"] == "backend-caps/plan@1"
    assert plan["needs_cpu_seq_lens"] is True


def test_resolve_takes_facts(acme: CommandLine) -> None:
    """A fact decides a condition that the flags leave open."""
    flags = f"{LEAN} {SPECULATIVE}"

    unknown = acme.run(f"resolve --path @ --rules sglang-0.5.13 --format json -- {flags}")
    known = acme.run(f"resolve --path @ --fact kv_cache_dtype=bfloat16 --format json -- {flags}")

    assert json.loads(unknown.stdout)["needs_cpu_seq_lens"] is True
    assert json.loads(known.stdout)["needs_cpu_seq_lens"] is False


def test_resolve_under_newer_rules(acme: CommandLine) -> None:
    """Another engine version's rules hold where they are asked for."""
    flags = "--attention-backend acme_lean --kv-cache-dtype bf16 --speculative-algorithm EAGLE"

    old = acme.run(f"resolve --path @ --rules sglang-0.5.13 --format json -- {flags}")
    new = acme.run(f"resolve --path @ --rules sglang-0.5.23 --format json -- {flags}")

    assert json.loads(old.stdout)["needs_cpu_seq_lens"] is True
    assert json.loads(new.stdout)["needs_cpu_seq_lens"] is False


def test_explain_takes_sglangs_name(acme: CommandLine) -> None:
    """`needs_cpu_seq_lens` explains the capability that it is a name of."""
    line = "--path @ --format json -- --attention-backend acme_reads"

    by_name = acme.run(f"explain needs_cpu_seq_lens {line}")

    assert by_name.stdout == acme.run(f"explain host_seq_lens {line}").stdout


@pytest.mark.parametrize(
    ("flags", "crossed"),
    [
        pytest.param("acme_reads --speculative-algorithm EAGLE", [24, 24], id="exact"),
        pytest.param("acme_reads", [0, 0], id="no speculation"),
    ],
)
def test_relay_shows_what_crosses(acme: CommandLine, flags: str, crossed: list[int]) -> None:
    """The steps of a relay say how many bytes crossed to the host."""
    result = acme.run(
        "relay --path @ --steps 2 --format json -- --disable-piecewise-cuda-graph"
        f" --attention-backend {flags}"
    )

    document = json.loads(result.stdout)
    assert document["schema"] == "backend-caps/relay@1"
    assert [step["bytes_to_host"] for step in document["steps"]] == crossed


def test_relay_without_a_mirror_crosses_nothing(acme: CommandLine) -> None:
    """Where every backend opts out, the host has no lengths and nothing crosses."""
    result = acme.run(
        f"relay --path @ --fact kv_cache_dtype=bfloat16 --format json -- {LEAN} {SPECULATIVE}"
    )

    steps = json.loads(result.stdout)["steps"]
    assert [step["bytes_to_host"] for step in steps] == [0, 0, 0]
    assert [step["seq_lens_cpu"] for step in steps] == [None, None, None]
