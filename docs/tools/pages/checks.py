"""The generated parts of `docs/reference/checks.md`: what each check asks, proves and cannot."""

from __future__ import annotations

from collections.abc import Sequence

from backend_caps.kit import Check
from backend_caps.kit.checks import CHECKS
from backend_caps.kit.scenarios import Forward
from docs.tools.markdown import table
from docs.tools.sources import attribute_docs_of

_OWED = "what every backend owes the engine"


def forwards() -> str:
    """Give each word that a scenario begins with."""
    docs = attribute_docs_of(Forward)
    return table(("forward", "its batch"), [(f"`{f.value}`", docs[f.name]) for f in Forward])


def checks_table() -> str:
    """Give each check a row."""
    rows = [
        (f"[`{check.code}`](#{check.code})", check.about.title, _about(check)) for check in CHECKS
    ]
    return table(("check", "statement", "about"), rows)


def checks() -> str:
    """Give each check a section."""
    return "\n\n".join(_check(check) for check in CHECKS)


def _check(check: Check) -> str:
    lines = [
        f"* about: {_about(check)}",
        f"* a pass means: {check.about.proves}",
        f"* it cannot find: {check.about.cannot}",
    ]
    if check.after:
        lines.append(f"* says nothing while one of these fails: {_codes(check.after)}")
    if check.hints is not None:
        lines.append("* tells where more may be claimed")
    bullets = "\n".join(lines)
    return f"### {check.code}\n\n{check.about.title}\n\n{bullets}"


def _codes(codes: Sequence[str]) -> str:
    return ", ".join(f"[`{code}`](#{code})" for code in codes)


def _about(check: Check) -> str:
    claims = (f"[`{claim}`](capabilities.md#{claim})" for claim in check.claims)
    return ", ".join(claims) or _OWED
