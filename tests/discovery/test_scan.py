"""What the metadata on a path claims."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from backend_caps.discovery.process import Search
from backend_caps.discovery.scan import AllowList, Scan, admit, installed_release, scan
from tests.discovery.conftest import Site, table

FA3 = "[backend_caps.backends]\nfa3 = acme_caps:DECLARATION\n"


def told(scanned: Scan) -> list[tuple[str, str, list[str]]]:
    """List each claim's name, status and the codes of its problems."""
    return sorted(
        (claim.name, claim.status.value, [problem.code for problem in claim.problems])
        for claim in scanned.claims
    )


def test_scan_reads_a_claim_with_all_its_metadata(site: Site) -> None:
    """A claim names its distribution, version, place and requirement."""
    info = site.install(
        metadata="Name: Acme.Caps\nVersion: 2.0\nRequires-Dist: backend-caps>=0.1\n"
    )

    scanned, claim = site.scan(), site.claim()

    assert scanned.problems == []
    assert str(claim) == "backend 'fa3' of acme-caps 2.0 (acme_caps:DECLARATION)"
    assert claim.stated_at == f"{info}/entry_points.txt:2"
    assert (claim.group, claim.requires) == ("backend_caps.backends", "backend-caps>=0.1")


@pytest.mark.parametrize(
    ("folder", "owner"),
    [("Acme_Caps-2.0.dist-info", "acme-caps 2.0"), ("acme_caps.egg-info", "acme-caps")],
)
def test_scan_takes_name_and_version_from_the_folder(site: Site, folder: str, owner: str) -> None:
    """A distribution whose METADATA is gone is named; a develop install may have no version."""
    site.install(folder)

    assert site.claim().owner == owner


@pytest.mark.parametrize(
    "malformed",
    [
        pytest.param(b"x = y:z\n", id="no-section"),
        pytest.param(b"[x]\na = b:c\na = b:c\n", id="duplicate-key"),
        pytest.param(b"[x]\na = %(b)s\n", id="interpolation"),
        pytest.param(b"[x]\n\xff\xfe\n", id="not-utf8"),
        pytest.param(b"[DEFAULT]\nleak = b:c\n", id="default-section"),
        pytest.param(b"[x]\nno equals sign\n", id="no-equals-sign"),
        pytest.param(b"\xef\xbb\xbf[x]\na = b:c\n", id="byte-order-mark"),
    ],
)
def test_scan_survives_malformed_metadata_of_anybody(site: Site, malformed: bytes) -> None:
    """Another distribution's bad entry_points.txt costs nothing, and leaks nothing."""
    site.install("other-1.0.dist-info", entry_points=malformed)
    site.install("acme_caps-2.0.dist-info", entry_points=malformed + b"\n" + FA3.encode())

    scanned = site.scan()

    assert scanned.problems == []
    assert told(scanned) == [("fa3", "ok", [])]


@pytest.mark.parametrize("case", table("scans"), ids=itemgetter("name"))
def test_scan_tells_what_is_wrong(site: Site, case: Mapping[str, Any]) -> None:
    """Each claim is admitted or not, and each problem is told with its remedy."""
    folder = site.root.parent
    for place in ("site", "later"):
        for own in case.get("installed" if place == "site" else place, ()):
            Site(folder / place).install(**own)
    environ = {"BACKEND_CAPS_PLUGINS": case["environ"]} if "environ" in case else {}
    named = Search.of_folders([folder / place for place in case.get("path", ["site"])])
    search = replace(named, unsearched=str(site.root) if "unsearched" in case else None)

    scanned = admit(scan(search), AllowList.of(case.get("allow"), environ))

    problems = [*scanned.problems, *(own for claim in scanned.claims for own in claim.problems)]
    places = {"root": site.root, "folder": folder, "installed": installed_release()}
    assert [
        [claim.owner, claim.status.value, *(own.code for own in claim.problems)]
        for claim in scanned.claims
    ] == case["told"]
    assert [[own.message, own.remedy] for own in dict.fromkeys(problems)] == [
        [words.format(**places) for words in said] for said in case.get("said", ())
    ]


def test_scan_reads_a_folder_once_by_all_its_names(site: Site, tmp_path: Path) -> None:
    """One distribution that is on the path twice is one claim."""
    site.install()
    alias = tmp_path / "alias"
    alias.symlink_to(site.root)

    scanned = scan(Search.of_folders([site.root, alias, f"{site.root}/."]))

    assert told(scanned) == [("fa3", "ok", [])]


