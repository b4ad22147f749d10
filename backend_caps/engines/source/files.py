"""The Python files of an engine, read in place from a folder, a wheel or what is installed."""

from __future__ import annotations

import ast
import importlib.machinery
import json
import os
import re
import struct
import sys
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from email.parser import BytesHeaderParser
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import IO
from urllib.parse import unquote, urlsplit

from backend_caps.capability.provenance import Problem
from backend_caps.discovery.metadata import BOUNDED_METHODS, open_regular, read_regular
from backend_caps.engines.reading import EngineError, problem

INSTALLED = "installed"
LARGEST_BYTES = 5 * 10**6
"""The largest file that is read. The largest of SGLang and vLLM has under 1 MB."""
LARGEST_TOTAL_BYTES = 250 * 10**6
"""As much is read of one source. SGLang 0.5.23 has 36 MB."""
_FIRST_READ_BYTES = 2**16
"""Most files are smaller, and `read(limit)` would allocate the limit for each of them."""
_DAMAGE = (
    OSError,
    EOFError,
    ValueError,
    RuntimeError,  # of an encrypted file, or of an unknown compression method
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
)
"""What opening or unpacking a damaged file raises."""
_VERSION_FILES = ("_version.py", "version.py")
"""Files of the package that a build writes the version into."""
_VERSION = re.compile(
    rb"""^(?:__version__|version)(?:\s*:\s*str)?\s*=\s*(?:version\s*=\s*)?(["'])([^"'\n]+)\1""",
    re.MULTILINE,
)
_DEEPEST = 80
"""The deepest nesting that is read; SGLang and vLLM nest 40 deep.

The readers are recursive: each level takes several frames of the 1000 that Python allows.
"""
_LONGEST_LINE = 400
_MOST_BRACKETS = 40
_NO_BRACKETS = bytes(set(range(256)) - set(b"()[]{}"))
_TOO_DEEP = f"it is nested more than {_DEEPEST} deep"
_Opener = Callable[[], AbstractContextManager[IO[bytes]]]


@dataclass(slots=True, kw_only=True)
class Tree:
    """The text of a package's Python files, read within limits."""

    package: str
    version: str | None = None
    requires: tuple[str, ...] | None = None
    """What its metadata requires, as they state it; None for a source without metadata."""
    source: str
    """Where it was read: a folder's or a wheel's name, or `installed`."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """By path, with slashes, from the folder that the package is imported from."""
    is_wanted: Callable[[str], bool] = lambda _: True
    """Whether the file of a path is read."""
    problems: list[Problem] = field(default_factory=list)
    num_bytes_left: int = LARGEST_TOTAL_BYTES

    def note(self, code: str, **values: object) -> None:
        """Record a problem of the source."""
        self.problems.append(problem(code, **values))

    def add(self, openers: Mapping[str, _Opener], *, lazily: bool) -> None:
        """Read Python files, each of `lazily` when its text is asked for."""
        if lazily:
            self.files = _LazyTexts(self, openers)
            return
        texts = {path: self.text(path, opened) for path, opened in openers.items()}
        self.files = {path: text for path, text in texts.items() if text is not None}

    def text(self, path: str, opened: _Opener) -> bytes | None:
        """Read a Python file, with line ends as the parser counts them."""
        text = self.read(path, opened)
        if text is not None and b"\r" in text:
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return text

    def read(self, path: str, opened: _Opener) -> bytes | None:
        """Read a file up to the limit; None, and a problem, where it cannot be read."""
        limit = min(LARGEST_BYTES, self.num_bytes_left)
        try:
            with opened() as file:
                text = file.read(_FIRST_READ_BYTES)
                if len(text) == _FIRST_READ_BYTES:
                    text += file.read(max(limit + 1 - _FIRST_READ_BYTES, 0))
        except _DAMAGE as error:
            self.note("engine-file-unreadable", path=path, error=_cause(error))
            return None
        if len(text) > limit:
            self.note("engine-file-too-large", path=path, limit=limit)
            return None
        self.num_bytes_left -= len(text)
        return text

    def read_version(self, files: Iterable[tuple[str, _Opener]]) -> None:
        """Take the version from the first metadata or version file that states one."""
        for path, opened in files:
            text = self.read(path, opened) or b""
            if path.endswith("METADATA"):
                stated = BytesHeaderParser().parsebytes(text)
                self.version = str(stated.get("Version") or "").strip() or None
                self.requires = tuple(map(str, stated.get_all("Requires-Dist", ())))
            elif found := _VERSION.search(text):
                self.version = found[2].decode("utf-8", "replace")
            if self.version:
                return


class _LazyTexts(Mapping[str, bytes]):
    """Texts by path that are read when they are asked for; one that cannot be read is empty."""

    def __init__(self, tree: Tree, openers: Mapping[str, _Opener]) -> None:
        self._tree = tree
        self._openers = openers
        self._texts: dict[str, bytes] = {}

    def __getitem__(self, path: str) -> bytes:
        if path not in self._texts:
            self._texts[path] = self._tree.text(path, self._openers[path]) or b""
        return self._texts[path]

    def __contains__(self, path: object) -> bool:
        return path in self._openers

    def __iter__(self) -> Iterator[str]:
        return iter(self._openers)

    def __len__(self) -> int:
        return len(self._openers)


def open_tree(
    package: str,
    source: Path | None,
    *,
    within: Callable[[str], bool] = lambda _: True,
    lazily: bool = False,
) -> Tree:
    """Read a package's Python files.

    Args:
        package: such as `sglang`.
        source: a wheel, or a folder that has the package's folder in it or is it; the
            installed package if None.
        within: returns whether the file of a path is read.
        lazily: read each file when its text is asked for, for a reader of few of them. The
            problems of a file come then too.

    Raises:
        EngineError: `engine-not-installed`, or `engine-source-unusable`.
    """
    name = INSTALLED if source is None else source.name
    tree = Tree(package=package, source=name, is_wanted=within)
    try:
        if source is None:
            _read_installed(tree, lazily=lazily)
        elif not source.is_dir():
            _read_wheel(tree, source, lazily=lazily)
        elif (folder := _package_folder(package, source)) is not None:
            _read_package(tree, folder, (folder.parent,), lazily=lazily)
        else:
            raise unusable(package, source, f"has no {package}/ in it")
    except OSError as error:
        raise unusable(package, source, f"cannot be read ({_cause(error)})") from error
    return tree


def unusable(package: str, source: Path | None, fault: str) -> EngineError:
    """Return the error of a source that has no such engine, or cannot be read."""
    return EngineError(
        "engine-source-unusable",
        f"{source or INSTALLED} {fault}; expected a wheel of {package}, or a folder with "
        f"{package}/ in it. Name another with --source.",
    )


def _cause(error: Exception) -> str:
    """Write an error without the machine's own paths in it."""
    known = error.strerror if isinstance(error, OSError) else None
    return known or str(error) or type(error).__name__


