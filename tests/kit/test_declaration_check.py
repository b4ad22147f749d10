from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest
from backend_caps_torch_native import TorchPadded
from torch_native_caps import TORCH_PADDED

from backend_caps import Declaration, Source
from backend_caps.kit import Effort, Finding, Subject, Verdict, run_checks
from backend_caps.kit.checks.hygiene import HYGIENE
from backend_caps.kit.probes.declaration_import import (
    DeclarationPlace,
    ImportedDeclaration,
    ImportRequest,
    import_declaration,
    imported,
)
from backend_caps.runtime import AttentionBackend
from tests.kit.made import HONEST

DECLARED = Path(__file__).parent / "liars" / "declared"
Plugin = Callable[[str], ImportRequest]
_IMPORTS = "from backend_caps import Capabilities, Declaration\n"


class Positional:
    """Takes no `save_kv_cache`."""

    def __init__(self, site: object) -> None:
        self._site = site

    def init_forward_metadata(self, batch: object) -> None:
        """Do nothing."""

    init_forward_metadata_out_graph = init_forward_metadata_in_graph = init_forward_metadata

    def init_cuda_graph_state(self, max_bs: int) -> None:
        """Do nothing."""

    def forward(self, q: object, k: object, v: object, layer: object, batch: object) -> None:
        """Do nothing."""


class Unbuildable(TorchPadded):
    """Raises in its constructor."""

    def __init__(self, site: object) -> None:
        raise RuntimeError(site)


def _findings(subject: Subject) -> list[Finding]:
    result = run_checks(subject, [HYGIENE], device="cpu", effort=Effort.quick()).checks[0]
    assert len(result.cases) == 1
    return list(result.findings)


def _of(kind: type) -> Subject:
    declaration = HONEST.declaration.model_copy(
        update={"implementation": f"{kind.__module__}:{kind.__name__}"}
    )
    return replace(HONEST, declaration=declaration)


@contextmanager
def _kept() -> Iterator[None]:
    """Undo what the child does to its own process."""
    path, modules = list(sys.path), set(sys.modules)
    try:
        yield
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            del sys.modules[name]


def _seen(work: ImportRequest) -> ImportedDeclaration:
    with _kept():
        return imported(work)


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    """Write a declaration's module, whose last line declares."""

    def write(text: str) -> ImportRequest:
        file = tmp_path / "acme_caps.py"
        file.write_text(_IMPORTS + dedent(text), "utf-8")
        return ImportRequest(
            path=sys.path,
            declared_at=f"{file}:{len(file.read_text('utf-8').splitlines())}",
            distribution="acme",
            implementation="acme.backend",
            declaration=Declaration().model_dump_json(),
        )

    return write


def test_shipped_declaration_holds() -> None:
    """A declaration of a module that imports `backend_caps` alone is failed for nothing."""
    file = str(sys.modules["torch_native_caps"].__file__)
    line = 1 + Path(file).read_text("utf-8").splitlines().index("TORCH_PADDED = Declaration(")
    source = Source(distribution="backend-caps-torch-native", declared_at=f"{file}:{line}")

    assert _findings(Subject(name="padded", declaration=TORCH_PADDED, source=source)) == []


def test_methods_are_called_as_the_runtime_calls_them() -> None:
    """A method that takes something else is reported, with its line."""
    findings = _findings(_of(Positional))

    whats = [own.fault.what.partition(":")[0] for own in findings]
    assert whats == [
        "init_cuda_graph_state is not called as the runtime calls it",
        "forward is not called as the runtime calls it",
    ]
    assert all(str(own.fault.site).startswith(__file__) for own in findings)


def test_backend_that_cannot_be_built_is_left_to_others() -> None:
    """What no check could run is no fault of the declaration."""
    assert _findings(_of(Unbuildable)) == []


def test_backend_of_an_engine_is_excused() -> None:
    """A class that declares in its engine's way is judged by no declaration of ours."""
    build: Callable[..., AttentionBackend] = TorchPadded

    result = run_checks(replace(HONEST, builder=build), [HYGIENE], device="cpu").checks[0]

    assert result.status is Verdict.NOT_CHECKED


def test_declaration_that_raises_is_reported(plugin: Plugin) -> None:
    """A module that raises in a new process is reported in its own words."""
    work = plugin('DECLARATION = Declaration(api=int("one"))')
    source = Source(declared_at=work["declared_at"])

    found = import_declaration(Subject(name="acme", declaration=Declaration(), source=source))

    ((what, _),) = found["faults"]
    words = "invalid literal for int() with base 10: 'one'"
    assert what == f"its declaration is not imported in a new process: ValueError: {words}"


