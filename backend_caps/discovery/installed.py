"""Which backend-caps this is."""

from __future__ import annotations


def installed_release(distribution: str = "backend-caps") -> str:
    """Name this package with its version, for a fault's message."""
    # Only a fault's message asks, and this import is half as slow as a scan.
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    try:
        return f"{distribution} {version(distribution)}"
    except PackageNotFoundError:
        return f"{distribution} (not installed, run from its source)"
