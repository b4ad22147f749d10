"""What a plugin does while it is read is data about that plugin."""

from __future__ import annotations

import sys

import pytest

from backend_caps.capability.provenance import Problem, Status
from backend_caps.discovery.loading import Loading
from backend_caps.discovery.registry import Registry
from tests.discovery.conftest import DECLARES, Site

IMPORTS = "from backend_caps.capability.declaration import Declaration\n"
DECLARED = "DECLARATION = Declaration()\n"
FORGES = """\
import os, stat
for number in range(3, 99):
    try:
        if stat.S_ISFIFO(os.fstat(number).st_mode): os.write(number, LINE)
    except OSError: pass
"""
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


DECLARES_ONLY = "expected a module that only declares."
IMPORTED = f"while it is imported; {DECLARES_ONLY}"


@pytest.mark.parametrize(
    ("source", "code", "said"),
    [
        (
            "1 / 0",
            "raises",
            f"raises ZeroDivisionError: division by zero at {{file}}:1; {DECLARES_ONLY}",
        ),
        (
            "raise KeyboardInterrupt",
            "raises",
            f"raises KeyboardInterrupt at {{file}}:1; {DECLARES_ONLY}",
        ),
        ("import sys\nsys.exit(3)", "exits", f"calls sys.exit(3) {IMPORTED}"),
        ("import os\nos._exit(4)", "exits", f"ends its process with status 4 {IMPORTED}"),
        (
            "import os\nos.closerange(3, 99)\nos._exit(1)",
            "exits",
            f"ends its process with status 1 {IMPORTED}",
        ),
        (
            "import ctypes\nctypes.string_at(0)",
            "crashes",
            "crashes the interpreter by signal 11 (Segmentation fault) while it is read.",
        ),
    ],
    ids=["raises", "keyboard-interrupt", "sys-exit", "os-exit", "closes-the-pipe", "segfault"],
)
def test_loading_tells_how_a_plugin_ended(site: Site, source: str, code: str, said: str) -> None:
    """Whatever a plugin does at import, the others are read, and it is named."""
    status, told = read(site, source)

    message = f"backend 'bad' of bad 1.0 (bad_caps:DECLARATION) {said}"
    message = message.format(file=site.root / "bad_caps.py")
    assert status is Status.BROKEN
    assert told[0] == Problem(code=code, message=message, remedy=REPAIR)


def test_loading_ends_a_plugin_that_hangs(site: Site) -> None:
    """A plugin that hangs costs the deadline, and no more."""
    status, told = read(site, "import time\ntime.sleep(600)", deadline_s=3)

    assert status is Status.BROKEN
    assert told == (
        Problem(
            code="hangs",
            message="backend 'bad' of bad 1.0 (bad_caps:DECLARATION) was not read in 3 s; expected "
            "a module that only declares.",
            remedy="Repair bad_caps, uninstall bad, or allow it more time.",
        ),
    )


def test_loading_reads_a_plugin_that_prints(site: Site) -> None:
    """Output is kept apart from the results, and told, whatever level it is written at."""
    noise = "import os\nprint('hello')\nos.write(2, b'raw\\n')\n"

    status, told = read(site, noise + DECLARES)

    assert status is Status.OK
    assert told == (
        Problem(
            code="prints",
            message="backend 'bad' of bad 1.0 (bad_caps:DECLARATION) prints 10 bytes while it is "
            "read: 'hello\\nraw'.",
            remedy="Take the output out of bad_caps.",
        ),
    )


def test_loading_shortens_what_a_plugin_prints(site: Site) -> None:
    """A report does not drown in a plugin's output."""
    _, told = read(site, "print('x' * 10_000)\n" + DECLARES)

    assert told[0].message.endswith(f"prints 10001 bytes while it is read: '{'x' * 200}…'.")


def test_loading_tells_what_a_plugin_printed_before_it_ended(site: Site) -> None:
    """The fault comes first, what led to it after."""
    _, told = read(site, "import os\nprint('no licence')\nos._exit(1)")

    assert [problem.code for problem in told] == ["exits", "prints"]
    assert "'no licence'" in told[1].message


def test_loading_reads_a_plugin_that_imports_torch(site: Site) -> None:
    """It is read, it is told, and the one after it is not blamed."""
    site.module("torch", "")
    site.plugin("next", "import torch\n" + DECLARES)

    status, told = read(site, "import torch\n" + DECLARES)

    assert status is Status.OK
    assert told == (
        Problem(
            code="imports-torch",
            message="backend 'bad' of bad 1.0 (bad_caps:DECLARATION) imports torch; expected a "
            "declaration that can be read without it.",
            remedy="Move the declaration to a top-level module of its own that imports "
            "backend_caps alone.",
        ),
    )
    assert [problem.code for problem in site.discover()["next"].problems] == ["imports-torch"]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        pytest.param("DECLARATION = {}", "'dict'", id="a-dict"),
        pytest.param("DECLARATION = [1, 'x']", "'list' of 'int', 'str'", id="a-list"),
        pytest.param(IMPORTS + "DECLARATION = Declaration", "'ModelMetaclass'", id="the-class"),
    ],
)
def test_loading_tells_an_object_of_the_wrong_type(site: Site, source: str, said: str) -> None:
    """An object that is no declaration is named by what it is."""
    status, told = read(site, source)

    assert status is Status.BROKEN
    assert told == (
        Problem(
            code="wrong-type",
            message=f"backend 'bad' of bad 1.0 (bad_caps:DECLARATION) is of type {said}; expected "
            "a Declaration.",
            remedy="Correct bad_caps.",
        ),
    )


