from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_caps.capability.sets import Conflict, Sizes, Unchecked, intersect
from backend_caps.capability.vocabulary import CAPABILITIES
from tests.property.strategies import joined_value, law, normal, sizes

_NAMES = list(CAPABILITIES)
_SIZED = [name for name, kind in CAPABILITIES.items() if kind.worst == Unchecked()]
_ABSORBING = [name for name in _NAMES if name not in {*_SIZED, "roles"}]


@pytest.mark.parametrize("name", _NAMES)
@law
@given(data=st.data())
def test_join_is_commutative(name: str, data: st.DataObject) -> None:
    """It does not matter which of two values comes first."""
    join = CAPABILITIES[name].join
    one, other = data.draw(joined_value(name)), data.draw(joined_value(name))

    assert normal(join(one, other)) == normal(join(other, one))


@pytest.mark.parametrize("name", _NAMES)
@law
@given(data=st.data())
def test_join_is_associative(name: str, data: st.DataObject) -> None:
    """It does not matter which two of three values are joined first."""
    join = CAPABILITIES[name].join
    a, b, c = (data.draw(joined_value(name)) for _ in range(3))

    assert normal(join(join(a, b), c)) == normal(join(a, join(b, c)))


@pytest.mark.parametrize("name", _NAMES)
@law
@given(data=st.data())
def test_join_is_idempotent(name: str, data: st.DataObject) -> None:
    """A value joined with itself is itself."""
    join = CAPABILITIES[name].join
    value = data.draw(joined_value(name))

    assert normal(join(value, value)) == normal(value)


@pytest.mark.parametrize("name", _NAMES)
@law
@given(data=st.data())
def test_best_value_takes_nothing_away(name: str, data: st.DataObject) -> None:
    """A value joined with the best is itself."""
    kind = CAPABILITIES[name]
    value = data.draw(joined_value(name))

    assert normal(kind.join(value, kind.best)) == normal(value)


@pytest.mark.parametrize("name", _ABSORBING)
@law
@given(data=st.data())
def test_worst_value_takes_everything_away(name: str, data: st.DataObject) -> None:
    """A value joined with the worst is the worst."""
    kind = CAPABILITIES[name]
    value = data.draw(joined_value(name))

    assert kind.join(value, kind.worst) == kind.worst


@pytest.mark.parametrize("name", _SIZED)
@law
@given(data=st.data())
def test_sizes_joined_with_the_worst_are_not_checked(name: str, data: st.DataObject) -> None:
    """Sizes of which somebody says nothing are at most what the others take."""
    kind = CAPABILITIES[name]
    said = data.draw(sizes)

    assert kind.join(said, kind.worst) == normal(Unchecked(said))


@law
@given(one=sizes, other=sizes, size=st.integers(1, 200))
def test_intersection_takes_what_both_take(one: Sizes, other: Sizes, size: int) -> None:
    """A size is in the intersection exactly if it is in both sets."""
    both = size in one and size in other

    shared = intersect(one, other)

    taken = not isinstance(shared, Unchecked | Conflict) and size in shared
    assert taken is both
