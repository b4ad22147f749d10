"""What the scripts share that an engine's own Python runs, to say what it makes of a command line.

Standard input has one JSON object: the machine, and the command lines. Each command line is
answered by a line of JSON on the descriptor that is the script's argument, and runs in a fork of
its own: an engine keeps in the process what it found of machine, model and environment. A script
loads this file by its path; it imports nothing of this package.
"""

from __future__ import annotations

import enum
import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import CodeType
from typing import Any, NoReturn, TypeAlias

_Value: TypeAlias = Any
"""A value of the engine, whose classes are not known here."""
_OURS = str(Path(__file__).parent)


class Refusal(Exception):  # noqa: N818 - it is an answer
    """The engine refuses the command line."""


def place(code: CodeType, line: int, package: str) -> str:
    """Write a line of the engine as `sglang/srt/server_args.py:1234`."""
    _, found, path = code.co_filename.replace(os.sep, "/").rpartition(f"/{package}/")
    return f"{package}/{path}:{line}" if found else f"{code.co_filename}:{line}"


def refusing_line(error: BaseException, package: str) -> str | None:
    """Return the line of the engine that raised an error; None where none did."""
    frames = [*traceback.walk_tb(error.__traceback__)]
    files = ((f.f_code.co_filename.replace(os.sep, "/"), f, line) for f, line in frames)
    own = [(f, line) for file, f, line in files if f"/{package}/" in file and _OURS not in file]
    return place(own[-1][0].f_code, own[-1][1], package) if own else None


def refusal(error: BaseException, package: str) -> dict[str, object]:
    """Return the engine's refusal, as an answer has it."""
    words = " ".join(str(error).split()) or type(error).__name__
    return {"message": words, "error": type(error).__name__, "at": refusing_line(error, package)}


def plain(value: _Value) -> _Value:
    """Make a value one that JSON has."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in value]
    names = getattr(value, "__struct_fields__", None) or getattr(value, "__dataclass_fields__", ())
    if names:
        return {name: plain(getattr(value, name)) for name in names}
    return str(value)


def serve(
    out: int,
    command_lines: Sequence[Sequence[str]],
    processed: Callable[[Sequence[str]], Mapping[str, object]],
) -> None:
    """Answer each command line on a descriptor, in a fork of its own."""
    for argv in command_lines:
        child = os.fork() or _in_child(out, argv, processed)
        _, status = os.waitpid(child, 0)
        if status:
            write(out, {"undecided": f"the process ended with status {status}"})


def _in_child(
    out: int, argv: Sequence[str], processed: Callable[[Sequence[str]], Mapping[str, object]]
) -> NoReturn:
    try:
        write(out, processed(argv))
    finally:
        sys.stderr.flush()
        os._exit(0)


def write(out: int, answer: Mapping[str, object]) -> None:
    """Write one answer."""
    data = json.dumps(answer).encode() + b"\n"
    while data:
        data = data[os.write(out, data) :]
