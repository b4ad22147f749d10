"""Pages of the scenes, and documents that are large or hostile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import cycle

from backend_caps.capability.backend import Backend, Status
from backend_caps.capability.declaration import Part
from backend_caps.report.backends import ReportDocument, report_document
from backend_caps.report.diff import Side, differences
from backend_caps.report.difference import DiffDocument, diff_document
from backend_caps.report.html.page import page
from backend_caps.report.sections import Opened
from tests.unit.building import broken, installed
from tests.unit.report import scene, sides

SCRIPT = "<script>alert(1)</script>"
"""A backend's name, as a hostile plugin has it."""


def diff() -> DiffDocument:
    """Compare two versions of an engine."""
    found = differences(Side.of_reading(sides.OLD), Side.of_reading(sides.NEW))
    return diff_document("sglang 0.5.13", "sglang 0.5.23", found)


PAGES: Mapping[str, Callable[[], str]] = {
    "report": lambda: page(scene.report(scene.FORCED), ()),
    "evidence": lambda: page(scene.verified(), ()),
    "explain": lambda: page(scene.plan(scene.FORCED)[1], [Opened(name="host_seq_lens")]),
    "diff": lambda: page(diff(), ()),
}
"""A page of each kind."""


def hostile() -> ReportDocument:
    """Report backends whose every word would be markup, if it were let."""
    fa3 = scene.BACKENDS[0]
    assert fa3.declaration is not None
    (condition,) = fa3.declaration.conditions
    ends = condition.model_copy(update={"reason": f"</script>{scene.HOSTILE}"})
    backends = [
        installed(SCRIPT, fa3.declaration.capabilities, conditions=[ends]),
        installed('" onclick="alert(1)', parts=[Part("javascript:alert(1)")]),
        broken(scene.HOSTILE, Status.BROKEN),
    ]
    return report_document(backends, (), scene.plan(scene.FORCED)[1])


def large(num_backends: int) -> ReportDocument:
    """Report many backends, of every origin and standing that there is."""
    backends = list(_many(num_backends))
    standings = cycle(scene.STANDINGS.values())
    stand = {each.name: next(standings) for each in backends[::2]}
    return report_document(backends, (), None, stand)


def _many(number: int) -> Iterator[Backend]:
    fa3, _, _, triton, *_ = scene.BACKENDS
    assert fa3.declaration is not None
    assert triton.declaration is not None
    for at in range(number):
        name, kind = f"backend_{at}", at % 8
        if kind == 7:
            yield broken(name, Status.BROKEN, scene.BACKENDS[2].problems)
        elif kind == 6:
            yield installed(name)
        else:
            declaration = triton.declaration if kind == 5 else fa3.declaration
            yield installed(name, declaration.capabilities, conditions=declaration.conditions)
