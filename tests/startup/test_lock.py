"""Servers that start only as a lock file says."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend_caps import Capabilities, Policy, Registry, configure
from backend_caps.report.lock import LockedRequest, LockError, lock_document
from backend_caps.report.plans import plan_document
from backend_caps.resolution.selection import plan_for
from backend_caps.startup.errors import StartupError
from tests.startup.agreement.made import FLAGS, OPTS_OUT, READS, registry


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    """Lock a server whose backend opts out."""
    known = registry({"acme": OPTS_OUT})
    plan = plan_for(known, FLAGS, rules=known.rules())
    request = LockedRequest(
        flags=FLAGS,
        facts=plan.facts,
        unsafe_override=None,
        policy=Policy.WARN,
        rules="sglang-0.5.13",
        engine=None,
    )
    document = lock_document(request, known, plan.rules, plan_document(plan, ()))
    path = tmp_path / "caps.lock.json"
    path.write_text(document.text())
    return path


def _start(known: Registry, lock: Path) -> None:
    configure(FLAGS, pool_size=8, device="cpu", registry=known, policy="quiet", lock=lock)


def test_server_starts_as_locked(lock: Path) -> None:
    """What is installed where the lock was written starts."""
    _start(registry({"acme": OPTS_OUT}, folder="/elsewhere"), lock)


@pytest.mark.parametrize(
    ("capabilities", "version", "told"),
    [
        pytest.param(OPTS_OUT, "2.0", "2.0 and was 1.0", id="another version"),
        pytest.param(READS, "1.0", "host_seq_lens is exact and was none", id="another need"),
    ],
)
def test_what_is_not_as_locked_is_refused(
    lock: Path, capabilities: Capabilities, version: str, told: str
) -> None:
    """The first differences are reported, and where to see them all."""
    with pytest.raises(StartupError) as raised:
        _start(registry({"acme": capabilities}, version=version), lock)

    assert told in str(raised.value)
    assert f"backend-caps verify {lock}" in str(raised.value)


def test_lock_that_is_none_is_refused(tmp_path: Path) -> None:
    """A file that cannot be read stops the start."""
    (tmp_path / "broken").write_text("{")

    with pytest.raises(LockError, match="is no JSON"):
        _start(registry(), tmp_path / "broken")
