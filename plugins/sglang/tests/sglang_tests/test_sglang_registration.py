"""What a process registers is compared with what its parent process registered."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

import pytest
from backend_caps_sglang import registration
from backend_caps_sglang.errors import ParentDiffersError
from backend_caps_sglang.registration import VARIABLE, check_against_parent, publish_to_workers

_FOUND = {"backend a": "a-caps 1.0 (ok)", "backend b": "b-caps 1.0 (ok)"}


@pytest.fixture
def of_parent(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return an environment that this process wrote, and make it look like a child of itself."""
    environ: dict[str, str] = {}
    publish_to_workers(_FOUND, environ)
    parent = SimpleNamespace(pid=os.getpid())
    monkeypatch.setattr(registration, "parent_process", lambda: parent)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    return environ


def test_worker_that_registers_the_same_passes(of_parent: dict[str, str]) -> None:
    """The order of registration does not count."""
    check_against_parent(dict(reversed(_FOUND.items())), of_parent)


def test_worker_that_registers_something_else_names_it(of_parent: dict[str, str]) -> None:
    """Each entry that differs is named, with both sides."""
    found = {"backend a": "a-caps 1.1 (ok)", "backend c": "c-caps 1.0 (ok)"}

    with pytest.raises(ParentDiffersError) as raised:
        check_against_parent(found, of_parent)

    assert raised.value.parent != os.getpid()
    assert (
        "things: backend a is a-caps 1.0 (ok) there, and a-caps 1.1 (ok) here; "
        "backend b is b-caps 1.0 (ok) there, and nothing here; "
        "backend c is nothing there, and c-caps 1.0 (ok) here. They were"
    ) in str(raised.value)


def test_worker_keeps_what_its_parent_wrote(of_parent: dict[str, str]) -> None:
    """A worker that has written its own entries is still compared with its parent's."""
    publish_to_workers({}, of_parent)

    with pytest.raises(ParentDiffersError, match="nothing here"):
        check_against_parent({}, of_parent)


_OTHER_SHAPE = json.dumps({f"{os.getpid()}": ["backend a"]})


@pytest.mark.parametrize(
    "written", ["", "[]", "{", "null", pytest.param(_OTHER_SHAPE, id="a-list-of-backends")]
)
def test_malformed_variable_counts_as_empty(of_parent: dict[str, str], written: str) -> None:
    """Another program's variable of that name stops no server."""
    of_parent[VARIABLE] = written

    check_against_parent({}, of_parent)


def test_server_within_a_server_is_another_one() -> None:
    """Entries of a process that did not start this one are not compared."""
    environ: dict[str, str] = {}
    publish_to_workers(_FOUND, environ)

    check_against_parent({}, environ)


def test_entries_of_grandparents_are_dropped(of_parent: dict[str, str]) -> None:
    """The variable does not grow from generation to generation."""
    of_parent[VARIABLE] = json.dumps({"12": _FOUND})

    publish_to_workers(_FOUND, of_parent)

    assert json.loads(of_parent[VARIABLE]) == {"-1": _FOUND}
