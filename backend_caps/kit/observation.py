"""Observe a backend while its cases run: the lines that ran, and its printed output."""

from __future__ import annotations

import ast
import io
import logging
import re
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Self, TextIO

from coverage import Coverage

from backend_caps.simulator.trace_function import KernelRecord, recorded_kernels

_EXPECTED = ["already-imported", "include-ignored", "module-not-measured", "no-data-collected"]
"""Warnings of coverage that are switched off: a backend is often imported before, or never runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLines:
    """The statements in functions of one file; statements outside run at the import."""

    file: Path
    lines: tuple[int, ...]
    """The first line of each statement."""
    missed: tuple[int, ...]
    """The lines that did not run."""

    @property
    def missing(self) -> tuple[str, ...]:
        """The missed lines, as ranges such as `12` and `40-44`."""
        is_missed = frozenset(self.missed).__contains__
        runs = [list(run) for missed, run in groupby(self.lines, is_missed) if missed]
        return tuple(f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


class LineCounter:
    """Record which lines of an implementation's files run within a `with` block.

    The files are those of `own_files`. A `Coverage` that runs already is suspended in the block.
    Of a Triton kernel, a statement counts as run where one of its block ran on the simulated
    device: the compiler folds some away, and jumps, which are a block's only ones, without a line.

    Args:
        implementation: `package.module:Class`, as a declaration names it; it need not be imported.
    """

    def __init__(self, implementation: str) -> None:
        self._files = own_files(implementation.partition(":")[0])
        include = [*map(str, self._files)]
        self._coverage = Coverage(data_file=None, config_file=False, include=include)
        self._coverage.set_option("run:disable_warnings", _EXPECTED)
        self._block, self._kernels = ExitStack(), KernelRecord()

    def __enter__(self) -> Self:
        self._kernels = self._block.enter_context(recorded_kernels())
        # An empty `include` would measure every file.
        if self._files:
            self._coverage.start()
            self._block.callback(self._coverage.stop)
        return self

    def __exit__(self, *_error: object) -> None:
        self._block.close()

    @property
    def files(self) -> Sequence[FileLines]:
        """The lines of each file that has functions, after the block."""
        return [lines for lines in map(self._lines_of, self._files) if lines.lines]

    def _lines_of(self, file: Path) -> FileLines:
        _, statements, _, missing, _ = self._coverage.analysis2(str(file))
        inside = _lines_inside(file)
        in_kernels = {site.line for site in self._kernels.lines if site.file == str(file)}
        ran = {*statements} - {*missing} | {*_ran_in_kernels(file, in_kernels)}
        lines = tuple(line for line in statements if line in inside)
        return FileLines(
            file=file, lines=lines, missed=tuple(line for line in lines if line not in ran)
        )


def own_files(module: str) -> Sequence[Path]:
    """List the files of a module and of its imports within its package, sorted.

    Indirect imports count. Nothing is imported: sources are parsed. A missing module has no files.
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
    """Map the modules of a top-level package, or a lone module, to their source files."""
    spec = find_spec(package)
    if spec is None:
        return {}
    if spec.submodule_search_locations is None:
        origin = Path(spec.origin or "")
        return {package: origin} if origin.suffix == ".py" else {}
    files: dict[str, Path] = {}
    for root in spec.submodule_search_locations:
        for file in Path(root).rglob("*.py"):
            within = file.relative_to(root).with_suffix("").parts
            files[".".join([package, *within]).removesuffix(".__init__")] = file
    return files


def _imported_by(module: str, modules: Mapping[str, Path]) -> Iterator[str]:
    """List the absolute names of the modules that a module imports."""
    file = modules[module]
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(_parsed(file)):
        match node:
            case ast.Import(names=names):
                yield from (each.name for each in names)
            case ast.ImportFrom(module=base, names=names, level=level):
                above = package.rsplit(".", level - 1)[0] if level else ""
                origin = ".".join(part for part in (above, base) if part)
                # `from package import name` imports a submodule, or a name that `package` defines.
                inner = (f"{origin}.{each.name}" for each in names)
                yield from (name if name in modules else origin for name in inner)


def _lines_inside(file: Path) -> frozenset[int]:
    """Return the lines of all function bodies of a file."""
    return frozenset(
        line
        for node in ast.walk(_parsed(file))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for line in range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1)
    )


def _ran_in_kernels(file: Path, lines: Collection[int]) -> Iterator[int]:
    """List the first line of each statement of a file's kernels that ran, of the lines that did."""
    functions = (node for node in ast.walk(_parsed(file)) if isinstance(node, ast.FunctionDef))
    for function in functions:
        if any("jit" in ast.unparse(each) for each in function.decorator_list):
            yield from _ran_in_block(function.body, lines)


def _ran_in_block(block: Sequence[ast.stmt], lines: Collection[int]) -> Iterator[int]:
    """List the statements of a block that ran: all where one did, but for those in inner blocks."""
    is_empty = all(isinstance(statement, ast.Return | ast.Pass) for statement in block)
    if is_empty or any(block[0].lineno <= line <= (block[-1].end_lineno or 0) for line in lines):
        for statement in block:
            yield statement.lineno
            for name in ("body", "orelse"):
                yield from _ran_in_block(getattr(statement, name, ()), lines)


def _parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text("utf-8"))


_NUMBER = re.compile(r"\d+")


class DistinctLines(io.TextIOBase):
    """A text stream that counts distinct lines; lines that differ only in numbers are the same."""

    def __init__(self) -> None:
        self._begun = ""
        self._counted: dict[str, tuple[str, int]] = {}

    @property
    def lines(self) -> Mapping[str, int]:
        """Each line as it was first written, with its count."""
        self.write("\n")  # ends an unfinished line
        return dict(self._counted.values())

    def writable(self) -> bool:
        """Return True: this stream takes text."""
        return True

    def write(self, text: str) -> int:
        """Add text, which may be a part of a line."""
        *ended, self._begun = (self._begun + text).split("\n")
        for line in filter(None, map(str.strip, ended)):
            key = _NUMBER.sub("0", line)  # log lines differ in times and process numbers
            first, count = self._counted.get(key, (line, 0))
            self._counted[key] = first, count + 1
        return len(text)

    def warn(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,  # noqa: ARG002 - of `warnings.showwarning`
        line: str | None = None,  # noqa: ARG002 - of `warnings.showwarning`
    ) -> None:
        """Add a warning as one line; the signature is that of `warnings.showwarning`."""
        self.write(f"{filename}:{lineno}: {category.__name__}: {message}\n")


@contextmanager
def muffled() -> Iterator[DistinctLines]:
    """Collect Python's standard output and error, logs and warnings in a block.

    Log handlers that hold the old stream objects are redirected, too. Output of other processes and
    of native code is not caught.
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
        # Under `-W error` a backend's warning would raise, and count as a broken claim.
        warnings.simplefilter("default")
        warnings.showwarning = printed.warn
        yield printed


def _handlers() -> Iterator[logging.StreamHandler[io.TextIOBase]]:
    """List the handlers of all loggers that write to a stream."""
    root = logging.getLogger()
    named = (each for each in root.manager.loggerDict.values() if isinstance(each, logging.Logger))
    for logger in (root, *named):
        for handler in logger.handlers:
            # Subclasses such as `FileHandler` write elsewhere.
            if type(handler) is logging.StreamHandler:
                yield handler
