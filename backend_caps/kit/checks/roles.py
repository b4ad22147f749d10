"""The forwards of speculative decoding are right, up to the widest tree that is claimed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from backend_caps.capability.kind import Role
from backend_caps.kit.check import Case, Check, Effort, Fault, cases_of
from backend_caps.kit.probes.exact import fault_beside_float64
from backend_caps.kit.rig import Rig
from backend_caps.kit.scenarios import (
    Forward,
    Scenario,
    roles_of,
    scenarios_of,
    topk_of,
)
from backend_caps.kit.subject import Subject

_CODE = "roles"
_WIDTHS = (2, 3, 8)
"""Trees that servers use; and one as wide as claimed, where that is at most `_WIDEST`."""
_WIDEST = 16


def _excuse(subject: Subject) -> str | None:
    if roles_of(subject) <= {Role.TARGET} and topk_of(subject) == 1:
        return "it claims the target's role alone, and no trees"
    return None


def _scenarios(subject: Subject) -> Iterator[Scenario]:
    """Take the forwards of drafts and of trees, these in each width."""
    limit = topk_of(subject)
    widths = sorted({own for own in (*_WIDTHS, min(limit, _WIDEST)) if 1 < own <= limit})
    for plain in scenarios_of(subject, (Forward.DRAFT, Forward.TREE)):
        yield from (replace(plain, topk=width) for width in widths)
    yield from scenarios_of(subject, (Forward.DRAFT_EXTEND,))
    if Role.DRAFT in roles_of(subject) and limit == 1:
        # A draft step of a chain is a decode.
        yield from scenarios_of(subject, (Forward.DECODE,))


def _cases(subject: Subject, effort: Effort) -> Iterable[Case]:
    return cases_of(_CODE, _scenarios(subject), effort)


def _run(rig: Rig, case: Case) -> Iterator[Fault]:
    yield from fault_beside_float64(rig, case)


CHECK = Check(
    code=_CODE,
    claims=("roles", "max_speculative_topk"),
    title="It drafts and verifies.",
    proves="Draft steps over beams, draft-extends, and verified trees are within the tolerance of "
    "float64, in each role that is claimed, and with up to 8 children and beams, or up to 16 where "
    "that is the limit claimed.",
    cannot="Wider trees, deeper ones, and what only several steps in a row show; `serving` runs "
    "those.",
    excuse=_excuse,
    cases=_cases,
    run=_run,
    after=("numerics",),
)
