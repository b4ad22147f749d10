"""What counts where evidence is required."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from backend_caps.capability.backend import Backend, EngineClass, Reading, Status
from backend_caps.capability.declaration import Part, When
from backend_caps.capability.evidence import UNVERIFIABLE, Change, Standing, believed
from backend_caps.capability.facts import Facts, Given
from backend_caps.capability.kind import Phase, Role
from backend_caps.capability.provenance import Origin
from backend_caps.capability.sets import Exact
from backend_caps.capability.vocabulary import CAPABILITIES, BatchKind, Capabilities, HostSeqLens
from backend_caps.resolution.flips import flips
from backend_caps.resolution.plan import Plan
from backend_caps.resolution.resolver import resolve
from backend_caps.resolution.routing import uses_of
from backend_caps.resolution.selection import select
from tests.unit.building import OPTS_OUT, RULES_13, SPECULATING, broken, flags, installed, named
from tests.unit.evidence import HELD, evidence, verified

_UNVERIFIED = Standing()
_SINGLE = frozenset({BatchKind.SINGLE_TOKEN_DECODE})
_ON_CUDA, _DECODES = Given(device={"cuda"}), Given(phase={Phase.DECODE})


def _plan(backends: Mapping[str, Backend], line: str = "", facts: Facts | None = None) -> Plan:
    read = flags(f"--attention-backend fa3 {SPECULATING} {line}")
    return resolve(uses_of(read, backends), read, facts=facts, rules=RULES_13)


def _stated(backend: Backend) -> Mapping[str, object]:
    assert backend.declaration is not None
    return backend.declaration.capabilities.stated()


def _words(backend: Backend) -> Mapping[str, str]:
    return {name: each.words for name, each in backend.unverified.items()}


def test_unverified_claim_counts_as_undeclared() -> None:
    """What is claimed and not verified is the worst value, and the cause says why."""
    mirror = _plan(named(believed(installed("fa3", OPTS_OUT), _UNVERIFIED)))["host_seq_lens"]

    cause = mirror.causes[0]
    assert (mirror.value, cause.origin) == (HostSeqLens.EXACT, Origin.UNVERIFIED)
    assert cause.reason == (
        "declares host_seq_lens=none, not verified (no evidence): counts as undeclared"
    )


def test_verified_claim_counts() -> None:
    """Evidence that held makes a claim count, and the bound that it needs."""
    backend = believed(
        installed("fa3", OPTS_OUT), verified("host_seq_lens", "max_context_len_known")
    )

    mirror = _plan(named(backend))["host_seq_lens"]

    assert (mirror.value, mirror.causes[0].origin) == (HostSeqLens.NONE, Origin.DECLARED)


def test_stale_claim_says_what_changed() -> None:
    """The cause of a stale claim names the change."""
    change = Change(what="source", was="sha256:5", now="sha256:6")
    stale = Standing(evidence=evidence({"host_seq_lens": HELD}), changes=(change,))
    backend = believed(installed("fa3", OPTS_OUT), stale)

    cause = _plan(named(backend))["host_seq_lens"].causes[0]

    assert "not verified (stale: the source changed)" in cause.reason


def test_worst_value_needs_no_evidence() -> None:
    """Who claims the worst claims nothing that could be wrong."""
    backend = believed(installed("fa3", Capabilities(two_batch_overlap=False)), _UNVERIFIED)

    assert (_stated(backend), backend.unverified) == ({"two_batch_overlap": False}, {})


def test_what_no_check_is_about_stays() -> None:
    """Where a backend runs, and how early it is chosen, is believed."""
    best = {name: CAPABILITIES[name].best for name in UNVERIFIABLE}
    backend = believed(installed("fa3", Capabilities.model_validate(best)), _UNVERIFIED)

    assert _stated(backend).keys() == UNVERIFIABLE


@pytest.mark.parametrize("status", [Status.BROKEN, Status.SKIPPED])
def test_backend_without_a_declaration_stays_as_it_is(status: Status) -> None:
    """Nothing can be taken out of what was not read."""
    backend = broken("fa3", status)

    assert believed(backend, _UNVERIFIED) is backend


def test_composite_stays_as_it_is() -> None:
    """A composite can only add needs: its parts are what is verified."""
    backend = installed("hybrid", Capabilities(two_batch_overlap=True), parts=[Part("fa3")])

    assert believed(backend, _UNVERIFIED) is backend


def _conditional(
    base: Capabilities, given: Given, capabilities: Capabilities, standing: Standing
) -> Backend:
    when = When(given=given, capabilities=capabilities, reason="a path of its own")
    return believed(installed("fa3", base, conditions=[when]), standing)


@pytest.mark.parametrize(
    ("given", "claimed", "believed_kinds"),
    [
        pytest.param(_ON_CUDA, set(BatchKind), _SINGLE, id="better on a machine"),
        pytest.param(_ON_CUDA, set(), frozenset(), id="worse on a machine"),
        pytest.param(_ON_CUDA, {BatchKind.MIXED_BATCH}, frozenset(), id="other on a machine"),
        # In which use it is, the kit decides.
        pytest.param(_DECODES, set(BatchKind), frozenset(BatchKind), id="better in a use"),
    ],
)
def test_condition_is_believed_as_far_as_it_is_checked(
    given: Given, claimed: set[BatchKind], believed_kinds: frozenset[BatchKind]
) -> None:
    """Evidence is of what holds whatever the machine is: a condition may only take away."""
    base, better = Capabilities(graph_replay=_SINGLE), Capabilities(graph_replay=claimed)

    backend = _conditional(base, given, better, verified("graph_replay"))

    assert backend.declaration is not None
    (when,) = backend.declaration.conditions
    assert when.capabilities.graph_replay == believed_kinds


def test_sizes_that_a_condition_changes_are_not_verified() -> None:
    """Where the base and a condition share no size, nothing that both take is left."""
    base, other = Capabilities(page_sizes=Exact(16)), Capabilities(page_sizes=Exact(24))

    backend = _conditional(base, _ON_CUDA, other, verified("page_sizes"))

    assert (list(backend.unverified), _stated(backend)) == (["page_sizes"], {})


def test_condition_loses_what_is_not_verified() -> None:
    """Of a condition, what no check is about is left."""
    both = Capabilities(graph_replay=set(BatchKind), auto_priority=5)

    backend = _conditional(Capabilities(), Given(role={Role.TARGET}), both, _UNVERIFIED)

    assert backend.declaration is not None
    (when,) = backend.declaration.conditions
    assert when.capabilities == Capabilities(auto_priority=5)
    assert _words(backend) == {
        "graph_replay": "declares graph_replay, under a condition, not verified (no evidence): "
        "counts as undeclared"
    }


def test_claim_that_only_a_condition_makes_is_not_verified() -> None:
    """A value that holds on one device alone was looked at by no check."""
    backend = _conditional(
        Capabilities(), _ON_CUDA, Capabilities(graph_replay=_SINGLE), verified("graph_replay")
    )

    assert _words(backend) == {
        "graph_replay": "declares graph_replay, under a condition, not verified (no check looks at "
        "conditions on machine or server): counts as undeclared"
    }


def _remedies(backend: Backend, line: str = "") -> set[str]:
    plan = _plan(named(backend), line)
    return {
        remedy.text
        for flip in flips(plan, named(backend), plan.flags)
        for remedy in flip.remedies
        if flip.capability in {"host_seq_lens", "graph_replay"}
    }


def test_flip_is_to_verify() -> None:
    """What would change the value is evidence of what is declared, by the command for it."""
    remedies = _remedies(believed(installed("fa3", OPTS_OUT), _UNVERIFIED))

    both = "Verify host_seq_lens=none and max_context_len_known=yes"
    assert f"{both}: backend-caps check fa3 --write-evidence." in remedies


def test_class_of_an_engine_cannot_be_verified() -> None:
    """There is no evidence of an engine's own class, so no flip asks for it."""
    reading = Reading(origin=Origin.DECLARED, words="needs_cpu_seq_lens = False")
    read = EngineClass(path="engine.Flash", readings={"host_seq_lens": reading})
    flash = replace(installed("flash", OPTS_OUT), engine_class=read)
    backends = named(installed("fa3", parts=[Part("flash")]), believed(flash, _UNVERIFIED))

    plan = _plan(backends)

    remedies = [each for flip in flips(plan, backends, plan.flags) for each in flip.remedies]
    assert plan["host_seq_lens"].causes[0].origin is Origin.UNVERIFIED
    assert [each.text for each in remedies if "Verify" in each.text] == []


