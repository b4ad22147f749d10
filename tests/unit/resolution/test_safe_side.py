"""Needs that must not get lost: spellings, contradictions, composites, misuse."""

from __future__ import annotations

import pytest

from backend_caps import (
    Capabilities,
    Declaration,
    Exact,
    Facts,
    Given,
    HostSeqLens,
    Part,
    Phase,
    Plan,
    Role,
    ServerFlags,
    Source,
    Use,
    When,
    flips,
    resolve,
)
from backend_caps.capability.backend import Backend, Status
from backend_caps.resolution.errors import FlagsError, ResolutionError
from backend_caps.resolution.uses import uses_of

OPTS_OUT = Capabilities(needs_cpu_seq_lens=False, max_context_len_known=True, roles=set(Role))
NEEDS = Capabilities(needs_cpu_seq_lens=True)
EAGLE = "--disable-piecewise-cuda-graph --speculative-algorithm EAGLE --speculative-eagle-topk 1"


def _given(given: Given) -> Declaration:
    when = When(given=given, capabilities=NEEDS, reason="it reads them there")
    return Declaration(capabilities=OPTS_OUT, conditions=[when])


def _plan(declaration: Declaration, line: str, facts: Facts | None = None) -> Plan:
    use = Use(backend="a", role=Role.TARGET, phase=Phase.DECODE, declaration=declaration)
    return resolve([use], ServerFlags.from_argv(line.split()), facts=facts)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        pytest.param(Given(speculative_algorithm={"eagle"}), EAGLE, id="lower case"),
        pytest.param(Given(speculative_algorithm={"NEXTN"}), EAGLE, id="an algorithm's other name"),
        pytest.param(
            Given(kv_cache_dtype={"bf16"}), f"{EAGLE} --kv-cache-dtype bf16", id="a dtype's"
        ),
        pytest.param(Given(device={"cuda:0"}), f"{EAGLE} --device cuda:1", id="a device's number"),
    ],
)
def test_condition_holds_in_any_spelling(given: Given, line: str) -> None:
    """A condition holds however its names are spelled."""
    plan = _plan(_given(given), line)

    assert plan["host_seq_lens"].value is HostSeqLens.EXACT


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(Facts(kv_cache_dtype="auto"), id="auto"),
        pytest.param(Facts(), id="no fact"),
    ],
)
def test_undecided_dtype_covers_both_ways(facts: Facts) -> None:
    """A dtype that is to be decided does not rule a condition out."""
    plan = _plan(_given(Given(kv_cache_dtype={"fp8_e5m2"})), EAGLE, facts)

    assert plan["host_seq_lens"].value is HostSeqLens.EXACT


def test_contradiction_keeps_a_condition_open_and_is_a_problem() -> None:
    """Where a fact says otherwise than a flag, neither rules a condition out."""
    plan = _plan(_given(Given(page_size={64})), f"{EAGLE} --page-size 64", Facts(page_size=1))

    assert plan["host_seq_lens"].value is HostSeqLens.EXACT
    assert [found.message for found in plan.problems if found.code == "facts-contradict-flags"] == [
        "--page-size is 64, and the fact page_size is 1; conditions on it stay open."
    ]


def _hybrid(capabilities: Capabilities, line: str) -> Plan:
    parts = [Part("part")]
    declarations = {
        "part": Declaration(capabilities=OPTS_OUT),
        "hybrid": Declaration(capabilities=capabilities, parts=parts),
    }
    backends = {
        name: Backend(name=name, status=Status.OK, source=Source(), declaration=declaration)
        for name, declaration in declarations.items()
    }
    flags = ServerFlags.from_argv(["--attention-backend", "hybrid", *line.split()])
    return resolve(uses_of(flags, backends), flags)


def test_composites_own_limits_are_checked() -> None:
    """What a composite states of machines and sizes holds beside what its parts state."""
    plan = _hybrid(
        Capabilities(devices={"cuda"}, page_sizes=Exact(64)), "--device cpu --page-size 1"
    )

    codes = {found.code for found in plan.problems}
    assert {"device-unsupported", "page-size-unsupported"} <= codes


def test_composite_may_deny_what_its_parts_opt_out_by() -> None:
    """A composite that does not know the longest context cancels its parts' opt-out."""
    plan = _hybrid(Capabilities(max_context_len_known=False), EAGLE)

    assert plan["host_seq_lens"].value is HostSeqLens.EXACT


def test_conditional_role_is_refused() -> None:
    """A role that a condition rules out is refused as one that the base rules out."""
    when = When(
        given=Given(speculative_algorithm={"EAGLE"}),
        capabilities=Capabilities(roles={Role.TARGET}),
        reason="the tree kernel is missing",
    )
    declaration = Declaration(capabilities=OPTS_OUT, conditions=[when])
    use = Use(backend="a", role=Role.DRAFT, phase=Phase.DECODE, declaration=declaration)

    with pytest.raises(ResolutionError, match="backend 'a' does not take the role 'draft'"):
        resolve([use], ServerFlags.from_argv(EAGLE.split()))


def test_flip_that_brings_a_problem_is_not_listed() -> None:
    """A backend that does not run on the machine is no remedy."""
    other = OPTS_OUT.model_copy(update={"devices": {"cuda"}})
    declared = {"reads": NEEDS.model_copy(update={"roles": set(Role)}), "other": other}
    backends = {
        name: Backend(
            name=name,
            status=Status.OK,
            source=Source(distribution="acme"),
            declaration=Declaration(capabilities=capabilities),
        )
        for name, capabilities in declared.items()
    }
    line = f"--attention-backend reads --device cpu {EAGLE}"
    flags = ServerFlags.from_argv(line.split())

    listed = flips(resolve(uses_of(flags, backends), flags), backends, flags)

    texts = [remedy.text for flip in listed for remedy in flip.remedies]
    assert "Set --attention-backend other." not in texts


@pytest.mark.parametrize(
    ("line", "field"),
    [
        pytest.param(f"{EAGLE} --disable-overlap-schedule", "flags", id="flags"),
        pytest.param(EAGLE, "policy", id="policy"),
    ],
)
def test_plans_of_different_premises_are_not_joined(line: str, field: str) -> None:
    """Ranks with other flags or another policy have no common plan."""
    use = Use(backend="a", role=Role.TARGET, phase=Phase.DECODE, declaration=Declaration())
    one = resolve([use], ServerFlags.from_argv(EAGLE.split()))
    other = resolve([use], ServerFlags.from_argv(line.split()), policy="quiet")

    with pytest.raises(ResolutionError, match=f"plans with {field} "):
        one.join(other)


def test_command_line_as_one_string_is_refused() -> None:
    """A string is no list of words, and is not read letter by letter."""
    with pytest.raises(FlagsError, match="is one string"):
        ServerFlags.from_argv("--attention-backend a --enable-two-batch-overlap")


def test_object_without_arguments_is_refused() -> None:
    """An object that has none of a server's arguments is not a server with all defaults."""
    with pytest.raises(FlagsError, match="none of a server's arguments"):
        ServerFlags.from_object({"attention_backend": "a"})
