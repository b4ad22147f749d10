"""Lock files, read from a disk that may hold anything."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from pydantic import ValidationError

from backend_caps.report.errors import (
    LOCK_SCHEMA,
    LockFileError,
    LockSchemaError,
    LockWriteError,
)
from backend_caps.report.lock import LockDocument

_LONGEST_INPUT = 60
"""How much of a wrong value a sentence repeats."""


def read_lock(path: Path) -> LockDocument:
    """Read a lock file.

    Raises:
        LockFileError: the file is not there, is truncated, or holds something else.
        LockSchemaError: it has another schema, such as that of a newer version.
    """
    try:
        text = path.read_text("utf-8")
        schema = _schema_of(json.loads(text))
    except OSError as error:
        raise LockFileError(path=str(path), cause=error.strerror or str(error)) from error
    except (ValueError, RecursionError) as error:
        raise LockFileError(path=str(path), cause=f"it is no JSON ({error})") from error
    if schema != LOCK_SCHEMA:
        raise LockSchemaError(path=str(path), schema=repr(schema))
    try:
        return LockDocument.model_validate_json(text)
    except ValidationError as error:
        raise LockFileError(path=str(path), cause=_fault(error)) from error


def write_lock(text: str, path: Path) -> None:
    """Write a lock file whole, or leave what was there.

    Raises:
        LockWriteError: the file's folder is not there, or its disk has no room.
    """
    is_device = path.exists() and not path.is_file()
    try:
        if is_device:  # it holds nothing that could be lost, and is not to be replaced
            path.write_bytes(text.encode())
        else:
            _replace(Path(os.path.realpath(path)), text)
    except OSError as error:
        raise LockWriteError(path=str(path), cause=error.strerror or str(error)) from error


def _replace(file: Path, text: str) -> None:
    """Write beside a file, and put that in its place at once."""
    written = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        written.write_bytes(text.encode())
        if file.exists():
            shutil.copymode(file, written)
        written.replace(file)
    finally:
        written.unlink(missing_ok=True)


def _schema_of(document: object) -> object:
    return document.get("schema") if isinstance(document, dict) else None


def _fault(error: ValidationError) -> str:
    """Tell the first thing that is wrong, and where in the document it stands."""
    first = error.errors(include_url=False, include_context=False)[0]
    place = ".".join(map(str, first["loc"]))
    if first["type"] == "missing":
        return f"it has no {place!r}"
    found = repr(first["input"])
    shown = found if len(found) <= _LONGEST_INPUT else f"{found[:_LONGEST_INPUT]}..."
    return f"its {place!r} is {shown} ({first['msg']})"
