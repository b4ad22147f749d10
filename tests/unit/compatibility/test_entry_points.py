"""The entry points by which an engine loads a plugin."""

from __future__ import annotations

import pytest

from backend_caps.compatibility.contact import Verdict
from backend_caps.compatibility.entry_points import entry_points
from tests.unit.compatibility.pairs import pair_of

LOADING = "load('engine.plugins')"
"""What an engine does with a group."""
PLUGIN = {"m": "def register(): ...\nclass A:\n  def f(): ..."}

POINTS = [
    pytest.param("plugin.m:register", Verdict.HOLDS, "", id="a function"),
    pytest.param("plugin.m", Verdict.HOLDS, "", id="a module"),
    pytest.param("plugin.m:gone", Verdict.BREAKS,
                 "plugin.m:gone is not there, so that the engine cannot load it", id="no function"),
    pytest.param("plugin.gone:register", Verdict.BREAKS,
                 "plugin.gone:register is not there, so that the engine cannot load it",
                 id="no module"),
    pytest.param("other.m:register", Verdict.NOT_CHECKED,
                 "other.m:register is of another distribution, or made at run time",
                 id="another distribution's"),
    pytest.param("plugin.m:A.f", Verdict.NOT_CHECKED,
                 "plugin.m:A.f is of another distribution, or made at run time",
                 id="an attribute of a class"),
    pytest.param("plugin.m:Gone.f", Verdict.BREAKS,
                 "plugin.m:Gone.f is not there, so that the engine cannot load it",
                 id="an attribute of no class"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "verdict", "why"), POINTS)
def test_an_entry_point_names_what_the_plugin_has(value: str, verdict: Verdict, why: str) -> None:
    """A module of another distribution, or what is in a class, is not looked at."""
    [found] = entry_points(pair_of({"m": LOADING}, PLUGIN, entry_points=[value]))

    assert (found.verdict, found.why, found.at) == (verdict, why, "pyproject.toml:1")


def test_an_entry_point_in_a_group_that_the_engine_does_not_read_is_unused() -> None:
    """No file of the engine has the name of the group."""
    pair = pair_of({"m": "load('engine.others')"}, PLUGIN, entry_points=["plugin.m:register"])

    [found] = entry_points(pair)

    assert found.verdict is Verdict.UNUSED
    assert found.why == "the engine looks for no group 'engine.plugins'"


def test_an_entry_point_of_another_program_is_no_contact() -> None:
    """A plugin may have commands, and plugins of other engines."""
    pair = pair_of({"m": LOADING}, PLUGIN, entry_points=["gone:main"], group="console_scripts")

    assert [*entry_points(pair)] == []
