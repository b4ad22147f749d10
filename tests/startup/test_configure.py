"""From flags to a plan and the FutureMap that it configures."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from backend_caps import (
    Capabilities,
    Declaration,
    Exact,
    Facts,
    HostSeqLens,
    Phase,
    Registry,
    Role,
    RuleSet,
    ServerFlags,
    Source,
    configure,
    discover,
)
from backend_caps.capability.backend import Backend, Status
from backend_caps.engines.start import EngineStart
from backend_caps.relay import DraftShape
from backend_caps.resolution.errors import PlanRefusedError, ResolutionError
from backend_caps.resolution.launch import Launch, Refusal
from backend_caps.runtime import Engine, EngineOptions, UnfitBackendError
from backend_caps.runtime.model.random_models import random_llama
from backend_caps.simulator import simulate
from backend_caps.startup.errors import StartupError
from tests.unit.building import install_sglang
from tests.unit.report import engine_scene

ROLES = frozenset(Role)
EXACT = Capabilities(host_seq_lens=HostSeqLens.EXACT, roles=ROLES)
BOUND = Capabilities(host_seq_lens=HostSeqLens.UPPER_BOUND, max_context_len_known=True, roles=ROLES)
NONE = Capabilities(host_seq_lens=HostSeqLens.NONE, max_context_len_known=True, roles=ROLES)
FLAGS = ServerFlags(
    attention_backend="acme",
    speculative_algorithm="EAGLE",
    speculative_eagle_topk=1,
    disable_piecewise_cuda_graph=True,
)
NAMED = ServerFlags(attention_backend="acme")
configured = partial(configure, pool_size=8, device="cpu")


def _registry(capabilities: Capabilities) -> Registry:
    return Registry.of([_backend("acme", capabilities)])


def _padded(declared: Mapping[str, object]) -> Registry:
    """Register `torch_padded` as `acme`, with other words in its declaration."""
    own = discover()["torch_padded"].declaration
    assert own is not None
    capabilities = own.capabilities.model_copy(update=dict(declared))
    return Registry.of([_backend("acme", capabilities, implementation=own.implementation)])


def _backend(
    name: str, capabilities: Capabilities, *, implementation: str | None = None
) -> Backend:
    return Backend(
        name=name,
        status=Status.OK,
        source=Source(distribution="acme-caps", version="1.0"),
        declaration=Declaration(capabilities=capabilities, implementation=implementation),
    )


@pytest.mark.parametrize(
    ("capabilities", "mode"),
    [
        pytest.param(EXACT, HostSeqLens.EXACT, id="exact"),
        pytest.param(BOUND, HostSeqLens.UPPER_BOUND, id="upper bound"),
        pytest.param(NONE, HostSeqLens.NONE, id="none"),
        pytest.param(Capabilities(roles=ROLES), HostSeqLens.EXACT, id="undeclared"),
    ],
)
def test_configure_builds_the_map_of_the_plan(
    capabilities: Capabilities, mode: HostSeqLens
) -> None:
    """The FutureMap tells the host what the plan says."""
    draft = DraftShape(topk=1, accept_tokens=4)

    configuration = configured(FLAGS, draft=draft, registry=_registry(capabilities))

    assert configuration.plan["host_seq_lens"].value is mode
    assert configuration.future_map.host_seq_lens is mode


def test_configure_rounds_a_bound_up_where_nothing_bounds_a_step() -> None:
    """Without the tokens a step can accept there is no bound: exact, and the cause says why."""
    configuration = configured(FLAGS, draft=DraftShape(topk=1), registry=_registry(BOUND))
    plan = configuration.plan

    assert configuration.future_map.host_seq_lens is HostSeqLens.EXACT
    assert plan["host_seq_lens"].causes[0].reason == (
        "neither the draft shape nor the flags say how many tokens a step can accept, so there "
        "is no bound to keep"
    )


def test_configure_takes_the_step_from_the_flags() -> None:
    """The flag that says how many tokens a verify takes bounds a step too."""
    flags = FLAGS.updated({"speculative_num_draft_tokens": 4})

    future_map = configured(flags, registry=_registry(BOUND)).future_map

    assert future_map.host_seq_lens is HostSeqLens.UPPER_BOUND


def test_configure_looks_around_by_itself() -> None:
    """Without a registry, what is installed is found."""
    flags = ServerFlags(attention_backend="torch_padded", speculative_algorithm="EAGLE")

    plan = configured(flags.updated({"disable_piecewise_cuda_graph": True})).plan

    assert plan["host_seq_lens"].value is HostSeqLens.NONE
    assert {use.source.distribution for use in plan.uses} == {"backend-caps-torch-native"}


def test_configure_takes_rules_of_no_known_version() -> None:
    """Rules that were read from an engine hold as those that come with the package."""
    rules = replace(RuleSet.builtin("sglang-0.5.23"), name="sglang-9.9")

    assert configured(FLAGS, registry=_registry(EXACT), rules=rules).plan.rules == rules


_LAUNCH = Launch(
    engine="sglang-0.5.23",
    machine="H100",
    model="llama-3.1-8b",
    flags={"attention_backend": "triton", "page_size": 64},
)


def test_configure_takes_what_an_engine_ends_with() -> None:
    """The engine's own backend, page size and rules hold."""
    start = EngineStart(reading=engine_scene.SGLANG, launch=_LAUNCH)

    plan = configured(ServerFlags(), registry=_registry(NONE), engine=start).plan

    assert {use.named for use in plan.uses} == {"triton"}
    assert (plan.flags.page_size, plan.launch) == (64, _LAUNCH)
    assert plan.rules.name == "sglang-0.5.23"


