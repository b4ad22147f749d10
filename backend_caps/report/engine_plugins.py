"""The plugins of an engine in a report: what they register, and what their platforms take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

from backend_caps.report.document import LEFT_OUT, Document
from backend_caps.report.plans import ProblemDocument
from backend_caps.report.sections import Heading, Lines, Section, Table, some_lines
from backend_caps.report.words import counted, file_of, grouped


class PlatformChoiceDocument(Document):
    """What a platform takes for a layer, under a condition."""

    given: str
    """The condition, in the source's words; empty where it always holds."""
    backend: Annotated[str | None, LEFT_OUT] = None
    """The class, by its name among `backends`, or by its path where it is none of them."""
    refusal: Annotated[str | None, LEFT_OUT] = None
    """Why no class is taken; left out where one is."""
    at: Annotated[str | None, LEFT_OUT] = None
    """`file:line` of the class, or of the line that refuses."""


class PlatformDocument(Document):
    """A platform that a plugin brings."""

    entry: str
    """The entry point that answers it, or the engine's own line that does."""
    path: str
    """`package.module.Class`."""
    at: str | None
    """`file:line` of the class."""
    given: str
    """When it is answered, in the source's words; empty for always."""
    chooser: str | None
    """`file:line` of the method that chooses; null where it was not found."""
    choices: list[PlatformChoiceDocument]
    """What the method returns or raises, on each of its paths."""


class RegistrationDocument(Document):
    """A class that a plugin puts into a slot of the engine's registry."""

    slot: str
    """The registry's name, or an expression that only running code knows."""
    at: str
    """`file:line` of the call."""
    backend: Annotated[str | None, LEFT_OUT] = None
    """The class, by its name among `backends`, or by its path where it is none of them."""
    label: Annotated[str | None, LEFT_OUT] = None
    """The text in place of a class path, which names no class."""
    replaces: Annotated[str | None, LEFT_OUT] = None
    """The engine's own class of that name."""
    given: Annotated[str | None, LEFT_OUT] = None
    """The second argument as written, where only running code knows it."""


class EnginePluginDocument(Document):
    """A distribution that extends an engine by the engine's own entry points."""

    distribution: str
    """Its name."""
    version: str | None
    """Its version."""
    entries: list[str]
    """Its entry points: group, name and value."""
    platforms: list[PlatformDocument]
    """Its platforms."""
    registrations: list[RegistrationDocument]
    """What it registers, by file and line; each counts once its module is imported."""
    backends: list[str]
    """Its classes, by their names among `backends`."""
    problems: list[ProblemDocument]
    """What is wrong with it, or could not be read."""

    @property
    def title(self) -> str:
        """The distribution with its version."""
        return " ".join(part for part in (self.distribution, self.version) if part)


def plugin_view(plugin: EnginePluginDocument) -> Iterator[Section]:
    """Show a plugin's platforms, and what it registers; its classes follow in tables of others."""
    classes = counted(len(plugin.backends), "class", "classes")
    yield Heading(f"Out-of-tree plugin {plugin.title}: {classes}")
    for platform in plugin.platforms:
        yield from _platform_view(platform)
    if plugin.registrations:
        columns = ("class, where", "slot", "what vLLM's registry has")
        yield Table(columns, (*_slots(plugin),), "names")
        yield from some_lines(_shared_slots(plugin.registrations))
    taken = {each.backend for own in plugin.platforms for each in own.choices}
    left = [name for name in plugin.backends if name not in taken]
    if left and plugin.platforms:
        names = ", ".join(left)
        yield Lines((f"On no path, and so taken by a model or a patch if at all: {names}.",))


def _platform_view(platform: PlatformDocument) -> Iterator[Section]:
    when = f" where {platform.given}" if platform.given else ""
    name = platform.path.rpartition(".")[2]
    chooser = f"chooses at {platform.chooser}" if platform.chooser else "has no method that chooses"
    yield Lines((f"{name} ({platform.at}), by {platform.entry}{when}, {chooser}:",))
    ordered = sorted(platform.choices, key=lambda each: each.refusal is not None)
    cases = grouped((_outcome(each), each.given or "always") for each in ordered)
    rows = tuple((taken, ";\n".join(givens)) for taken, givens in cases.items())
    yield Table(("what it takes, where", "for a layer where"), rows, "names")


def _outcome(choice: PlatformChoiceDocument) -> str:
    taken = choice.backend if choice.refusal is None else f"nothing: {choice.refusal}"
    return f"{taken}\n{file_of(choice.at or '')}".rstrip()


def _slots(plugin: EnginePluginDocument) -> Iterator[tuple[str, str, str]]:
    for each in plugin.registrations:
        stored = _stored(each, has_platform=bool(plugin.platforms))
        yield f"{each.backend or each.given or 'no class'}\n{file_of(each.at)}", each.slot, stored


def _stored(registration: RegistrationDocument, *, has_platform: bool) -> str:
    if registration.label is not None:
        returned = ": the platform returns the class" if has_platform else ", which names no class"
        return f"the label {registration.label!r}{returned}"
    if registration.backend is None:
        return "what only running code knows"
    instead = f", in place of {registration.replaces}" if registration.replaces else ""
    return f"the class{instead}"


def _shared_slots(registrations: Sequence[RegistrationDocument]) -> Iterator[str]:
    for slot, own in grouped((each.slot, each) for each in registrations).items():
        classes = list(dict.fromkeys(each.backend for each in own if each.backend))
        if len(classes) > 1:
            by_label = all(each.label is not None for each in own)
            counts = "the platform decides" if by_label else "the last module imported decides"
            yield f"{slot} is registered for several classes, {', '.join(classes)}: {counts}."
