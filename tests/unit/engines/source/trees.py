"""Small packages, written out of texts."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import dedent

from backend_caps.engines.source.attributes import Attributes
from backend_caps.engines.source.classes import Classes
from backend_caps.engines.source.files import Tree
from backend_caps.engines.source.guards import Function
from backend_caps.engines.source.index import Index
from backend_caps.engines.source.module import ClassDef, Module

PACKAGE = "engine"
WHEEL = "engine-1.0-py3-none-any.whl"
METADATA = "engine-1.0.dist-info/METADATA"
VERSION = "Metadata-Version: 2.1\nName: engine\nVersion: 1.0\n"


def bytes_of(text: str | bytes) -> bytes:
    """Write a text as a file has it."""
    return text if isinstance(text, bytes) else dedent(text).encode()


def write_folder(folder: Path, texts: Mapping[str, str | bytes]) -> Path:
    """Write files below a folder."""
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes_of(text))
    return folder


def write_package(folder: Path, **texts: str | bytes) -> Path:
    """Write a package of modules into a folder, `__init__` too."""
    files = {f"{PACKAGE}/{name}.py": text for name, text in ({"__init__": ""} | texts).items()}
    return write_folder(folder, files)


def write_wheel(
    folder: Path,
    texts: Mapping[str, str | bytes],
    *,
    method: int = zipfile.ZIP_DEFLATED,
    changed: Callable[[bytes], bytes] = bytes,
) -> Path:
    """Write a wheel of one module and of more files, and change its bytes."""
    wheel = folder / WHEEL
    with warnings.catch_warnings(), zipfile.ZipFile(wheel, "w", method) as archive:
        warnings.simplefilter("ignore")  # of a name that is there twice
        for name, text in [(f"{PACKAGE}/__init__.py", ""), *texts.items()]:
            archive.writestr(name, bytes_of(text))
    wheel.write_bytes(changed(wheel.read_bytes()))
    return wheel


def index_of(**texts: str | bytes) -> Index:
    """Make an index of a package's modules; `a__b` is the module `a.b`, `__init__` the root."""
    files = {
        f"{PACKAGE}/{name if name == '__init__' else name.replace('__', '/', 1)}.py": bytes_of(text)
        for name, text in texts.items()
    }
    return Index(Tree(package=PACKAGE, version=None, source="here", files=files))


def module_of(index: Index, name: str = "m") -> Module:
    """Parse one module, which can be."""
    module = index.module(f"{PACKAGE}.{name}")
    assert module is not None, index.problems
    return module


def class_of(index: Index, name: str, module: str = "m") -> ClassDef:
    """Find the last class of a name in a module."""
    return [each for each in module_of(index, module).classes if each.name == name][-1]


def function_of(index: Index, name: str, module: str = "m") -> Function:
    """Find a function of a module."""
    body = module_of(index, module).tree.body
    return next(node for node in body if isinstance(node, Function) and node.name == name)


def codes_of(index: Index) -> list[str]:
    """List the codes of the problems that an index noted."""
    return [problem.code for problem in index.problems]


def stated_of(text: str, **others: str) -> str:
    """Write what the class A of a module holds under `x`, in the source's words."""
    index = index_of(m=text, **others)
    stated = Attributes(Classes(index), ["x", "y"]).stated(class_of(index, "A"), "x")
    return stated.words if stated else ""