def test_loading_tells_a_missing_attribute(site: Site) -> None:
    """An entry point may outlive what it names."""
    _, told = read(site, "OTHER = 1")

    assert told == (
        Problem(
            code="missing-attribute",
            message="backend 'bad' of bad 1.0 (bad_caps:DECLARATION) is not there: bad_caps has no "
            "'DECLARATION'.",
            remedy="Correct the entry point of bad, or reinstall it.",
        ),
    )


def test_loading_tells_a_missing_module(site: Site) -> None:
    """A distribution whose files are gone is told by the module that is not found."""
    site.install()

    backend = site.discover()["fa3"]

    assert backend.problems == (
        Problem(
            code="missing-module",
            message="backend 'fa3' of acme-caps 2.0 (acme_caps:DECLARATION) is not there: no "
            "module 'acme_caps' is found.",
            remedy="Correct the entry point of acme-caps, or reinstall it.",
        ),
    )


def test_loading_tells_a_missing_dependency_from_a_missing_plugin(site: Site) -> None:
    """A plugin that lacks a module it imports raises; it is there."""
    _, told = read(site, "import no_such_module")

    assert told[0].code == "raises"
    assert "ModuleNotFoundError: No module named 'no_such_module'" in told[0].message


@pytest.mark.parametrize(
    ("source", "said"),
    [
        pytest.param(
            "from backend_caps.capability.vocabulary import Capabilities\n"
            "Capabilities(graph_relpay=True)",
            "Capabilities has no field 'graph_relpay' (did you mean 'graph_replay'?) at {file}:2",
            id="unknown-capability",
        ),
        pytest.param(
            IMPORTS + "Declaration(api=2)",
            "Declaration.api is 2: Input should be 1 at {file}:2",
            id="unknown-version",
        ),
        pytest.param(
            IMPORTS + "DECLARATION = Declaration.model_construct(api=7)",
            "Declaration.api is 7: Input should be 1",
            id="validated-again-by-the-parent",
        ),
    ],
)
def test_loading_tells_a_declaration_of_another_version(site: Site, source: str, said: str) -> None:
    """What does not fit the contract is told with what is required and what is installed."""
    site.module("acme_caps", source)
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


def test_loading_never_imports_an_implementation(site: Site) -> None:
    """`implementation` is a name until the backend is built."""
    site.module("heavy", "raise AssertionError('imported')")

    status, told = read(site, IMPORTS + "DECLARATION = Declaration(implementation='heavy:Backend')")

    assert (status, told) == (Status.OK, ())


def test_loading_ends_what_a_plugin_started(site: Site) -> None:
    """A fork of the process says nothing, and is gone with it."""
    forks = "import os, time\nif os.fork() == 0: time.sleep(600)\n"

    status, told = read(site, forks + DECLARES)

    assert (status, told) == (Status.OK, ())


def test_loading_lets_no_fork_answer_twice(site: Site) -> None:
    """A plugin that forks and goes on in both is read once."""
    status, told = read(site, "import os\nos.fork()\n" + DECLARES)

    assert (status, told) == (Status.OK, ())


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


@pytest.mark.parametrize(
    "source",
    [
        "import sys\nsys.path.clear()\n",
        "import sys\ndel sys.path\n",
        "import os\nos.chdir('/')\n",
    ],
    ids=["path-emptied", "path-removed", "other-folder"],
)
def test_loading_looks_for_every_entry_in_the_same_place(
    site: Site, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    """What one plugin does to the path, or to the working directory, is not the next one's."""
    monkeypatch.chdir(site.root)
    site.plugin("bad", source)
    site.plugin("good", f"import os\nassert os.getcwd() == {str(site.root)!r}\n{DECLARES}")

    assert site.discover()["good"].problems == ()


def test_loading_takes_a_closed_pipe_for_the_plugins_end(site: Site) -> None:
    """A plugin that closes the pipe and lives on is ended."""
    source = "import os, time\nos.closerange(3, 99)\ntime.sleep(600)\n"

    status, told = read(site, source)

    assert status is Status.BROKEN
    assert told[0].message.endswith(
        "closes the pipe of the results while it is imported; expected a module that only declares."
    )


def test_loading_takes_the_backstop_for_a_hang(site: Site) -> None:
    """A process that its own alarm ended hung; its parent came late."""
    status, told = read(site, "import os, signal\nos.kill(os.getpid(), signal.SIGALRM)\n")

    assert (status, told[0].code) == (Status.BROKEN, "hangs")


def test_loading_survives_a_python_that_does_not_start(site: Site) -> None:
    """Where no process can be started, every entry says why."""
    site.plugin("good", DECLARES)

    loading = Loading(site.scan(), deadline_s=30, executable="/no/such/python")

    assert Registry.of_loading(loading)["good"].problems == (
        Problem(
            code="not-started",
            message="backend 'good' of good 1.0 (good_caps:DECLARATION) was not read: "
            "'/no/such/python' did not start: No such file or directory.",
            remedy="Look at sitecustomize and at what PYTHONPATH holds; they run in every Python.",
        ),
    )


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
    assert loaded.claim.problems[0].message == (
        "backend 'slow' of slow 1.0 (slow_caps:DECLARATION) was not read: reading was ended before "
        "its turn."
    )
    assert (loading.results(), empty.results()) == ((loaded,), ())
