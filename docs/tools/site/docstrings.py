"""Docstrings as the site shows them: tables of tensors keep their columns, contracts are lists."""

from __future__ import annotations

import re
from importlib import import_module

from griffe import Extension, Module, Object

CONTRACT = ("Stream", "Sync", "Allocates", "Keeps", "Capture", "Exact")
"""The words that a tensor function's contract goes by."""
_TERM = re.compile(rf"(?:^|(?<=[.;])\s+)({'|'.join(CONTRACT)}): ", re.MULTILINE)
_ROW = re.compile(r"^\w[\w., ]*? {2,}\S")


class TensorTables(Extension):
    """Write each docstring as markdown before it is parsed."""

    def on_object(self, *, obj: Object, **_: object) -> None:
        """Take an object as it is loaded."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)

    def on_package(self, *, pkg: Module, **_: object) -> None:
        """List the public names of a package whose `__all__` is computed when it is imported."""
        pkg.exports = pkg.exports or list(getattr(import_module(pkg.path), "__all__", ()))


def as_markdown(docstring: str) -> str:
    """Fence the tables of a docstring, and make lists of its contracts."""
    return "\n\n".join(map(_paragraph, docstring.split("\n\n")))


def _paragraph(text: str) -> str:
    if _TERM.match(text):
        _, *parts = _TERM.split(text)
        terms = zip(parts[::2], parts[1::2], strict=True)
        return "\n".join(f"* **{term}**: {' '.join(said.split())}" for term, said in terms)
    if _ROW.match(text):
        return f"```text\n{text}\n```"
    return text