def _read_wheel(tree: Tree, source: Path, *, lazily: bool) -> None:
    package = tree.package
    try:
        open_regular(str(source)).close()  # zipfile would wait for a pipe
        archive = _Wheel(source)
    except FileNotFoundError as error:
        raise unusable(package, source, "is not there") from error
    except _DAMAGE as error:
        raise unusable(package, source, f"is no zip file ({_cause(error)})") from error
    with nullcontext() if lazily else archive:
        openers = dict(_openers(tree, archive))
        ours = [n for n in sorted(openers) if n.startswith(f"{package}/") and n.endswith(".py")]
        if not ours:
            raise unusable(package, source, f"has no Python file of {package} in it")
        tree.add({name: openers[name] for name in filter(tree.is_wanted, ours)}, lazily=lazily)
        metadata = [n for n in openers if n.endswith(".dist-info/METADATA") and n.count("/") == 1]
        stated = [f"{package}/{name}" for name in _VERSION_FILES]
        tree.read_version((n, openers[n]) for n in (*metadata, *stated) if n in openers)


def _openers(tree: Tree, archive: _Wheel) -> Iterator[tuple[str, _Opener]]:
    """List the entries that may be opened; of a repeated one the last counts, as for installers."""
    names = set()
    for entry in archive.infolist():
        name = entry.filename
        parts = name.removesuffix("/").split("/")
        # A path that leads out of the archive on any system.
        if "\\" in name or ":" in parts[0] or not {"", ".", ".."}.isdisjoint(parts):
            tree.note("engine-path-unsafe", path=name)
            continue
        if name in names:
            tree.note("engine-file-repeated", path=name)
        names.add(name)
        yield name, partial(archive.entry, entry)


class _Wheel(zipfile.ZipFile):
    """A wheel that forks read too: each opens the file anew, for they would share its position."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._path, self._process = path, os.getpid()

    def entry(self, entry: zipfile.ZipInfo) -> IO[bytes]:
        """Open an entry that is packed as a wheel's are."""
        if entry.compress_type not in BOUNDED_METHODS:
            raise zipfile.BadZipFile(f"it is packed by method {entry.compress_type}, no wheel's")
        if self._process != os.getpid():
            self.fp, self._process = self._path.open("rb"), os.getpid()
        return self.open(entry)


def _read_installed(tree: Tree, *, lazily: bool) -> None:
    site = [Path(folder) for folder in sys.path]
    for folder in _installed_folders(tree.package, site):
        _read_package(tree, folder, site, lazily=lazily)
        if tree.files or tree.problems:
            return
    raise EngineError(
        "engine-not-installed",
        f"no distribution {tree.package!r} is installed here; expected a folder {tree.package}/ "
        "on the path of imports. Install it, or name a folder or a wheel: --source PATH.",
    )


