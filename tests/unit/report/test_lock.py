from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from backend_caps import ANY, Facts, Origin, Source
from backend_caps.capability.backend import Backend, Reading, Status
from backend_caps.capability.sets import Conflict, Exact, Unchecked
from backend_caps.capability.vocabulary import NO_LIMIT, BatchKind, Capabilities, HostSeqLens
from backend_caps.report.diff import Side
from backend_caps.report.document import value_of
from backend_caps.report.lock import LockDocument, LockError, read_lock, write_lock
from tests.unit.building import error_of, flags, installed
from tests.unit.report import scene, sides
from tests.unit.report.conftest import Golden


def _whole() -> LockDocument:
    """Lock something of everything."""
    attribute = Reading(origin=Origin.CONDITIONAL, words="return self.a")
    read = sides.read_class(
        capabilities=sides.NONE,
        conditions=[sides.RAGGED],
        readings={"host_seq_lens": sides.STATED},
        attributes={"shares_graph": attribute},
        registered_as=("fa4", "fa3"),
        composite="any(children)",
    )
    request = sides.asked(
        flags("--page-size 16 --speculative-algorithm NONE"),
        facts=Facts(compute_capability=(9, 0)),
        unsafe_override=Capabilities(needs_cpu_seq_lens=False),
        rules=None,
        engine="sglang",
    )
    return sides.locked(
        read,
        installed("torch", Capabilities(dtypes={"float16", "bfloat16"})),
        request=request,
        rules=sides.rule_set(sides.TBO, relays=("STANDALONE", "EAGLE")),
        read=sides.reading(read),
        problems=[sides.problem("no-such-folder")],
    )


def test_lock_is_known_to_the_last_letter(golden: Golden) -> None:
    """A lock holds its request, engine, rules, backends and problems, in a stable order."""
    golden("lock.json", _whole().text())


def test_lock_with_a_plan_survives_its_file(tmp_path: Path) -> None:
    """A lock that was read is written as the same bytes."""
    plan = scene.plan(scene.FORCED)[1]
    document = sides.locked(*scene.BACKENDS, plan=plan, request=sides.asked(flags(scene.FORCED)))
    file = tmp_path / "a.lock.json"
    file.write_text(document.text(), "utf-8")

    read = read_lock(file)

    assert read.text() == document.text()
    assert read.request.flags.given() == flags(scene.FORCED).given()


def test_lock_of_an_engine_is_the_same_side_as_its_reading() -> None:
    """An engine compared by a lock is what it is when it is read."""
    document = sides.locked(
        *sides.OLD.backends, rules=sides.OLD.rules, read=sides.OLD, problems=sides.OLD.problems
    )

    assert replace(Side.of_lock(document), request=None) == Side.of_reading(sides.OLD)


@pytest.mark.parametrize(
    ("declared_at", "kept"),
    [
        pytest.param("sglang/fa3.py:3", "sglang/fa3.py:3", id="relative"),
        pytest.param("/site/acme.py:3", None, id="absolute"),
        pytest.param("C:\\site\\acme.py:3", None, id="absolute on Windows"),
        pytest.param(None, None, id="nowhere"),
    ],
)
def test_lock_holds_no_absolute_place(declared_at: str | None, kept: str | None) -> None:
    """Where a file lies on this machine is not written down."""
    backend = Backend(name="acme", status=Status.OK, source=Source(declared_at=declared_at))

    assert sides.locked(backend).backends[0].declared_at == kept


@pytest.mark.parametrize(
    ("source", "kept"),
    [
        pytest.param("acme 1.0, /site/acme.py:3", "acme 1.0", id="absolute"),
        pytest.param("acme 1.0, acme.py:3", "acme 1.0, acme.py:3", id="relative"),
        pytest.param("/site/acme.py:3", None, id="of no distribution"),
        pytest.param(None, None, id="by hand"),
    ],
)
def test_locked_plan_holds_no_absolute_place(source: str | None, kept: str | None) -> None:
    """A cause names the distribution, and a file only where it is the same everywhere."""
    plan = scene.plan(scene.FREE)[1]
    value = plan.server["host_seq_lens"]
    cause = value.causes[0].model_copy(update={"source": source})
    told = value.model_copy(update={"causes": [cause]})

    document = sides.locked(plan=plan.model_copy(update={"server": {"host_seq_lens": told}}))

    assert document.plan is not None
    assert document.plan.server["host_seq_lens"].causes[0].source == kept


def test_lock_leaves_out_what_the_working_directory_holds() -> None:
    """What was found only because of where the command was started is not installed."""
    told = sides.problem("working-directory")
    planted = Backend(name="acme", status=Status.SKIPPED, source=Source(), problems=(told,))

    document = sides.locked(planted, problems=[told, sides.problem("missing-module")])

    assert (document.backends, document.problems) == ((), ("missing-module",))


_VALUES = [
    pytest.param("host_seq_lens", "exact", HostSeqLens.EXACT, id="a level"),
    pytest.param("two_batch_overlap", False, False, id="a permission"),
    pytest.param("max_speculative_topk", 4, 4, id="a limit"),
    pytest.param("max_speculative_topk", None, NO_LIMIT, id="no limit"),
    pytest.param("page_sizes", "any", ANY, id="any size"),
    pytest.param("page_sizes", {"exact": 64}, Exact(64), id="one size"),
    pytest.param("page_sizes", {"unchecked": "any"}, Unchecked(), id="not checked"),
    pytest.param("page_sizes", {"conflict": ["a", "b"]}, Conflict(("a", "b")), id="a conflict"),
    pytest.param(
        "graph_replay", ["mixed_batch"], frozenset({BatchKind.MIXED_BATCH}), id="some batches"
    ),
]


