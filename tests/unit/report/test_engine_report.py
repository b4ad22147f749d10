from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from backend_caps import Origin, Part, Phase, ServerFlags, flips, resolve
from backend_caps.capability.backend import Backend
from backend_caps.engines.reading import EngineReading
from backend_caps.report.backend_views import report_view
from backend_caps.report.backends import ReportDocument, report_document
from backend_caps.report.plan_views import explain_view
from backend_caps.report.plans import PlanDocument, plan_document
from backend_caps.report.sections import Heading, Lines, Table, markdown
from tests.unit.building import OPTS_OUT, installed
from tests.unit.report import engine_scene
from tests.unit.report.conftest import Golden, Shown

LINE = "--attn triton --speculative-algorithm EAGLE"
"""A server under the small SGLang."""


def _report(
    reading: EngineReading, *plugins: Backend, plan: PlanDocument | None = None
) -> ReportDocument:
    backends = (*reading.registry.entries, *plugins)
    return report_document(backends, reading.problems, plan, reading=reading)


def _plan(line: str = LINE) -> PlanDocument:
    reading = engine_scene.SGLANG
    registry = reading.registry
    read = ServerFlags.from_argv(line.split(), engine_name=engine_scene.COMMAND_LINE)
    resolved = resolve(registry.uses(read), read, rules=engine_scene.RULES)
    return plan_document(resolved, flips(resolved, registry, read), engine="sglang 0.5.23")


def _with_plan() -> ReportDocument:
    return _report(engine_scene.SGLANG, installed("acme", OPTS_OUT), plan=_plan())


_REPORTS: list[tuple[str, Callable[[], ReportDocument]]] = [
    ("engine-sglang", lambda: _report(engine_scene.SGLANG)),
    ("engine-vllm", lambda: _report(engine_scene.VLLM)),
    ("engine-with-plan", _with_plan),
]


@pytest.mark.parametrize(("name", "report"), _REPORTS, ids=[name for name, _ in _REPORTS])
def test_engine_report_is_known_to_the_last_letter(
    name: str, report: Callable[[], ReportDocument], golden: Golden, shown: Shown
) -> None:
    """A report on an engine is drawn where the output is no terminal, and written as markdown."""
    golden(f"{name}.txt", shown(report_view(report())))
    golden(f"{name}.md", markdown(report_view(report())))


@pytest.mark.parametrize(("name", "report"), _REPORTS[:2], ids=["sglang", "vllm"])
def test_engine_report_is_written_as_json(
    name: str, report: Callable[[], ReportDocument], golden: Golden
) -> None:
    """Of a report on an engine, what the classes state is known as JSON, which is read back."""
    document = report()
    written = json.loads(document.model_dump_json())

    for backend in written["backends"]:
        said = backend["capabilities"].items()
        backend["capabilities"] = {n: each for n, each in said if "words" in each}
    golden(f"{name}.json", json.dumps(written, indent=2) + "\n")
    assert ReportDocument.model_validate_json(document.model_dump_json()) == document


def test_keys_of_an_engine_are_left_out_of_a_plugin() -> None:
    """A plugin's document under an engine is the one it has without."""
    plugin = _with_plan().model_dump(mode="json")["backends"][-1]

    engines = {"class", "registered_as", "classes", "composite", "attributes"}
    assert (plugin["name"], engines & plugin.keys()) == ("acme", set())


def test_explanation_names_the_engine() -> None:
    """The heading of an explanation says whose value it is."""
    heading = next(iter(explain_view(_plan(), ["host_seq_lens"], None)))

    assert isinstance(heading, Heading)
    assert heading.text.startswith("host_seq_lens with sglang 0.5.23 = exact (")


def _lines_of(backend: Backend, heading: str) -> tuple[str, ...]:
    told = list(report_view(_report(replace(engine_scene.SGLANG, backends=(backend,)))))
    at = [isinstance(s, Heading) and s.text == heading for s in told].index(True)
    lines = told[at + 1]
    assert isinstance(lines, Lines)
    return lines.lines


def test_name_with_a_part_of_some_phases_says_so() -> None:
    """A name that one class serves in a few places alone depends on the place."""
    name = engine_scene.read_name("lone", Part("OneBackend", phases={Phase.DECODE}))

    lines = _lines_of(name, "Names whose class depends on something")

    assert lines == ("lone: OneBackend as anything in decode",)


def test_condition_without_a_place_has_none() -> None:
    """Where the reader could not say the line, none is shown."""
    reading = engine_scene.says("set by __init__", Origin.CONDITIONAL)
    read = engine_scene.read_class("A", "a.py:1", {"host_seq_lens": reading})

    lines = _lines_of(read, "What depends on what")

    assert lines == ("A: host_seq_lens depends: set by __init__",)


def test_engine_that_says_nothing_has_its_classes() -> None:
    """Classes that state no capability are rows without columns."""
    read = engine_scene.read_class("A", "a.py:1")
    silent = replace(engine_scene.SGLANG, backends=(read,), rules=None, problems=())

    sections = list(report_view(_report(silent)))

    told = "sglang 0.5.23, read from sglang-0.5.23-py3-none-any.whl: 1 class, 0 names; "
    table = Table(("class, where", "registered as"), (("A\na.py:1", ""),), "names")
    assert sections == [Heading(f"{told}58 of 2,141 files parsed"), table]


@pytest.mark.parametrize(
    ("name", "cell", "drawn"),
    [
        pytest.param("needs_cpu_seq_lens", "none", ["needs_", "cpu_", "seq_", "lens"], id="narrow"),
        pytest.param("needs_cpu_seq_lens", "x" * 12, ["needs_cpu_", "seq_lens"], id="wider"),
        pytest.param("needs_cpu_seq_lens", "x" * 18, ["needs_cpu_seq_lens"], id="wide enough"),
        pytest.param("where", "a", ["where"], id="one word"),
    ],
)
def test_names_of_columns_break_at_underscores(
    name: str, cell: str, drawn: list[str], shown: Shown
) -> None:
    """A column of short cells has a name of several lines, each of whole words."""
    text = shown([Table((name,), ((cell,),), "names")])

    head = [line.strip() for line in text.splitlines()]
    assert head[1 : head.index(cell) - 1] == drawn
