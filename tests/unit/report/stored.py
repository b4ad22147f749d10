"""Documents that hold what views can show: a file each in `documents`, its text in `golden`."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from backend_caps.report.check_documents import CheckDocument
from backend_caps.report.document import Document

_Document = TypeVar("_Document", bound=Document)
FOLDER = Path(__file__).parent / "documents"
"""Where they are."""


def read(name: str, kind: type[_Document]) -> _Document:
    """Read a document by the name of its file."""
    return kind.model_validate_json((FOLDER / f"{name}.json").read_bytes())


def checked() -> CheckDocument:
    """Read the document of a backend that was checked, of whose checks two fail."""
    return read("check-failed", CheckDocument)
