"""Import a declaration alone in a new process, as discovery does.

`import_declaration` runs this file by its path: `-m` would import its package, and so torch.
"""

from __future__ import annotations

import ast
import json
import pickle
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import packages_distributions
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypedDict, cast

from backend_caps import Capabilities, Declaration
from backend_caps.capability.vocabulary import CAPABILITIES
from backend_caps.discovery.loading_child import source_line

if TYPE_CHECKING:
    from backend_caps.kit.subject import Subject  # loads torch, which the new process must not

HEAVY = frozenset({"cuda", "cupy", "flashinfer", "sglang", "torch", "triton", "vllm"})
"""Packages that no declaration needs, and whose import takes seconds or a device."""


class ImportRequest(TypedDict):
    """The declaration to import, as JSON on the command line."""

    path: Sequence[str]
    """The `sys.path` to import from."""
    declared_at: str
    """`file:line` of the declaration."""
    distribution: str | None
    """The distribution that ships it."""
    implementation: str | None
    """The module of its implementation."""
    declaration: str
    """The declaration as discovery read it, as JSON."""


ImportFault = tuple[str, str]
"""A description, and its `file:line`."""


class ImportedDeclaration(TypedDict):
    """Time and faults of the import, as JSON."""

    seconds: float
    """CPU time of the import; 0 where it imports a heavy package, which is a fault by itself."""
    faults: Sequence[ImportFault]


