"""Pages as a browser shows them, to eyes, keys and screen readers."""

from __future__ import annotations

from tests.browser.conftest import Open
from tests.unit.report import scene


def test_report_opens_from_disk(show: Open) -> None:
    """A page has its title, and its console stays silent."""
    page = show(scene.report(scene.FORCED))

    assert page.title() == "Installed backends · backend-caps"