def test_scan_tells_metadata_that_cannot_be_read(site: Site) -> None:
    """A file that is there and cannot be read may be a plugin's: it is told."""
    (site.root / "acme_caps-2.0.dist-info" / "entry_points.txt").mkdir(parents=True)

    scanned = site.scan()

    (problem,) = scanned.problems
    file = f"{site.root}/acme_caps-2.0.dist-info/entry_points.txt"
    remedy = "Correct its permissions, or reinstall the distribution."
    assert (problem.code, problem.remedy) == ("unreadable", remedy)
    assert problem.message == f"'{file}' cannot be read: Is a directory."


def test_scan_reads_an_egg_info_that_is_a_file(site: Site) -> None:
    """What distutils installed has no entry points, and claims its name."""
    (site.root / "acme_caps-1.0.egg-info").write_text("Name: acme-caps\n")
    later = Site(site.root.parent / "later")
    later.install()

    scanned = scan(Search.of_folders([site.root, later.root]))

    assert told(scanned) == [("fa3", "skipped", ["shadowed"])]


@pytest.mark.parametrize(
    ("archive", "folder"),
    [
        pytest.param("acme_caps-2.0-py3.11.egg", "EGG-INFO", id="egg"),
        pytest.param("acme_caps-2.0-py3-none-any.whl", "acme_caps-2.0.dist-info", id="wheel"),
        pytest.param("bundle.zip", "acme_caps-2.0.dist-info", id="zip"),
    ],
)
def test_scan_reads_archives(tmp_path: Path, archive: str, folder: str) -> None:
    """Eggs, wheels and zips on the path are read like folders."""
    file = tmp_path / archive
    with zipfile.ZipFile(file, "w") as opened:
        opened.writestr(f"{folder}/entry_points.txt", FA3)
        opened.writestr("unrelated-1.0.dist-info/METADATA", "Name: unrelated\n")

    scanned = scan(Search.of_folders([file]))

    assert [claim.owner for claim in scanned.claims] == ["acme-caps 2.0"]


def test_scan_reads_an_egg_that_is_a_folder(tmp_path: Path) -> None:
    """An unpacked egg holds its metadata in EGG-INFO."""
    egg = Site(tmp_path / "acme_caps-2.0-py3.11.egg")
    egg.install("EGG-INFO")

    claim = egg.claim()

    assert claim.owner == "acme-caps 2.0"


def test_scan_tells_an_archive_that_is_damaged(tmp_path: Path) -> None:
    """A damaged archive is told by the file in it that cannot be read."""
    file = tmp_path / "bundle.zip"
    with zipfile.ZipFile(file, "w") as opened:
        opened.writestr("acme_caps-2.0.dist-info/entry_points.txt", FA3)
    file.write_bytes(file.read_bytes().replace(b"DECLARATION", b"ANYTHINGELS"))

    (problem,) = scan(Search.of_folders([file])).problems

    assert problem.code == "unreadable"
    assert problem.message.startswith(
        f"'{file}/acme_caps-2.0.dist-info/entry_points.txt' cannot be read: Bad CRC-32"
    )


def test_scan_passes_by_what_is_no_archive(tmp_path: Path) -> None:
    """A file on the path that Python cannot import from holds no metadata."""
    file = tmp_path / "notes.txt"
    file.write_text("no archive")

    scanned = scan(Search.of_folders([file]))

    assert scanned == Scan(imports=scanned.imports)


def test_admit_keeps_each_shadowed_release_for_itself(tmp_path: Path) -> None:
    """Two old releases with one entry are told as two."""
    sites = [Site(tmp_path / name) for name in ("first", "second", "third")]
    for site in sites:
        site.install()

    scanned = admit(scan(Search.of_folders([site.root for site in sites])), None)

    statuses = [claim.status.value for claim in scanned.claims]
    assert statuses == ["ok", "skipped", "skipped"]


def test_allow_list_of_the_caller_comes_before_the_environments() -> None:
    """What is passed wins over what is set."""
    allow = AllowList.of(["My_Pkg"], {"BACKEND_CAPS_PLUGINS": "other"})

    assert allow == AllowList(name="allow", allowed=frozenset({"my-pkg"}))


def test_allow_list_is_none_where_nothing_is_set() -> None:
    """Without a list everything is allowed."""
    assert AllowList.of(None, {}) is None


def test_claim_of_rules_says_so(site: Site) -> None:
    """Rules are no backend, and are not called one."""
    site.install(entry_points="[backend_caps.rules]\nsite = acme:RULES\n")

    claim = site.claim()

    assert str(claim) == "rules 'site' of acme-caps 2.0 (acme:RULES)"
    assert not claim.is_backend
