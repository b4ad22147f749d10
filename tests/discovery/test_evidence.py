"""Evidence on disk: where it lies, and what is read of it, with nothing imported."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

from backend_caps import Registry, require_evidence
from backend_caps.capability.evidence import ClaimState, Evidence, Standing, declaration_digest
from backend_caps.discovery.evidence import (
    KIT_AND_TORCH,
    Implementation,
    imports_of,
    read_standings,
    versions_of,
)
from tests.discovery.conftest import Site
from tests.unit.evidence import HELD, evidence

_DECLARES = """\
from backend_caps import Capabilities, Declaration

DECLARATION = Declaration(
    capabilities=Capabilities(two_batch_overlap=True), implementation="acme.backend:Acme"
)
"""
_RAISES = "raise RuntimeError('an implementation is not imported')\n"

Plugin = Callable[..., Registry]


@pytest.fixture
def plugin(site: Site) -> Plugin:
    """Install backend `fa3` of a package that cannot be imported, and discover it."""

    def install(source: str = _DECLARES) -> Registry:
        package = site.root / "acme"
        package.mkdir(exist_ok=True)
        (package / "__init__.py").write_text(_RAISES)
        (package / "backend.py").write_text(_RAISES)
        site.module("fa3_caps", source)
        site.install(
            "fa3-1.0.dist-info",
            entry_points="[backend_caps.backends]\nfa3 = fa3_caps:DECLARATION\n",
        )
        for name in ("backend_caps-1.0", "torch-2.13.0+cpu"):
            (site.root / f"{name}.dist-info").mkdir(exist_ok=True)
        return site.discover()

    return install


def _fresh(site: Site, registry: Registry) -> Evidence:
    """Write evidence of what is here."""
    implementation = _found(site)
    declaration = registry["fa3"].declaration
    assert declaration is not None
    written = evidence({"two_batch_overlap": HELD})
    versions = written.versions.model_copy(update={"distribution": "fa3"})
    changes: Mapping[str, object] = {
        "versions": versions,
        "source": implementation.digest(),
        "declaration": declaration_digest(declaration),
    }
    return written.model_copy(update=changes)


def _found(site: Site, pointer: str = "acme.backend:Acme") -> Implementation:
    found = Implementation.of(pointer, imports_of([site.root]))
    assert found is not None
    return found


def _keep(site: Site, text: str) -> Path:
    file = _found(site).evidence_file("fa3")
    file.parent.mkdir()
    file.write_text(text)
    return file


def _standing(site: Site, registry: Registry) -> Standing:
    return read_standings(registry.entries, path=[site.root])["fa3"]


def test_fresh_evidence_verifies(site: Site, plugin: Plugin) -> None:
    """Evidence of what is here verifies what held."""
    registry = plugin()
    _keep(site, _fresh(site, registry).text())

    standing = _standing(site, registry)

    assert (standing.changes, standing.state("two_batch_overlap")[0]) == ((), ClaimState.VERIFIED)


def test_backend_without_evidence_has_no_standing(site: Site, plugin: Plugin) -> None:
    """Where no file is, nothing is said."""
    assert read_standings(plugin().entries, path=[site.root]) == {}


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(_DECLARES.replace("acme.backend", "elsewhere.backend"), id="not there"),
        pytest.param(_DECLARES.replace("acme.backend:Acme", "sys:Acme"), id="in no file"),
        pytest.param("raise RuntimeError", id="broken"),
        pytest.param(
            "from backend_caps import Declaration\nDECLARATION = Declaration()", id="none"
        ),
    ],
)
def test_backend_without_code_has_no_standing(site: Site, plugin: Plugin, source: str) -> None:
    """Where there is no implementation, there is nothing beside it."""
    assert read_standings(plugin(source).entries, path=[site.root]) == {}


def _stale(site: Site, plugin: Plugin, change: Callable[[], object]) -> list[str]:
    """Change something after the evidence was written; list what is reported."""
    _keep(site, _fresh(site, plugin()).text())
    change()
    return [str(each) for each in _standing(site, site.discover()).changes]


def test_changed_source_makes_evidence_stale(site: Site, plugin: Plugin) -> None:
    """A line of the implementation more, and the kit has not looked at it."""
    told = _stale(site, plugin, lambda: (site.root / "acme" / "new.py").write_text("NEW = 1\n"))

    assert told == ["the source changed"]


def test_changed_declaration_makes_evidence_stale(site: Site, plugin: Plugin) -> None:
    """Another claim, and the kit has not looked at it."""
    more = _DECLARES.replace("two_batch_overlap=True", "two_batch_overlap=True, deterministic=True")

    told = _stale(site, plugin, lambda: site.module("fa3_caps", more))

    assert told == ["the declaration changed"]


def test_other_torch_makes_evidence_stale(site: Site, plugin: Plugin) -> None:
    """Another torch may compute something else; another build of it is the same."""

    def install() -> None:
        (site.root / "torch-2.13.0+cpu.dist-info").rename(site.root / "torch-2.14.0.dist-info")

    assert _stale(site, plugin, install) == ["torch was 2.13.0 and is 2.14.0"]


def test_device_of_the_server_counts(site: Site, plugin: Plugin) -> None:
    """Evidence of a real device is stale on a server with another."""
    registry = plugin()
    device = evidence({}, device="cpu").device
    _keep(site, _fresh(site, registry).model_copy(update={"device": device}).text())

    standings = read_standings(registry.entries, path=[site.root], device="cuda")

    assert [str(each) for each in standings["fa3"].changes] == ["the device was cpu and is cuda"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("{", "fa3.json does not fit: Invalid JSON: EOF while parsing", id="no JSON"),
        pytest.param('{"schema": "x"}', "fa3.json does not fit: Evidence.schema is 'x'", id="else"),
        pytest.param(
            evidence({}).model_copy(update={"backend": "mla"}).text(),
            "fa3.json is of 'mla'",
            id="of another",
        ),
    ],
)
def test_file_that_is_no_evidence_is_reported(
    site: Site, plugin: Plugin, text: str, problem: str
) -> None:
    """What lies in the place of evidence and is none verifies nothing, and is named."""
    registry = plugin()
    _keep(site, text)

    standing = _standing(site, registry)

    assert (standing.problem or "").startswith(problem)
    assert standing.state("two_batch_overlap")[0] is ClaimState.DECLARED


def test_file_that_cannot_be_read_is_reported(site: Site, plugin: Plugin) -> None:
    """A folder in the place of the file is an error of the file system, and data."""
    registry = plugin()
    _keep(site, "").unlink()
    _found(site).evidence_file("fa3").mkdir()

    assert _standing(site, registry).problem == "fa3.json cannot be read: Is a directory"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        pytest.param("evidence/fa3.json", "fa3.json cannot be read: it is no file", id="evidence"),
        pytest.param("kernels.py", "the files that fa3.json is of cannot be read", id="source"),
    ],
)
def test_pipe_among_the_files_of_evidence_is_reported(
    site: Site, plugin: Plugin, name: str, problem: str
) -> None:
    """A pipe in the place of evidence or of a source file is data, and is not waited for."""
    registry = plugin()
    _keep(site, _fresh(site, registry).text())
    (site.root / "acme" / name).unlink(missing_ok=True)
    os.mkfifo(site.root / "acme" / name)

    assert (_standing(site, registry).problem or "").startswith(problem)


def test_required_evidence_takes_claims_out(site: Site, plugin: Plugin) -> None:
    """A registry that requires evidence is without what is not verified, and nothing else."""
    registry = plugin()

    required = require_evidence(registry, path=[site.root])

    assert required["fa3"].declaration != registry["fa3"].declaration
    assert (required.problems, list(required["fa3"].unverified)) == (
        registry.problems,
        ["two_batch_overlap"],
    )


def test_required_evidence_leaves_what_is_verified(site: Site, plugin: Plugin) -> None:
    """A registry that requires evidence holds what has it."""
    registry = plugin()
    _keep(site, _fresh(site, registry).text())

    required = require_evidence(registry, path=[site.root])

    assert required["fa3"].declaration == registry["fa3"].declaration


def test_evidence_of_a_lone_module_lies_beside_it(site: Site) -> None:
    """A module that is one file has a folder of its name."""
    site.module("lone", "")

    found = _found(site, "lone:Backend")

    assert found.evidence_file("fa/3") == site.root / "lone.evidence" / "fa_3.json"


def test_namespace_is_not_the_package(site: Site) -> None:
    """Of a namespace that several distributions share, the package within counts."""
    package = site.root / "space" / "acme"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(_RAISES)

    assert _found(site, "space.acme.backend:Backend").root == package


@pytest.mark.parametrize("pointer", ["space.absent:Backend", "space:Backend"])
def test_namespace_without_the_package_is_not_found(site: Site, pointer: str) -> None:
    """A namespace alone is no code."""
    (site.root / "space").mkdir()

    assert Implementation.of(pointer, imports_of([site.root])) is None


def test_package_behind_an_import_hook_is_found(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an editable installation maps by a hook is found as Python finds it."""
    file = site.module("hooked_elsewhere", "")

    class Hook:
        @staticmethod
        def find_spec(name: str, _path: object, _target: object = None) -> ModuleSpec | None:
            return ModuleSpec(name, None, origin=str(file)) if name == "hooked" else None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Hook])

    assert Implementation.of("hooked:Backend", imports_of(None)) == Implementation(root=file)


def test_module_without_a_spec_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is made while a program runs is in no package."""
    monkeypatch.setitem(sys.modules, "made", ModuleType("made"))

    assert Implementation.of("made:Backend", imports_of(None)) is None


def test_digest_is_of_names_and_lines(site: Site) -> None:
    """What ends a line is nothing; a name is something, and so is a line."""
    file = site.module("lone", "ONE = 1\n")
    digests = [_found(site, "lone:Backend").digest()]
    for data in (b"ONE = 1\r\n", b"ONE = 2\n"):
        file.write_bytes(data)
        digests.append(_found(site, "lone:Backend").digest())

    assert [each == digests[0] for each in digests] == [True, True, False]


def test_versions_are_those_that_come_first(tmp_path: Path) -> None:
    """Of two versions on the path, the first is imported; a folder that is absent has none."""
    for folder in ("one/torch-2.13.0.dist-info", "other/torch-2.14.0.dist-info"):
        (tmp_path / folder).mkdir(parents=True)

    found = versions_of(KIT_AND_TORCH, [str(tmp_path / at) for at in ("none", "one", "other")])

    assert found == {"torch": "2.13.0"}
