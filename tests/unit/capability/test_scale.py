from __future__ import annotations

import pickle
from enum import Enum, IntEnum

import pytest

from backend_caps.capability.scale import ANY, UNDECLARED, Scale
from backend_caps.capability.vocabulary import GraphMetadata, HostSeqLens, SharedReadsEnd

_ORDERS = [
    pytest.param(HostSeqLens, ["NONE", "UPPER_BOUND", "EXACT"], id="host_seq_lens"),
    pytest.param(GraphMetadata, ["HOST", "DEVICE", "IN_GRAPH"], id="graph_metadata"),
    pytest.param(
        SharedReadsEnd,
        ["PRE_REPLAY", "IN_REPLAY", "POST_REPLAY", "UNKNOWN"],
        id="shared_reads_end",
    ),
]


@pytest.mark.parametrize(("scale", "names"), _ORDERS)
def test_scale_is_ordered_as_it_is_defined(scale: type[Scale], names: list[str]) -> None:
    """The members of a scale rise in the order of their definition."""
    shuffled = sorted(scale, key=lambda member: member.value)

    ordered = sorted(shuffled)

    assert [member.name for member in ordered] == names


@pytest.mark.parametrize(("scale", "names"), _ORDERS)
def test_scale_numbers_its_members(scale: type[Scale], names: list[str]) -> None:
    """A member's rank is its place in the definition."""
    ranks = {name: scale[name].rank for name in names}

    assert ranks == {name: place for place, name in enumerate(names)}


@pytest.mark.parametrize("member", [*HostSeqLens])
def test_scale_member_is_not_before_itself(member: HostSeqLens) -> None:
    """No member comes before or after itself."""
    same = HostSeqLens(member.value)

    assert (member < same, member > same, member <= same) == (False, False, True)


def test_scale_max_is_not_alphabetical() -> None:
    """The highest of a scale is the last defined, though its value comes first in the alphabet."""
    highest = max(HostSeqLens.EXACT, HostSeqLens.NONE, HostSeqLens.UPPER_BOUND)

    assert highest is HostSeqLens.EXACT


@pytest.mark.parametrize("value", [True, 1, "upper_bound", None])
def test_scale_member_equals_nothing_but_itself(value: object) -> None:
    """No bool, number or string is equal to a member: `True` is not the second member."""
    member: object = HostSeqLens.UPPER_BOUND

    assert member != value


def test_scale_is_no_number() -> None:
    """A scale is a plain enumeration, whose members are no integers and no strings."""
    bases = {int, str, IntEnum} & set(HostSeqLens.__mro__)

    assert bases == set()


@pytest.mark.parametrize("other", [GraphMetadata.DEVICE, 1, "upper_bound"])
def test_scale_compares_with_its_own_members_alone(other: object) -> None:
    """Comparing with another scale, a number or a string is an error."""
    member = HostSeqLens.NONE

    with pytest.raises(TypeError, match="not supported between instances of"):
        member < other  # noqa: B015 - comparing is what is tested


@pytest.mark.parametrize("member", [*HostSeqLens, *SharedReadsEnd, UNDECLARED, ANY])
def test_member_survives_pickling(member: Enum) -> None:
    """A member that crosses into another process is the same object there."""
    carried = pickle.loads(pickle.dumps(member))  # noqa: S301 - our own bytes

    assert carried is member


@pytest.mark.parametrize(("state", "text"), [(UNDECLARED, "UNDECLARED"), (ANY, "ANY")])
def test_state_is_shown_by_its_name(state: Enum, text: str) -> None:
    """The states that are no values are shown as they are written in a declaration."""
    shown = repr(state)

    assert shown == text
