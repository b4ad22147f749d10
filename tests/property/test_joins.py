from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_caps import Conflict, Declaration, Given, Rule, ServerFlags
from backend_caps.capability.sets import Sizes, Unchecked, intersect
from backend_caps.capability.vocabulary import CAPABILITIES
from backend_caps.resolution.engine import ENGINES, engine
from tests.property import strategies

_NAMES = list(CAPABILITIES)
_SIZED = [name for name, kind in CAPABILITIES.items() if kind.worst == Unchecked()]
_ABSORBING = [name for name in _NAMES if name not in {*_SIZED, "roles", "attention_types"}]


@pytest.mark.parametrize("name", _NAMES)
@strategies.law
@given(data=st.data())
def test_join_is_commutative(name: str, data: st.DataObject) -> None:
    """It does not matter which of two values comes first."""
    join = CAPABILITIES[name].join
    one, other = data.draw(strategies.joined_value(name)), data.draw(strategies.joined_value(name))

    assert strategies.normal(join(one, other)) == strategies.normal(join(other, one))


@pytest.mark.parametrize("name", _NAMES)
@strategies.law
@given(data=st.data())
def test_join_is_associative(name: str, data: st.DataObject) -> None:
    """It does not matter which two of three values are joined first."""
    join = CAPABILITIES[name].join
    a, b, c = (data.draw(strategies.joined_value(name)) for _ in range(3))

    assert strategies.normal(join(join(a, b), c)) == strategies.normal(join(a, join(b, c)))


@pytest.mark.parametrize("name", _NAMES)
@strategies.law
@given(data=st.data())
def test_join_is_idempotent(name: str, data: st.DataObject) -> None:
    """A value joined with itself is itself."""
    join = CAPABILITIES[name].join
    value = data.draw(strategies.joined_value(name))

    assert strategies.normal(join(value, value)) == strategies.normal(value)


@pytest.mark.parametrize("name", _NAMES)
@strategies.law
@given(data=st.data())
def test_best_value_takes_nothing_away(name: str, data: st.DataObject) -> None:
    """A value joined with the best is itself."""
    kind = CAPABILITIES[name]
    value = data.draw(strategies.joined_value(name))

    assert strategies.normal(kind.join(value, kind.best)) == strategies.normal(value)


@pytest.mark.parametrize("name", _ABSORBING)
@strategies.law
@given(data=st.data())
def test_worst_value_takes_everything_away(name: str, data: st.DataObject) -> None:
    """A value joined with the worst is the worst."""
    kind = CAPABILITIES[name]

    assert kind.join(data.draw(strategies.joined_value(name)), kind.worst) == kind.worst


@pytest.mark.parametrize("name", _SIZED)
@strategies.law
@given(data=st.data())
def test_sizes_joined_with_the_worst_are_not_checked(name: str, data: st.DataObject) -> None:
    """Sizes of which somebody says nothing are at most what the others take."""
    kind = CAPABILITIES[name]
    said = data.draw(strategies.sizes)

    assert kind.join(said, kind.worst) == strategies.normal(Unchecked(said))


@strategies.law
@given(one=strategies.sizes, other=strategies.sizes, size=st.integers(1, 200))
def test_intersection_takes_what_both_take(one: Sizes, other: Sizes, size: int) -> None:
    """A size is in the intersection exactly if it is in both sets."""
    both = size in one and size in other

    shared = intersect(one, other)

    taken = not isinstance(shared, Unchecked | Conflict) and size in shared
    assert taken is both


_ENGINE = engine(ENGINES[-1])


@strategies.law
@given(declaration=strategies.declarations)
def test_declaration_survives_json(declaration: Declaration) -> None:
    """Any declaration is the same behind a boundary, as JSON or as plain data, and its text too."""
    text = declaration.model_dump_json()

    carried = Declaration.model_validate_json(text)

    assert (carried, carried.model_dump_json()) == (declaration, text)
    assert Declaration.model_validate(declaration.model_dump()) == declaration


@strategies.law
@given(declaration=strategies.declarations)
def test_declaration_copied_is_equal(declaration: Declaration) -> None:
    """A copy without changes is the same declaration, with the same hash."""
    copy = declaration.model_copy()

    assert (copy, hash(copy)) == (declaration, hash(declaration))


@strategies.law
@given(asked=strategies.givens)
def test_given_survives_json(asked: Given) -> None:
    """Any condition crosses a boundary as JSON and is the same behind it."""
    assert Given.model_validate_json(asked.model_dump_json()) == asked


@strategies.law
@given(rule=strategies.rules)
def test_rule_survives_json(rule: Rule) -> None:
    """Any rule crosses a boundary as JSON and is the same behind it."""
    assert Rule.model_validate_json(rule.model_dump_json()) == rule


@st.composite
def _command_line(draw: st.DrawFn, server: ServerFlags) -> list[str]:
    """Write flags as a command line, in any spelling and any order."""
    words: list[list[str]] = []
    for name, value in server.given().items():
        option = draw(st.sampled_from(_ENGINE.spellings(name)))
        if value is True:
            words.append([option])
        elif draw(st.booleans()):
            words.append([f"{option}={value}"])
        else:
            words.append([option, str(value)])
    return [word for group in draw(st.permutations(words)) for word in group]


@strategies.law
@given(server=strategies.flags, data=st.data())
def test_flags_survive_the_command_line(server: ServerFlags, data: st.DataObject) -> None:
    """Flags that were written as a command line are read as the same flags."""
    read = ServerFlags.from_argv(data.draw(_command_line(server)), engine_name=_ENGINE)

    assert (read, read.given()) == (server, server.given())


@strategies.law
@given(server=strategies.flags, data=st.data())
def test_flags_survive_a_command_line_of_others(server: ServerFlags, data: st.DataObject) -> None:
    """Flags that do not concern us, with their values, change nothing."""
    argv = data.draw(_command_line(server))
    others = ["--model-path", "llama", "--trust-remote-code", "--cuda-graph-bs", "1", "2"]

    read = ServerFlags.from_argv(["launch", *others, *argv], engine_name=_ENGINE)

    assert (read.given(), read.unrelated) == (
        server.given(),
        ("--model-path", "--trust-remote-code", "--cuda-graph-bs"),
    )


@strategies.law
@given(server=strategies.flags)
def test_flags_survive_a_mapping(server: ServerFlags) -> None:
    """Flags by name are read as the same flags."""
    assert ServerFlags.from_mapping(server.given()) == server