def _installed_folders(package: str, site: Iterable[Path]) -> Iterator[Path]:
    """List the package's folders on the import path, a namespace package's last."""
    # `importlib.util.find_spec` would also run the finders that other packages install.
    spec = importlib.machinery.PathFinder.find_spec(package, sys.path)
    places = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    yield from (place for place in places if (place / "__init__.py").is_file())
    for folder in site:
        for path in folder.glob(f"{package}-*.dist-info/direct_url.json"):
            if checkout := _editable_folder(package, path):
                yield checkout
    yield from places


def _editable_folder(package: str, path: Path) -> Path | None:
    """Return the package in the checkout that a `direct_url.json` (PEP 610) names, if any."""
    try:
        url = urlsplit(str(json.loads(read_regular(str(path)))["url"]))
        folder = Path(unquote(url.path))
        return _package_folder(package, folder) if url.scheme == "file" else None
    # A path with a null or a lone surrogate in it is a ValueError too.
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


def _package_folder(package: str, source: Path) -> Path | None:
    """Find the package's folder: in a checkout too, which may keep it in `python/`."""
    for folder in (source / package, source / "python" / package, source / "src" / package):
        if (folder / "__init__.py").is_file():
            return folder
    is_it = package in {source.absolute().name, source.resolve().name}
    return source if is_it and (source / "__init__.py").is_file() else None


def _read_package(
    tree: Tree, folder: Path, metadata_folders: Iterable[Path], *, lazily: bool
) -> None:
    entries = sorted(_python_files(tree, folder))
    tree.add({path: partial(open_regular, entry) for path, entry in entries}, lazily=lazily)
    pattern = f"{tree.package}-*.dist-info/METADATA"
    metadata = [path for place in metadata_folders for path in place.glob(pattern)]
    stated = [folder / name for name in _VERSION_FILES if (folder / name).is_file()]
    # Of two installed versions, metadata does not say which one the folder is.
    files = (*(metadata if len(metadata) == 1 else ()), *stated)
    tree.read_version((each.name, partial(open_regular, str(each))) for each in files)


def _python_files(tree: Tree, folder: Path) -> Iterator[tuple[str, str]]:
    """List the wanted Python files; links to folders are problems, and not followed."""
    pending = [(str(folder), tree.package)]
    while pending:
        place, name = pending.pop()
        try:
            entries = sorted(os.scandir(place), key=lambda entry: entry.name)
        except OSError as error:
            tree.note("engine-file-unreadable", path=f"{name}/", error=_cause(error))
            continue
        for entry in entries:
            # Linux allows any bytes in a file's name.
            inner = f"{name}/{entry.name.encode('utf-8', 'backslashreplace').decode()}"
            if entry.is_dir(follow_symlinks=False):
                pending.append((entry.path, inner))
            elif entry.name.endswith(".py") and tree.is_wanted(inner):
                yield inner, entry.path
            elif tree.is_wanted(f"{inner}/__init__.py") and entry.is_symlink() and entry.is_dir():
                error_text = "links to folders are not followed"
                tree.note("engine-file-unreadable", path=f"{inner}/", error=error_text)


class UnparsedError(Exception):
    """A text cannot be parsed as Python; the argument is the reason."""


def parsed(text: bytes) -> ast.Module:
    """Parse a text, without the interpreter's warnings.

    Raises:
        UnparsedError: it cannot be parsed, or is nested too deep.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (RecursionError, MemoryError) as error:
        raise UnparsedError(_TOO_DEEP) from error
    except (SyntaxError, ValueError) as error:
        raise UnparsedError(f"{type(error).__name__}: {error}") from error
    if _may_be_deep(text) and _is_deep(tree):
        raise UnparsedError(_TOO_DEEP)
    return tree


def _may_be_deep(text: bytes) -> bool:
    """Return whether a text may nest deeper than `_DEEPEST`; most texts cannot.

    To walk every tree instead would take a fifth of the time that parsing does.
    """
    if text.count(b"elif ") > _DEEPEST or text.count(b"\\\n") > _DEEPEST:
        return True
    if max(map(len, text.split(b"\n"))) > _LONGEST_LINE:
        return True
    brackets = text.translate(None, _NO_BRACKETS)
    # Brackets in strings and comments count too, and may close more than is open: stay above 0.
    depths = accumulate(brackets, lambda d, c: d + 1 if c in b"([{" else max(d - 1, 0), initial=0)
    return max(depths) > _MOST_BRACKETS


def _is_deep(tree: ast.Module) -> bool:
    level: list[ast.AST] = [tree]
    for _ in range(_DEEPEST):
        level = [inner for node in level for inner in ast.iter_child_nodes(node)]
        if not level:
            return False
    return True
