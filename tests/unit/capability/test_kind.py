from __future__ import annotations

from enum import Enum

import pytest

from backend_caps.capability.kind import ANY, UNDECLARED, Scale
from backend_caps.capability.vocabulary import GraphMetadata, HostSeqLens, SharedReadsEnd


@pytest.mark.parametrize(
    ("scale", "names"),
    [
        (HostSeqLens, "NONE UPPER_BOUND EXACT"),
        (GraphMetadata, "HOST DEVICE IN_GRAPH"),
        (SharedReadsEnd, "PRE_REPLAY IN_REPLAY POST_REPLAY UNKNOWN"),
    ],
)
def test_scale_is_ordered_as_it_is_defined(scale: type[Scale], names: str) -> None:
    """The members of a scale rise in the order of their definition, which is their rank."""
    by_value = sorted(scale, key=lambda member: member.value)

    ordered = sorted(by_value)

    assert [(member.name, member.rank) for member in ordered] == [
        (name, place) for place, name in enumerate(names.split())
    ]
    assert not any(member < member or member > member for member in ordered)  # noqa: PLR0124


@pytest.mark.parametrize("value", [True, 1, "upper_bound", None])
def test_scale_member_equals_nothing_but_itself(value: object) -> None:
    """No bool, number or string is equal to a member: `True` is not the second member."""
    member: object = HostSeqLens.UPPER_BOUND

    assert member != value


@pytest.mark.parametrize("other", [GraphMetadata.DEVICE, 1, "upper_bound"])
def test_scale_compares_with_its_own_members_alone(other: object) -> None:
    """Comparing with another scale, a number or a string is an error."""
    member = HostSeqLens.NONE

    with pytest.raises(TypeError, match="not supported between instances of"):
        member < other  # noqa: B015 - comparing is what is tested


@pytest.mark.parametrize(("state", "text"), [(UNDECLARED, "UNDECLARED"), (ANY, "ANY")])
def test_state_is_shown_by_its_name(state: Enum, text: str) -> None:
    """The states that are no values are shown as they are written in a declaration."""
    shown = repr(state)

    assert shown == text
