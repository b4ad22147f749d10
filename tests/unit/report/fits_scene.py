"""A small plugin and releases of a small `vllm`, written out, and comparisons that nobody made."""

from __future__ import annotations

import zipfile
from pathlib import Path

from backend_caps.capability.provenance import Problem
from backend_caps.compatibility.comparison import Comparison
from backend_caps.compatibility.contact import Contact, ContactKind, Verdict
from backend_caps.compatibility.plugin import Plugin
from backend_caps.report.fits_documents import FitsDocument, fits_document

PROJECT = """\
[project]
name = "tiny"
version = "1.0"
dependencies = ["vllm>=0.2"]
"""
PLUGIN = """\
from vllm.utils import scaled


def half(values):
    return scaled(values, 0.5)
"""
HOLDS = "def scaled(values, factor): return values\n"
BREAKS = "def scaled(values): return values\n"
GONE = "def scales(values, factor): return values\n"
CALL_AT = "src/tiny/__init__.py:5"
"""Where the plugin calls the engine."""
CALL = "scaled(values) takes at most 1 arguments by position, and gets 2"
"""What the call's finding says with the release that `BREAKS`."""


def write_plugin(folder: Path, source: str = PLUGIN) -> Path:
    """Write the plugin's project; its package is in `src`."""
    package = folder / "src" / "tiny"
    package.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PROJECT)
    (package / "__init__.py").write_text(source)
    return folder


def write_release(folder: Path, version: str, utils: str, engine: str = "vllm") -> Path:
    """Write a wheel of an engine with one module."""
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{engine}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{engine}/__init__.py", "")
        archive.writestr(f"{engine}/utils.py", utils)
        archive.writestr(
            f"{engine}-{version}.dist-info/METADATA",
            f"Metadata-Version: 2.1\nName: {engine}\nVersion: {version}\n",
        )
    return wheel


CALLED = Contact(
    kind=ContactKind.CALL,
    verdict=Verdict.BREAKS,
    what="scaled",
    why="scaled(values) takes at most 1 arguments by position, and gets 2",
    at="tiny/__init__.py:5",
    engine_at="vllm/utils.py:1",
    given="FAST",
    remedy="scaled(values)",
)
REPLACED = Contact(
    kind=ContactKind.IMPORT,
    verdict=Verdict.CHANGED,
    what="vllm.utils.fast",
    why="is not there, and its handler sets None",
    at="tiny/__init__.py:2",
)
DEAD = Contact(
    kind=ContactKind.OVERRIDE,
    verdict=Verdict.UNUSED,
    what="Tiny.warm_up",
    why="the engine has no such method any more",
    at="tiny/platform.py:9",
)
OPEN = Contact(
    kind=ContactKind.ENTRY_POINT,
    verdict=Verdict.NOT_CHECKED,
    what="tiny",
    why="only running code knows it",
    at="tiny/platform.py:1",
)
HELD = Contact(
    kind=ContactKind.MEMBER, verdict=Verdict.HOLDS, what="Tiny.name", at="tiny/platform.py:3"
)


def comparison(
    *contacts: Contact,
    name: str = "tiny",
    version: str | None = "0.2.0",
    engine: str = "vllm",
    before: str | None = None,
    since: str | None = None,
    is_required: bool | None = True,
) -> Comparison:
    """Make a comparison of which these are the points of contact."""
    return Comparison(
        plugin=Plugin(name=name, version="1.0", files={}),
        engine=engine,
        version=version,
        source=f"{engine}-{version}",
        contacts=contacts,
        findings=[each for each in contacts if each.verdict.is_finding],
        before=before,
        since={} if since is None else {CALLED.key: since},
        required=None if is_required is None else ">=0.2",
        is_required=is_required,
    )


def unreadable(version: str) -> Comparison:
    """Make a comparison without a point of contact, of which not all could be read."""
    problem = Problem(
        code="engine-file-not-parsed", message="tiny/x.py cannot be parsed", remedy=""
    )
    return Comparison(
        plugin=Plugin(name="tiny", version=None, files={}),
        engine="vllm",
        version=version,
        source="vllm",
        contacts=[],
        findings=[],
        num_unreached=2,
        problems=[problem],
    )


def document(*found: Comparison) -> FitsDocument:
    """Write comparisons down, under a version that does not change."""
    written = fits_document([(each, str) for each in found])
    return written.model_copy(update={"tool_version": "0.1.0"})


def whole() -> FitsDocument:
    """Compare with three releases: each verdict, an upgrade, and one that cannot be read."""
    return document(
        comparison(REPLACED, DEAD, CALLED, OPEN, HELD, since="0.2.0"),
        comparison(CALLED, HELD, version="0.3.0", before="0.2.0", is_required=False),
        unreadable("0.4.0"),
    )
