"""What layers ask, compared with what a plugin declares of the class that they take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import pytest

from backend_caps.capability.backend import Backend, EngineClass, Unverified
from backend_caps.capability.declaration import Part, When
from backend_caps.capability.facts import Facts, Given
from backend_caps.capability.kind import Role
from backend_caps.capability.sets import Exact
from backend_caps.capability.vocabulary import AttentionArch, AttentionType, Capabilities
from backend_caps.resolution.launch import Launch, LayerGroup
from backend_caps.resolution.plan import Plan, Policy
from backend_caps.resolution.resolver import resolve
from backend_caps.resolution.routing import uses_of
from tests.unit.building import OPTS_OUT, RULES_23, error_of, errors_of, flags, installed, named

_SINKS = {"attention_sinks": True}
_PLAIN = {"attention_sinks": False}
_ADAPTERS: Mapping[Literal["sglang", "vllm"], str] = {"vllm": "acme.attention:Acme"}


def _group(facts: Mapping[str, object], path: str = "acme.attention.Acme") -> LayerGroup:
    return LayerGroup(
        role="target",
        layer="Attention",
        num_layers=2,
        backend="CUSTOM",
        path=path,
        graph_support="ALWAYS",
        cache="FullAttentionSpec",
        sizes={},
        facts=facts,
    )


def _launch(*groups: LayerGroup) -> Launch:
    return Launch(engine="vllm-9.0", machine="H100", model="m", layers=groups)


def _declared(own: Mapping[str, object], whens: Sequence[When] = ()) -> Backend:
    capabilities = OPTS_OUT.model_copy(update={"page_sizes": "any", **own})
    return installed("acme", capabilities, conditions=whens, adapters=_ADAPTERS)


def _plan(
    backend: Backend,
    *facts: Mapping[str, object],
    known: Facts | None = None,
    policy: Policy = Policy.WARN,
) -> Plan:
    launch = _launch(*map(_group, facts))
    uses = uses_of(flags(), named(backend), launch)
    return resolve(uses, flags(), rules=RULES_23, facts=known, launch=launch, policy=policy)


def _messages(plan: Plan) -> list[str]:
    return [each.message for each in plan.problems]


@pytest.mark.parametrize(
    ("stated", "facts", "says"),
    [
        pytest.param({"attention_sinks": True}, _SINKS, None, id="sinks"),
        pytest.param({"attention_sinks": False}, _PLAIN, None, id="no sinks"),
        pytest.param({}, _PLAIN, None, id="undeclared and not asked for"),
        pytest.param(
            {"attention_sinks": False},
            _SINKS,
            "ask attention_sinks; backend 'acme' declares attention_sinks=no",
            id="sinks that are declared not to be",
        ),
        pytest.param(
            {},
            _SINKS,
            "ask attention_sinks; backend 'acme' does not declare attention_sinks",
            id="sinks that are not declared",
        ),
        pytest.param(
            {"head_sizes": Exact(128)},
            {"head_size": 64},
            "ask head_size 64; backend 'acme' declares head_sizes=128",
            id="a head size",
        ),
        pytest.param(
            {"attention_types": {AttentionType.DECODER}},
            {"attention_type": "encoder_decoder"},
            "ask attention_type encoder_decoder; backend 'acme' declares attention_types=decoder",
            id="a type of attention",
        ),
        pytest.param(
            {"attention_arch": {AttentionArch.MHA}},
            {"attention_arch": "mla"},
            "ask attention_arch mla; backend 'acme' declares attention_arch=mha",
            id="an architecture",
        ),
    ],
)
def test_layers_ask_what_a_backend_declares(
    stated: Mapping[str, object], facts: Mapping[str, object], says: str | None
) -> None:
    """The problem names the layers, the declaration and its line."""
    plan = _plan(_declared(stated), facts)

    told = f"Attention layers of the target {says} (acme-caps 1.0, acme_caps.py:3)."
    assert _messages(plan) == ([] if says is None else [told])


def test_each_group_of_layers_is_compared_by_itself() -> None:
    """The one with a window is told of; a declaration's conditions hold by group too."""
    windows = [{"sliding_window": own} for own in (False, True)]
    says = Capabilities(sliding_window=False, needs_cpu_seq_lens=True)
    when = When(given=Given(sliding_window=True), capabilities=says, reason="it is slow")

    plain = _plan(_declared({}, [when]), windows[0])
    both = _plan(_declared({}, [when]), *windows)

    assert (_messages(plain), len(plain.uses)) == ([], 2)
    assert [each.code for each in both.problems] == ["sliding-window-unsupported"]
    assert len(both.uses) == 4
    assert [plan["host_seq_lens"].value.name for plan in (plain, both)] == ["NONE", "EXACT"]  # type: ignore[attr-defined] # a scale's