def test_configure_refuses_what_an_engine_refuses() -> None:
    """Its own words and line are the problem; strict raises it."""
    refusal = Refusal(message="no triton here", at="sglang/srt/server_args.py:7")
    start = EngineStart(reading=engine_scene.SGLANG, launch=replace(_LAUNCH, refusal=refusal))

    with pytest.raises(PlanRefusedError, match=r"no triton here \(sglang/srt/server_args.py:7\)"):
        configured(ServerFlags(), registry=_registry(NONE), engine=start, policy="strict")


def test_configure_logs_the_decision(caplog: pytest.LogCaptureFixture) -> None:
    """One line, and its fields, have the fingerprint, the rules and each value's first cause."""
    caplog.set_level(logging.DEBUG, "backend_caps")

    plan = configured(FLAGS, registry=_registry(EXACT)).plan

    assert caplog.messages[0].startswith(
        f"plan {plan.fingerprint} under sglang-0.5.23 (the newest known; no SGLang is installed): "
        "host_seq_lens=exact (backend acme); two_batch_overlap=no (backend acme); "
        "deterministic=no (backend acme); batch_invariant=no (backend acme); "
        "max_speculative_topk=1 (backend acme); page_sizes=not checked (within any) "
        "(backend acme); prefill.graph_replay=none "
    )
    fields = vars(caplog.records[0])
    assert fields["plan_fingerprint"] == plan.fingerprint
    assert fields["plan_values"]["host_seq_lens"] == "exact (backend acme)"
    assert len(fields["plan_values"]) == len([*plan.values()])
    (told,) = [own.getMessage() for own in caplog.records if own.levelno == logging.DEBUG]
    assert json.loads(told)["fingerprint"] == plan.fingerprint


