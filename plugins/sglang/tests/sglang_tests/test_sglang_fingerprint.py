from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
from backend_caps_sglang import RegistrationsDifferError
from backend_caps_sglang.fingerprint import VARIABLE, check_against_parent, tell_children

ENTRIES = {"backend 'fast'": "acme:make (acme 1.0)", "decision": "backend-caps 0.1.0"}


def child_of(pid: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process be one that another started."""
    parent = None if pid is None else SimpleNamespace(pid=pid)
    monkeypatch.setattr("backend_caps_sglang.fingerprint.parent_process", lambda: parent)


def test_child_with_the_same_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries are compared by what they say, in any order."""
    environ: dict[str, str] = {}
    child_of(os.getpid(), monkeypatch)
    tell_children(ENTRIES, environ)

    check_against_parent(dict(reversed(ENTRIES.items())), environ)

    assert VARIABLE in environ


def test_each_entry_that_differs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry that is another, one that is missing and one too many are told, sorted."""
    environ: dict[str, str] = {}
    child_of(os.getpid(), monkeypatch)
    tell_children(ENTRIES, environ)

    with pytest.raises(RegistrationsDifferError) as caught:
        check_against_parent({"decision": "backend-caps 0.2.0", "more": "x"}, environ)

    assert caught.value.differences == (
        "backend 'fast' is acme:make (acme 1.0) there, and nothing here",
        "decision is backend-caps 0.1.0 there, and backend-caps 0.2.0 here",
        "more is nothing there, and x here",
    )


@pytest.mark.parametrize(
    "pid", [pytest.param(None, id="of-no-process"), pytest.param(1, id="of-another-process")]
)
def test_what_another_process_wrote_counts_for_nothing(
    pid: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that is started from within another one's environment is a server of its own."""
    environ: dict[str, str] = {}
    child_of(pid, monkeypatch)
    tell_children(ENTRIES, environ)

    check_against_parent({}, environ)

    assert VARIABLE in environ


@pytest.mark.parametrize("written", ["", "no document", "[]"])
def test_what_is_no_document_counts_for_nothing(
    written: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What somebody else put into the variable stops no server."""
    child_of(os.getpid(), monkeypatch)

    check_against_parent(ENTRIES, {VARIABLE: written})
