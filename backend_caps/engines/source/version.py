"""The version of a package, from its metadata or from what its build wrote into it."""

from __future__ import annotations

import re
from email.parser import BytesHeaderParser

STATED_IN = ("_version.py", "version.py")
"""Files of the package that a build writes the version into."""
_STATED = re.compile(
    r"""^(?:__version__|version)(?:\s*:\s*str)?\s*=\s*(?:version\s*=\s*)?(["'])([^"'\n]+)\1""",
    re.MULTILINE,
)


def version_of_metadata(metadata: bytes) -> str | None:
    """Read the version that a METADATA file has."""
    version = BytesHeaderParser().parsebytes(metadata).get("Version")
    return None if version is None else str(version).strip() or None


def stated_version(text: bytes) -> str | None:
    """Read the version that a module states as a constant, whatever happens in it."""
    found = _STATED.search(text.decode("utf-8", "replace"))
    return found[2] if found else None
