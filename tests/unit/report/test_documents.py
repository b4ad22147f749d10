from __future__ import annotations

import json

import pytest
from pydantic import JsonValue

from backend_caps.capability.backend import Status
from backend_caps.capability.kind import ANY, UNDECLARED
from backend_caps.capability.sets import ComputeRange, Conflict, Exact, MultipleOf, OneOf, Unchecked
from backend_caps.capability.vocabulary import NO_LIMIT, BatchKind, HostSeqLens
from backend_caps.report.backend_views import evidence_rows, evidence_view
from backend_caps.report.backends import ReportDocument, report_document
from backend_caps.report.document import Document, json_of, json_text
from backend_caps.report.plans import PlanDocument, plan_document
from backend_caps.report.sections import Heading, Table
from backend_caps.resolution.resolver import resolve
from tests.unit.building import OPTS_OUT, RULES_13, at_rank, broken, flags, use
from tests.unit.report import scene
from tests.unit.report.conftest import Golden


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
    actual = json_of(value)

    assert actual == written


class _Paths(Document):
    paths: dict[str, tuple[str, ...]]


def test_json_text_writes_out_what_utf8_cannot_hold() -> None:
    """A path that is not UTF-8 is legible in JSON that any reader takes."""
    document = _Paths(paths={"a": ("named\udce9", "na\u00efve")})

    text = json_text(document)

    assert json.loads(text.encode()) == {"paths": {"a": ["named\\udce9", "na\u00efve"]}}


def test_json_of_what_is_no_value_is_our_own_fault() -> None:
    """What no capability can have fails loudly."""
    with pytest.raises(AssertionError, match=r"^no capability has the value b'cuda'$"):
        json_of(b"cuda")


def test_plan_document_keeps_a_ranks_number() -> None:
    """A cause of a joined plan says which rank it comes from."""
    resolved = at_rank(resolve([use("fa3", OPTS_OUT)], flags(), rules=RULES_13), 3)

    document = plan_document(resolved, ())

    ranks = {cause.rank for cause in document.server["host_seq_lens"].causes}
    assert ranks == {3}


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
    """A plugin's backend that the kit has not run is told, and no composite or broken one."""
    checked, *others = scene.BACKENDS[:4]
    document = report_document([checked, *others], (), None, {"fa3": scene.STANDINGS["fa3"]})

    rows = [row for row in evidence_rows(document.backends) if row[0] != "fa3"]

    assert rows == [("triton", "never", "it has no evidence")]


def test_report_without_evidence_has_no_section_of_it() -> None:
    """Where there is none, nothing is said of it; where it holds no claim, there is no legend."""
    unsaid = report_document(scene.BACKENDS[4:5], (), None, scene.STANDINGS)

    sections = [[*evidence_view(each.backends)] for each in (scene.report(None), unsaid)]

    assert [[type(each) for each in found] for found in sections] == [[], [Heading, Table]]