def test_flip_beyond_what_is_declared_is_to_declare_it() -> None:
    """Verifying a claim brings no more than it claims."""
    backend = installed("fa3", Capabilities(roles=set(Role), graph_replay=_SINGLE))

    remedies = _remedies(believed(backend, verified("roles")))

    of_graphs = sorted(text for text in remedies if "graph_replay" in text)
    assert of_graphs == [
        "Have 'fa3' declare graph_replay=mixed_batch, if that is true.",
        "Have 'fa3' declare graph_replay=uniform_batch, if that is true.",
        "Verify graph_replay=single_token_decode: backend-caps check fa3 --write-evidence.",
    ]


def test_flip_is_to_declare_what_only_a_condition_claims() -> None:
    """A claim that no check can look at is to be made without its condition."""
    remedies = _remedies(
        _conditional(Capabilities(), _ON_CUDA, Capabilities(graph_replay=_SINGLE), _UNVERIFIED)
    )

    assert "Have 'fa3' declare graph_replay=single_token_decode, if that is true." in remedies


def test_unverified_roles_are_a_problem_to_verify() -> None:
    """A drafter whose roles nobody checked is reported with its own words."""
    backends = named(believed(installed("fa3", OPTS_OUT), _UNVERIFIED))

    (found,) = [each for each in _plan(backends).problems if each.code == "role-not-declared"]

    assert "declares roles=draft, draft_extend, target, not verified (no evid" in found.message
    assert found.remedy == "Verify it: backend-caps check fa3 --write-evidence."


