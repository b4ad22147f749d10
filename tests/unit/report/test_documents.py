from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from pydantic import JsonValue

from backend_caps import ANY, UNDECLARED, Origin, Part, Phase, ServerFlags, flips, resolve
from backend_caps.capability.backend import Backend, Status
from backend_caps.capability.sets import ComputeRange, Conflict, Exact, MultipleOf, OneOf, Unchecked
from backend_caps.capability.vocabulary import NO_LIMIT, BatchKind, HostSeqLens
from backend_caps.engines.reading import EngineReading
from backend_caps.report.backend_views import evidence_rows, evidence_view, report_view
from backend_caps.report.backends import ReportDocument, report_document
from backend_caps.report.document import Document, json_of, json_text
from backend_caps.report.plan_views import explain_view
from backend_caps.report.plans import PlanDocument, plan_document
from backend_caps.report.sections import Heading, Lines, Table, in_words, markdown
from tests.unit.building import OPTS_OUT, RULES_13, at_rank, broken, flags, installed, use
from tests.unit.report import engine_scene, scene
from tests.unit.report.conftest import Golden, Shown


@pytest.mark.parametrize(
    ("value", "written"),
    [
        pytest.param(True, True, id="granted"),
        pytest.param(4, 4, id="a limit"),
        pytest.param(NO_LIMIT, None, id="no limit"),
        pytest.param(HostSeqLens.UPPER_BOUND, "upper_bound", id="a level"),
        pytest.param(UNDECLARED, "undeclared", id="undeclared"),
        pytest.param(ANY, "any", id="any"),
        pytest.param(frozenset({"xpu", "cuda"}), ["cuda", "xpu"], id="words, sorted"),
        pytest.param(
            frozenset({BatchKind.UNIFORM_BATCH, BatchKind.MIXED_BATCH}),
            ["mixed_batch", "uniform_batch"],
            id="members, sorted",
        ),
        pytest.param(frozenset(), [], id="an empty set"),
        pytest.param((ComputeRange((8, 0), (9, 0)),), [">= 8.0 and < 9.0"], id="windows"),
        pytest.param(Exact(64), {"exact": 64}, id="one size"),
        pytest.param(MultipleOf(16), {"multiple_of": 16}, id="multiples"),
        pytest.param(OneOf({128, 64}), {"one_of": [64, 128]}, id="a few sizes"),
        pytest.param(Unchecked(), {"unchecked": "any"}, id="unchecked"),
        pytest.param(Unchecked(Exact(16)), {"unchecked": {"exact": 16}}, id="partly checked"),
        pytest.param(Conflict(("a", "b")), {"conflict": ["a", "b"]}, id="a conflict"),
    ],
)
def test_json_of_writes_each_kind_of_value(value: object, written: JsonValue) -> None:
    """Each kind of value has one form in JSON."""
    assert json_of(value) == written


class _Paths(Document):
    paths: dict[str, tuple[str, ...]]


def test_json_text_writes_out_what_utf8_cannot_hold() -> None:
    """A path that is not UTF-8 is legible in JSON that any reader takes."""
    text = json_text(_Paths(paths={"a": ("named\udce9", "na\u00efve")}))

    assert json.loads(text.encode()) == {"paths": {"a": ["named\\udce9", "na\u00efve"]}}


def test_json_of_what_is_no_value_is_our_own_fault() -> None:
    """What no capability can have fails loudly."""
    with pytest.raises(AssertionError, match=r"^no capability has the value b'cuda'$"):
        json_of(b"cuda")


def test_plan_document_keeps_a_ranks_number() -> None:
    """A cause of a joined plan says which rank it comes from."""
    resolved = at_rank(resolve([use("fa3", OPTS_OUT)], flags(), rules=RULES_13), 3)

    document = plan_document(resolved, ())

    assert {cause.rank for cause in document.server["host_seq_lens"].causes} == {3}


@pytest.mark.parametrize(
    ("name", "line"), [("plan-forced.json", scene.FORCED), ("plan-free.json", scene.FREE)]
)
def test_plan_document_is_written_whole(name: str, line: str, golden: Golden) -> None:
    """A plan's JSON is known to the last letter, and is read back as the same."""
    _, document = scene.plan(line)

    text = document.model_dump_json(indent=2) + "\n"

    golden(name, text)
    assert PlanDocument.model_validate_json(text) == document


def test_report_document_is_written_whole(golden: Golden) -> None:
    """A report's JSON is known to the last letter; with a plan too it is read back as the same."""
    document, planned = scene.report(None), scene.report(scene.FORCED)

    golden("report.json", document.model_dump_json(indent=2) + "\n")
    assert ReportDocument.model_validate_json(planned.model_dump_json()) == planned


def test_report_document_says_how_claims_stand(golden: Golden) -> None:
    """Of each claim with evidence what is known, and of each backend where that comes from."""
    backends = {each.name: each for each in scene.verified().backends}

    written = {
        name: {
            "evidence": None if each.evidence is None else each.evidence.model_dump(mode="json"),
            "claims": {n: said.evidence for n, said in each.capabilities.items() if said.evidence},
        }
        for name, each in backends.items()
    }

    golden("evidence.json", json.dumps(written, indent=2) + "\n")


def test_claim_that_was_not_read_has_no_evidence() -> None:
    """A backend that is broken has no claims that could stand."""
    document = report_document([broken("fa3", Status.BROKEN)], (), None, scene.STANDINGS)

    assert document.backends[0].evidence is None


def test_backend_without_evidence_beside_others_is_said_to_have_none() -> None:
    """A plugin's backend that the kit has not run is reported, and no composite or broken one."""
    checked, *others = scene.BACKENDS[:4]
    document = report_document([checked, *others], (), None, {"fa3": scene.STANDINGS["fa3"]})

    rows = [row for row in evidence_rows(document.backends) if row[0] != "fa3"]

    assert rows == [("triton", "never", "it has no evidence")]


def test_report_without_evidence_has_no_section_of_it() -> None:
    """Where there is none, nothing is said of it; where it holds no claim, there is no legend."""
    unsaid = report_document(scene.BACKENDS[4:5], (), None, scene.STANDINGS)

    sections = [[*evidence_view(each.backends)] for each in (scene.report(None), unsaid)]

    assert [[type(each) for each in found] for found in sections] == [[], [Heading, Table]]


LINE = "--attn triton --speculative-algorithm EAGLE"
"""A server under the small SGLang."""


def _report(
    reading: EngineReading, *plugins: Backend, plan: PlanDocument | None = None
) -> ReportDocument:
    backends = (*reading.registry.entries, *plugins)
    return report_document(backends, reading.problems, plan, reading=reading)


def _plan(line: str = LINE) -> PlanDocument:
    registry = engine_scene.SGLANG.registry
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
    heading = next(iter(in_words(explain_view(_plan(), ["host_seq_lens"], None))))

    assert isinstance(heading, Heading)
    assert heading.text.startswith("host_seq_lens with sglang 0.5.23 = exact (")


def _lines_of(backend: Backend, heading: str) -> tuple[str, ...]:
    told = list(report_view(_report(replace(engine_scene.SGLANG, backends=(backend,)))))
    lines = told[[isinstance(s, Heading) and s.text == heading for s in told].index(True) + 1]
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
