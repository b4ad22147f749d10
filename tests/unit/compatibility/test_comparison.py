"""A plugin compared with releases of an engine."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from backend_caps.compatibility.comparison import Comparison, compare, since, upgrade
from backend_caps.compatibility.contact import Verdict
from backend_caps.compatibility.plugin import EntryPoint, Plugin
from backend_caps.compatibility.sources import EngineSource
from backend_caps.engines.source.files import Tree
from tests.unit.compatibility.distributions import write_wheel
from tests.unit.engines.source.trees import bytes_of

LOADS = "from engine.core import load"


def _plugin(texts: Mapping[str, str], *requires: str, entry: str | None = None) -> Plugin:
    points = [] if entry is None else [EntryPoint(group="g", name="n", value=entry, at="p:1")]
    return Plugin(
        name="acme",
        version=None,
        files={path: bytes_of(text) for path, text in texts.items()},
        entry_points=tuple(points),
        requires=requires,
    )


def _engine(texts: Mapping[str, str] | None = None, version: str | None = "1.0") -> Tree:
    files = {
        path: bytes_of(text) for path, text in {"engine/__init__.py": "", **(texts or {})}.items()
    }
    return Tree(package="engine", version=version, source="here", files=files)


def test_a_comparison_has_all_contacts_and_the_findings_among_them() -> None:
    """Verdicts are counted over all contacts."""
    plugin = _plugin({"acme/m.py": f"{LOADS}, gone\nfrom engine.lazy import any\nimport engine"})
    engine = _engine(
        {"engine/core.py": "def load(): ...", "engine/lazy.py": "def __getattr__(name): ..."}
    )

    found = compare(plugin, engine)

    assert [each.what for each in found.findings] == ["engine.core.gone"]
    assert found.counts == {Verdict.HOLDS: 2, Verdict.BREAKS: 1, Verdict.NOT_CHECKED: 1}
    assert (found.breaks, found.is_open) == (True, False)


@pytest.mark.parametrize("switch", [gc.enable, gc.disable])
def test_the_garbage_collector_is_left_as_it_was(switch: Callable[[], None]) -> None:
    """It pauses for a pair, of which none is garbage before it is done."""
    switch()
    was_enabled = gc.isenabled()
    try:
        compare(_plugin({"acme/m.py": LOADS}), _engine({"engine/core.py": "def load(): ..."}))
        assert gc.isenabled() is was_enabled
    finally:
        gc.enable()


OPEN = [
    pytest.param({"acme/m.py": LOADS}, False, id="all was read"),
    pytest.param({"acme/m.py": "x = 1"}, True, id="it meets the engine nowhere"),
    pytest.param({"acme/m.py": LOADS, "acme/bad.py": "def"}, True, id="a file cannot be parsed"),
    pytest.param({"acme/m.py": f"{LOADS}er", "acme/bad.py": "def"}, False, id="something breaks"),
]


@pytest.mark.parametrize(("texts", "expected"), OPEN)
def test_a_comparison_is_open_where_not_all_could_be_read(
    texts: Mapping[str, str], expected: bool
) -> None:
    """What breaks is known, whatever else was not read."""
    engine = _engine({"engine/core.py": "def load(): ..."})

    assert compare(_plugin(texts), engine).is_open is expected


def test_problems_are_of_the_plugins_files() -> None:
    """A file of the engine is none of them, though its path ends as one of the plugin's."""
    plugin = _plugin({"core/m.py": "import engine.core.m", "core/bad.py": "def"})
    engine = _engine({"engine/core/m.py": "def", "engine/core/bad.py": "def"})

    found = compare(plugin, engine)

    assert [each.message.partition(" ")[0] for each in found.problems] == ["core/bad.py"]


def test_files_that_no_entry_point_leads_to_are_counted() -> None:
    """They are not looked at."""
    plugin = _plugin({"acme/m.py": "x = 1", "acme/other.py": LOADS}, entry="acme.m")

    found = compare(plugin, _engine())

    assert (found.num_unreached, found.findings) == (1, [])


REQUIREMENTS = [
    pytest.param(["engine>=1"], "1.0", (">=1", True), id="in it"),
    pytest.param(["engine>=1,<2"], "2.0", ("<2,>=1", False), id="not in it"),
    pytest.param(["engine>=1"], "1.1rc1", (">=1", True), id="a pre-release"),
    pytest.param(["engine>=1"], None, (">=1", None), id="no version"),
    pytest.param(["engine>=1"], "unknown", (">=1", None), id="what is no version"),
    pytest.param(["engine"], "1.0", (None, None), id="no range"),
    pytest.param(["other>=2", "engine>=1"], "1.0", (">=1", True), id="after another"),
    pytest.param(["other>=2"], "1.0", (None, None), id="of another alone"),
    pytest.param(["no requirement", "engine>=1"], "1.0", (">=1", True), id="after a fault"),
    pytest.param(["Engine>=1"], "1.0", (">=1", True), id="in capitals"),
    pytest.param([], "1.0", (None, None), id="nothing"),
]


@pytest.mark.parametrize(("requires", "version", "expected"), REQUIREMENTS)
def test_a_plugin_requires_a_range_of_versions(
    requires: list[str], version: str | None, expected: tuple[str | None, bool | None]
) -> None:
    """The first requirement of the engine that states a range counts."""
    found = compare(_plugin({"acme/m.py": ""}, *requires), _engine(version=version))

    assert (found.required, found.is_required) == expected


def test_an_upgrade_keeps_what_it_brings() -> None:
    """What the release before breaks, too, is left out."""
    plugin = _plugin({"acme/m.py": f"{LOADS}, gone"})
    old = compare(plugin, _engine({"engine/core.py": "def load(): ..."}, "1.0"))
    new = compare(plugin, _engine({"engine/core.py": ""}, "1.1"))

    found = upgrade(old, new)

    assert (found.before, found.version) == ("1.0", "1.1")
    assert [each.what for each in found.findings] == ["engine.core.load"]


CORES = {"1.0": "def load(): ...\ndef fill(): ...", "1.1": "def load(): ...", "1.2": "", "1.3": ""}


def _release(folder: Path, version: str) -> EngineSource:
    texts = {"engine/__init__.py": "", "engine/core.py": CORES[version]}
    return EngineSource(package="engine", path=write_wheel(folder, f"engine-{version}", texts))


def _newest(folder: Path, text: str) -> Comparison:
    return compare(_plugin({"acme/m.py": text}), _release(folder, "1.3").open())


FIRST = [
    pytest.param("load", ["1.2"], id="of the last that lacks it"),
    pytest.param("load, fill", ["1.2", "1.1"], id="of each by itself"),
    pytest.param("gone", [], id="of none, where all lack it"),
]


@pytest.mark.parametrize(("names", "expected"), FIRST)
def test_a_finding_is_since_the_first_release_that_has_it(
    tmp_path: Path, names: str, expected: list[str]
) -> None:
    """The release before that has not."""
    found = _newest(tmp_path, f"from engine.core import {names}")
    older = [_release(tmp_path, version) for version in ("1.2", "1.1", "1.0")]

    first = since(found, older)

    assert [first[each.key] for each in found.findings if each.key in first] == expected


def test_releases_are_opened_until_each_finding_is_absent(tmp_path: Path) -> None:
    """An older one, which is not there, is not."""
    found = _newest(tmp_path, LOADS)
    lost = EngineSource(package="engine", path=tmp_path / "lost.whl")

    first = since(found, [_release(tmp_path, "1.1"), lost])

    assert [*first.values()] == ["1.3"]
