"""What each command prints, as text and as a page, and the status it exits with."""

from __future__ import annotations

import json
from functools import wraps
from pathlib import Path

import pytest

from backend_caps.capability.vocabulary import CAPABILITIES
from backend_caps.relay import FutureMap, RelayBatch
from backend_caps.report.check_catalog import CATALOG, CheckListDocument
from backend_caps.report.check_views import check_list_view, check_view
from backend_caps.report.html.page import page
from backend_caps.report.sections import Lines
from backend_caps.simulator import simulate
from backend_caps.startup.configuration import Configuration
from tests.cases import cases_of, compare
from tests.cli.conftest import CASES, DECLARATIONS, ENTRY_POINTS, CommandLine
from tests.unit.report.stored import checked

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


FLAGS = (
    "--attention-backend torch_native --speculative-algorithm EAGLE --speculative-eagle-topk 1 "
    "--disable-piecewise-cuda-graph --context-length 128"
)


class Seen:
    """Collects the maps of configurations, and those that steps read."""

    def __init__(self) -> None:
        self.configured: list[FutureMap] = []
        self.read: list[FutureMap] = []


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """Look on while configurations are made and maps are read."""
    noted, made, resolve = Seen(), Configuration.from_plan, FutureMap.resolve_future

    def from_plan(*args: object, **named: object) -> Configuration:
        configuration = made(*args, **named)  # type: ignore[arg-type]
        noted.configured.append(configuration.future_map)
        return configuration

    @wraps(resolve)
    def resolve_future(self: FutureMap, batch: RelayBatch) -> None:
        noted.read.append(self)
        resolve(self, batch)

    monkeypatch.setattr(Configuration, "from_plan", from_plan)
    monkeypatch.setattr(FutureMap, "resolve_future", resolve_future)
    return noted


@pytest.mark.parametrize(
    "command",
    [
        pytest.param("generate --prompts 2 --max-new-tokens 3", id="generate"),
        pytest.param("relay", id="relay"),
        pytest.param("dry-run --steps 3", id="dry-run"),
        pytest.param("trace --steps 2", id="trace"),
        pytest.param("explain host_seq_lens --measure", id="measure"),
    ],
)
def test_steps_of_a_command_read_the_configured_map(
    command: str, acme: CommandLine, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every map that a step reads belongs to a configuration; there is at least one step."""
    monkeypatch.setenv("BACKEND_CAPS_PLUGINS", "backend-caps-torch-native")

    result = acme.run(f"{command} -- {FLAGS}")

    assert result.exit_code == 0, result.stderr
    assert {id(own) for own in seen.read} == {id(own) for own in seen.configured} != set()


_FLAGS = "--attention-backend acme_reads --speculative-algorithm EAGLE"


@pytest.mark.parametrize(
    ("line", "title"),
    [
        pytest.param("report --path @", "Installed backends", id="report"),
        pytest.param(f"resolve --path @ -- {_FLAGS}", "Plan ", id="resolve"),
        pytest.param("select --path @", "--attention-backend auto is", id="select"),
        pytest.param("config show", "Config", id="config"),
        pytest.param("check --list", "Check list", id="check"),
    ],
)
def test_command_prints_a_page(line: str, title: str, acme: CommandLine) -> None:
    """A document is written as one page, with its title."""
    own, separator, flags = line.partition(" -- ")

    result = acme.run(f"{own} --format html{separator}{flags}")

    assert (result.exit_code, result.stdout[:15]) == (0, "<!doctype html>")
    assert f"<title>{title}" in result.stdout


def test_explanation_stands_open_on_its_page(acme: CommandLine) -> None:
    """Of the values of a plan, those are open that were asked for."""
    result = acme.run(f"explain page_sizes --path @ --format html -- {_FLAGS}")

    (opened,) = result.stdout.split("<details open>")[1:]
    assert opened.partition("</b>")[0].strip() == "<summary><b>page_<wbr>sizes"


def test_explanation_of_a_phase_stands_open_there_alone(acme: CommandLine) -> None:
    """Of a value of several phases, only that of the phase that was asked for is open."""
    line = "explain graph_replay --phase verify --path @ --format html"

    before, opened = acme.run(f"{line} -- {_FLAGS}").stdout.split("<details open>")
    assert "<h3>In verify</h3>" in before
    assert opened.partition("</b>")[0].strip() == "<summary><b>graph_<wbr>replay"


def test_claims_and_checks_stand_open_on_their_page() -> None:
    """What a check was run for is not folded, though it claims and checks all that there is."""
    failed = checked()
    (claim, *_), (check, *_) = failed.claims, failed.checks
    claims = [claim.model_copy(update={"capability": name}) for name in CAPABILITIES]
    checks = [check.model_copy(update={"code": code}) for code in CATALOG]
    whole = failed.model_copy(update={"claims": claims, "checks": checks})
    about = [each for each in check_view(whole) if not isinstance(each, Lines)]

    assert "<details" not in page(whole, about)


def test_failed_claim_is_seen_among_others() -> None:
    """What failed has a shape before its word, as in a report, and so has what held."""
    text = page(checked(), check_view(checked()))

    shapes = ('<use href="#failed"/></svg> failed<', '<use href="#verified"/></svg> held<')
    assert [text.count(shape) for shape in shapes] == [3, 1]
    assert "<td>not checked</td>" in text


def test_check_list_is_no_check() -> None:
    """The page of all checks is not called by the first of them."""
    document = CheckListDocument(schema_="backend-caps/check-list@1", checks=[*CATALOG.values()])

    assert "<h1>Check list</h1>" in page(document, check_list_view(document))
