"""The laws of choosing a backend."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from backend_caps import Capabilities, Declaration, Facts, Policy, ServerFlags, When, select
from backend_caps.capability.backend import Backend
from backend_caps.capability.vocabulary import CAPABILITIES
from backend_caps.resolution.selection import plan_for
from tests.property.strategies import flags, law, partly_known, plain_declarations
from tests.unit.building import installed

_NAMES = ["acme", "fa3", "flashinfer", "mla", "triton"]
_FITS = Capabilities.model_validate({name: kind.best for name, kind in CAPABILITIES.items()})

servers = flags.map(
    lambda given_flags: given_flags.updated(
        {
            "attention_backend": "auto",
            "prefill_attention_backend": None,
            "decode_attention_backend": None,
            "speculative_draft_attention_backend": None,
            "device": None,
            "kv_cache_dtype": "auto",
            "page_size": None,
        }
    )
)
"""Any server whose backends are all to be chosen."""
registries = st.dictionaries(st.sampled_from(_NAMES[1:]), plain_declarations, max_size=2).map(
    lambda declared: {
        name: installed(name, own.capabilities, conditions=own.conditions)
        for name, own in declared.items()
    }
)
"""Any backends, `acme` not among them."""
fact_sets = partly_known().map(
    lambda known: Facts.model_validate(
        {name: value for name, value in known[0].items() if name in Facts.model_fields}
    )
)


def _fits(priority: int) -> Backend:
    """Make a backend that fits everywhere, so that there is always a choice."""
    return installed("mla", _FITS.model_copy(update={"auto_priority": priority}))


def _without_priority(when: When) -> When | None:
    left = {k: v for k, v in when.capabilities.stated().items() if k != "auto_priority"}
    if not left:
        return None
    return when.model_copy(update={"capabilities": Capabilities.model_validate(left)})


def _at_most(priority: int, declared: Declaration) -> Backend:
    """Make a backend of whatever fits, with this priority under every condition."""
    whens = [when for each in declared.conditions if (when := _without_priority(each))]
    own = declared.capabilities.model_copy(update={"auto_priority": priority})
    return installed("acme", own, conditions=whens)


@law
@given(server=servers, backends=registries, facts=fact_sets, policy=st.sampled_from(list(Policy)))
def test_nothing_speaks_against_what_is_chosen(
    server: ServerFlags, backends: Mapping[str, Backend], facts: Facts, policy: Policy
) -> None:
    """What is chosen has no reason against it, and where nothing is, everything has one."""
    (choice,) = select(backends, server, facts=facts, policy=policy).choices

    is_fitting = [not each.reasons for each in choice.candidates]
    assert is_fitting == sorted(is_fitting, reverse=True)
    assert (choice.chosen is not None) is any(is_fitting)


@law
@given(server=servers, backends=registries, facts=fact_sets, priority=st.integers(1, 100))
def test_plan_of_what_is_chosen_has_no_problem_but_open_ones(
    server: ServerFlags, backends: Mapping[str, Backend], facts: Facts, priority: int
) -> None:
    """The plan with the chosen backend has no problem that is known to be one."""
    choosing = {**backends, "mla": _fits(priority)}

    plan = plan_for(choosing, server, facts=facts)

    assert [found for found in plan.problems if not found.is_open] == []


@law
@given(
    server=servers,
    backends=registries,
    facts=fact_sets,
    priority=st.integers(1, 100),
    one_more=plain_declarations,
    data=st.data(),
)
def test_lower_priority_never_changes_the_choice(
    server: ServerFlags,
    backends: Mapping[str, Backend],
    facts: Facts,
    priority: int,
    one_more: Declaration,
    data: st.DataObject,
) -> None:
    """One more backend of a lower priority than the chosen one's is not chosen."""
    before = select({**backends, "mla": _fits(priority)}, server, facts=facts)
    chosen = before.choices[0].chosen
    assert chosen is not None
    lower = data.draw(st.integers(0, chosen.priority - 1))

    more = {**backends, "mla": _fits(priority), "acme": _at_most(lower, one_more)}

    assert select(more, server, facts=facts).flags == before.flags


@law
@given(server=servers, backends=registries, facts=fact_sets, data=st.data())
def test_choice_does_not_depend_on_the_order_of_backends(
    server: ServerFlags, backends: Mapping[str, Backend], facts: Facts, data: st.DataObject
) -> None:
    """The same backends in another order give the same selection, to the last reason."""
    shuffled = dict(data.draw(st.permutations(list(backends.items()))))

    found = [select(these, server, facts=facts) for these in (backends, shuffled)]

    assert found[0] == found[1]
