"""Folders of metadata on disk, as installers leave them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from backend_caps.discovery.process import Search
from backend_caps.discovery.registry import Registry, discover
from backend_caps.discovery.scan import Claim, Scan, scan

DECLARES = """\
from backend_caps.capability.declaration import Declaration

DECLARATION = Declaration()
"""
"""The source of a plugin that is as it should be."""


def table(name: str) -> list[dict[str, Any]]:
    """Read the cases of a table in `data`."""
    text = (Path(__file__).parent / "data" / f"{name}.toml").read_text("utf-8")
    cases: list[dict[str, Any]] = tomllib.loads(text)["case"]
    return cases


@dataclass(frozen=True)
class Site:
    """A folder that distributions are installed in."""

    root: Path

    def install(
        self,
        folder: str = "acme_caps-2.0.dist-info",
        *,
        entry_points: str | bytes | None = "[backend_caps.backends]\nfa3 = acme_caps:DECLARATION\n",
        metadata: str | None = None,
    ) -> Path:
        """Write a metadata folder."""
        info = self.root / folder
        info.mkdir(parents=True)
        if entry_points is not None:
            data = entry_points if isinstance(entry_points, bytes) else entry_points.encode()
            (info / "entry_points.txt").write_bytes(data)
        if metadata is not None:
            file = "METADATA" if folder.endswith(".dist-info") else "PKG-INFO"
            (info / file).write_text(metadata)
        return info

    def plugin(self, name: str, source: str, *, group: str = "backend_caps.backends") -> None:
        """Install distribution `name` with the backend `name` and its module `name_caps`."""
        attribute = "DECLARATION" if group == "backend_caps.backends" else "RULES"
        self.module(f"{name}_caps", source)
        self.install(
            f"{name}-1.0.dist-info", entry_points=f"[{group}]\n{name} = {name}_caps:{attribute}\n"
        )

    def module(self, name: str, source: str) -> Path:
        """Write a top-level module."""
        self.root.mkdir(exist_ok=True)
        file = self.root / f"{name}.py"
        file.write_text(source)
        return file

    def scan(self) -> Scan:
        """Scan this folder."""
        return scan(Search.of_folders([self.root]))

    def claim(self) -> Claim:
        """Scan this folder for its one claim."""
        (claim,) = self.scan().claims
        return claim

    def discover(
        self, *, deadline_s: float = 30, environ: Mapping[str, str] | None = None
    ) -> Registry:
        """Discover what is installed in this folder."""
        return discover([self.root], deadline_s=deadline_s, environ=environ or {})


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """An empty folder for distributions."""
    root = tmp_path / "site"
    root.mkdir()
    return Site(root)
