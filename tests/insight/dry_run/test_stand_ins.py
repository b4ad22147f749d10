"""Whose code runs in the place of whose, and what it may not change."""

from __future__ import annotations

import pytest

from backend_caps import (
    BatchKind,
    Capabilities,
    Declaration,
    HostSeqLens,
    Phase,
    Plan,
    Registry,
    Role,
    ServerFlags,
    SharedReadsEnd,
    Source,
    resolve,
)
from backend_caps.capability.backend import Backend, Status
from backend_caps.insight.errors import InsightError
from backend_caps.insight.stand_ins import run_plan
from backend_caps.resolution.rules import RuleSet
from backend_caps.simulator import register

ROLES = frozenset(Role)
NATIVE = "backend_caps_torch_native.native:TorchNative"
LEAN = Capabilities(
    host_seq_lens=HostSeqLens.NONE,
    graph_replay=frozenset(BatchKind),
    shared_reads_end=SharedReadsEnd.PRE_REPLAY,
    sync_free_prepare=True,
    max_context_len_known=True,
    roles=ROLES,
    page_sizes="any",
    devices="any",
)
DRAFTS = {
    "speculative_algorithm": "EAGLE",
    "speculative_eagle_topk": 1,
    "speculative_num_steps": 2,
    "disable_piecewise_cuda_graph": True,
}


def _backend(name: str, capabilities: Capabilities, implementation: str | None) -> Backend:
    return Backend(
        name=name,
        status=Status.OK,
        source=Source(distribution=f"{name}-caps", version="1.0"),
        declaration=Declaration(capabilities=capabilities, implementation=implementation),
    )


WORDS = "only what it declares is known (words-caps 1.0), and no code of it"


def _with(changes: dict[str, object]) -> Capabilities:
    return Capabilities.model_validate({**LEAN.stated(), **changes})


REGISTRY = Registry.of(
    [
        _backend("words", LEAN, None),
        _backend("gone", LEAN, "no_such_module:Attention"),
        _backend("lean", LEAN, NATIVE),
        _backend("reads", _with({"host_seq_lens": HostSeqLens.EXACT}), NATIVE),
        _backend("eager", _with({"graph_replay": frozenset()}), NATIVE),
        _backend("late", _with({"shared_reads_end": SharedReadsEnd.POST_REPLAY}), NATIVE),
        _backend("gpu", _with({"devices": {"cuda"}}), NATIVE),
        _backend("narrow", _with({"max_speculative_topk": 1}), NATIVE),
        _backend("target_only", _with({"roles": {Role.TARGET}}), NATIVE),
    ]
)


def _plan(backend: str | None = "words", **changes: object) -> Plan:
    flags = ServerFlags.model_validate({"attention_backend": backend, **DRAFTS, **changes})
    return resolve(REGISTRY.uses(flags), flags, rules=RuleSet.builtin("sglang-0.5.13"))


@pytest.fixture(autouse=True)
def registered() -> None:
    """The simulated device is there."""
    register()


@pytest.mark.parametrize(
    ("backend", "device", "told"),
    [
        pytest.param("words", "sim", WORDS, id="words"),
        pytest.param("gone", "sim", "No module named 'no_such_module'", id="not installed"),
        pytest.param("gpu", "cpu", "it takes device cuda, and here it is cpu", id="machine"),
    ],
)
def test_backend_that_cannot_run_is_reported_with_who_could(
    backend: str, device: str, told: str
) -> None:
    """Each backend that cannot run is named with why, and with those who could stand in."""
    with pytest.raises(InsightError) as raised:
        run_plan(_plan(backend), REGISTRY, device, {})

    assert raised.value.code == "cannot-run"
    assert f"on {device}: backend {backend!r}: {told}. Expected" in str(raised.value)
    assert "in their places would run: late, lean, narrow. " in str(raised.value)


@pytest.mark.parametrize(
    ("backend", "told"),
    [
        ("flashmla", " installed. Add --engine sglang too: unread, its own"),
        ("no_such", "Add --stand-in eager, or start where they are installed."),
        (None, "name it with --attention-backend."),
    ],
)
def test_backend_that_is_not_declared_is_reported_with_the_next_step(
    backend: str | None, told: str
) -> None:
    """A backend that nothing declares is refused with the option that would tell more."""
    with pytest.raises(InsightError) as raised:
        run_plan(_plan(backend), REGISTRY, "sim", {})

    assert told in str(raised.value)
    assert ("--engine" in str(raised.value)) is (backend == "flashmla")


