"""Which backend-caps this is."""

from __future__ import annotations

from importlib.metadata import version

from backend_caps.discovery.scan import installed_release


def test_installed_release_names_the_version() -> None:
    """A fault's message tells which release refused a plugin."""
    assert installed_release("pydantic") == f"pydantic {version('pydantic')}"


def test_installed_release_says_that_it_runs_from_its_source() -> None:
    """A checkout that was never installed has no version to tell."""
    actual = installed_release("no-such-distribution")

    assert actual == "no-such-distribution (not installed, run from its source)"
