"""What each command prints, and the status it exits with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backend_caps.simulator import simulate
from tests.cli.conftest import DECLARATIONS, ENTRY_POINTS, CommandLine

READS = "--attention-backend acme_reads"
LEAN = "--attention-backend acme_lean"
SPECULATIVE = "--speculative-algorithm EAGLE --disable-piecewise-cuda-graph"


def test_report_is_a_table_by_default(acme: CommandLine) -> None:
    """Without a format, the report is a table of backends and what they declare."""
    result = acme.run("report --path @")

    assert result.exit_code == 0
    cells = [line.split() for line in result.stdout.splitlines()]
    assert ["acme_lean", "ok", "acme", "1.0", "acme_caps.py:6"] in cells
    assert ["host_seq_lens", "none", "*", "exact"] in cells


def test_report_as_json_has_the_published_keys(acme: CommandLine) -> None:
    """A report's JSON names its schema, the backends, what is wrong, and no plan unasked."""
    result = acme.run("report --path @ --format json")

    document = json.loads(result.stdout)
    assert document.keys() == {"schema", "backends", "problems", "plan"}
    assert document["schema"] == "backend-caps/report@1"
    assert [backend["name"] for backend in document["backends"]] == ["acme_lean", "acme_reads"]
    assert document["plan"] is None


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


def test_report_of_nothing_says_so(tmp_path: Path, acme: CommandLine) -> None:
    """A folder without plugins is a report, not an error."""
    empty = tmp_path / "empty"
    empty.mkdir()

    result = acme.run(f"report --path {empty}")

    assert result.exit_code == 0
    assert "No installed distribution declares a backend." in result.stdout


def test_report_refuses_a_broken_plugin_under_strict(acme: CommandLine) -> None:
    """A plugin that cannot be read is shown; under strict it is exit status 1 as well."""
    acme.install("bad", "[backend_caps.backends]\nbad = bad_caps:X\n", "raise RuntimeError('no')")

    warned = acme.run("report --path @")
    strict = acme.run("report --path @ --policy strict")

    assert (warned.exit_code, strict.exit_code) == (0, 1)
    assert " bad          broken " in strict.stdout
    assert strict.stderr.startswith("error: ")


def test_resolve_prints_what_decided(acme: CommandLine) -> None:
    """The table of a plan names the value, what it costs and who decided it."""
    result = acme.run(f"resolve --path @ -- {READS} {SPECULATIVE}")

    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    cost = "a D2H copy and a host wait in every overlapped speculative step"
    assert f"host_seq_lens is exact ({cost})" in lines
    assert "because backend acme_reads: declares host_seq_lens=exact" in lines


def test_resolve_is_markdown_on_request(acme: CommandLine) -> None:
    """Markdown has the same sections as the table."""
    result = acme.run(f"resolve --path @ --format markdown -- {LEAN} {SPECULATIVE}")

    assert result.exit_code == 0
    assert "| server | value | effect | decided by |" in result.stdout.splitlines()


def test_resolve_takes_facts(acme: CommandLine) -> None:
    """A fact decides a condition that the flags leave open."""
    flags = f"{LEAN} {SPECULATIVE}"

    unknown = acme.run(f"resolve --path @ --format json -- {flags}")
    known = acme.run(f"resolve --path @ --fact kv_cache_dtype=bfloat16 --format json -- {flags}")

    assert json.loads(unknown.stdout)["needs_cpu_seq_lens"] is True
    assert json.loads(known.stdout)["needs_cpu_seq_lens"] is False


def test_resolve_records_an_override(acme: CommandLine) -> None:
    """An override is in the plan, with itself as a cause."""
    result = acme.run(
        "resolve --path @ --unsafe-override host_seq_lens=none --format json"
        f" -- {READS} {SPECULATIVE}"
    )

    value = json.loads(result.stdout)["server"]["host_seq_lens"]
    assert value["value"] == "none"
    assert value["causes"][0]["kind"] == "override"


def test_resolve_under_newer_rules(acme: CommandLine) -> None:
    """Another engine version's rules hold where they are asked for."""
    flags = "--attention-backend acme_lean --kv-cache-dtype bf16 --speculative-algorithm EAGLE"

    old = acme.run(f"resolve --path @ --format json -- {flags}")
    new = acme.run(f"resolve --path @ --rules sglang-0.5.23 --format json -- {flags}")

    assert json.loads(old.stdout)["needs_cpu_seq_lens"] is True
    assert json.loads(new.stdout)["needs_cpu_seq_lens"] is False


def test_explain_names_every_cause(acme: CommandLine) -> None:
    """An explanation lists each cause with its words, place and source."""
    result = acme.run(f"explain --path @ -- {READS} {SPECULATIVE}")

    assert result.exit_code == 0
    assert "backend acme_reads" in result.stdout
    assert "in acme 1.0, acme_caps.py:3" in result.stdout
    assert "Set --attention-backend acme_lean." not in result.stdout


def test_explain_tells_what_to_do_about_a_missing_backend(acme: CommandLine) -> None:
    """A backend that only an engine has is no dead end: the engine can be read."""
    result = acme.run(f"explain --path @ -- --attention-backend fa3 {SPECULATIVE}")

    assert "backend fa3   exact (missing)" in result.stdout
    assert (
        "Add --engine sglang, where a command takes it, to read the engine's own;" in result.stdout
    )


def test_explain_takes_a_capability_and_a_phase(acme: CommandLine) -> None:
    """Only what was asked for is explained."""
    result = acme.run(
        f"explain graph_replay --phase decode --path @ --format markdown -- {LEAN} {SPECULATIVE}"
    )

    headings = [line for line in result.stdout.splitlines() if line.startswith("## graph")]
    assert headings == ["## graph\\_replay in decode = single\\_token\\_decode"]


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


@pytest.mark.parametrize(
    ("device", "column"),
    [pytest.param("cpu", "would cross", id="cpu"), pytest.param("sim", "crossed", id="streams")],
)
def test_relay_says_that_nothing_crosses_on_a_cpu(
    acme: CommandLine, device: str, column: str
) -> None:
    """Where host and device are one memory, the bytes are those that would cross."""
    with simulate():
        shown = acme.run(f"relay --path @ --device {device} --format markdown -- {READS}").stdout

    assert f"| lengths, host | {column} |" in shown


def test_relay_without_a_mirror_crosses_nothing(acme: CommandLine) -> None:
    """Where every backend opts out, the host has no lengths and nothing crosses."""
    result = acme.run(
        f"relay --path @ --fact kv_cache_dtype=bfloat16 --format json -- {LEAN} {SPECULATIVE}"
    )

    steps = json.loads(result.stdout)["steps"]
    assert [step["bytes_to_host"] for step in steps] == [0, 0, 0]
    assert [step["seq_lens_cpu"] for step in steps] == [None, None, None]


def test_relay_refuses_a_device_that_is_not_there(acme: CommandLine) -> None:
    """A device that torch cannot use is named, with what to do."""
    result = acme.run("relay --path @ --device xpu -- --attention-backend acme_reads")

    assert result.exit_code == 1
    assert result.stderr == (
        "error: device 'xpu' is not available to torch on this machine. Name one that is, such "
        "as 'cpu', or install the torch build for it.\n"
    )