def test_stand_in_keeps_what_was_decided() -> None:
    """The values of the plan are those that were decided, whoever runs."""
    plan = _plan()

    run = run_plan(plan, REGISTRY, "sim", dict.fromkeys(Role, "lean"))

    assert run.plan.digest == plan.digest
    assert {use.backend for use in run.plan.uses} == {"lean"}


def test_stand_in_may_be_another_for_each_role() -> None:
    """A role that names its own stand-in has it."""
    names = {Role.TARGET: "lean", Role.DRAFT: "late", Role.DRAFT_EXTEND: "late"}

    run = run_plan(_plan(), REGISTRY, "sim", names)

    assert {(Role(own.role), own.stand_in) for own in run.stand_ins} == {*names.items()}


def test_role_without_a_stand_in_cannot_run() -> None:
    """A stand-in for one role is none for another."""
    with pytest.raises(InsightError, match="this server cannot be started here"):
        run_plan(_plan(), REGISTRY, "sim", {Role.DRAFT: "lean"})


@pytest.mark.parametrize(
    ("name", "told"),
    [
        pytest.param("reads", "host_seq_lens is exact, and was decided to be none", id="lengths"),
        pytest.param("eager", "graph_replay in verify is none", id="graphs"),
        pytest.param("target_only", "does not take the role", id="roles"),
        pytest.param("gone", "No module named", id="not installed"),
        pytest.param("nobody", "no installed plugin declares it", id="unknown"),
    ],
)
def test_stand_in_that_asks_for_more_is_refused(name: str, told: str) -> None:
    """A stand-in that would make it another server is refused, with those who would not."""
    with pytest.raises(InsightError, match=told) as raised:
        run_plan(_plan(), REGISTRY, "sim", dict.fromkeys(Role, name))

    assert raised.value.code == "unfit-stand-in"
    assert "than was decided: late, lean, narrow. Name such a one" in str(raised.value)


def test_stand_in_that_reads_longer_is_said() -> None:
    """A barrier that stands later because of the stand-in is reported, by phase."""
    run = run_plan(_plan(), REGISTRY, "sim", dict.fromkeys(Role, "late"))

    ends = {(own.capability, own.phase, own.decided, own.here) for own in run.changes}
    assert ("shared_reads_end", Phase.VERIFY.value, "pre_replay", "post_replay") in ends


def test_ranks_of_the_server_are_left_out() -> None:
    """Flags that divide the work among ranks do not hold here, and are named."""
    run = run_plan(_plan("lean", tp_size=4, pp_size=2), REGISTRY, "sim", {})

    why = "each rank runs a whole model by itself"
    assert run.left_out == (f"--tp-size 4; {why}", f"--pp-size 2; {why}")
    assert run.plan.flags.tp_size == 1


def test_features_of_the_server_are_left_out() -> None:
    """Flags of features that the engine of a dry run lacks are named, and dropped."""
    run = run_plan(_plan("lean", unrelated=("--enable-lora", "--host")), REGISTRY, "sim", {})

    assert run.left_out == ("--enable-lora; the engine of a dry run has no LoRA",)
    assert run.plan.flags.unrelated == ()


@pytest.mark.parametrize(
    ("name", "asked", "idle"),
    [
        pytest.param("lean", {Role.TARGET: "late"}, ("late",), id="nobody has to"),
        pytest.param("fa3", dict.fromkeys(Role, "lean"), (), id="somebody has to"),
    ],
)
def test_stand_in_that_nobody_needs_is_said(
    name: str, asked: dict[Role, str], idle: tuple[str, ...]
) -> None:
    """Who was named for what runs by itself is reported, and stands in nowhere."""
    run = run_plan(_plan(name), REGISTRY, "sim", asked)

    assert run.idle_stand_ins == idle
    assert {own.stand_in for own in run.stand_ins}.isdisjoint(idle)


def test_stand_in_that_does_not_take_the_flags_is_refused() -> None:
    """A stand-in for which the drafts are too wide is named, and no other such one is offered."""
    plan = _plan(speculative_eagle_topk=4, speculative_num_draft_tokens=8)

    with pytest.raises(InsightError, match="--speculative-eagle-topk is 4") as raised:
        run_plan(plan, REGISTRY, "sim", dict.fromkeys(Role, "narrow"))

    assert "than was decided: late, lean. " in str(raised.value)
