"""What a plugin does while it is read is data about that plugin."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from operator import itemgetter
from typing import Any

import pytest

from backend_caps.capability.provenance import Problem, Status
from backend_caps.discovery.loading import Loading
from backend_caps.discovery.registry import Registry
from tests.discovery.conftest import DECLARES, Site, table

IMPORTS = "from backend_caps import Capabilities, Declaration\n"
FORGES = """\
import os, stat
for number in range(3, 99):
    try:
        if stat.S_ISFIFO(os.fstat(number).st_mode): os.write(number, LINE)
    except OSError: pass
"""
PLUGINS = table("plugins")
REPAIR = "Repair bad_caps, or uninstall bad."


def read(site: Site, source: str, *, deadline_s: float = 30) -> tuple[Status, tuple[Problem, ...]]:
    """Read a bad plugin between two good ones, which it must not harm."""
    site.plugin("aaa", DECLARES)
    site.plugin("bad", source)
    site.plugin("zzz", DECLARES)
    registry = site.discover(deadline_s=deadline_s)
    assert [registry[name].status for name in ("aaa", "zzz")] == [Status.OK, Status.OK]
    return registry["bad"].status, registry["bad"].problems


def test_loading_reads_a_declaration_with_its_line(site: Site) -> None:
    """A declaration crosses from the process that reads it, with the place it is written at."""
    site.plugin("good", DECLARES)

    backend = site.discover()["good"]

    assert backend.status is Status.OK
    assert backend.source.declared_at == f"{site.root}/good_caps.py:3"
    assert backend.problems == ()


def test_loading_shortens_what_a_plugin_prints(site: Site) -> None:
    """A report does not drown in a plugin's output."""
    _, told = read(site, "print('x' * 10_000)\n" + DECLARES)

    assert told[0].message.endswith(f"prints 10001 bytes while it is read: '{'x' * 200}…'.")


@pytest.mark.parametrize("plugin", PLUGINS, ids=itemgetter("name"))
def test_loading_tells_what_a_plugin_does(site: Site, plugin: Mapping[str, Any]) -> None:
    """Whatever a plugin does at import, the others are read, and it is reported."""
    site.module("torch", "")
    site.module("heavy", "class Backend: ...\nraise AssertionError('imported')")
    source = plugin["source"].lstrip() + ("\n" + DECLARES if "declares" in plugin else "")

    status, told = read(site, source, deadline_s=plugin.get("deadline_s", 30))

    is_read = "declares" in plugin or not plugin["codes"]
    assert status is (Status.OK if is_read else Status.BROKEN)
    assert [problem.code for problem in told] == plugin["codes"]
    if told:
        said = plugin["said"].format(file=site.root / "bad_caps.py")
        assert told[0].message == f"backend 'bad' of bad 1.0 (bad_caps:DECLARATION) {said}"
        assert told[0].remedy == plugin.get("remedy", REPAIR)


def test_loading_blames_each_plugin_that_imports_torch(site: Site) -> None:
    """The one after it is read by a process of its own."""
    site.module("torch", "")
    for name in ("one", "two"):
        site.plugin(name, "import torch\n" + DECLARES)

    registry = site.discover()

    codes = [[problem.code for problem in entry.problems] for entry in registry.entries]
    assert codes == [["imports-torch"], ["imports-torch"]]


def test_loading_tells_a_missing_module(site: Site) -> None:
    """A distribution whose files are gone is reported by the module that is not found."""
    site.install()

    (problem,) = site.discover()["fa3"].problems
    entry = "backend 'fa3' of acme-caps 2.0 (acme_caps:DECLARATION)"
    remedy = "Correct the entry point of acme-caps, or reinstall it."
    assert (problem.code, problem.remedy) == ("missing-module", remedy)
    assert problem.message == f"{entry} is not there: no module 'acme_caps' is found."