def test_unverified_dtypes_are_a_problem_to_verify() -> None:
    """A dtype that is claimed and not verified is open, as one that is not claimed."""
    backends = named(believed(installed("fa3", Capabilities(dtypes={"float32"})), _UNVERIFIED))

    plan = _plan(backends, facts=Facts(dtype="float32"))

    (found,) = [each for each in plan.problems if each.code == "dtype-not-checked"]
    assert found.message == (
        "backend 'fa3' declares dtypes=float32, not verified (no evidence): counts as undeclared; "
        "here dtype is float32."
    )
    assert found.remedy == "Verify it: backend-caps check fa3 --write-evidence."


def test_unverified_topk_is_open() -> None:
    """A tree that a backend claims to take, unverified, is not known to be refused."""
    wide = Capabilities(max_speculative_topk=8, roles=set(Role))
    backends = named(believed(installed("fa3", wide), verified("roles")))

    plan = _plan(backends, "--speculative-eagle-topk 4")

    assert "speculative-topk-not-declared" in {found.code for found in plan.problems}


def test_unverified_backend_may_be_chosen() -> None:
    """`auto` takes a backend that nothing speaks against, and says what nobody verified."""
    backends = named(believed(installed("fa3", Capabilities(dtypes={"float32"})), _UNVERIFIED))

    read, facts = flags("--attention-backend auto"), Facts(dtype="float32")

    (candidate,) = select(backends, read, facts=facts, rules=RULES_13).choices[0].fitting
    assert "dtype-not-checked" in {found.code for found in candidate.unchecked}
