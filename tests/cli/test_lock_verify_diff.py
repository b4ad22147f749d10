"""What `lock`, `verify` and `diff` print, and the status they exit with."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner, Result

from backend_caps.cli.invocation import Invocation
from backend_caps.cli.main import cli
from backend_caps.engines.reading import EngineError, EngineReading
from tests.cases import cases_of
from tests.cli.conftest import CASES, DECLARATIONS, CommandLine, process
from tests.unit.report import sides

LEAN = "--attention-backend acme_lean --speculative-algorithm EAGLE --kv-cache-dtype bfloat16"
PROGRAM = str(Path(sys.executable).with_name("backend-caps"))


def _lock(acme: CommandLine, flags: str = "") -> Path:
    """Write a lock beside the folder of plugins."""
    file = acme.root.parent / "a.lock.json"
    result = acme.run(f"lock --path @ --output {file} -- {flags}")
    assert (result.exit_code, result.output) == (0, "")
    return file


def _verified(acme: CommandLine, file: Path) -> tuple[int, list[dict[str, str]]]:
    """Verify a lock; return the status, and the differences."""
    result = acme.run(f"verify {file} --path @ --format json")
    return result.exit_code, json.loads(result.stdout)["differences"]


def _diff(*words: str) -> Result:
    """Compare two sides."""
    return CliRunner().invoke(cli, ["diff", *words], obj=Invocation())


def _redeclare(acme: CommandLine, old: str, new: str) -> None:
    """Change the plugin's source; another size, or the same second would hide it."""
    source = acme.root / "acme_caps.py"
    source.write_text(DECLARATIONS.replace(old, new) + "# changed\n")


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Put two small engines in the place of their reader: the folders `old` and `new`."""

    def read_engine(engine: str, source: Path | None, *_: object) -> EngineReading:
        if source is None:
            raise EngineError(
                "engine-not-installed", f"no distribution {engine!r} is installed here."
            )
        return {"old": sides.OLD, "new": sides.NEW}[source.name]

    module = ModuleType("backend_caps.engines.read")
    module.__dict__["read_engine"] = read_engine
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    return tmp_path


def test_lock_is_written_to_standard_output(acme: CommandLine) -> None:
    """Without a file, the lock is the output: what is installed, and no plan unasked."""
    document = acme.json("lock --path @")

    assert document["schema"] == "backend-caps/lock@1"
    told = [(own["name"], own["version"]) for own in document["backends"]]
    assert told == [("acme_lean", "1.0"), ("acme_reads", "1.0")]
    assert document["plan"] is None


def test_lock_with_flags_has_the_plan(acme: CommandLine) -> None:
    """Server flags after -- are locked with the plan of that server."""
    document = acme.json(f"lock --path @ --fact head_size=64 -- {LEAN}")

    assert document["request"]["flags"] == {
        "attention_backend": "acme_lean",
        "speculative_algorithm": "EAGLE",
        "kv_cache_dtype": "bfloat16",
    }
    assert document["request"]["facts"]["head_size"] == 64
    assert document["plan"]["schema"] == "backend-caps/plan@1"


def test_lock_offers_no_format(acme: CommandLine) -> None:
    """A lock has one format, so help names none."""
    told = acme.run("lock --help").stdout

    assert ("--output" in told, "--format" in told) == (True, False)


@pytest.mark.parametrize(("seed", "folder"), [("1", "one"), ("2", "two")])
def test_lock_is_the_same_bytes_everywhere(
    acme: CommandLine, tmp_path: Path, seed: str, folder: str
) -> None:
    """Neither the working directory nor the order of sets is in a lock, nor a path."""
    expected = acme.run(f"lock --path @ -- {LEAN}").stdout
    (tmp_path / folder).mkdir()

    words = (PROGRAM, "lock", "--path", "../site", "--", *LEAN.split())
    environ = {**os.environ, "PYTHONHASHSEED": seed}
    finished = process(*words, cwd=tmp_path / folder, env=environ)

    assert finished.stdout == expected
    assert str(tmp_path) not in finished.stdout


def test_lock_that_has_no_room_leaves_the_last_one(acme: CommandLine) -> None:
    """A disk that is full costs neither the lock that was there nor half of a new one."""
    file = _lock(acme)
    before = file.read_text()
    no_files = 'ulimit -f 0; exec "$0" lock --output "$1"'

    done = process("/bin/sh", "-c", no_files, PROGRAM, file)

    assert (done.returncode, done.stdout) == (2, "")
    assert "cannot be written: File too large. Expected a folder" in done.stderr
    assert (file.read_text(), [*file.parent.glob("*.json*")]) == (before, [file])


def test_verify_after_lock_is_clean(acme: CommandLine) -> None:
    """Where nothing has changed, the status is 0 and one sentence says so."""
    file = _lock(acme, LEAN)

    result = acme.run(f"verify {file} --path @")

    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.split() == f"Nothing differs between {file} and what is installed.".split()


def test_verify_names_what_changed(acme: CommandLine) -> None:
    """Another declaration is a difference of the backend, and of the plan."""
    file = _lock(acme, LEAN)
    _redeclare(acme, "needs_cpu_seq_lens=False", 'host_seq_lens="upper_bound"')

    status, found = _verified(acme, file)

    told = [(each["kind"], each["subject"], each["field"], each["after"]) for each in found]
    assert status == 1
    assert told == [
        ("stricter", "plan", "host_seq_lens", "upper_bound, decided by backend acme_lean"),
        ("changed", "backend acme_lean", "host_seq_lens", "exact on a condition, else upper_bound"),
    ]


def test_verify_tells_of_a_plan_that_the_lock_lacks(acme: CommandLine) -> None:
    """A lock with flags has a plan: one that was taken out is reported, not passed over."""
    file = _lock(acme, LEAN)
    file.write_text(json.dumps({**json.loads(file.read_text()), "plan": None}))

    status, found = _verified(acme, file)

    told = [(each["kind"], each["subject"]) for each in found]
    assert (status, told) == (1, [("appeared", "plan")])


def test_verify_that_can_compare_nothing_is_a_usage_error(
    acme: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock of an engine that cannot be read is neither the same nor another."""
    _install_engine(tmp_path / "engines", monkeypatch)
    file = tmp_path / "engine.lock.json"
    acme.run(f"lock --path @ --engine sglang --output {file}")

    result = acme.run(f"verify {file} --path @ --source {tmp_path}")

    assert result.exit_code == 2
    assert "Error: nothing was compared: " in result.stderr


