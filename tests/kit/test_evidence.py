from __future__ import annotations

import platform
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path
from types import ModuleType

import pytest
import torch

from backend_caps.capability.evidence import UNVERIFIABLE, Evidence, Standing, changes_since
from backend_caps.capability.facts import FEATURES
from backend_caps.capability.kind import UNDECLARED
from backend_caps.capability.provenance import Source
from backend_caps.capability.vocabulary import CAPABILITIES
from backend_caps.discovery.evidence import (
    KIT_AND_TORCH,
    Implementation,
    imports_of,
    present_of,
    versions_of,
)
from backend_caps.kit import (
    Effort,
    KitError,
    Subject,
    Verdict,
    claims_of,
    evidence_file,
    evidence_of,
    run_checks,
    write_evidence,
)
from backend_caps.kit.checks import CHECKS
from tests.kit.made import HONEST, ODD, claiming, odd_check

_DAY = date(2026, 11, 22)
_EVEN, _ODD = Effort(seeds=(0, 2)), Effort(seeds=(0, 1))
_SHIPPED = replace(HONEST, source=Source(distribution="backend-caps-torch-native", version="0.1.0"))


def _evidence(effort: Effort, device: str = "sim", subject: Subject = _SHIPPED) -> Evidence:
    results = run_checks(subject, [ODD], effort=effort)
    return evidence_of(replace(results, device=device), effort, [ODD], day=_DAY)


def _pointing_at(implementation: str | None) -> Subject:
    update = {"implementation": implementation}
    return replace(HONEST, declaration=HONEST.declaration.model_copy(update=update))


def test_evidence_is_fresh_where_it_was_written() -> None:
    """What the kit writes, a report on the same machine finds unchanged, and verified."""
    written = _evidence(_EVEN)
    pointer, imports = HONEST.declaration.implementation, imports_of(None)
    implementation = Implementation.of(pointer or "", imports)
    assert implementation is not None

    versions = versions_of(KIT_AND_TORCH, imports)
    now = present_of(HONEST.declaration, _SHIPPED.source, implementation, versions)

    standing = Standing(evidence=written, changes=changes_since(written, now))
    assert (standing.changes, standing.state("host_seq_lens")[1]) == ((), None)


def test_evidence_says_what_became_of_checks() -> None:
    """Verdict, cases and seeds of each check are there, and the forwards that ran."""
    written = _evidence(_ODD)

    (check,) = written.checks
    assert (check.code, check.verdict, check.num_cases, check.seeds) == (
        "made",
        "failed",
        2,
        (0, 1),
    )
    assert (written.exercised, written.effort.seeds) == (("target/decode",), (0, 1))


def test_evidence_says_why_a_claim_was_not_checked() -> None:
    """A claim that no check is about is there too, with its reason."""
    claims = {each.capability: each for each in _evidence(_EVEN).claims}

    assert (claims["host_seq_lens"].verdict, claims["host_seq_lens"].reason) == ("held", None)
    assert (claims["dtypes"].verdict, claims["dtypes"].reason) == (
        "not checked",
        "no check is about it",
    )


@pytest.mark.parametrize(
    ("claim", "is_run", "verdict", "reason"),
    [
        pytest.param(
            "host_seq_lens",
            False,
            Verdict.NOT_CHECKED,
            "its checks were not asked for",
            id="left out",
        ),
        pytest.param(
            "roles",
            True,
            Verdict.NOT_CHECKED,
            "no case has draft, draft_extend",
            id="no case has it all",
        ),
        pytest.param("dtypes", True, Verdict.HELD, None, id="every case has it"),
    ],
)
def test_claim_is_checked_where_cases_had_all_of_it(
    claim: str, *, is_run: bool, verdict: Verdict, reason: str | None
) -> None:
    """What was left out, or no case had, was not looked at."""
    check = odd_check("made", claim=claim)
    results = run_checks(HONEST, [check] if is_run else [], effort=_EVEN)

    (claimed,) = [each for each in claims_of(results, [check]) if each.capability == claim]

    assert (claimed.status, claimed.reason) == (verdict.value, reason)


def test_capability_that_is_left_out_is_undeclared() -> None:
    """It says what it counts as, and what that costs; evidence leaves it out."""
    subject = claiming(host_seq_lens=UNDECLARED)
    results = run_checks(subject, [ODD], effort=_EVEN)

    (claim,) = [own for own in claims_of(results, [ODD]) if own.capability == "host_seq_lens"]

    assert (claim.status, claim.value) == ("undeclared", "undeclared")
    assert claim.reason == (
        "counts as exact: a D2H copy and a host wait in every overlapped speculative step"
    )
    written = evidence_of(results, _EVEN, [ODD], day=_DAY)
    assert "host_seq_lens" not in {own.capability for own in written.claims}