class ImportWatch(MetaPathFinder):
    """Records the first import of each heavy package; finds no module."""

    def __init__(self, root: Path) -> None:
        self.loaded: list[ImportFault] = []
        self._root = str(root)

    def find_spec(
        self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Record a heavy package, with the innermost line of the plugin; return None."""
        if name in HEAVY:
            frame = sys._getframe(1)  # noqa: SLF001 - walks the stack of the import
            while frame.f_back is not None and not frame.f_code.co_filename.startswith(self._root):
                frame = frame.f_back
            line = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            self.loaded.append((f"importing the declaration imports {name}", line))
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclarationPlace:
    """The module, file and line of a declaration."""

    module: str
    root: Path
    """The folder that its top-level module is imported from."""
    file: Path
    line: int

    @classmethod
    def of(cls, declared_at: str) -> DeclarationPlace:
        """Find the module of a `file:line`: packages are folders with an `__init__`."""
        name, _, line = declared_at.rpartition(":")
        file = Path(name)
        root, parts = file.parent, [file.stem]
        while (root / "__init__.py").exists():
            root, parts = root.parent, [root.name, *parts]
        module = ".".join(parts).removesuffix(".__init__")
        return cls(module=module, root=root, file=file, line=int(line))


def imported(work: ImportRequest) -> ImportedDeclaration:
    """Import a declaration; return its CPU time and all faults."""
    place = DeclarationPlace.of(work["declared_at"])
    sys.path[:] = [str(place.root), *(path for path in work["path"] if path != str(place.root))]
    # pydantic builds a model's validators at its first use, which is no cost of the plugin.
    Declaration.model_validate_json(Declaration().model_dump_json())
    watch = ImportWatch(place.root)
    sys.meta_path.insert(0, watch)
    started = time.process_time()
    module = import_module(place.module)
    seconds = time.process_time() - started
    sys.meta_path.remove(watch)
    at, faults = work["declared_at"], list(watch.loaded)
    if work["implementation"] in sys.modules:
        faults.append(("importing the declaration imports the implementation", at))
    declaration = _declaration(module, place)
    faults += [(f"the declaration {how}", at) for how in _changes(declaration, work["declaration"])]
    faults += _borrowed(module, place, declaration)
    others = _others(place, work["distribution"])
    faults += [(f"its module is shipped by {other}", at) for other in others]
    return ImportedDeclaration(seconds=0.0 if watch.loaded else seconds, faults=faults)


def _declaration(module: ModuleType, place: DeclarationPlace) -> object:
    """Return the object that the module, or a class of it, binds at the line."""
    names = {name: value for name, value in vars(module).items() if not name.startswith("__")}
    inner = [
        f"{name}.{attribute}"
        for name, kind in names.items()
        if isinstance(kind, type) and kind.__module__ == place.module
        for attribute in vars(kind)
    ]
    for name in (*names, *inner):
        if source_line(module, name) == f"{place.file}:{place.line}":
            return attrgetter(name)(module)
    raise LookupError(f"nothing is bound at {place.file}:{place.line}")


def _changes(declaration: object, before: str) -> Iterator[str]:
    """Describe how a declaration changes by pickling, by JSON and in a new process."""
    if type(declaration) is not Declaration:
        yield f"is of type {type(declaration).__name__!r}, expected Declaration itself"
        return
    if pickle.loads(pickle.dumps(declaration)) != declaration:  # noqa: S301 - our own bytes
        yield "is another one behind pickling"
    if Declaration.model_validate_json(declaration.model_dump_json()) != declaration:
        yield "is another one behind JSON"
    expected = Declaration.model_validate_json(before)
    if declaration != expected:
        is_now, was = dict(declaration.capabilities), dict(expected.capabilities)
        names = [name for name in CAPABILITIES if is_now[name] != was[name]]
        changes = [f"{name} is {is_now[name]!r} and was {was[name]!r}" for name in names]
        yield f"is another one in a new process: {'; '.join(changes) or 'outside its capabilities'}"


def _borrowed(module: ModuleType, place: DeclarationPlace, found: object) -> Iterator[ImportFault]:
    """List claims better than the worst that are taken from another plugin's declaration."""
    if not isinstance(found, Declaration):
        return
    tree = ast.parse(place.file.read_text("utf-8"))
    nodes = list(ast.walk(tree))
    written: set[object] = {node.arg for node in nodes if isinstance(node, ast.keyword)}
    written |= {node.value for node in nodes if isinstance(node, ast.Constant)}
    for line, owner, theirs in _foreign(tree, module, place):
        names = [
            name
            for name, value in found.capabilities.stated().items()
            if theirs.stated().get(name) == value
            and value != CAPABILITIES[name].worst
            and name not in written
        ]
        if names:
            yield f"{', '.join(names)}: stated by {owner}, and not here", f"{place.file}:{line}"
            return


def _foreign(
    tree: ast.AST, module: ModuleType, place: DeclarationPlace
) -> Iterator[tuple[int, str, Capabilities]]:
    """List the uses of another plugin's declarations: line, owner and capabilities."""
    for node in ast.walk(tree):
        match node:
            case ast.alias(name=name, asname=renamed):
                word = renamed or name
            case ast.Name() | ast.Attribute():
                word = ast.unparse(node)
            case _:
                continue
        value: object = None
        with suppress(AttributeError):
            value = attrgetter(word)(module)
        if not isinstance(value, Declaration | Capabilities):
            continue
        if (owner := _home(value, place)) is not None:
            theirs = value.capabilities if isinstance(value, Declaration) else value
            yield node.lineno, owner, theirs


def _home(value: object, place: DeclarationPlace) -> str | None:
    """Describe another plugin's binding of an object; None where only this plugin binds it."""
    for module, other in list(sys.modules.items()):
        file = vars(other).get("__file__")
        if not isinstance(file, str) or module in {place.module, "__main__"}:
            continue
        for name, bound in list(vars(other).items()):
            if bound is value and _owner(module, file) != _owner(place.module, place.file):
                return f"{module}.{name} ({source_line(other, name)})"
    return None


def _owner(module: str, file: str | Path) -> str:
    """Return the distribution of a module, or its folder where it is installed editable."""
    top = module.partition(".")[0]
    folder = Path(file).parents[module.count(".") + (Path(file).stem == "__init__")]
    if str(folder) not in sysconfig.get_paths().values():
        return str(folder)
    return ", ".join(packages_distributions().get(top, [top]))


def _others(place: DeclarationPlace, distribution: str | None) -> Sequence[str]:
    """List the distributions that ship the module, unless the declaring one is among them.

    `packages_distributions` knows none for an editable installation.
    """
    owners = packages_distributions().get(place.module.partition(".")[0], [])
    names = {re.sub(r"[-_.]+", "-", owner).lower() for owner in owners}
    return [] if distribution is None or distribution in names else sorted(names)


def _not_imported(what: str, declared_at: str) -> ImportedDeclaration:
    return ImportedDeclaration(seconds=0.0, faults=[(f"its declaration {what}", declared_at)])


def main(arguments: Sequence[str]) -> int:
    """Import the declaration of the first argument; write the result to the second's file."""
    work, target = json.loads(arguments[0]), arguments[1]
    try:
        result = imported(work)
    except Exception as error:  # noqa: BLE001 - a plugin raises what it likes
        words = str(error).partition("\n")[0]
        what = f"is not imported in a new process: {type(error).__name__}: {words}"
        result = _not_imported(what, work["declared_at"])
    Path(target).write_text(json.dumps(result), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))


_DEADLINE_S = 60.0


def import_declaration(subject: Subject) -> ImportedDeclaration:
    """Import a subject's declaration in a new process; a failure is a fault of the declaration."""
    declaration = subject.declaration
    work = ImportRequest(
        path=sys.path,
        declared_at=str(subject.source.declared_at),
        distribution=subject.source.distribution,
        implementation=(declaration.implementation or "").partition(":")[0],
        declaration=declaration.model_dump_json(),
    )
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "seen.json"
        try:
            done = subprocess.run(  # noqa: S603 - this very Python, with a program of ours
                [sys.executable, "-P", __file__, json.dumps(work), str(target)],
                capture_output=True,
                text=True,
                check=False,
                timeout=_DEADLINE_S,
            )
        except subprocess.TimeoutExpired:
            return _not_imported(
                f"takes more than {_DEADLINE_S:.0f} s to import", work["declared_at"]
            )
        if not target.exists():
            last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
            return _not_imported(f"ends the process that imports it: {last}", work["declared_at"])
        return cast("ImportedDeclaration", json.loads(target.read_text("utf-8")))
