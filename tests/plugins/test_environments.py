"""Each plugin alone, all together and none, in virtual environments of their own."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import metadata
from pathlib import Path

import pytest

from backend_caps.extras import EXTRAS
from tests.plugins.environments import (
    PLUGINS,
    Environment,
    Plugin,
    borrow_packages,
    borrow_required,
    build_wheels,
)

pytestmark = pytest.mark.slow

CORE = "backend-caps"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Has the wheels of the package and of every plugin."""
    folder = tmp_path_factory.mktemp("wheels")
    build_wheels(folder)
    return folder


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory, wheels: Path) -> Callable[[], Environment]:
    """Makes environments that hold nothing of ours."""
    borrowed = tmp_path_factory.mktemp("packages") / "b"
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


@pytest.fixture(scope="module")
def light(tmp_path_factory: pytest.TempPathFactory, wheels: Path) -> Environment:
    """Has the package, a plugin, and what those require: no torch."""
    borrowed = tmp_path_factory.mktemp("required") / "b"
    borrow_required(borrowed, CORE)
    folder = tmp_path_factory.mktemp("light")
    environment = Environment.fresh(folder, wheels=wheels, borrowed=borrowed)
    environment.install(CORE, "backend-caps-torch-native")
    assert not [*borrowed.glob("torch"), *borrowed.glob("numpy")]
    return environment


_FLAGS = ("--", "--attention-backend", "torch_padded", "--speculative-algorithm", "EAGLE")


@pytest.mark.parametrize(
    ("words", "seen"),
    [
        pytest.param(("report",), "torch_padded", id="report"),
        pytest.param(("resolve", *_FLAGS), "host_seq_lens", id="resolve"),
        pytest.param(("explain", "host_seq_lens", *_FLAGS), "torch_padded", id="explain"),
        pytest.param(("lock", "--output", "now.json", *_FLAGS), "", id="lock"),
        pytest.param(("diff", "then.json", "then.json"), "Nothing differs", id="diff"),
        pytest.param(("check", "--list"), "mirror-absent", id="check-list"),
        pytest.param(("new-plugin", "acme"), "acme", id="new-plugin"),
    ],
)
def test_package_without_extras_decides_and_reports(
    light: Environment, words: tuple[str, ...], seen: str
) -> None:
    """Declaring, resolving and reporting need no torch."""
    light.backend_caps("lock", "--output", "then.json", *_FLAGS)

    assert seen in light.backend_caps(*words)


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        pytest.param(("check", "torch_padded"), "kit", id="check"),
        pytest.param(("dry-run", *_FLAGS), "kit", id="dry-run"),
        pytest.param(("explain", "--measure", *_FLAGS), "kit", id="measure"),
        pytest.param(("generate", *_FLAGS), "kit", id="generate"),
        pytest.param(("relay", *_FLAGS), "relay", id="relay"),
        pytest.param(("report", "--format", "html"), "html", id="html"),
        pytest.param(("trace", *_FLAGS), "kit", id="trace"),
    ],
)
def test_command_without_its_extra_says_what_to_install(
    light: Environment, words: tuple[str, ...], extra: str
) -> None:
    """One sentence, and no traceback."""
    (line,) = light.refused(*words).splitlines()

    assert line.startswith("error: ")
    assert line.endswith(f"pip install 'backend-caps[{extra}]'")


@pytest.mark.parametrize(
    "statement",
    [
        "from backend_caps import configure",
        "from backend_caps.relay import FutureMap",
        "import backend_caps.kit",
        "import backend_caps.runtime.metrics",
    ],
)
def test_name_without_its_extra_says_what_to_install(light: Environment, statement: str) -> None:
    """An import of what an extra brings is an ImportError of one sentence."""
    code = f"try:\n    {statement}\nexcept ImportError as error:\n    print(error)"

    assert "pip install 'backend-caps[" in light.python(code)


def test_each_extra_has_its_modules() -> None:
    """What pyproject.toml brings by an extra is what the package asks for by it."""
    assert {*EXTRAS, "all"} == {*metadata(CORE).get_all("Provides-Extra", [])}


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