def test_verify_tells_of_a_plan_that_is_refused_now(acme: CommandLine) -> None:
    """A backend in use that cannot be read any more is a difference, and no error."""
    file = _lock(acme, LEAN)
    _redeclare(acme, "LEAN = ", "raise KeyError\nLEAN = ")

    status, found = _verified(acme, file)

    (refused,) = [each["after"] for each in found if each["subject"] == "plan"]
    told = "refused: --attention-backend names a backend that cannot be used: "
    assert (status, refused.startswith(told)) == (1, True)


def test_verify_takes_no_flags_from_the_environment(
    acme: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock's own request is repeated, whatever is set here."""
    file = _lock(acme)
    monkeypatch.setenv("BACKEND_CAPS_FLAG_PAGE_SIZE", "16")

    assert _verified(acme, file) == (0, [])


@pytest.mark.parametrize(
    ("source", "status"), [pytest.param("old", 0, id="same"), pytest.param("new", 1, id="other")]
)
def test_verify_reads_the_engine_of_the_lock(
    acme: CommandLine, engines: Path, source: str, status: int
) -> None:
    """The engine of a lock is read again, from the source that is named now."""
    file = engines / "a.lock.json"
    written = acme.run(
        f"lock --path @ --engine sglang --source {engines}/old --output {file} -- "
        "--attention-backend fa9"
    )

    result = acme.run(f"verify {file} --path @ --source {engines}/{source}")

    assert (written.exit_code, result.exit_code, result.stderr) == (0, status, "")
    assert str(engines) not in file.read_text()


def test_lock_of_an_engine_keeps_rules_that_are_named(acme: CommandLine, engines: Path) -> None:
    """The rule set is the engine's own unless another is named, and verify asks for the same."""
    file = engines / "a.lock.json"
    acme.run(
        f"lock --path @ --engine sglang --source {engines}/old --rules sglang-0.5.23 "
        f"--output {file}"
    )

    result = acme.run(f"verify {file} --path @ --source {engines}/old")

    assert json.loads(file.read_text())["request"]["rules"] == "sglang-0.5.23"
    assert result.exit_code == 0


def test_diff_of_two_engines_as_markdown(engines: Path) -> None:
    """The comment on a pull request begins with the counts, and names the versions."""
    result = _diff(f"sglang@{engines}/old", f"sglang@{engines}/new", "--format", "markdown")

    assert result.exit_code == 1
    assert result.stdout.splitlines()[:2] == [
        "- 5 costs more, 3 gone, 2 costs less, 2 new, 6 other",
        "- from sglang 0.5.13 to sglang 0.5.23",
    ]


def test_diff_of_an_engine_with_itself_is_empty(engines: Path) -> None:
    """Where nothing differs, the status is 0, and the sides are named as they were asked for."""
    side = f"sglang@{engines}/old"

    result = _diff(side, side, "--format", "json")

    document = json.loads(result.stdout)
    assert (result.exit_code, document["schema"]) == (0, "backend-caps/diff@1")
    assert (document["before"], document["differences"]) == (side, [])


def test_diff_of_two_locks(acme: CommandLine) -> None:
    """Locks are compared without looking at what is installed."""
    before = _lock(acme, LEAN)
    after = before.with_name("b.lock.json")
    _redeclare(acme, "graph_replay={BatchKind.SINGLE_TOKEN_DECODE},", "")
    acme.run(f"lock --path @ --output {after} -- {LEAN}")

    result = acme.run(f"diff {before} {after} --format markdown")

    assert result.exit_code == 1
    assert result.stdout.splitlines()[0] == "- 4 costs more"
    assert [line.split(" | ")[0] for line in result.stdout.splitlines()[7:]] == [
        "| plan decode: graph\\_replay",
        "| plan prefill: graph\\_replay",
        "| plan verify: graph\\_replay",
        "| backend acme\\_lean: graph\\_replay",
    ]


@pytest.mark.parametrize(("sides", "told"), cases_of(CASES / "diff.txt"))
@pytest.mark.usefixtures("engines")
def test_diff_of_what_cannot_be_read_is_wrong_usage(sides: str, told: str) -> None:
    """What cannot be compared is no difference, so its status is another."""
    result = _diff(*sides.split())

    assert result.exit_code == 2
    assert told in " ".join(result.stderr.split())


def _install_engine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put an engine on the path of imports that has one class, and cannot be imported."""
    attention = folder / "sglang" / "srt" / "layers" / "attention"
    attention.mkdir(parents=True)
    (folder / "sglang" / "__init__.py").write_text("raise AssertionError('imported')\n")
    backend = "class AttentionBackend:\n    needs_cpu_seq_lens: bool = True\n"
    backend += "class OneBackend(AttentionBackend): pass\n"
    (attention / "base_attn_backend.py").write_text(backend)
    monkeypatch.syspath_prepend(str(folder))


@pytest.mark.parametrize(
    ("line", "engine"),
    [
        pytest.param("lock", "sglang", id="what is installed"),
        pytest.param("lock -- --page-size 64", "sglang", id="with a plan"),
        pytest.param("lock --engine none", None, id="unless it is left out"),
        pytest.param("lock --path @", None, id="nor where only a folder is locked"),
    ],
)
def test_lock_takes_the_installed_engine(
    acme: CommandLine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    engine: str | None,
) -> None:
    """A lock of the environment holds its engine too, read without importing it."""
    _install_engine(tmp_path / "engines", monkeypatch)

    assert json.loads(acme.run(line).stdout)["request"].get("engine") == engine
