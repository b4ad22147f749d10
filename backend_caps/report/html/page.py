"""A document as one page: text, style and script in a file that fetches nothing.

A plugin's words are hostile input. Whatever a template puts in goes through `visible` and is
escaped, no address is made of it, and the page's policy lets no other style or script run.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import TypeAlias

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup, escape
from pydantic import BaseModel

from backend_caps.capability.vocabulary import CAPABILITIES
from backend_caps.report import sections
from backend_caps.report.backend_views import evidence_view, names_view, problems_view, rules_view
from backend_caps.report.backends import ReportDocument
from backend_caps.report.check_catalog import CheckListDocument
from backend_caps.report.difference import DiffDocument
from backend_caps.report.document import json_of
from backend_caps.report.dry_run_documents import DryRunDocument
from backend_caps.report.dry_run_views import verdict
from backend_caps.report.engine_plugins import plugin_view
from backend_caps.report.fits_documents import FitsDocument
from backend_caps.report.fits_views import headline
from backend_caps.report.html.grid import Glyph, conditions_view, matrix, side_by_side
from backend_caps.report.plan_views import causes_table, mirror_lines, plan_problems_view
from backend_caps.report.plans import CauseDocument, PlanDocument, ValueDocument
from backend_caps.report.step_costs import MeasureDocument, costs_view
from backend_caps.report.words import (
    decided_by,
    deciding,
    grouped,
    name_of,
    tries,
    use_words,
    value_words,
    words_of,
)

_LONG = 32
"""Rows up to which a section is not folded: a check has a claim for each capability, and about as
many checks."""
_SHAPES = {"held": Glyph.VERIFIED, "failed": Glyph.FAILED}
"""Shapes drawn before a word in a table, so that it stands out."""
_TEMPLATES = Path(__file__).parent / "templates"
_NOT_DECLARED = frozenset({"undeclared", "inherited", "not-known"})
"""Origins of values that no declaration states."""
Owner: TypeAlias = tuple[str, str]
"""A cause's kind and name; the name of a composite's part has its composites too."""
Forces: TypeAlias = dict[tuple[Owner, ...], list[tuple[str, str]]]
"""By the owners that decide them together: values, each with its phases."""


def page(document: BaseModel, content: sections.Sections) -> str:
    """Write a document as a page, in ASCII: no terminal's encoding changes what was digested.

    Args:
        document: what is shown.
        content: its sections. The pages of most documents are made of these; a report, a
            plan, measured or not, and a comparison have templates of their own, and read nothing
            there but which values of a plan are shown opened.
    """
    templates, styles, content = _environment(), list[str](), tuple(content)
    opened = [part for part in content if isinstance(part, sections.Opened)]
    match document:
        case ReportDocument():
            template, shown = "report.html", _of_report(document)
        case PlanDocument():
            template, shown = "plan.html", _of_plan(document, opened)
        case MeasureDocument(plan=plan):
            costs = parts_of(costs_view(document))
            template, shown = "plan.html", {**_of_plan(plan, opened), "costs": costs}
        case DiffDocument():
            template, shown = "diff.html", {"diff": document, "grid": side_by_side(document)}
        case _:
            template, shown = "sections.html", _of_sections(document, content)
            styles = [part.style for part in content if isinstance(part, sections.Picture)]
    text = templates.get_template(template).render(
        {"schema": schema_of(document), **_inlined(styles), **shown}
    )
    return text.encode("ascii", "xmlcharrefreplace").decode("ascii")


def _environment() -> Environment:
    """Make the jinja environment of pages, with their filters and tests."""
    jinja = environment(_TEMPLATES)
    jinja.filters |= {"json": htmlsafe_json_dumps, "shape": _SHAPES.get}
    filters = (breakable, value_words, words_of, decided_by, causes_table)
    jinja.filters |= {each.__name__: each for each in filters}
    jinja.tests["lines"] = lambda section: isinstance(section, sections.Lines)
    jinja.tests["picture"] = lambda section: isinstance(section, sections.Picture)
    jinja.tests["long"] = _is_long
    return jinja


def environment(folder: Path) -> Environment:
    """Make the jinja environment of a folder's templates.

    It escapes whatever a template puts in, shows its control characters, and fails on a name that
    is not defined.
    """
    return Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_finalize,
    )


def _finalize(value: object) -> object:
    """Show control characters of whatever text a template puts in."""
    return (
        sections.visible(value)
        if isinstance(value, str) and not isinstance(value, Markup)
        else value
    )


def breakable(text: str) -> Markup:
    """Let a browser break a name after its underscores."""
    return Markup("_<wbr>").join(escape(part) for part in sections.visible(text).split("_"))


def _is_long(section: sections.Lines | sections.Table | sections.Picture) -> bool:
    """Return whether a section is folded because of its length."""
    if isinstance(section, sections.Picture):
        return False
    return len(section.lines if isinstance(section, sections.Lines) else section.rows) > _LONG


def _inlined(styles: Sequence[str]) -> dict[str, object]:
    """Read style and script; the page's policy allows only these and `styles`."""
    style, script = ((_TEMPLATES / name).read_text("utf-8") for name in ("page.css", "page.js"))
    allowed = " ".join(f"'{_digest(text)}'" for text in (style, *styles))
    policy = (
        f"default-src 'none'; style-src {allowed}; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return {"style": Markup(style), "script": Markup(script), "policy": policy}  # noqa: S704 - ours


def _digest(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"


def schema_of(document: BaseModel) -> str:
    """Name a document by its schema, such as `backend-caps/report@1`."""
    written = document.model_dump(include={"schema_"}, by_alias=True)
    return str(written["schema"])


def parts_of(content: sections.Sections) -> list[tuple[str, list[sections.PagePart]]]:
    """Group sections by their headings; those before the first heading have none."""
    parts: list[tuple[str, list[sections.PagePart]]] = []
    for section in content:
        match section:
            case sections.Heading(text):
                parts.append((text, []))
            case _ if parts:
                parts[-1][1].append(section)
            case _:
                parts.append(("", [section]))
    return parts


def _of_sections(document: BaseModel, content: sections.Sections) -> dict[str, object]:
    """Title the page by its first heading, which is left out below."""
    parts = parts_of(content)
    (first, opening), *others = parts
    name = schema_of(document).removeprefix("backend-caps/").partition("@")[0]
    name = name.replace("-", " ").capitalize()
    match document:
        case DryRunDocument():
            return {"name": f"{name}: {verdict(document)}", "parts": parts}
        case FitsDocument():
            return {"name": ": ".join(headline(document)), "parts": parts}
        case CheckListDocument():
            return {"name": name, "parts": parts}
        case _:
            return {"name": first or name, "parts": [("", opening), *others]}


def _of_report(report: ReportDocument) -> dict[str, object]:
    engine = report.engine
    names = [backend for backend in report.backends if backend.classes is not None]
    classes = [backend for backend in report.backends if backend.class_ is not None]
    content = [
        *conditions_view(report),
        *evidence_view(report.backends),
        *names_view(names),
        *(() if engine is None else rules_view(engine)),
        *chain.from_iterable(map(plugin_view, report.plugins or ())),
        *problems_view(report),
    ]
    grid = matrix(report)
    plan = {} if report.plan is None else _of_plan(report.plan, ())
    return {
        "report": report,
        "has_plugins": len(names) + len(classes) < len(report.backends),
        "grid": grid,
        "silent": [name for name in CAPABILITIES if name not in grid.columns],
        "parts": parts_of(content),
        "plan": None,
        **plan,
    }


def _of_plan(plan: PlanDocument, opened: Sequence[sections.Opened]) -> dict[str, object]:
    headline, *reasons = mirror_lines(plan)
    if opened and opened[0].name != "host_seq_lens":
        headline, reasons = answer(plan, opened[0]), [headline]
    return {
        "plan": plan,
        "headline": headline,
        "reasons": reasons,
        "forces": forces(plan),
        "tries": tries(plan.flips),
        "opened": opened,
        "values": value_groups(plan, opened),
        "costs": (),
        "plan_problems": parts_of(plan_problems_view(plan)),
    }


def forces(plan: PlanDocument) -> tuple[Forces, Forces]:
    """Group values below the best by deciding owners: declared ones, and all others.

    Phases with the same value and causes share one.
    """
    groups = grouped(
        ((f"{name} = {value_words(value)}", *_decides(value).items()), (phase, value))
        for phase, name, value in plan.all_values()
        if value.causes and value.value != json_of(CAPABILITIES[name].best)
    )
    declared, undeclared = Forces(), Forces()
    for (text, *_), places in groups.items():
        value = places[0][1]
        causes = deciding(value) or value.causes
        is_declared = any(cause.origin not in _NOT_DECLARED for cause in causes)
        owners = tuple(dict.fromkeys(map(_owner, causes)))
        phases = ", ".join(phase for phase, _ in places if phase is not None)
        place = f"in {phases}" if phases else "for the server"
        group = declared if is_declared else undeclared
        group.setdefault(owners, []).append((" ".join(str(text).split()), place))
    return declared, undeclared


def _decides(value: ValueDocument) -> dict[Owner, bool]:
    """Return, by owner, whether it decides a value."""
    decisions = grouped((_owner(cause), value.is_decided_by(cause)) for cause in value.causes)
    return {owner: any(decides) for owner, decides in decisions.items()}


def _owner(cause: CauseDocument) -> Owner:
    return cause.kind, name_of(cause)


def answer(plan: PlanDocument, explained: sections.Opened) -> str:
    """Write the answer to `explain`: a value, in each phase that was named."""
    engine = "" if plan.engine is None else f"with {plan.engine}, "
    if explained.name in plan.server:
        return f"{engine}{explained.name} is {use_words(plan.server[explained.name])}"
    phases = grouped(
        (use_words(values[explained.name]), phase)
        for phase, values in plan.phases.items()
        if explained.phase in (None, phase)
    )
    phrases = "; ".join(f"{value} in {', '.join(names)}" for value, names in phases.items())
    return f"{engine}{explained.name} is {phrases}"


def value_groups(
    plan: PlanDocument, opened: Sequence[sections.Opened]
) -> Iterator[tuple[str, Mapping[str, ValueDocument], list[str]]]:
    """List the server's values, then each phase's, with the names that are shown opened."""
    yield "For the server", plan.server, [each.name for each in opened]
    for phase, values in plan.phases.items():
        yield f"In {phase}", values, [each.name for each in opened if each.phase in (None, phase)]
