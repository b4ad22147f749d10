"""Which folder may import which, what stays unloaded, and which names are public."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest
from importlinter.application.use_cases import lint_imports
from importlinter.configuration import configure

import backend_caps

ROOT = Path(__file__).resolve().parents[2]


def _loaded_by(code: str) -> set[str]:
    """Run code in a fresh process, and list the modules that it has loaded."""
    script = f"import sys\n{code}\nprint(*sys.modules)"
    finished = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd="/"
    )
    return set(finished.stdout.splitlines()[-1].split())


def test_layers_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every import follows the one arrow between the folders."""
    monkeypatch.chdir(ROOT)
    configure()

    assert lint_imports(config_filename=str(ROOT / ".importlinter"), cache_dir=None)


def _main(*words: str) -> str:
    """Write the code that runs a command line of ours, and goes on."""
    return (
        f"from backend_caps.__main__ import main\ntry: main({list(words)})"
        "\nexcept SystemExit as exit: assert exit.code == 0, exit.code\nprint()"
    )


@pytest.mark.parametrize("command", ["report", "resolve", "explain", "select"])
def test_command_loads_no_torch(command: str) -> None:
    """A report, a plan, an explanation and a choice start no torch."""
    words = (command, "--format", "json", "--", "--attention-backend", "torch_native")

    loaded = _loaded_by(_main(*words))

    assert "click" in loaded
    assert "torch" not in loaded


def test_report_loads_no_other_command() -> None:
    """A report as JSON loads nothing that draws tables and pages, nor another command."""
    commands = {f"backend_caps.cli.{module}" for module in ("plan", "lock", "check")}

    loaded = _loaded_by(_main("report", "--format", "json"))

    assert "backend_caps.cli.report" in loaded
    assert loaded.isdisjoint({*commands, "backend_caps.report.html", "jinja2", "rich", "yaml"})


def test_command_leaves_nothing_to_collect_at_its_end() -> None:
    """What a command has made is not looked through once more when Python ends."""
    ending = "import atexit, gc\natexit.register(lambda: print(gc.get_freeze_count() > 0))\n"

    assert _loaded_by(ending + _main("report", "--format", "json")) == {"True"}


def test_package_alone_loads_nothing() -> None:
    """Importing the package costs neither pydantic nor torch."""
    loaded = _loaded_by("import backend_caps")

    assert loaded.isdisjoint({"pydantic", "torch", "click", "entrypoints"})


def test_declaration_loads_no_torch() -> None:
    """What a plugin's declaration imports loads neither torch nor click."""
    loaded = _loaded_by("from backend_caps import Declaration, Capabilities, When, Given, Part")

    assert "pydantic" in loaded
    assert loaded.isdisjoint({"torch", "click", "rich", "yaml"})


def test_future_maps_are_made_in_one_place() -> None:
    """No module of the package but `startup.configuration` makes a FutureMap."""
    calls = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "backend_caps").rglob("*.py")
        if re.search(r"\bFutureMap(\.from_plan)?\(", path.read_text("utf-8"))
    }

    assert calls == {"backend_caps/startup/configuration.py"}


STABLE = {
    *("BackendCapsError", "BatchKind", "Capabilities", "Cause", "Configuration", "Declaration"),
    *("Facts", "Given", "GraphMetadata", "HostSeqLens", "Part", "Phase", "Plan", "Role", "Rule"),
    *("RuleSet", "ServerFlags", "SharedReadsEnd", "UNDECLARED", "Use", "When", "configure"),
    *("discover", "flips", "require_evidence", "resolve"),
}
LOADS_TORCH = ("Configuration", "GraphSizes", "configure")
"""Public, and left out of `import *`: a declaration is read without torch."""
PUBLIC = [*import_module("backend_caps").__all__, *LOADS_TORCH]


def _statically_imported() -> Iterator[str]:
    """List the names that a type checker sees in the package."""
    stub = Path(backend_caps.__file__).with_suffix(".pyi").read_text("utf-8")
    for node in ast.parse(stub).body:
        if isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)


def test_stable_names_are_public() -> None:
    """No name that was promised is missing."""
    missing = STABLE - {*PUBLIC}

    assert missing == set()


def test_type_checkers_and_the_program_see_the_same_names() -> None:
    """The names for type checkers are the names that are loaded on first use."""
    assert sorted(_statically_imported()) == sorted(PUBLIC)


def test_public_names_can_be_imported() -> None:
    """Every public name is there, under its own name."""
    for name in PUBLIC:
        assert getattr(import_module("backend_caps"), name) is getattr(backend_caps, name)
        assert name in dir(backend_caps)


def test_unknown_name_is_an_attribute_error() -> None:
    """A name that there is none of is refused as of any module."""
    with pytest.raises(AttributeError, match="module 'backend_caps' has no attribute 'Resolver'"):
        _ = import_module("backend_caps").Resolver


def test_version_is_that_of_the_distribution() -> None:
    """`backend_caps.__version__` is the installed version."""
    assert backend_caps.__version__ == version("backend-caps")
