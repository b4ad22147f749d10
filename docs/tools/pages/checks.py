"""The generated parts of `docs/reference/checks.md`: what each check asks, proves and cannot."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

from torch_native_caps import TORCH_PADDED

from backend_caps.kit import Case, Check, Effort, Subject
from backend_caps.kit.checks import CHECKS
from backend_caps.kit.dimensions import values_of
from backend_caps.kit.scenarios import Forward
from docs.tools.markdown import table
from docs.tools.sources import attribute_docs_of

_PADDED = Subject(name="torch_padded", declaration=TORCH_PADDED)
"""A backend that takes whatever there are cases of."""
_OWED = "what every backend owes the engine"


def forwards() -> str:
    """Give each word that a scenario begins with."""
    docs = attribute_docs_of(Forward)
    return table(("forward", "its batch"), [(f"`{f.value}`", docs[f.name]) for f in Forward])


def dimensions() -> str:
    """Give each dimension its values in the cases of a whole run, and of a quick one."""
    whole, quick = (_values(effort) for effort in (Effort(), Effort.quick()))
    rows = [(name, ", ".join(whole[name]), _lacking(whole[name], quick[name])) for name in whole]
    return table(("dimension", "values", "without `--quick` alone"), rows)


def _values(effort: Effort) -> Mapping[str, Mapping[str, int]]:
    cases = (case for check in CHECKS for case in _cases(check, effort))
    return values_of(case.scenario for case in cases if case.scenario is not None)


def _cases(check: Check, effort: Effort) -> Iterable[Case]:
    return () if check.excuse(_PADDED) else check.cases(_PADDED, effort)


def _lacking(whole: Iterable[str], quick: Container[str]) -> str:
    return ", ".join(value for value in whole if value not in quick)


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