@pytest.mark.parametrize(("capability", "written", "value"), _VALUES)
def test_value_of_a_plan_is_read_back(capability: str, written: object, value: object) -> None:
    """Each value of a plan's JSON stands for one value."""
    assert value_of(capability, json.loads(json.dumps(written))) == value


@pytest.mark.parametrize(
    ("capability", "written", "message"),
    [
        pytest.param("speed", 1, "a plan has no 'speed'", id="no capability"),
        pytest.param("host_seq_lens", None, "host_seq_lens cannot be None in a plan", id="null"),
        pytest.param(
            "host_seq_lens", "undeclared", "host_seq_lens cannot be 'undeclared'", id="undeclared"
        ),
        pytest.param(
            "page_sizes",
            {"unchecked": {"conflict": []}},
            "page_sizes cannot be {'unchecked'",
            id="a conflict within",
        ),
        pytest.param("graph_metadata", {"exact": 1}, "graph_metadata cannot be {'e", id="a size"),
    ],
)
def test_value_that_no_plan_holds_is_refused(
    capability: str, written: object, message: str
) -> None:
    """What `resolve` never writes is an error."""
    with pytest.raises(ValueError, match=message):
        value_of(capability, json.loads(json.dumps(written)))


def _file(folder: Path, text: str) -> Path:
    file = folder / "a.lock.json"
    file.write_text(text, "utf-8")
    return file


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        pytest.param(
            '{"schema": "backend-caps/lock@1", "back',
            "it is no JSON (Unterminated string starting at: line 1 column 35 (char 34))",
            id="truncated",
        ),
        pytest.param('{"schema": "backend-caps/lock@1"}', "it has no 'request'", id="empty"),
        pytest.param("[" * 100_000, "it is no JSON (", id="nested too deep"),
    ],
)
def test_file_that_is_no_lock_is_an_error(tmp_path: Path, text: str, cause: str) -> None:
    """The error names the file, and what is wrong with it."""
    file = _file(tmp_path, text)

    told = error_of(lambda: read_lock(file))

    assert told.startswith(f"lock file {str(file)!r} cannot be read: {cause}")
    assert told.endswith(
        "Expected what `backend-caps lock` writes. Correct the path, or write the file again."
    )


@pytest.mark.parametrize(
    ("place", "value", "cause"),
    [
        pytest.param(
            ("backends", 0, "status"),
            "fine",
            "its 'backends.0.status' is 'fine' (Input should be 'ok', 'broken', 'conflict' or "
            "'skipped')",
            id="a status",
        ),
        pytest.param(
            ("request", "flags", "page_size"),
            "x" * 100,
            f"its 'request.flags.page_size' is '{'x' * 59}... (Input should be a valid integer)",
            id="a long one",
        ),
    ],
)
def test_wrong_value_in_a_lock_is_named(
    tmp_path: Path, place: tuple[str | int, ...], value: str, cause: str
) -> None:
    """The error says where in the document the value stands."""
    document = json.loads(_whole().text())
    inner = document
    for part in place[:-1]:
        inner = inner[part]
    inner[place[-1]] = value

    told = error_of(lambda: read_lock(_file(tmp_path, json.dumps(document))))

    assert f"cannot be read: {cause}." in told


def test_wrong_plan_in_a_lock_is_named(tmp_path: Path) -> None:
    """A plan that holds no value of the vocabulary is refused where the file is read."""
    document = json.loads(sides.locked(plan=scene.plan(scene.FREE)[1]).text())
    document["plan"]["server"]["host_seq_lens"]["value"] = "some"

    told = error_of(lambda: read_lock(_file(tmp_path, json.dumps(document))))

    assert "(Value error, host_seq_lens cannot be 'some' in a plan)" in told


def test_lock_is_written_in_the_place_of_the_last_one(tmp_path: Path) -> None:
    """A file keeps its mode, a link stays one, and nothing else is left in the folder."""
    file, link = _file(tmp_path, "old"), tmp_path / "link"
    file.chmod(0o640)
    link.symlink_to(file)

    write_lock("new", link)

    assert (link.readlink(), file.read_text(), file.stat().st_mode & 0o777) == (file, "new", 0o640)
    assert sorted(tmp_path.iterdir()) == sorted([file, link])


def test_lock_is_written_into_a_pipe(tmp_path: Path) -> None:
    """What is no file is written to, and is not replaced by one."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)

    write_lock("new", pipe)

    assert (os.read(reader, 8), pipe.is_fifo()) == (b"new", True)
    os.close(reader)


def test_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """The error says what the system says."""
    with pytest.raises(LockError, match="cannot be read: No such file or directory"):
        read_lock(tmp_path / "none")


@pytest.mark.parametrize(
    ("text", "schema"),
    [
        pytest.param('{"schema": "backend-caps/lock@2"}', "'backend-caps/lock@2'", id="newer"),
        pytest.param('{"schema": "backend-caps/plan@1"}', "'backend-caps/plan@1'", id="a plan"),
        pytest.param("{}", "None", id="none"),
        pytest.param("[]", "None", id="a list"),
    ],
)
def test_lock_of_another_schema_is_an_error(tmp_path: Path, text: str, schema: str) -> None:
    """The error names the schema that is there and the one that is read."""
    file = _file(tmp_path, text)

    told = error_of(lambda: read_lock(file))

    assert told == (
        f"lock file {str(file)!r} has the schema {schema}; expected 'backend-caps/lock@1'. "
        "Use the backend-caps that wrote it, or write it again with this one."
    )