def test_declaration_that_ends_the_process_is_reported(plugin: Plugin) -> None:
    """A module that kills its process is reported by what was printed last."""
    work = plugin("import os\nos.write(2, b'no device'); DECLARATION = os._exit(3)")

    findings = _findings(replace(HONEST, source=Source(declared_at=work["declared_at"])))

    assert findings[0].fault.what == "its declaration ends the process that imports it: no device"


def test_declaration_that_is_not_there_is_reported(plugin: Plugin) -> None:
    """A line that binds nothing is an error."""
    work = plugin("DECLARATION = Declaration()\npass")

    with pytest.raises(LookupError, match=r"nothing is bound at .*acme_caps.py:3"), _kept():
        imported(work)


def test_declaration_of_a_class_is_found(plugin: Plugin) -> None:
    """A declaration may be a class's own attribute."""
    assert _seen(plugin("class Acme:\n    DECLARATION = Declaration()"))["faults"] == []


def test_heavy_package_is_seen(plugin: Plugin) -> None:
    """A package that is not there is seen too: elsewhere it is."""
    work = plugin(
        """
        try:
            import cupy
        except ImportError:
            cupy = None
        DECLARATION = Declaration()
        """
    )

    found = _seen(work)

    file = work["declared_at"].rpartition(":")[0]
    assert found == {
        "seconds": 0.0,
        "faults": [("importing the declaration imports cupy", f"{file}:4")],
    }


def test_declaration_that_changed_elsewhere_is_seen(plugin: Plugin) -> None:
    """What is no capability is reported as such."""
    work = plugin('DECLARATION = Declaration(implementation="acme:Acme")')

    what = "the declaration is another one in a new process: outside its capabilities"
    assert _seen(work)["faults"] == [(what, work["declared_at"])]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            """
            import torch_native_caps
            _BASE = torch_native_caps.TORCH_PADDED
            DECLARATION = Declaration(capabilities=_BASE.capabilities)
            """,
            id="its module",
        ),
        pytest.param(
            """
            from torch_native_caps import TORCH_PADDED
            _TAKEN = {**TORCH_PADDED.capabilities.stated()}
            DECLARATION = Declaration(capabilities=_TAKEN)
            """,
            id="its values",
        ),
    ],
)
def test_borrowed_claims_are_seen(plugin: Plugin, text: str) -> None:
    """Claims that another plugin's declaration states are not this one's."""
    whats = [what for what, _ in _seen(plugin(text))["faults"]]

    (borrowed,) = (what for what in whats if "stated by" in what)
    assert "graph_replay" in borrowed
    assert "TORCH_PADDED (" in borrowed


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            """
            from torch_native_caps import TORCH_PADDED
            _SAID = {"two_batch_overlap": TORCH_PADDED.capabilities.two_batch_overlap}
            DECLARATION = Declaration(capabilities=_SAID)
            """,
            id="stated again",
        ),
        pytest.param(
            """
            _OWN = Capabilities(two_batch_overlap=True)
            DECLARATION = Declaration(capabilities=_OWN)
            """,
            id="its own",
        ),
    ],
)
def test_own_claims_are_no_borrowed_ones(plugin: Plugin, text: str) -> None:
    """What a plugin's own text says is its own, whoever says the same."""
    assert not any("stated by" in what for what, _ in _seen(plugin(text))["faults"])


def test_module_of_another_distribution_is_seen(plugin: Plugin, tmp_path: Path) -> None:
    """An entry point that names another distribution's module has no claim of its own."""
    work = plugin("DECLARATION = Declaration()")
    info = tmp_path / "zenith_kernels-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: zenith_kernels\nVersion: 1.0\n", "utf-8")
    (info / "RECORD").write_text("acme_caps.py,,\n", "utf-8")

    fault = "its module is shipped by zenith-kernels", work["declared_at"]
    assert _seen(work)["faults"] == [fault]


@pytest.mark.parametrize(
    ("file", "module"),
    [
        ("eager_plugin/caps.py", "eager_plugin.caps"),
        ("eager_plugin/__init__.py", "eager_plugin"),
        ("slow_caps.py", "slow_caps"),
    ],
)
def test_module_is_found_by_its_file(file: str, module: str) -> None:
    """Packages are the folders with an `__init__` above a file."""
    place = DeclarationPlace.of(f"{DECLARED / file}:3")

    assert (place.module, place.root, place.line) == (module, DECLARED, 3)
