"""The JSON of `backend-caps fits`: what of a plugin holds with an engine, and what does not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from backend_caps.compatibility.comparison import Comparison
from backend_caps.compatibility.contact import Contact, ContactKind, Verdict
from backend_caps.report.document import LEFT_OUT, Document


class ContactDocument(Document):
    """A point at which a plugin meets an engine, and what becomes of it."""

    kind: ContactKind
    """How they meet."""
    verdict: Verdict
    """What becomes of it."""
    what: str
    """What the plugin uses or supplies."""
    why: str
    """What is wrong, or why it was not checked."""
    at: str
    """`file:line` of the plugin: from the working directory where it is a folder, else in it."""
    engine_at: Annotated[str | None, LEFT_OUT] = None
    """`file:line` of the engine."""
    given: str = ""
    """The condition under which it counts, in the plugin's words; empty for always."""
    since: Annotated[str | None, LEFT_OUT] = None
    """The first release with it, where an older one was read that has it not."""
    remedy: str = ""
    """What to write; empty where the source does not tell."""


class PairDocument(Document):
    """A plugin compared with a release of an engine."""

    plugin: str
    """The plugin's distribution."""
    plugin_version: str | None
    """Null where its source states none."""
    engine: str
    """Such as `vllm`."""
    version: str | None
    """Null where the engine's source states none."""
    source: str
    """Where the engine was read: a file, a folder, or `installed`."""
    before: Annotated[str | None, LEFT_OUT] = None
    """The release before the upgrade; left out where one release alone is looked at."""
    status: Literal["holds", "breaks", "cannot say"]
    """Whether anything breaks, as far as it could be read."""
    required: Annotated[str | None, LEFT_OUT] = None
    """What the plugin's metadata require of the engine."""
    is_required: Annotated[bool | None, LEFT_OUT] = None
    """Whether the release is among these."""
    counts: dict[Verdict, int]
    """How many points of contact have each verdict."""
    findings: tuple[ContactDocument, ...]
    """What breaks, changed or is unused, the worst first."""
    not_checked: tuple[ContactDocument, ...]
    """What only running code knows."""
    num_unreached: int
    """The plugin's files that no entry point leads to; they are left out."""
    problems: tuple[str, ...]
    """Files that cannot be read."""


class FitsDocument(Document):
    """Plugins compared with releases of engines."""

    schema_: Annotated[Literal["backend-caps/fits@1"], Field(alias="schema")]
    tool_version: str
    """The version of backend-caps."""
    pairs: tuple[PairDocument, ...]
    """By plugin, then by release, the oldest first."""

    @property
    def status(self) -> Literal["holds", "breaks", "cannot say"]:
        """Whether anything breaks in any pair."""
        found = {each.status for each in self.pairs}
        return "breaks" if "breaks" in found else "cannot say" if "cannot say" in found else "holds"


_ORDER = (*Verdict,)
Located: TypeAlias = Callable[[str], str]
"""Finds a plugin's `file:line` in the place that the plugin was opened from."""


def pair_document(found: Comparison, located: Located) -> PairDocument:
    """Make the document of a comparison."""
    counts = Counter(each.verdict for each in found.contacts)
    status = "breaks" if found.breaks else ("cannot say" if found.is_open else "holds")
    worst_first = sorted(found.findings, key=lambda each: _ORDER.index(each.verdict))
    return PairDocument(
        plugin=found.plugin.name,
        plugin_version=found.plugin.version,
        engine=found.engine,
        version=found.version,
        source=found.source,
        before=found.before,
        status=status,
        required=found.required,
        is_required=found.is_required,
        counts={verdict: counts[verdict] for verdict in Verdict if counts[verdict]},
        findings=tuple(_contact(each, found, located) for each in worst_first),
        not_checked=tuple(
            _contact(each, found, located)
            for each in found.contacts
            if each.verdict is Verdict.NOT_CHECKED
        ),
        num_unreached=found.num_unreached,
        problems=tuple(each.message for each in found.problems),
    )


def _contact(contact: Contact, found: Comparison, located: Located) -> ContactDocument:
    since = found.since.get(contact.key)
    return ContactDocument.of(contact, since=since, at=located(contact.at))


def fits_document(found: Sequence[tuple[Comparison, Located]]) -> FitsDocument:
    """Make the document of comparisons, each with what finds its plugin's files."""
    return FitsDocument(
        schema_="backend-caps/fits@1",
        tool_version=version("backend-caps"),
        pairs=tuple(pair_document(*each) for each in found),
    )
