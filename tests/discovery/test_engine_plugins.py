"""Distributions that extend an engine by its own entry points."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend_caps.discovery.engine_plugins import EngineDistribution, engine_distributions
from backend_caps.discovery.process import Search
from tests.discovery.conftest import Site

ENTRIES = """\
[console_scripts]
acme = acme:main

[vllm.platform_plugins]
acme = acme:register

[ vllm.general_plugins ]
acme_models = acme:models
broken
"""


def found(*sites: Site, engine: str = "vllm") -> list[EngineDistribution]:
    """List what is found in folders."""
    return [*engine_distributions(engine, Search.of_folders([each.root for each in sites]))]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A folder to install in."""
    return Site(tmp_path / "site")


def test_distribution_is_found_with_its_entry_points(site: Site) -> None:
    """Those of vLLM's groups alone, each with its place; a line that is none is left out."""
    metadata = "Name: Acme_VLLM\nVersion: 2.1\nRequires-Dist: vllm==0.33.0\nRequires-Dist: torch\n"
    site.install("acme_vllm-2.0.dist-info", entry_points=ENTRIES, metadata=metadata)

    (own,) = found(site)

    assert (str(own), own.requires) == ("acme-vllm 2.1", ("vllm==0.33.0", "torch"))
    assert own.root == str(site.root)
    assert [(own.at(each), each.name, each.value) for each in own.entries] == [
        ("acme_vllm-2.0.dist-info/entry_points.txt:5", "acme", "acme:register"),
        ("acme_vllm-2.0.dist-info/entry_points.txt:8", "acme_models", "acme:models"),
    ]


def test_distribution_without_metadata_has_its_folders_name(site: Site) -> None:
    """Name and version stand in the folder's name too."""
    site.install("acme_vllm-2.0.dist-info", entry_points=ENTRIES)

    assert [*map(str, found(site))] == ["acme-vllm 2.0"]


def test_first_on_the_path_wins(site: Site, tmp_path: Path) -> None:
    """A later release of the same name is not imported, with entry points or not."""
    later, none = Site(tmp_path / "later"), Site(tmp_path / "none")
    site.install("acme-2.0.dist-info", entry_points=ENTRIES)
    later.install("acme-1.0.dist-info", entry_points=ENTRIES)
    none.install("acme-3.0.dist-info", entry_points=None)

    assert [*map(str, found(site, later, site))] == ["acme 2.0"]
    assert found(none, later) == []


def test_what_cannot_be_read_is_left_out(site: Site, tmp_path: Path) -> None:
    """A folder that is not there, and a file that is none, extend nothing."""
    (site.root / "acme-2.0.dist-info" / "entry_points.txt").mkdir(parents=True)

    assert found(site, Site(tmp_path / "absent")) == []


def test_engine_without_groups_has_no_plugins(site: Site) -> None:
    """SGLang loads none by entry points that backends come through."""
    site.install("acme-2.0.dist-info", entry_points=ENTRIES)

    assert found(site, engine="sglang") == []
