"""What an engine's own Python runs, to say what the engine makes of command lines.

Standard input has one JSON object: the machine, and the command lines. Each command line is
answered by a line of JSON on the descriptor that is the first argument, and runs in a fork of its
own: an engine keeps in the process what it found of machine, model and environment. The second
argument is the engine's `query_script.py`, which prepares the process and processes a command
line. Both are loaded by their paths; neither imports anything of this package.
"""

from __future__ import annotations

import contextlib
import enum
import gc
import importlib.util
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import CodeType, ModuleType
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
    package: str,
) -> None:
    """Answer each command line on a descriptor, in a fork of its own.

    What a fork imports of other packages is imported here before the next one is made. Modules of
    the engine's own package are not: some take values of the command line when they are imported.
    """
    for argv in command_lines:
        with tempfile.TemporaryFile() as names:
            child = os.fork() or _in_child(out, argv, processed, names.fileno())
            _, status = os.waitpid(child, 0)
            names.seek(0)
            imported = names.read().decode().split()
        others = (each for each in imported if each.partition(".")[0] != package)
        if status:
            write(out, {"undecided": f"the process ended with status {status}"})
        for name in others if argv is not command_lines[-1] else ():
            with contextlib.suppress(Exception):  # which the next fork meets itself
                importlib.import_module(name)


def _in_child(
    out: int,
    argv: Sequence[str],
    processed: Callable[[Sequence[str]], Mapping[str, object]],
    names: int,
) -> NoReturn:
    before = set(sys.modules)
    try:
        write(out, processed(argv))
        imported = [each for each in sys.modules if each not in before]
        os.write(names, "\n".join(imported).encode())
    finally:
        sys.stderr.flush()
        os._exit(0)


def write(out: int, answer: Mapping[str, object]) -> None:
    """Write one answer."""
    data = json.dumps(answer).encode() + b"\n"
    while data:
        data = data[os.write(out, data) :]


def load(path: Path) -> ModuleType:
    """Load a module of this package by its file, which is on no import path here."""
    spec = importlib.util.spec_from_file_location(f"backend_caps_{path.stem}", path)
    assert spec is not None, "a file is a module"
    assert spec.loader is not None, "and has a loader"
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Answer each command line that standard input has."""
    out, path = int(sys.argv[1]), Path(sys.argv[2])
    request = json.load(sys.stdin)
    # This folder, which Python puts on the path of a script, has packages of the engines' names.
    here = Path(__file__).resolve().parent
    sys.path[:] = [each for each in sys.path if Path(each).resolve() != here]
    gc.disable()  # modules are many live objects: collections would take a fifth of the imports
    sys.modules["backend_caps_query_process"] = sys.modules[__name__]  # as the script finds it
    load(Path(__file__).with_name("query_machine.py")).stand_in(request["machine"])
    script = load(path)
    try:
        script.prepare(request)
    except Exception as error:  # noqa: BLE001 - an engine that is not whole is an answer
        words = f"the engine's arguments cannot be imported: {type(error).__name__}: {error}"
        for _ in request["command_lines"]:
            write(out, {"undecided": words})
        return
    serve(out, request["command_lines"], script.processed, script.PACKAGE)


if __name__ == "__main__":
    main()
