from __future__ import annotations

import pytest
from torch_native_caps import TORCH_NATIVE

from backend_caps.kit import Check, CheckResult, Effort, Subject, Verdict, run_case, run_checks
from backend_caps.kit.checks import CHECKS
from backend_caps.kit.checks.overlap import SERVING, TWO_BATCH
from tests.kit.made import HONEST, claiming
from tests.kit.specimens import SUBJECTS


def _result(subject: Subject, check: Check, *seeds: int, device: str = "sim") -> CheckResult:
    effort = Effort(seeds=seeds, num_steps=100)
    return run_checks(subject, [check], device=device, effort=effort).checks[0]


@pytest.mark.slow
def test_two_batch_starves_each_stream() -> None:
    """What eager and lazy orders hide shows where the stream of the layers starves."""
    subject = SUBJECTS["wait_of_the_first_half"]

    cases = list(TWO_BATCH.cases(subject, Effort.quick()))
    faulted = {str(own.schedule) for own in cases if run_case(subject, TWO_BATCH, own).findings}

    others = {"starve:0", "starve:1", "starve:2", "random:0", "random:1"}
    assert {str(own.schedule) for own in cases} == {"eager", "lazy"} | others
    assert "starve:0" in faulted <= others


def test_serving_is_after_whatever_it_needs() -> None:
    """Serving says nothing where another check has found why tokens are wrong."""
    quiet = {"memory", "mirror-read", "determinism", "batch-invariance", "declaration-hygiene"}

    others = {own.code for own in CHECKS} - {"serving"}
    assert set(SERVING.after) == others - quiet


def test_serving_leaves_drafts_of_the_host_alone() -> None:
    """What an n-gram drafts hangs on what else was served, so it may be another one."""
    assert _result(HONEST, SERVING, 2).status is Verdict.HELD


def test_serving_on_another_device_is_not_checked() -> None:
    """Where the engine refuses the device by what is declared, nothing is said against it."""
    result = _result(claiming(devices=frozenset({"cuda"})), SERVING, 0, device="cpu")
    assert result.status is Verdict.NOT_CHECKED
    assert "device" in result.reason


def test_chains_alone_are_served_without_trees() -> None:
    """Who takes no tree is asked for none."""
    subject = Subject(name="torch_native", declaration=TORCH_NATIVE)

    cases = SERVING.cases(subject, Effort(seeds=range(4)))
    found = {own.scenario.forward.value for own in cases if own.scenario}
    assert found == {"decode", "mixed", "verify"}
