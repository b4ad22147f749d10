"""A plugin and its entry points."""

from __future__ import annotations

import pytest

from backend_caps.compatibility.plugin import EntryPoint, Plugin

VALUES = [
    pytest.param("acme.plugin:register", "acme.plugin", "register", id="a function"),
    pytest.param("acme.plugin : Class.method", "acme.plugin", "Class.method", id="with spaces"),
    pytest.param("acme.plugin:register [extra]", "acme.plugin", "register", id="with an extra"),
    pytest.param("acme.plugin", "acme.plugin", "", id="a module"),
    pytest.param("acme.plugin [extra]", "acme.plugin", "", id="a module with an extra"),
]


@pytest.mark.parametrize(("value", "module", "attribute"), VALUES)
def test_an_entry_point_names_a_module_and_what_is_in_it(
    value: str, module: str, attribute: str
) -> None:
    """Extras, which nothing reads any more, are no part of the names."""
    point = EntryPoint(group="vllm.general_plugins", name="acme", value=value, at="setup.py:1")

    assert (point.module, point.attribute) == (module, attribute)


@pytest.mark.parametrize(("version", "expected"), [("1.0", "acme 1.0"), (None, "acme")])
def test_a_plugin_is_labelled_by_name_and_version(version: str | None, expected: str) -> None:
    """A folder may state no version."""
    assert Plugin(name="acme", version=version, files={}).label == expected