def test_capability_that_fails_as_its_worst_value_has_failed() -> None:
    """What is left out does not excuse a fault."""
    results = run_checks(claiming(host_seq_lens=UNDECLARED), [ODD], effort=_ODD)

    (claim,) = [own for own in claims_of(results, [ODD]) if own.capability == "host_seq_lens"]

    assert (claim.status, claim.reason) == ("failed", None)


def test_evidence_of_the_same_run_is_the_same() -> None:
    """Nothing in it but the date is of one run."""
    texts = {_evidence(_EVEN).text() for _ in range(2)}

    assert len(texts) == 1


def test_evidence_is_of_today_unless_given() -> None:
    """The date is the day of the run."""
    written = evidence_of(run_checks(HONEST, [ODD], effort=_EVEN), _EVEN, [ODD])

    assert abs((date.today() - written.date).days) <= 1  # noqa: DTZ011 - of whichever time zone


def test_evidence_names_what_it_ran_under() -> None:
    """Python, torch and distribution are there; Triton only where the code imports it."""
    versions = _evidence(_EVEN).versions

    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert (versions.python, versions.torch) == (python, torch.__version__.partition("+")[0])
    assert (versions.triton, versions.distribution) == (None, "backend-caps-torch-native")


def test_evidence_of_a_kernel_names_triton(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the implementation imports Triton, its version counts."""
    (tmp_path / "triton-3.7.1.dist-info").mkdir()
    (tmp_path / "kerneled.py").write_text("def load():\n    import triton.language\n")
    monkeypatch.syspath_prepend(tmp_path)
    results = run_checks(HONEST, [])

    written = evidence_of(replace(results, subject=_pointing_at("kerneled:Kernel")), _EVEN, [])

    assert written.versions.triton == "3.7.1"


@pytest.mark.parametrize(
    ("device", "name"), [("sim", "simulated accelerator"), ("cpu", platform.machine())]
)
def test_evidence_names_its_device(device: str, name: str) -> None:
    """The device has the name that it calls itself."""
    found = _evidence(_EVEN, device).device

    assert (found.type, found.name) == (device, name)


def test_evidence_is_written_beside_the_implementation(tmp_path: Path) -> None:
    """Its folder is made, and its text is what the evidence says."""
    file = tmp_path / "evidence" / "made.json"
    written = _evidence(_EVEN)

    is_new = write_evidence(written, file)

    assert (is_new, Evidence.model_validate_json(file.read_bytes())) == (True, written)


def test_evidence_of_the_same_run_keeps_its_date(tmp_path: Path) -> None:
    """A file that says the same stays as it is."""
    file = tmp_path / "made.json"
    written = _evidence(_EVEN)
    write_evidence(written, file)

    is_new = write_evidence(written.model_copy(update={"date": date(2027, 1, 1)}), file)

    assert (is_new, file.read_text()) == (False, written.text())


@pytest.mark.parametrize("before", ["{", None, "failed"])
def test_evidence_takes_the_place_of_other(tmp_path: Path, before: str | None) -> None:
    """What is no evidence, or says something else, is written over."""
    file = tmp_path / "made.json"
    if before is not None:
        file.write_text(_evidence(_ODD).text() if before == "failed" else before)

    assert write_evidence(_evidence(_EVEN), file)


def test_evidence_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """A file where a folder would have to be is reported with what to do."""
    (tmp_path / "evidence").write_text("")

    with pytest.raises(KitError, match=r"not written: made\.json: Not a directory") as raised:
        write_evidence(_evidence(_EVEN), tmp_path / "evidence" / "made.json")

    assert "--write-evidence FILE" in str(raised.value)


def test_evidence_file_lies_in_the_package() -> None:
    """The file of a backend is named after it."""
    parts = evidence_file(HONEST).parts[-3:]
    assert parts == ("backend_caps_torch_native", "evidence", f"{HONEST.name}.json")


@pytest.mark.parametrize("implementation", [None, "__main__:Backend"])
def test_backend_in_no_file_has_nowhere_to_keep_evidence(
    implementation: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without files there is nothing that could be seen to change."""
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))  # as typed at a prompt

    with pytest.raises(KitError, match="in no file that can be found"):
        evidence_file(_pointing_at(implementation))


def test_every_capability_but_a_few_has_a_check() -> None:
    """What is believed without evidence is where a backend runs; features wait for a check."""
    about = {claim for check in CHECKS for claim in check.claims}

    assert CAPABILITIES.keys() - about == UNVERIFIABLE | FEATURES
