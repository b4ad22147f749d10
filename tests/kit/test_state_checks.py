from __future__ import annotations

from backend_caps import BatchKind
from backend_caps.kit import Check, CheckResult, Effort, run_checks
from backend_caps.kit.checks.writes import PADDING_HARMLESS
from backend_caps.kit.execution import cases_on
from tests.kit.made import claiming
from tests.kit.specimens import SUBJECTS


def _result(name: str, check: Check) -> CheckResult:
    return run_checks(SUBJECTS[name], [check], device="cpu", effort=Effort.quick()).checks[0]


def test_stray_padding_is_told_by_its_slots() -> None:
    """Padded tokens that go elsewhere are told, where the elsewhere is not the padding's page."""
    result = _result("padding_to_slot_one", PADDING_HARMLESS)

    stray = [own for own in result.findings if "wrote to slots 1, which" in own.fault.what]
    assert stray
    assert all(own.case.scenario and own.case.scenario.page_size == 1 for own in stray)


def test_only_what_is_replayed_is_padded() -> None:
    """Of kinds of batches those that are claimed are tried."""
    single = claiming(graph_replay=frozenset({BatchKind.SINGLE_TOKEN_DECODE}))

    tried = {own.scenario for own in cases_on("sim", PADDING_HARMLESS, single, Effort.quick())}

    assert {own.forward.value for own in tried if own is not None} == {"decode"}
