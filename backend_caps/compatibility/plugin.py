"""A plugin: its files, its entry points and what it requires."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryPoint:
    """An entry point of a plugin."""

    group: str
    name: str
    value: str
    """`package.module:attribute`, or `package.module` alone."""
    at: str
    """`file:line` of its metadata."""

    @property
    def module(self) -> str:
        """The module that it names."""
        return self.value.partition(":")[0].partition("[")[0].strip()

    @property
    def attribute(self) -> str:
        """What it names in the module; empty where it names the module itself."""
        return self.value.partition(":")[2].partition("[")[0].strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """A plugin, opened."""

    name: str
    """Its distribution's name, or that of its folder."""
    version: str | None
    files: Mapping[str, bytes]
    """Its Python files, by path from the folder that its packages are imported from."""
    entry_points: tuple[EntryPoint, ...] = ()
    requires: tuple[str, ...] = ()
    """What its metadata requires, as they state it."""

    @property
    def packages(self) -> frozenset[str]:
        """The names that its packages and single modules are imported by."""
        return frozenset(path.partition("/")[0].removesuffix(".py") for path in self.files)

    @property
    def label(self) -> str:
        """Its name and version."""
        return " ".join(filter(None, (self.name, self.version)))
