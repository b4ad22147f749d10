"""From flags to a plan and the FutureMap that it configures."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from backend_caps import (
    Capabilities,
    Declaration,
    HostSeqLens,
    Registry,
    Role,
    RuleSet,
    ServerFlags,
    Source,
    configure,
)
from backend_caps.capability.backend import Backend, Status
from backend_caps.relay import DraftShape
from backend_caps.resolution.errors import PlanRefusedError
from backend_caps.startup.configure import UnavailableDeviceError

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


def _registry(capabilities: Capabilities) -> Registry:
    backend = Backend(
        name="acme",
        status=Status.OK,
        source=Source(distribution="acme-caps", version="1.0"),
        declaration=Declaration(capabilities=capabilities),
    )
    return Registry.of([backend])


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

    plan, future_map = configure(
        FLAGS, pool_size=8, device="cpu", draft=draft, registry=_registry(capabilities)
    )

    assert plan["host_seq_lens"].value is mode
    assert future_map.host_seq_lens is mode


def test_configure_rounds_a_bound_up_where_nothing_bounds_a_step() -> None:
    """Without the tokens a step can accept there is no bound: exact, and the cause says why."""
    plan, future_map = configure(
        FLAGS, pool_size=8, device="cpu", draft=DraftShape(topk=1), registry=_registry(BOUND)
    )

    assert future_map.host_seq_lens is HostSeqLens.EXACT
    assert plan["host_seq_lens"].causes[0].reason == (
        "neither the draft shape nor the flags say how many tokens a step can accept, so there "
        "is no bound to keep"
    )


def test_configure_takes_the_step_from_the_flags() -> None:
    """The flag that says how many tokens a verify takes bounds a step too."""
    flags = FLAGS.updated({"speculative_num_draft_tokens": 4})

    _, future_map = configure(flags, pool_size=8, device="cpu", registry=_registry(BOUND))

    assert future_map.host_seq_lens is HostSeqLens.UPPER_BOUND


def test_configure_looks_around_by_itself() -> None:
    """Without a registry, what is installed is found."""
    flags = ServerFlags(attention_backend="torch_padded", speculative_algorithm="EAGLE")

    plan, _ = configure(
        flags.updated({"disable_piecewise_cuda_graph": True}), pool_size=8, device="cpu"
    )

    assert plan["host_seq_lens"].value is HostSeqLens.NONE
    assert {use.source.distribution for use in plan.uses} == {"backend-caps-torch-native"}


def test_configure_takes_rules_of_no_known_version() -> None:
    """Rules that were read from an engine hold as those that come with the package."""
    rules = replace(RuleSet.builtin("sglang-0.5.23"), name="sglang-9.9")

    plan, _ = configure(FLAGS, pool_size=8, device="cpu", registry=_registry(EXACT), rules=rules)

    assert plan.rules == rules


def test_configure_logs_the_decision(caplog: pytest.LogCaptureFixture) -> None:
    """One line has the plan's fingerprint, each value and its first cause."""
    caplog.set_level(logging.INFO, "backend_caps")

    plan, _ = configure(FLAGS, pool_size=8, device="cpu", registry=_registry(EXACT))

    assert caplog.messages[0] == (
        f"plan {plan.fingerprint} under sglang-0.5.13: host_seq_lens=exact (acme); "
        "two_batch_overlap=no (acme); max_speculative_topk=1 (acme); "
        "page_sizes=not checked (within any) (acme)"
    )


@pytest.mark.parametrize(
    ("policy", "levels"),
    [
        pytest.param("warn", ["INFO", "WARNING"], id="warn"),
        pytest.param("quiet", ["INFO"], id="quiet"),
    ],
)
def test_configure_warns_of_problems(
    caplog: pytest.LogCaptureFixture, policy: str, levels: list[str]
) -> None:
    """What is wrong with a plan is a warning, unless the policy is quiet."""
    caplog.set_level(logging.INFO, "backend_caps")

    configure(FLAGS, pool_size=8, device="cpu", registry=_registry(EXACT), policy=policy)

    assert [record.levelname for record in caplog.records] == levels


def test_configure_refuses_problems_under_strict() -> None:
    """Under strict what is wrong with a plan is an error."""
    with pytest.raises(PlanRefusedError, match="does not say which device it takes"):
        configure(FLAGS, pool_size=8, device="cpu", registry=_registry(EXACT), policy="strict")


def test_configure_refuses_a_device_that_is_not_there() -> None:
    """A device that torch cannot use here is named."""
    with pytest.raises(UnavailableDeviceError, match=r"^device 'xpu:0' is not available"):
        configure(FLAGS, pool_size=8, device="xpu:0", registry=_registry(EXACT))


def test_configure_records_an_override() -> None:
    """An override configures the map, and stands among the causes."""
    plan, future_map = configure(
        FLAGS, pool_size=8, device="cpu", registry=_registry(EXACT), unsafe_override=NONE_ONLY
    )

    assert future_map.host_seq_lens is HostSeqLens.NONE
    assert plan["host_seq_lens"].causes[0].kind.value == "override"


NONE_ONLY = Capabilities(host_seq_lens=HostSeqLens.NONE)
