"""The JSON of the atlas: one document for each release of an engine."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from backend_caps.report.backends import EngineRuleDocument, PartDocument, StatedOrigin
from backend_caps.report.document import LEFT_OUT, Document, Written
from backend_caps.report.plans import ProblemDocument

SCHEMA: Literal["backend-caps/atlas-release@1"] = "backend-caps/atlas-release@1"


class AtlasConditionDocument(Document):
    """A value under a condition."""

    given: dict[str, JsonValue]
    """By flag or fact, the values that meet the condition, as a declaration writes them."""
    words: str
    """The condition, in words."""
    value: Written
    """The value under it."""


class CellDocument(Document):
    """The statement of one class on one capability, in one release."""

    value: Written
    """The stated value; `depends` where only conditions state one, `undeclared` where the source
    leaves it open."""
    origin: StatedOrigin
    """How the value came to be."""
    when: Annotated[list[AtlasConditionDocument] | None, LEFT_OUT] = None
    """The values under conditions."""
    words: str
    """The words of the source."""
    declared_at: Annotated[str | None, LEFT_OUT] = None
    """`file:line` of those words in the release's archive; left out where no line states it."""
    inherited_from: Annotated[str | None, LEFT_OUT] = None
    """The class that states it, where this one does not."""
    since: Annotated[str | None, LEFT_OUT] = None
    """The first release from which on the class has had this value, among those in the atlas; left
    out until the releases before it are read."""

    def says(self) -> tuple[object, ...]:
        """Return what two releases are compared by: the value, and those under conditions."""
        conditions = [(each.words, each.value) for each in self.when or ()]
        return self.value, self.origin, conditions


class AtlasSettingDocument(Document):
    """What the processing of an engine's arguments decides of a backend with a setting."""

    name: str
    """The backend's name on the command line."""
    settings: dict[str, JsonValue]
    """By capability, or `platform`, the value that was set; several where only all of them decide.
    """
    accepted: bool
    """Whether a server starts with the setting and the backend as they were given."""
    words: str
    """The engine's own words, of the rule that takes or refuses the value."""
    declared_at: Annotated[str | None, LEFT_OUT] = None
    """`file:line` of them."""
    followed_on: str
    """The machine and the model of the command line, such as `H100, llama-3.1-8b`."""


class VerdictDocument(Document):
    """What a run of the kit found of a class."""

    check: str
    """The check, such as `replay`."""
    held: bool
    """Whether nothing was found in any case."""
    about: list[str]
    """The capabilities that it refutes where it did not hold."""
    words: Annotated[str | None, LEFT_OUT] = None
    """The first finding; left out where there is none."""


class ClassDocument(Document):
    """One class of an engine, with what its source states."""

    path: str
    """`package.module.Class`."""
    declared_at: str
    """`file:line` of the class."""
    registered_as: list[str]
    """The names that server flags use for it, sorted."""
    platforms: Annotated[dict[str, str] | None, LEFT_OUT] = None
    """By platform, such as `rocm`, the `file:line` at which the engine's own code for that platform
    names the class; left out where none does."""
    composite: Annotated[str | None, LEFT_OUT] = None
    """For a wrapper, how it makes a value of its children's."""
    since: Annotated[str | None, LEFT_OUT] = None
    """The first release in the atlas from which on it has been there."""
    cells: dict[str, CellDocument]
    """By capability; one that the source does not mention is left out."""
    settings: Annotated[list[AtlasSettingDocument] | None, LEFT_OUT] = None
    """What a server decides of its names; left out where no command line was followed, or none
    decides anything."""
    verdicts: Annotated[list[VerdictDocument] | None, LEFT_OUT] = None
    """What the kit found when it ran the class; left out where it did not run it."""

    @property
    def refuted(self) -> dict[str, str]:
        """By capability that a run refutes, what was found."""
        failed = [each for each in self.verdicts or () if not each.held]
        return {name: each.words or each.check for each in failed for name in each.about}


class ReleaseDocument(Document):
    """The backends of one release of an engine, or of a plugin of one, read from its archive."""

    schema_: Annotated[Literal["backend-caps/atlas-release@1"], Field(alias="schema")]
    distribution: str
    """`sglang`, `vllm`, or a distribution that extends one by its entry points."""
    version: str
    """The release."""
    engine: str
    """The engine: the distribution itself, or the one that it extends."""
    beside: Annotated[str | None, LEFT_OUT] = None
    """The release of the engine that a plugin was read with; left out for an engine."""
    archive: str
    """The name of the wheel or source distribution; `installed` or a folder where it is none."""
    sha256: str
    """The digest of that archive, in hexadecimal digits; empty for what is installed."""
    reader: str
    """The digest of the code that read it: another one reads the release anew."""
    rules: list[EngineRuleDocument]
    """What the engine's flags force, whatever its backends say."""
    problems: list[ProblemDocument]
    """What could not be read."""
    root: Annotated[ClassDocument | None, LEFT_OUT] = None
    """The class that the others are made of, whose values a class has that states none; left out
    where there is none."""
    tried: Annotated[dict[str, list[JsonValue]] | None, LEFT_OUT] = None
    """By capability, or `platform`, the values that command lines set; left out where none was
    followed."""
    names: dict[str, list[PartDocument]]
    """By name that server flags use, the classes that it may stand for."""
    classes: dict[str, ClassDocument]
    """By name of the class; with its module before it where two have the same."""