def test_facts_of_the_server_are_compared_too() -> None:
    """What layers ask goes before them; what they do not ask is the server's."""
    backend = _declared({"dtypes": {"float16"}, "head_sizes": Exact(64)})
    known = Facts(dtype="bfloat16", head_size=128)

    plan = _plan(backend, {"head_size": 64}, known=known)

    assert _messages(plan) == ["backend 'acme' takes dtype float16; here it is bfloat16."]


def test_class_that_was_read_is_not_compared() -> None:
    """The engine asks it itself, and takes it for these layers."""
    read = replace(
        installed("Acme", Capabilities(attention_sinks=False)),
        engine_class=EngineClass(path="acme.attention.Acme"),
    )

    assert _messages(_plan(read, _SINKS)) == []


def test_declaration_goes_before_what_was_read_of_its_class() -> None:
    """Also where the engine has the backend under the plugin's own name."""
    read = replace(installed("Acme"), engine_class=EngineClass(path="acme.attention.Acme"))
    launch = _launch(_group(_SINKS), replace(_group(_PLAIN), backend="acme"))

    uses = uses_of(flags(), named(read, _declared({})), launch)

    assert {(each.backend, each.composites) for each in uses} == {
        ("acme", ("CUSTOM",)),
        ("acme", ()),
    }


def test_parts_of_a_declared_composite_are_compared() -> None:
    """They run the layers that its class is taken for."""
    whole = installed("acme", parts=[Part("inner")], adapters=_ADAPTERS)
    inner = installed("inner", OPTS_OUT.model_copy(update={"attention_sinks": False}))
    launch = _launch(_group(_SINKS))

    uses = uses_of(flags(), named(whole, inner), launch)
    plan = resolve(uses, flags(), rules=RULES_23, launch=launch)

    assert [each.split(" declares")[0] for each in _messages(plan)] == [
        "Attention layers of the target ask attention_sinks; backend 'inner'"
    ]


def test_claim_without_evidence_is_told_of() -> None:
    """It counts as undeclared, and the remedy is to verify it."""
    claim = Unverified(value=True, words="declares attention_sinks=yes, without evidence")
    backend = replace(_declared({}), unverified={"attention_sinks": claim})

    [problem] = _plan(backend, _SINKS).problems

    assert problem.message.startswith(
        f"Attention layers of the target ask attention_sinks; backend 'acme' {claim.words} ("
    )
    assert problem.remedy == "Verify it: backend-caps check acme --write-evidence."


def test_strict_refuses_what_layers_ask_and_is_not_declared_to_be() -> None:
    """A fact that the layers ask is known, whatever the server's are."""
    backend = _declared({"attention_sinks": False, "head_sizes": Exact(64), "dtypes": {"float16"}})
    asked = {**_SINKS, "head_size": 64}

    title, errors = errors_of(lambda: _plan(backend, asked, policy=Policy.STRICT))

    assert title == "plan refused (strict): 2 faults"
    assert [each.partition(";")[0].partition(" takes")[0] for each in errors] == [
        "Attention layers of the target ask attention_sinks",
        "backend 'acme'",
    ]


def test_role_that_is_not_declared_is_refused() -> None:
    """As for a backend that a flag names."""
    backend = _declared({"roles": {Role.DRAFT}})

    assert "does not take the role 'target'" in error_of(lambda: _plan(backend, _PLAIN))
