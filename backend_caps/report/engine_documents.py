"""The parts of a report's JSON that tell what an engine's source says."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import JsonValue

from backend_caps.report.document import LEFT_OUT, Document


class EngineRuleDocument(Document):
    """What an engine's flags force, whatever its backends say."""

    name: str
    """What a cause calls it."""
    reason: str
    """Why, with the place in the engine's source."""
    given: str
    """The condition, in words."""


class EngineDocument(Document):
    """One version of an engine, read without importing it."""

    name: Literal["sglang", "vllm"]
    """The engine."""
    version: str | None
    """Its version; null where the source does not say."""
    source: str
    """Where it was read: a folder, a wheel's file name, or `installed`."""
    rules: list[EngineRuleDocument]
    """What its flags force; empty where its rules are not known."""
    num_files: int
    """Python files of the engine."""
    num_parsed: int
    """Those of them that had to be parsed."""


class ReadingDocument(Document):
    """What an engine's source says of one of its own flags."""

    value: JsonValue
    """The value; null where it depends, or nobody stated it."""
    origin: Literal["declared", "conditional", "undeclared", "inherited"]
    """Whether anybody stated it."""
    words: str
    """What the source says."""
    declared_at: Annotated[str | None, LEFT_OUT] = None
    """`file:line` of the statement."""
    inherited_from: Annotated[str | None, LEFT_OUT] = None
    """The class that states it, where this one does not."""


class PartDocument(Document):
    """A class that a name of an engine may stand for."""

    name: str
    """The class."""
    roles: Annotated[list[str] | None, LEFT_OUT] = None
    """The roles that it takes; left out where it takes all."""
    phases: Annotated[list[str] | None, LEFT_OUT] = None
    """The phases that it takes; left out where it takes all."""
    given: Annotated[str | None, LEFT_OUT] = None
    """The condition, in words; left out where there is none."""
