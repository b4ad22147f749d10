"""Each plugin alone, all together and none, in virtual environments of their own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.plugins.environments import (
    PLUGINS,
    Environment,
    Plugin,
    borrow_packages,
    build_wheels,
)

CORE = "backend-caps"


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Environment]:
    """Makes environments that hold nothing of ours."""
    wheels, borrowed = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("packages") / "b"
    build_wheels(wheels)
    borrow_packages(borrowed)

    def make() -> Environment:
        folder = tmp_path_factory.mktemp("environment")
        return Environment.fresh(folder, wheels=wheels, borrowed=borrowed)

    return make


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda plugin: plugin.folder.name)
def test_plugin_alone_brings_its_backends(plugin: Plugin, fresh: Callable[[], Environment]) -> None:
    """Installing a plugin installs what it needs, and the report has its backends alone."""
    environment = fresh()

    environment.install(plugin.distribution)

    assert environment.backends() == dict.fromkeys(plugin.backends, plugin.distribution)


def test_package_without_plugins_has_no_backends(fresh: Callable[[], Environment]) -> None:
    """The package alone runs, and its report says that nothing is declared."""
    environment = fresh()

    environment.install(CORE)

    assert environment.backends() == {}
    assert "No installed distribution declares a backend." in environment.backend_caps("report")


def test_plugins_come_and_go_by_themselves(fresh: Callable[[], Environment]) -> None:
    """All together, all are there; when one is uninstalled, the others are there as before."""
    environment = fresh()
    environment.install(*(plugin.distribution for plugin in PLUGINS))
    left = {name: plugin.distribution for plugin in PLUGINS for name in plugin.backends}
    found, expected = [environment.backends()], [dict(left)]

    for plugin in PLUGINS:
        environment.uninstall(plugin.distribution)
        left = {name: owner for name, owner in left.items() if owner != plugin.distribution}
        found.append(environment.backends())
        expected.append(left)

    assert found == expected


def test_new_plugin_is_installed_beside_the_package(fresh: Callable[[], Environment]) -> None:
    """An installed package has the template with it, and what it writes can be installed too."""
    environment = fresh()
    environment.install(CORE)

    environment.backend_caps("new-plugin", "acme_attention")
    environment.install(str(environment.folder / "acme_attention"))

    assert environment.backends() == {"acme_attention": "acme-attention"}
