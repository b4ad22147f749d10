"""All paths of a function, each with the decisions that lead there."""

from __future__ import annotations

import pytest

from backend_caps.engines.source.calls import NotFollowedError
from backend_caps.engines.source.library import library
from backend_caps.engines.source.paths import Attributes, Flag, Paths
from backend_caps.engines.source.values import Instance, Native, Raised, Unknown
from tests.unit.engines.source.trees import index_of


def paths_of(body: str, *args: Native, before: str = "import outside") -> dict[str, object]:
    """Follow a function `f(a)` of a body; what each path returns or raises, by its words."""
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    run = Paths(index_of(m=f"{before}\n\ndef f(*args):\n{lines}\n"), library({}))
    function = run.found("engine.m.f")
    return {
        path.words: _plain(path.outcome) for path in run.of_call(lambda: run.call(function, *args))
    }


def _plain(outcome: Native) -> object:
    if isinstance(outcome, Raised):
        return f"{outcome.error} at {outcome.at}"
    return str(outcome) if isinstance(outcome, Unknown) else outcome


def test_function_without_a_decision_has_one_path() -> None:
    """What nothing hangs on is one path without words."""
    assert paths_of("return args[0] + 1", 1) == {"": 2}


def test_both_ways_of_a_condition_are_followed() -> None:
    """Each unknown condition is decided once for a path, and nested ones only where they run."""
    body = "if outside.a():\n    return 1\nif outside.b:\n    raise ValueError\nreturn 2"

    assert paths_of(body) == {
        "outside.a()": 1,
        "not outside.a() and outside.b": "ValueError at engine/m.py:7",
        "not outside.a() and not outside.b": 2,
    }


def test_condition_that_is_asked_again_is_decided_as_before() -> None:
    """No path takes a condition for true here and for false there."""
    body = "first = outside.a == 1\nreturn (1 if first else 2, 1 if first else 2)"

    assert paths_of(body) == {"outside.a == 1": (1, 1), "not (outside.a == 1)": (2, 2)}


def test_name_of_another_package_may_be_any_constant() -> None:
    """A driver's generation is a number there, and the interpreter has only its name."""
    body = "if outside.kind in ('a', 'b'):\n    return 1\nreturn 2 if outside.kind == 'c' else 3"

    assert paths_of(body) == {
        "outside.kind in ('a', 'b')": 1,
        "not (outside.kind in ('a', 'b')) and outside.kind == 'c'": 2,
        "not (outside.kind in ('a', 'b')) and not (outside.kind == 'c')": 3,
    }


def test_paths_of_one_outcome_are_merged() -> None:
    """A decision that changes nothing is in no condition, also below one that changes much."""
    body = "if outside.a:\n    return 1 if outside.b else 1\nif outside.c:\n    return 2\nreturn 1"

    assert paths_of(body) == {
        "outside.a": 1,
        "not outside.a and outside.c": 2,
        "not outside.a and not outside.c": 1,
    }


def test_equal_errors_and_unknown_values_are_one_outcome() -> None:
    """Errors of one line and text are equal, and so are values that are unknown for one reason."""
    body = "if outside.a:\n    pass\nreturn outside.b() if outside.c else outside.b()"

    assert paths_of(body) == {"": "outside.b()"}
    assert paths_of("if outside.a:\n    pass\nraise ValueError('no')") == {
        "": "ValueError at engine/m.py:6"
    }


def test_flag_is_decided_where_it_is_read() -> None:
    """A flag may be in a key, which an unknown value cannot; other attributes stay unknown."""
    run = Paths(index_of(m="class C: pass\ndef f(c): return {True: 1}.get(c.flag, c.size)"), {})
    values = {"flag": Flag("flag"), "size": Unknown("size")}
    owner = Instance(run.found("engine.m.C"), Attributes(run, values))

    paths = run.of_call(lambda: run.call(run.found("engine.m.f"), owner))

    assert {path.words: _plain(path.outcome) for path in paths} == {"flag": 1, "not flag": "size"}
    assert owner.attributes.get("other", 3) == 3


def test_import_decides_nothing() -> None:
    """What a module's own statements hang on is no part of a path."""
    run = Paths(
        index_of(
            m="def f():\n    from engine import n\n    return n.x", n="if outside: x = 1\nx = 2"
        ),
        library({}),
    )

    (path,) = run.of_call(lambda: run.call(run.found("engine.m.f")))

    assert (path.words, path.outcome) == ("", 2)


def test_path_that_goes_on_for_too_long_is_unknown() -> None:
    """The others are followed; that one's outcome says why and where it is not."""
    body = "if outside.a:\n    return 1\nwhile True:\n    pass"

    found = paths_of(body)

    assert found["outside.a"] == 1
    assert "a loop of more than 20000 rounds (engine/m.py:" in str(found["not outside.a"])


def test_arguments_that_do_not_fit_have_no_line() -> None:
    """No statement of the function has run then."""
    run = Paths(index_of(m="def f(): pass"), {})
    function = run.found("engine.m.f")

    (path,) = run.of_call(lambda: run.call(function, 1))

    assert _plain(path.outcome) == "TypeError at :0"


def test_too_many_paths_are_an_error() -> None:
    """Seven conditions in a row have 128 paths."""
    body = "\n".join(f"if outside.{name}: args[0].append('{name}')" for name in "abcdefg")

    with pytest.raises(NotFollowedError, match="it has more than 64 paths"):
        paths_of(f"{body}\nreturn len(args[0])", [])
