"""What a dry run was asked, by its options and by the settings."""

from __future__ import annotations

import pytest

from backend_caps.cli.dry_run import dry_run
from backend_caps.cli.dry_run_asked import DryRunAsked


def test_deadline_is_that_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The setting says how long ranks wait for one another, and the option goes before it."""
    monkeypatch.setenv("BACKEND_CAPS_AGREEMENT_DEADLINE", "7")

    lines: list[list[str]] = [[], ["--deadline", "8"], ["--agreement-deadline", "9"]]
    asked = [DryRunAsked.from_context(dry_run.make_context("dry-run", line)) for line in lines]

    assert [own.deadline_s for own in asked] == [7, 8, 9]
