"""The laws of required evidence."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from backend_caps import ServerFlags, Use, resolve
from backend_caps.capability.backend import Backend, Status
from backend_caps.capability.evidence import UNVERIFIABLE, Standing, believed
from backend_caps.capability.provenance import BY_HAND
from backend_caps.capability.vocabulary import CAPABILITIES
from tests.property.order import improvements
from tests.property.strategies import flags, law, some_uses
from tests.unit.evidence import verified

some_names = st.frozensets(st.sampled_from(list(CAPABILITIES)))
"""Any claims."""


def _required(uses: Collection[Use], standing: Standing) -> list[Use]:
    """Require evidence of every use, as those of a registry that does have it."""
    return [_believed(use, standing) for use in uses]


def _believed(use: Use, standing: Standing) -> Use:
    if use.adds_only:  # a composite's own, which is believed
        return use
    backend = Backend(
        name=use.backend, status=Status.OK, source=BY_HAND, declaration=use.declaration
    )
    left = believed(backend, standing)
    return replace(use, declaration=left.declaration, unverified=left.unverified)


@law
@given(server=flags, running=some_uses, names=some_names)
def test_required_evidence_never_improves_a_value(
    server: ServerFlags, running: list[Use], names: frozenset[str]
) -> None:
    """What is taken out for want of evidence makes nothing better."""
    before = resolve(running, server)

    after = resolve(_required(running, verified(*names)), server)

    assert improvements(after, before) == []


@law
@given(server=flags, running=some_uses, names=some_names, more=some_names)
def test_more_evidence_never_worsens_a_value(
    server: ServerFlags, running: list[Use], names: frozenset[str], more: frozenset[str]
) -> None:
    """One more verified claim takes nothing away."""
    before = resolve(_required(running, verified(*names)), server)

    after = resolve(_required(running, verified(*names, *more)), server)

    assert improvements(before, after) == []


@law
@given(running=some_uses, names=some_names)
def test_required_evidence_takes_out_once(running: list[Use], names: frozenset[str]) -> None:
    """What is left is believed: requiring evidence again takes nothing out."""
    once = _required(running, verified(*names))

    twice = _required(once, verified(*names))

    assert [use.declaration for use in twice] == [use.declaration for use in once]


@law
@given(running=some_uses)
def test_what_is_left_without_evidence_is_the_worst(running: list[Use]) -> None:
    """Nothing that could be wrong is left where nothing is verified."""
    left = _required(running, Standing())

    values = [
        (name, value)
        for use in left
        if use.declaration is not None and not use.adds_only
        for capabilities in (
            use.declaration.capabilities,
            *(when.capabilities for when in use.declaration.conditions),
        )
        for name, value in capabilities.stated().items()
        if name not in UNVERIFIABLE
    ]
    assert [(name, value) for name, value in values if value != CAPABILITIES[name].worst] == []
