"""The committed evidence of the shipped backends is of what is here, and a run finds the same."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from backend_caps.capability.evidence import Evidence, Standing
from backend_caps.discovery.evidence import read_standings
from backend_caps.discovery.registry import Registry, discover
from backend_caps.kit import Effort, evidence_of, run_checks, subject_named
from backend_caps.kit.checks import CHECKS

_RENEW = "make evidence"
_SHIPPED = ("flex_attention", "torch_native", "torch_padded", "triton")
_LITTLE = Effort(seeds=range(1), num_steps=100)
_SLOW = (pytest.mark.soak, pytest.mark.timeout(1800))
_RERUN = (
    "torch_native",
    "torch_padded",
    pytest.param("flex_attention", marks=_SLOW),
    pytest.param("triton", marks=_SLOW),
)


@pytest.fixture(scope="module")
def registry() -> Registry:
    """What is installed."""
    return discover(environ={})


@pytest.fixture(scope="module")
def standings(registry: Registry) -> Mapping[str, Standing]:
    """The evidence that is committed, compared with what is here."""
    return read_standings(registry.entries)


def _committed(standings: Mapping[str, Standing], name: str) -> Evidence:
    standing = standings.get(name, Standing())
    assert standing.evidence is not None, f"{name} has no evidence; renew it: {_RENEW}"
    return standing.evidence


def _verdicts(evidence: Evidence) -> Mapping[str, tuple[str, str | None]]:
    checks = {check.code: (check.verdict, check.reason) for check in evidence.checks}
    claims = {claim.capability: (claim.verdict, claim.reason) for claim in evidence.claims}
    return {**checks, **claims}


@pytest.mark.parametrize("name", _SHIPPED)
def test_shipped_evidence_is_fresh(name: str, standings: Mapping[str, Standing]) -> None:
    """Neither the kit's release, torch, the source nor the declaration changed since the run."""
    _committed(standings, name)

    assert [str(each) for each in standings[name].changes] == [], f"renew it: {_RENEW}"


@pytest.mark.parametrize("name", _SHIPPED)
def test_shipped_evidence_is_of_every_check(name: str, standings: Mapping[str, Standing]) -> None:
    """A check that was added or renamed has looked at each shipped backend, and none failed."""
    evidence = _committed(standings, name)

    codes = [check.code for check in evidence.checks]

    assert codes == [check.code for check in CHECKS], f"renew it: {_RENEW}"
    assert standings[name].failed_checks == ()


@pytest.mark.slow
@pytest.mark.no_cover
@pytest.mark.parametrize("name", _RERUN)
def test_shipped_evidence_is_what_a_run_finds(
    name: str, registry: Registry, standings: Mapping[str, Standing]
) -> None:
    """A run of all checks, on one draw of each scenario, comes to the committed verdicts."""
    committed = _committed(standings, name)

    results = run_checks(subject_named(registry, name), CHECKS, effort=_LITTLE)

    found = evidence_of(results, _LITTLE, CHECKS)
    assert _verdicts(found) == _verdicts(committed), f"renew it: {_RENEW}"
