"""Which places are searched, and what the metadata on a path claims."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

import backend_caps
from backend_caps.discovery.metadata import PathEntry
from backend_caps.discovery.process import Search, identity
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


@pytest.mark.parametrize("case", table("scans"), ids=itemgetter("name"))
def test_scan_tells_what_is_wrong(site: Site, case: Mapping[str, Any]) -> None:
    """Each claim is admitted or not, and each problem is reported with its remedy."""
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
    """A file that is there and cannot be read may be a plugin's: it is reported."""
    (site.root / "acme_caps-2.0.dist-info" / "entry_points.txt").mkdir(parents=True)

    (problem,) = site.scan().problems
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

    assert egg.claim().owner == "acme-caps 2.0"


def test_scan_tells_an_archive_that_is_damaged(tmp_path: Path) -> None:
    """A damaged archive is reported by the file in it that cannot be read."""
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
    """Two old releases with one entry are reported as two."""
    sites = [Site(tmp_path / name) for name in ("first", "second", "third")]
    for site in sites:
        site.install()

    scanned = admit(scan(Search.of_folders([site.root for site in sites])), None)

    assert [claim.status.value for claim in scanned.claims] == ["ok", "skipped", "skipped"]


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


SOURCE = str(Path(backend_caps.__file__).parents[1])
TELL = (
    f"import sys; sys.path.append({SOURCE!r}); from backend_caps.discovery.process import Search; "
    "search = Search.of_process(); print(search.unsearched, search.searched == search.imports)"
)


def run(arguments: list[str], folder: Path) -> str:
    """Run Python in a folder; what it prints."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.mark.parametrize("arguments", [["-c", TELL], ["-m", "tell"]], ids=["-c", "-m"])
def test_search_leaves_the_working_directory_out(tmp_path: Path, arguments: list[str]) -> None:
    """What `-c` and `-m` put first on the path by themselves is not searched."""
    (tmp_path / "tell.py").write_text(TELL)

    assert run(arguments, tmp_path) == f"{tmp_path} True"


def test_search_keeps_a_path_that_python_did_not_add_to(tmp_path: Path) -> None:
    """Under `-P` the first entry is somebody's choice, even if it is the working directory."""
    actual = run(
        ["-P", "-c", TELL.replace("append", f"insert(0, {str(tmp_path)!r}) or sys.path.append")],
        tmp_path,
    )

    assert actual == "None True"


def test_search_tells_of_a_working_directory_already_taken_off(tmp_path: Path) -> None:
    """The command line takes it off before its second import, and says so."""
    search = Search.of_process(str(tmp_path))

    assert search.unsearched == str(tmp_path)
    assert str(tmp_path) not in search.searched


def test_search_of_folders_imports_from_them_first(tmp_path: Path) -> None:
    """Folders that the caller names come before `sys.path`, and are the only ones searched."""
    search = Search.of_folders([tmp_path])

    assert search.searched == (str(tmp_path),)
    assert search.imports == (str(tmp_path), *Search.of_process().imports)


def test_search_survives_a_working_directory_that_is_gone(tmp_path: Path) -> None:
    """A process whose working directory was deleted keeps the rest of its path."""
    gone = "import os; folder = os.getcwd(); os.rmdir(folder); " + TELL
    folder = tmp_path / "gone"
    folder.mkdir()

    assert run(["-c", gone], folder) == "None True"


@pytest.mark.parametrize("path", ["/no/such/folder", "nul\0byte"])
def test_identity_of_what_is_not_there_is_none(path: str) -> None:
    """A path entry that is not there is none."""
    assert identity(path) is None


def test_identity_is_the_same_by_every_name(tmp_path: Path) -> None:
    """A folder is itself, by whatever path."""
    alias = tmp_path / "alias"
    alias.symlink_to(tmp_path)

    assert identity(str(alias)) == identity(os.fspath(tmp_path))


def test_place_that_cannot_be_listed_is_none() -> None:
    """A folder that vanished or is closed holds no metadata."""
    assert PathEntry.at("/no/such/folder") is None


def test_installed_release_names_the_version() -> None:
    """A fault's message tells which release refused a plugin."""
    assert installed_release("pydantic") == f"pydantic {version('pydantic')}"


def test_installed_release_says_that_it_runs_from_its_source() -> None:
    """A checkout that was never installed has no version to tell."""
    actual = installed_release("no-such-distribution")

    assert actual == "no-such-distribution (not installed, run from its source)"
