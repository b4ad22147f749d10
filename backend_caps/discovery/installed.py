"""Which backend-caps this is."""

from __future__ import annotations


def installed_release() -> str:
    """Name this package with its version, for a fault's message."""
    # Only a fault's message asks, and this import is half as slow as a scan.
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    try:
        return f"backend-caps {version('backend-caps')}"
    except PackageNotFoundError:
        return "backend-caps (not installed, run from its source)"
