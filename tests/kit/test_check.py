from __future__ import annotations

import pytest
import torch
from torch_native_caps import TORCH_NATIVE

from backend_caps import GraphMetadata, Registry, Role, SharedReadsEnd
from backend_caps.capability.backend import Backend, Status
from backend_caps.capability.provenance import BY_HAND
from backend_caps.kit import (
    Check,
    Effort,
    KitError,
    Subject,
    Verdict,
    find_case,
    require_device,
    run_checks,
    subject_named,
)
from backend_caps.kit.checks import CHECKS
from backend_caps.report.check_catalog import CATALOG, UnknownCheckError, checks_named
from backend_caps.runtime import ImplementationError
from backend_caps.startup.errors import StartupError
from tests.kit.made import HONEST, ODD, claiming, odd_check

OTHER = odd_check("other")


def _registry(implementation: str | None) -> Registry:
    declaration = HONEST.declaration.model_copy(update={"implementation": implementation})
    found = Backend(name="flash", status=Status.OK, source=BY_HAND, declaration=declaration)
    return Registry.of([found])


def test_subject_is_found_by_its_name() -> None:
    """A backend that is declared and can be imported can be checked."""
    registry = _registry(HONEST.declaration.implementation)

    assert subject_named(registry, "flash").name == "flash"


@pytest.mark.parametrize("implementation", [None, "nowhere:Flash"])
def test_subject_that_cannot_be_imported_is_refused(implementation: str | None) -> None:
    """What names no class, or none that is there, has nothing to run."""
    with pytest.raises(ImplementationError):
        subject_named(_registry(implementation), "flash")


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        pytest.param("flesh", "Did you mean 'flash'?", id="near"),
        pytest.param("xyz", "Install its plugin.", id="far"),
    ],
)
def test_unknown_subject_is_refused(name: str, remedy: str) -> None:
    """The error has the name, what is declared, and what to do."""
    with pytest.raises(KitError) as caught:
        subject_named(_registry(None), name)

    assert str(caught.value) == f"no backend {name!r} is declared; declared: flash. {remedy}"


def test_checks_run_in_their_own_order() -> None:
    """Whatever order they are named in; all, where none is named."""
    assert checks_named([ODD, OTHER], ["other", "made"]) == [ODD, OTHER]
    assert checks_named([ODD, OTHER], ["other"]) == [OTHER]
    assert checks_named([ODD, OTHER], []) == [ODD, OTHER]


def test_each_description_has_its_check() -> None:
    """What `check --list` describes is what runs, in that order."""
    assert [own.code for own in CHECKS] == [*CATALOG]


def test_unknown_check_is_refused() -> None:
    """The error lists those that there are."""
    with pytest.raises(UnknownCheckError, match="no check 'mode'; expected one of: made, other"):
        checks_named([ODD, OTHER], ["mode"])


@pytest.mark.parametrize("device", ["sim", "cpu"])
def test_device_that_is_here_is_taken(device: str) -> None:
    """The simulated device and the CPU are everywhere."""
    require_device(device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_device_that_is_not_here_is_refused() -> None:
    """A GPU is asked for where there is none."""
    with pytest.raises(StartupError):
        require_device("cuda")


NATIVE = Subject(name="torch_native", declaration=TORCH_NATIVE)
GRAPH_CHECKS = ("replay", "metadata", "addresses", "reads-end")
NO_BOUND = "it does not claim UPPER_BOUND: no bound is read"
EXCUSES = [
    *((code, NATIVE, "it claims no kind of batch in graph_replay") for code in GRAPH_CHECKS),
    *((code, HONEST, None) for code in GRAPH_CHECKS),
    (
        "metadata",
        claiming(graph_metadata=GraphMetadata.HOST),
        "it claims HOST, which asks for nothing",
    ),
    (
        "reads-end",
        claiming(shared_reads_end=SharedReadsEnd.UNKNOWN),
        "it claims UNKNOWN: the engine writes only after the forward's end",
    ),
    (
        "padding-harmless",
        claiming(graph_replay=frozenset()),
        "it claims no graph_replay, and only what is replayed is padded",
    ),
    ("mirror-absent", NATIVE, "it claims EXACT: the mirror is there"),
    ("mirror-bound", NATIVE, NO_BOUND),
    ("mirror-bound", HONEST, NO_BOUND),
    ("mirror-read", HONEST, "it claims NONE: nothing is asked for"),
    ("determinism", claiming(deterministic=False), "it does not claim deterministic"),
    ("batch-invariance", HONEST, "it does not claim batch_invariant"),
    ("two-batch", claiming(two_batch_overlap=False), "it does not claim two_batch_overlap"),
    (
        "roles",
        claiming(roles={Role.TARGET}, max_speculative_topk=1),
        "it claims the target's role alone, and no trees",
    ),
    (
        "serving",
        claiming(dtypes=frozenset({"bfloat16"})),
        "it does not take float32, and rounder numbers may choose other tokens",
    ),
]
CHECK_NAMED = {own.code: own for own in CHECKS}
every_check = pytest.mark.parametrize("check", CHECKS, ids=lambda own: own.code)


@pytest.mark.parametrize(("code", "subject", "reason"), EXCUSES)
def test_claim_that_asks_for_nothing_is_excused(
    code: str, subject: Subject, reason: str | None
) -> None:
    """The worst value of a claim is kept by everybody, and what nobody claims is not checked."""
    assert CHECK_NAMED[code].excuse(subject) == reason


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        *((code, "no graphs on cpu") for code in GRAPH_CHECKS),
        ("sync-free-prepare", "on cpu the host does the work itself, so it never waits"),
    ],
)
def test_check_that_the_cpu_cannot_run_says_why(code: str, reason: str) -> None:
    """Nothing is checked there, and nothing hinted at."""
    result = run_checks(HONEST, [CHECK_NAMED[code]], device="cpu").checks[0]

    assert (result.status, result.reason) == (Verdict.NOT_CHECKED, reason)
    assert list(result.hints) == []


@every_check
@pytest.mark.parametrize(("device", "seed"), [("sim", 1), ("cpu", 0)])
def test_honest_backend_holds(check: Check, device: str, seed: int) -> None:
    """A backend that keeps what it claims is failed by no check, on either device."""
    # A CPU runs work as it comes, and seed 0 has cases in that order of every check.
    effort = Effort(seeds=[seed], num_steps=100)
    excuse = check.unfit(device) or check.excuse(HONEST)

    result = run_checks(HONEST, [check], device=device, effort=effort).checks[0]

    assert [finding.fault.what for finding in result.findings] == []
    assert result.status is (Verdict.HELD if excuse is None else Verdict.NOT_CHECKED)


@every_check
def test_cases_are_found_by_name(check: Check) -> None:
    """The name that a finding prints is enough to repeat its case."""
    subject = claiming(batch_invariant=True)
    cases = list(check.cases(subject, Effort(seeds=[5])))

    found = [find_case(subject, [check], own.name)[1].name for own in cases]

    assert found == [own.name for own in cases]


@pytest.mark.parametrize(
    "code", ["sync-free-prepare", "races", "inputs-untouched", "padding-harmless", "batches-apart"]
)
def test_backend_that_raises_is_not_checked(code: str) -> None:
    """What cannot be run plainly says nothing of order and state: another check has to say it."""
    broken = HONEST.declaration.model_copy(update={"implementation": "nowhere:Nothing"})
    subject = Subject(name="own", declaration=broken)

    results = run_checks(subject, [CHECK_NAMED[code]], effort=Effort(seeds=[1]))

    assert results.checks[0].status is Verdict.NOT_CHECKED
