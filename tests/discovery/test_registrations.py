"""What a process hands down to those that it starts."""

from __future__ import annotations

import json
import os
from multiprocessing import get_context
from types import SimpleNamespace

import pytest

from backend_caps.discovery import registrations
from backend_caps.discovery.problems import DiscoveryError
from backend_caps.discovery.registrations import (
    VARIABLE,
    check_against_parent,
    tell_children,
)

_FOUND = {"backend a": "a-caps 1.0 (ok)", "backend b": "b-caps 1.0 (ok)"}


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Make the environment that this process wrote, and be a child of it."""
    environ: dict[str, str] = {}
    tell_children("tests", _FOUND, environ)
    parent = SimpleNamespace(pid=os.getpid())
    monkeypatch.setattr(registrations, "parent_process", lambda: parent)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    return environ


def test_worker_that_finds_the_same_goes_on(told: dict[str, str]) -> None:
    """The order in which things were found does not count."""
    check_against_parent("tests", dict(reversed(_FOUND.items())), told)


def test_worker_that_finds_something_else_names_it(told: dict[str, str]) -> None:
    """Each entry that differs is told, with both sides."""
    found = {"backend a": "a-caps 1.1 (ok)", "backend c": "c-caps 1.0 (ok)"}

    with pytest.raises(DiscoveryError) as raised:
        check_against_parent("tests", found, told)

    assert raised.value.code == "registrations-differ"
    assert (
        "things: backend a is a-caps 1.0 (ok) there, and a-caps 1.1 (ok) here; "
        "backend b is b-caps 1.0 (ok) there, and nothing here; "
        "backend c is nothing there, and c-caps 1.0 (ok) here. They were"
    ) in str(raised.value)


def test_registrars_are_compared_with_themselves(told: dict[str, str]) -> None:
    """What another registrar wrote is not this one's."""
    check_against_parent("others", {}, told)


def test_worker_keeps_what_its_parent_wrote(told: dict[str, str]) -> None:
    """A second registrar of a worker is still compared, though the first wrote of its own."""
    tell_children("others", {}, told)

    with pytest.raises(DiscoveryError, match="nothing here"):
        check_against_parent("tests", {}, told)


_OTHER_SHAPE = json.dumps({f"{os.getpid()}": {"tests": ["backend a"]}})


@pytest.mark.parametrize(
    "written",
    ["", "[]", "{", "null", pytest.param(_OTHER_SHAPE, id="a-list-of-backends")],
)
def test_what_is_no_document_counts_as_nothing(told: dict[str, str], written: str) -> None:
    """Somebody else's variable of that name stops no server."""
    told[VARIABLE] = written

    check_against_parent("tests", {}, told)


def test_server_within_a_server_is_another_one() -> None:
    """What a process that did not start this one wrote is nobody's business."""
    environ: dict[str, str] = {}
    tell_children("tests", _FOUND, environ)

    check_against_parent("tests", {}, environ)


def test_grandparents_words_are_dropped(told: dict[str, str]) -> None:
    """The variable does not grow from generation to generation."""
    told[VARIABLE] = json.dumps({"12": {"tests": _FOUND}})

    tell_children("tests", _FOUND, told)

    assert '"12"' not in told[VARIABLE]


def _worker(found: dict[str, str]) -> None:
    check_against_parent("tests", found, os.environ)


@pytest.mark.parametrize(("found", "status"), [(_FOUND, 0), ({}, 1)])
def test_process_that_is_started_is_compared(
    monkeypatch: pytest.MonkeyPatch, found: dict[str, str], status: int
) -> None:
    """A worker of multiprocessing ends where it finds something else."""
    monkeypatch.setenv(VARIABLE, "")
    tell_children("tests", _FOUND, os.environ)

    worker = get_context("spawn").Process(target=_worker, args=(found,))
    worker.start()
    worker.join()

    assert worker.exitcode == status
