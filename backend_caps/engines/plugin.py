"""A plugin of an engine, as its source has it: platforms, registrations and classes."""

from __future__ import annotations

from dataclasses import dataclass

from backend_caps.capability.provenance import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformChoice:
    """What a platform takes for a layer, under a condition."""

    given: str
    """The condition, in the source's words; empty where it always holds."""
    backend: str | None = None
    """The class, by the name of its record; by its path where there is none."""
    at: str | None = None
    """`file:line` of the class, or of the line that refuses."""
    refusal: str | None = None
    """Why no class is taken; None where one is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """A platform that a plugin brings."""

    entry: str
    """The entry point, such as `ascend = vllm_ascend:register`, or where the engine names it."""
    path: str
    """`package.module.Class`."""
    at: str | None
    """`file:line` of the class; None where it is not in the source."""
    given: str = ""
    """When the entry point answers it, in the source's words; empty for always."""
    chooser: str | None = None
    """`file:line` of the method that chooses; None where it was not found."""
    choices: tuple[PlatformChoice, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """A class that a plugin puts into a slot of the engine's registry.

    It counts once its module is imported, and the last one of a slot wins.
    """

    slot: str
    """The registry's name, such as `CUSTOM`; an expression where only running code knows it."""
    at: str
    """`file:line` of the call."""
    backend: str | None = None
    """The class, by the name of its record; None where none was found."""
    label: str | None = None
    """The text in place of a class path, which names no class; None where there is none."""
    replaces: str | None = None
    """The engine's own class of that name; None for a slot without one."""
    given: str | None = None
    """The second argument as written, where no class and no label is in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlugin:
    """A distribution that extends an engine."""

    distribution: str
    version: str | None
    entries: tuple[str, ...]
    """Its entry points: group, name and value."""
    platforms: tuple[Platform, ...] = ()
    registrations: tuple[Registration, ...] = ()
    """In the order of file and line."""
    backends: tuple[str, ...] = ()
    """The records of its classes."""
    problems: tuple[Problem, ...] = ()
