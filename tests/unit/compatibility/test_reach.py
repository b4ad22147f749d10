"""The files of a plugin that its entry points lead to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backend_caps.compatibility.sources import open_pair
from tests.unit.compatibility.pairs import pair_of

OTHERS = {"ops": "x = 1", "parts.a": "", "parts.b": "", "parts.__init__": ""}
"""Files beside the one that an entry point names, and the packages' own."""


def _reached(
    text: str | bytes, *, engine: str = "", entry_point: str = "plugin.m:register"
) -> list[str]:
    """List the modules that are reached, without the package itself."""
    plugin = {**OTHERS, "m": text}
    reached = pair_of({"m": engine}, plugin, entry_points=[entry_point]).reached
    names = (each.removeprefix("plugin/").removesuffix(".py") for each in reached)
    return sorted(each for each in names if each != "__init__")


EVERY = ["m", "ops", "parts/__init__", "parts/a", "parts/b"]
FOLLOWED = [
    pytest.param("import plugin.ops", ["m", "ops"], id="import"),
    pytest.param("from plugin import ops as o", ["m", "ops"], id="from a package"),
    pytest.param("from plugin.ops import x", ["m", "ops"], id="from a module"),
    pytest.param("from . import ops", ["m", "ops"], id="from its own package"),
    pytest.param("from .parts import a", ["m", "parts/__init__", "parts/a"], id="with a package"),
    pytest.param("def f():\n  from .parts.b import *", ["m", "parts/__init__", "parts/b"],
                 id="in a function"),
    pytest.param("register('x', 'plugin.ops:Class')", ["m", "ops"], id="a text"),
    pytest.param("import_module('plugin.ops')", ["m", "ops"], id="loaded"),
    pytest.param("import_module('.ops', __package__)", ["m", "ops"], id="loaded from its package"),
    pytest.param("importlib.import_module('.parts', 'plugin')", ["m", "parts/__init__"],
                 id="loaded, a package"),
    pytest.param("import_module(f'plugin.{name}')", EVERY, id="loaded by a name made of parts"),
    pytest.param("import_module('plugin.' + name)", EVERY, id="loaded by a name added up"),
    pytest.param("import_module(name)\nNAME = 'plugin.ops'", ["m", "ops"], id="loaded by a name"),
    pytest.param("f(f'plugin.{name}')", ["m"], id="what is not loaded"),
    pytest.param("import engine.m, torch.ops\n'other.ops'", ["m"], id="of other packages"),
    pytest.param("x = 'ops'; y = 1.5", ["m"], id="other constants"),
    pytest.param("import plugin.gone", ["m"], id="no module"),
    pytest.param("if engine_version_is('2.0'):\n  import plugin.ops", ["m"],
                 id="with another version"),
    pytest.param("if engine_version_is('1.0'): ...\nelse:\n  import plugin.ops", ["m"],
                 id="with another version than its own"),
    pytest.param("if not engine_version_is('2.0'):\n  import plugin.ops", ["m", "ops"],
                 id="with its own version"),
    pytest.param("if x:\n  import plugin.ops\nelse:\n  import plugin.parts",
                 ["m", "ops", "parts/__init__"], id="under an unknown condition"),
    pytest.param("import plugin.m", ["m"], id="itself"),
    pytest.param(b"import (", EVERY, id="what cannot be parsed"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), FOLLOWED)
def test_a_file_leads_to_what_it_imports_or_names(text: str | bytes, expected: list[str]) -> None:
    """Imports are followed, and dotted names in texts."""
    assert _reached(text) == expected


def test_a_module_without_a_package_is_reached() -> None:
    """Its entry point names it alone."""
    pair = pair_of({}, {}, entry_points=["single"])
    single = replace(pair.plugin, files={"single.py": b"", "other.py": b""})

    assert open_pair(single, pair.index.tree).reached == {"single.py"}


def test_a_reached_file_leads_on() -> None:
    """Files are reached by the imports of those that are."""
    plugin = {"a": "from . import b", "b": "from . import c", "c": "from . import a", "d": ""}
    pair = pair_of({}, plugin, entry_points=["plugin.a"])

    assert pair.reached == {f"plugin/{name}.py" for name in ("__init__", "a", "b", "c")}


def test_the_engine_leads_to_what_it_names() -> None:
    """An engine has the paths of known platforms as texts."""
    assert _reached("", engine="KNOWN = {'acme': 'plugin.parts.a.Platform'}") == [
        "m",
        "parts/__init__",
        "parts/a",
    ]


def test_all_files_count_where_no_entry_point_leads_to_one() -> None:
    """A package of another distribution leads to nothing that is known."""
    assert _reached("", entry_point="elsewhere.m:register") == EVERY


def test_all_files_count_where_no_entry_point_is_stated() -> None:
    """Where the start is not known, neither is what is left out."""
    pair = pair_of({}, OTHERS)

    assert pair.reached == pair.plugin.files.keys()