_NO_FIELD = "Capabilities has no field 'graph_relpay' (did you mean 'graph_replay'?)"
_FORGED_API = "DECLARATION = Declaration.model_construct(api=7)"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("Capabilities(graph_relpay=True)", f"{_NO_FIELD} at {{file}}:2"),
        ("Declaration(api=2)", "Declaration.api is 2: Input should be 1 at {file}:2"),
        (_FORGED_API, "Declaration.api is 7: Input should be 1"),
    ],
    ids=["unknown-capability", "unknown-version", "validated-again-by-the-parent"],
)
def test_loading_tells_a_declaration_of_another_version(site: Site, source: str, said: str) -> None:
    """What does not fit the contract is reported with what is required and what is installed."""
    site.module("acme_caps", IMPORTS + source)
    site.install(metadata="Name: acme-caps\nVersion: 2.0\nRequires-Dist: backend-caps>=9\n")

    problem = site.discover()["fa3"].problems[0]

    fault = said.format(file=site.root / "acme_caps.py")
    assert problem.code == "schema"
    assert problem.message.startswith(
        "backend 'fa3' of acme-caps 2.0 (acme_caps:DECLARATION) does not fit the contract: "
        f"{fault}. acme-caps 2.0 requires backend-caps>=9; installed: backend-caps "
    )
    assert problem.remedy == (
        "Correct the declaration, or install a backend-caps that acme-caps was written for."
    )


FORGED = [
    "garbage",
    '{"fault": "zzz"}',
    '{"fault": ["hangs"]}',
    '{"is_done": 1}',
    '{"num_printed_bytes": -1}',
    '{"num_printed_bytes": 9e9}',
    '{"documents": "{}"}',
    '{"documents": [1]}',
    '{"detail": null, "fault": "raises"}',
    '{"declared_at": 3}',
    '{"documents": []}',
    "[" * 100_000,
]


@pytest.mark.parametrize("line", FORGED, ids=range(len(FORGED)))
def test_loading_takes_no_forged_answer(site: Site, line: str) -> None:
    """Whatever a plugin writes into the pipe breaks the plugin, and not the report."""
    site.plugin("bad", FORGES.replace("LINE", repr(line.encode() + b"\n")))

    backend = site.discover()["bad"]

    assert backend.status is Status.BROKEN
    assert backend.problems[0].message.endswith(
        "writes into the pipe of the results while it is imported; expected a module that only "
        "declares."
    )


def test_loading_survives_a_forged_count_of_output(site: Site) -> None:
    """An answer that begins after it ends has printed nothing."""
    begins = b'{"is_done": false, "num_printed_bytes": 4000000000}\n'
    site.plugin("bad", FORGES.replace("LINE", repr(begins)) + DECLARES)

    backend = site.discover()["bad"]

    assert (backend.status, backend.problems) == (Status.OK, ())


@pytest.mark.parametrize("does", ["sys.path.clear()", "del sys.path", "os.chdir('/')"])
def test_loading_looks_for_every_entry_in_the_same_place(
    site: Site, monkeypatch: pytest.MonkeyPatch, does: str
) -> None:
    """What one plugin does to the path, or to the working directory, is not the next one's."""
    monkeypatch.chdir(site.root)
    site.plugin("bad", f"import os, sys\n{does}\n")
    site.plugin("good", f"import os\nassert os.getcwd() == {str(site.root)!r}\n{DECLARES}")

    assert site.discover()["good"].problems == ()


def test_loading_survives_a_python_that_does_not_start(site: Site) -> None:
    """Where no process can be started, every entry says why."""
    site.plugin("good", DECLARES)

    loading = Loading(site.scan(), deadline_s=30, executable="/no/such/python")

    (problem,) = Registry.of_loading(loading)["good"].problems
    entry, cause = "backend 'good' of good 1.0 (good_caps:DECLARATION)", "No such file or directory"
    remedy = "Look at sitecustomize and at what PYTHONPATH holds; they run in every Python."
    assert (problem.code, problem.remedy) == ("not-started", remedy)
    assert problem.message == f"{entry} was not read: '/no/such/python' did not start: {cause}."


def test_loading_survives_a_python_that_ends_at_once(site: Site) -> None:
    """A process that ends before the first entry is blamed on no plugin."""
    site.plugin("good", DECLARES)

    loading = Loading(site.scan(), deadline_s=30, executable="/bin/echo")

    (problem,) = Registry.of_loading(loading)["good"].problems
    assert problem.code == "not-started"
    assert "the process that reads says '-P -u -c" in problem.message


def test_loading_that_is_closed_unread_ends_its_process(site: Site) -> None:
    """A caller that changes its mind leaves no process behind; without entries none is started."""
    empty = Loading(site.scan(), deadline_s=30, executable="/no/such/python")
    site.plugin("slow", "import time\ntime.sleep(600)")
    loading = Loading(site.scan(), deadline_s=30, executable=sys.executable)

    loading.close()

    (loaded,) = loading.results()
    assert loaded.problems[0].message == (
        "backend 'slow' of slow 1.0 (slow_caps:DECLARATION) was not read: reading was ended before "
        "its turn."
    )
    assert (loading.results(), empty.results()) == ((loaded,), ())