def test_configure_takes_the_rules_of_the_installed_engine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where nobody names rules, those of the installed SGLang hold, and the log says so."""
    install_sglang("0.5.13", tmp_path, monkeypatch)
    caplog.set_level(logging.INFO, "backend_caps")

    plan = configure(FLAGS, pool_size=8, device="cpu", registry=_registry(EXACT)).plan

    assert plan.rules.name == "sglang-0.5.13"
    assert "under sglang-0.5.13 (the installed version): " in caplog.messages[0]


@pytest.mark.parametrize(("policy", "levels"), [("warn", ["INFO", "WARNING"]), ("quiet", ["INFO"])])
def test_configure_warns_of_problems(
    caplog: pytest.LogCaptureFixture, policy: str, levels: list[str]
) -> None:
    """What is wrong with a plan is a warning, unless the policy is quiet."""
    caplog.set_level(logging.INFO, "backend_caps")

    configured(FLAGS, registry=_registry(EXACT), policy=policy)

    assert [record.levelname for record in caplog.records] == levels


def test_configure_refuses_problems_under_strict() -> None:
    """Under strict what is wrong with a plan is an error."""
    with pytest.raises(PlanRefusedError, match="does not say which device it takes"):
        configured(FLAGS, registry=_registry(EXACT), policy="strict")


@pytest.mark.parametrize("policy", ["warn", "quiet"])
def test_configure_refuses_a_backend_that_takes_no_such_device(policy: str) -> None:
    """A backend that declares other devices is refused at start, and what would do is named."""
    on_cuda = _backend("acme", EXACT.model_copy(update={"devices": {"cuda"}}))
    registry = Registry.of([on_cuda, _backend("good", EXACT)])

    with pytest.raises(ResolutionError) as raised:
        configured(FLAGS, registry=registry, policy=policy)

    assert str(raised.value) == (
        "--attention-backend names 'acme', which cannot run here: device-unsupported: backend "
        "'acme' takes device cuda; here it is cpu. Use another backend, or device cuda. In its "
        "place these fit: good. Name one of them, or auto, or change what it does not take."
    )


def test_configure_says_where_nothing_would_do() -> None:
    """Where no installed backend fits in the place of the refused one, that is said."""
    registry = _registry(EXACT.model_copy(update={"devices": {"cuda"}, "dtypes": {"float16"}}))

    with pytest.raises(ResolutionError) as raised:
        configured(FLAGS, registry=registry, facts=Facts(dtype="float32"))

    assert str(raised.value) == (
        "--attention-backend names 'acme', which cannot run here:\n"
        "  device-unsupported: backend 'acme' takes device cuda; here it is cpu. Use another "
        "backend, or device cuda.\n"
        "  dtype-unsupported: backend 'acme' takes dtype float16; here it is float32. Use another "
        "backend, or dtype float16.\n"
        "In its place no installed backend fits. Install one that does, or change what it does "
        "not take."
    )


def test_auto_takes_no_stand_in_for_another_device() -> None:
    """Under auto a backend for CUDA alone is passed over on the simulated device, and that said."""
    only_cuda = NONE.model_copy(update={"devices": {"cuda"}})
    registry = Registry.of([_backend("acme", only_cuda), _backend("good", NONE)])
    flags = FLAGS.updated({"attention_backend": "auto"})

    with simulate("eager"):
        plan = configured(flags, device="sim", registry=registry).plan

    (rejected,) = plan.choices[0].rejected
    assert plan.flags.attention_backend == "good"
    assert "by its name it is tried on the simulated device" in rejected.reasons[0].remedy


def test_stand_in_for_a_device_is_taken_for_any(tmp_path: Path) -> None:
    """No backend could know the simulated device: neither `configure` nor the engine refuses."""
    random_llama(tmp_path, vocab_size=64, hidden_size=16)
    registry = _padded({"devices": frozenset({"cuda"})})

    with simulate("eager"):
        plan = configured(NAMED, device="sim", registry=registry).plan
        engine = Engine.from_plan(
            tmp_path, plan, "sim", options=EngineOptions(graph_batch_sizes=())
        )

        assert engine.backends.uses[Phase.DECODE].backend == "acme"
        assert plan.facts.device == "sim"


def test_engine_takes_an_overridden_page_size(tmp_path: Path) -> None:
    """Nobody refuses a page size that the operator has put in place of the declared one."""
    random_llama(tmp_path, vocab_size=64, hidden_size=16)
    plan = configured(
        NAMED.updated({"page_size": 16}),
        registry=_padded({"page_sizes": Exact(64)}),
        unsafe_override=Capabilities(page_sizes=Exact(16)),
    ).plan

    assert plan["page_sizes"].value == Exact(16)
    assert Engine.from_plan(tmp_path, plan, "cpu").memory.page_size == 16


def test_engine_refuses_a_page_size_that_a_fact_contradicts(tmp_path: Path) -> None:
    """Where a fact speaks of other pages than the flags, backends are asked about the real ones."""
    random_llama(tmp_path, vocab_size=64, hidden_size=16)
    plan = configured(
        NAMED.updated({"page_size": 16}),
        registry=_padded({"page_sizes": Exact(64)}),
        facts=Facts(page_size=64),
    ).plan

    with pytest.raises(UnfitBackendError, match="takes page_size 64; here it is 16"):
        Engine.from_plan(tmp_path, plan, "cpu")


def test_configure_chooses_where_the_flag_says_auto(caplog: pytest.LogCaptureFixture) -> None:
    """With auto, the best backend that fits is configured; plan and log say it was chosen."""
    caplog.set_level(logging.INFO, "backend_caps")
    fits = NONE.model_copy(update={"auto_priority": 10})
    best = EXACT.model_copy(update={"auto_priority": 90, "devices": {"cuda"}})
    flags = FLAGS.updated({"attention_backend": "auto"})

    configuration = configured(
        flags, registry=Registry.of([_backend("good", fits), _backend("best", best)])
    )
    plan, future_map = configuration.plan, configuration.future_map

    assert future_map.host_seq_lens is HostSeqLens.NONE
    assert plan.flags.attention_backend == "good"
    assert plan["host_seq_lens"].causes[0].reason == (
        "declares host_seq_lens=none (chosen by --attention-backend auto)"
    )
    assert caplog.messages[0] == (
        "--attention-backend auto is good (priority 10; 1 of 2 installed backends fit)"
    )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: only it tells more")
def test_configure_asks_a_cuda_device_for_its_facts() -> None:
    """A CUDA device tells its compute capability, unless it is said."""
    told, said = (
        configured(FLAGS, device="cuda", registry=_registry(EXACT), facts=facts).plan
        for facts in (None, Facts(compute_capability=(7, 5), rocm=False))
    )

    assert told.facts.compute_capability == torch.cuda.get_device_capability()
    assert said.facts.compute_capability == (7, 5)


def test_configure_refuses_auto_where_nothing_fits() -> None:
    """With auto and no backend that fits, the error has every reason."""
    registry = _registry(EXACT.model_copy(update={"devices": {"cuda"}}))
    flags = FLAGS.updated({"attention_backend": "auto"})

    with pytest.raises(ResolutionError, match="takes device cuda; here it is cpu"):
        configured(flags, registry=registry)


def test_configure_refuses_a_device_that_is_not_there() -> None:
    """A device that torch cannot use here is named."""
    with pytest.raises(StartupError, match=r"^device 'xpu:0' is not available"):
        configured(FLAGS, device="xpu:0", registry=_registry(EXACT))


def test_configure_records_an_override() -> None:
    """An override configures the map, and stands among the causes."""
    override = Capabilities(host_seq_lens=HostSeqLens.NONE)

    configuration = configured(FLAGS, registry=_registry(EXACT), unsafe_override=override)

    assert configuration.future_map.host_seq_lens is HostSeqLens.NONE
    assert configuration.plan["host_seq_lens"].causes[0].kind.value == "override"


def test_configure_leaves_the_environment_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """`configure` writes no environment variable."""
    monkeypatch.setattr("backend_caps.startup.configure.discover", lambda: _registry(EXACT))
    before = dict(os.environ)

    configured(FLAGS)

    assert dict(os.environ) == before
