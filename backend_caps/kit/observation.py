"""What is observed of a backend while its cases run: the lines that ran, and what it printed."""

from __future__ import annotations

import ast
import io
import logging
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Self, TextIO

from coverage import Coverage

_UNSAID = ["already-imported", "include-ignored", "module-not-measured", "no-data-collected"]
"""Warnings of coverage about what is meant to be so here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLines:
    """The lines of one file, within functions: those around them run at the import."""

    file: Path
    lines: tuple[int, ...]
    """Where statements begin."""
    missed: tuple[int, ...]
    """Those that did not run."""

    @property
    def missing(self) -> tuple[str, ...]:
        """What did not run, as ranges such as `12` and `40-44`."""
        is_missed = frozenset(self.missed).__contains__
        stretches = [list(lines) for ran_not, lines in groupby(self.lines, is_missed) if ran_not]
        return tuple(
            f"{own[0]}" if own[0] == own[-1] else f"{own[0]}-{own[-1]}" for own in stretches
        )


class LineCounter:
    """Count which lines of an implementation's own files run within a `with` block.

    Its own files are the module that holds it, and what that imports of its own package, directly
    or not. A coverage that runs already is stopped meanwhile.

    Args:
        implementation: `package.module:Class`, as a declaration names it; it need not be imported.
    """

    def __init__(self, implementation: str) -> None:
        self._own = own_files(implementation.partition(":")[0])
        self._coverage = Coverage(data_file=None, config_file=False, include=[*map(str, self._own)])
        self._coverage.set_option("run:disable_warnings", _UNSAID)

    def __enter__(self) -> Self:
        if self._own:
            self._coverage.start()
        return self

    def __exit__(self, *_error: object) -> None:
        if self._own:
            self._coverage.stop()

    @property
    def files(self) -> Sequence[FileLines]:
        """What ran of each file that has functions, behind the block."""
        return [own for own in map(self._file, self._own) if own.lines]

    def _file(self, file: Path) -> FileLines:
        _, statements, _, missing, _ = self._coverage.analysis2(str(file))
        inside = _lines_inside(file)
        lines, missed = (
            tuple(line for line in own if line in inside) for own in (statements, missing)
        )
        return FileLines(file=file, lines=lines, missed=missed)


def own_files(module: str) -> Sequence[Path]:
    """List the files of a module and of what it imports of its own package, sorted.

    Nothing is imported. A module that cannot be found has none.
    """
    modules = _modules_beside(module.partition(".")[0])
    reached: dict[str, Path] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in modules and name not in reached:
            reached[name] = modules[name]
            waiting += _imported_by(name, modules)
    return sorted(reached.values())


def _modules_beside(package: str) -> Mapping[str, Path]:
    """Find the source files of a top-level package, or of a lone module, by their names."""
    spec = find_spec(package)
    if spec is None:
        return {}
    if spec.submodule_search_locations is None:
        origin = Path(spec.origin or "")
        return {package: origin} if origin.suffix == ".py" else {}
    found: dict[str, Path] = {}
    for root in spec.submodule_search_locations:
        for file in Path(root).rglob("*.py"):
            within = file.relative_to(root).with_suffix("").parts
            found[".".join([package, *within]).removesuffix(".__init__")] = file
    return found


def _imported_by(module: str, modules: Mapping[str, Path]) -> Iterator[str]:
    """List what a module imports, absolutely named."""
    file = modules[module]
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(_parsed(file)):
        match node:
            case ast.Import(names=names):
                yield from (each.name for each in names)
            case ast.ImportFrom(module=base, names=names, level=level):
                above = package.rsplit(".", level - 1)[0] if level else ""
                origin = ".".join(part for part in (above, base) if part)
                # What is imported from a package is a module of it, or the package's own.
                inner = (f"{origin}.{each.name}" for each in names)
                yield from (name if name in modules else origin for name in inner)


def _lines_inside(file: Path) -> frozenset[int]:
    """List the lines of functions' bodies."""
    return frozenset(
        line
        for node in ast.walk(_parsed(file))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for line in range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1)
    )


def _parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text("utf-8"))


_NUMBER = re.compile(r"\d+")


class DistinctLines(io.TextIOBase):
    """A stream that keeps each distinct line once; lines that differ in numbers alone are one."""

    def __init__(self) -> None:
        self._begun = ""
        self._counted: dict[str, tuple[str, int]] = {}

    @property
    def lines(self) -> Mapping[str, int]:
        """Each line as it was first written, and how often."""
        self.write("\n")  # ends a line that is begun
        return dict(self._counted.values())

    def writable(self) -> bool:
        """Take text."""
        return True

    def write(self, text: str) -> int:
        """Add text, which may be a part of a line."""
        *ended, self._begun = (self._begun + text).split("\n")
        for line in filter(None, map(str.strip, ended)):
            alike = _NUMBER.sub("0", line)  # a log's times and process numbers
            first, count = self._counted.get(alike, (line, 0))
            self._counted[alike] = first, count + 1
        return len(text)

    def warn(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,  # noqa: ARG002 - the same
        line: str | None = None,  # noqa: ARG002 - the same
    ) -> None:
        """Add a warning, on a line of its own."""
        self.write(f"{filename}:{lineno}: {category.__name__}: {message}\n")


@contextmanager
def muffled() -> Iterator[DistinctLines]:
    """Keep what Python code writes to standard output and error, logs or warns of in a block.

    Loggers that write to standard error already are led here too. What a process of its own, or
    code that is no Python, writes to the terminal is not caught.
    """
    printed = DistinctLines()
    with ExitStack() as stack:
        for handler in _handlers():
            if handler.stream in {sys.stderr, sys.stdout}:
                stack.callback(handler.setStream, handler.stream)
                handler.setStream(printed)
        stack.enter_context(redirect_stdout(printed))
        stack.enter_context(redirect_stderr(printed))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("default")  # where warnings are errors, they are no broken claim
        warnings.showwarning = printed.warn
        yield printed


def _handlers() -> Iterator[logging.StreamHandler[io.TextIOBase]]:
    """List the handlers of all loggers that write to a stream."""
    root = logging.getLogger()
    named = (each for each in root.manager.loggerDict.values() if isinstance(each, logging.Logger))
    for logger in (root, *named):
        for handler in logger.handlers:
            if type(handler) is logging.StreamHandler:
                yield handler
