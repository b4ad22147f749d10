"""What an engine's own Python runs, to say what the engine makes of command lines.

Standard input has one JSON object: the machine, and the command lines. Each command line is
answered by a line of JSON on the descriptor that is the first argument, and runs in a fork of its
own: an engine keeps in the process what it found of machine, model and environment. The second
argument is the engine's `query_script.py`, which prepares the process and processes a command
line. Both are loaded by their paths; neither imports anything of this package.
"""

from __future__ import annotations

import builtins
import contextlib
import enum
import functools
import gc
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any, NoReturn, TypeAlias

_Value: TypeAlias = Any
"""A value of the engine, whose classes are not known here."""
_OURS = str(Path(__file__).parent)
_READS_VARIABLE = type(os.environ).__getitem__.__code__
"""What Python runs where a variable of the environment is read, by `get` and `getenv` too."""


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


class Imports(importlib.abc.MetaPathFinder):
    """The modules that a fork imports, and which of them take values of its command line.

    A module of the engine takes some where one of the functions that return them is called while it
    is imported, where it reads a variable of the engine's, which a command line may change, or
    where it imports such a module.
    """

    def __init__(self, package: str, readers: frozenset[str], of_lines: set[str]) -> None:
        """Take the engine's package, the names of those functions, and what is known to take some.

        Without such functions every module of the package may take values.
        """
        self._package, self._readers = package, readers
        self._before = set(sys.modules)
        self._importing: list[str] = []
        self._ran: set[str] = set()
        self._of_lines = of_lines
        self._import = builtins.__import__

    def watch(self) -> None:
        """Observe the imports of this process from now on."""
        sys.meta_path.insert(sys.meta_path.index(importlib.machinery.PathFinder), self)
        builtins.__import__ = self._imported

    def found(self) -> dict[str, list[str]]:
        """List what is imported since, and the modules that take values of a command line."""
        new = [each for each in sys.modules if each not in self._before]
        # One of the engine that did not run is of a stand-in.
        own = [each for each in new if each in self._ran or not self._is_engines(each)]
        return {"imported": own, "of lines": sorted(self._of_lines)}

    def _is_engines(self, name: str) -> bool:
        return name.partition(".")[0] == self._package

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find a module of the engine as Python does, and observe it while it runs."""
        if not self._is_engines(name):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module
            spec.loader.exec_module = functools.partial(self._run, run)  # type: ignore[method-assign]
        return spec

    def _run(self, run: Callable[[ModuleType], None], module: ModuleType) -> None:
        self._importing.append(module.__name__)
        self._ran.add(module.__name__)
        outer = sys.getprofile()
        sys.setprofile(self._called)
        try:
            run(module)
        finally:
            sys.setprofile(outer)
            if not self._readers:
                self._of_lines.update(self._importing)
            self._importing.pop()

    # Python traces nothing of a profile function, so no coverage of it is measured.
    def _called(  # pragma: no cover
        self, frame: FrameType, event: str, _arg: object
    ) -> None:
        if event != "call":
            return
        code = frame.f_code
        variable = frame.f_locals["key"] if code is _READS_VARIABLE else ""
        if code.co_name in self._readers or variable.startswith(f"{self._package.upper()}_"):
            self._of_lines.update(self._importing)

    def _imported(self, name: str, *args: _Value, **named: _Value) -> ModuleType:
        module = self._import(name, *args, **named)
        if self._importing:
            members = named.get("fromlist", args[2] if len(args) > 2 else ()) or ()  # noqa: PLR2004
            source = module.__name__ if members else name
            asked = {source, *(f"{source}.{each}" for each in members)}
            if asked & self._of_lines:
                self._of_lines.update(self._importing)
        return module


def serve(
    out: int,
    command_lines: Sequence[Sequence[str]],
    processed: Callable[[Sequence[str]], Mapping[str, object]],
    package: str,
    readers: frozenset[str],
) -> None:
    """Answer each command line on a descriptor, in a fork of its own.

    What a fork imports is imported here before the next one is made, but for modules of the
    engine's `package` that take values of a command line, as `Imports` finds them.
    """
    of_lines: set[str] = set()
    for argv in command_lines:
        imports = Imports(package, readers, of_lines)
        with tempfile.TemporaryFile() as names:
            child = os.fork() or _in_child(out, argv, processed, imports, names.fileno())
            _, status = os.waitpid(child, 0)
            names.seek(0)
            found = json.loads(names.read() or b"{}")
        if status:
            write(out, {"undecided": f"the process ended with status {status}"})
        of_lines.update(found.get("of lines", ()))
        for name in found.get("imported", ()) if argv is not command_lines[-1] else ():
            if name not in of_lines:
                with contextlib.suppress(Exception):  # which the next fork meets itself
                    importlib.import_module(name)


def _in_child(
    out: int,
    argv: Sequence[str],
    processed: Callable[[Sequence[str]], Mapping[str, object]],
    imports: Imports,
    names: int,
) -> NoReturn:
    try:
        imports.watch()
        write(out, processed(argv))
        os.write(names, json.dumps(imports.found()).encode())
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
    serve(out, request["command_lines"], script.processed, script.PACKAGE, script.READERS)


if __name__ == "__main__":
    main()
