"""The data of the atlas: what is read, what is kept, and since when each value holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from backend_caps.atlas.build import RELEASES, AtlasError, Built, ReleaseStore, build
from backend_caps.compatibility.releases import ReleaseError
from backend_caps.report.document import json_text
from tests.unit.atlas.wheels import releases_in, write_plugin, write_vllm

Build = Callable[..., Built]


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """Keep two releases of vLLM: the second has lost a class and its sinks."""
    write_vllm(tmp_path / "wheels", "0.30.0")
    write_vllm(tmp_path / "wheels", "0.31.0", sinks=False, has_slow=False)
    return tmp_path / "wheels"


@pytest.fixture
def data(tmp_path: Path) -> ReleaseStore:
    """Keep the data in a folder that is not there yet."""
    return ReleaseStore(tmp_path / "atlas" / "data")


@pytest.fixture
def run(wheels: Path, data: ReleaseStore) -> Build:
    """Build the atlas of the wheels."""

    def build_(*ranges: str, workers: int = 1) -> Built:
        return build(
            data, ranges or ("vllm",), releases_in(wheels), workers=workers, progress=_silent
        )

    return build_


def _silent(*_: object) -> None:
    """Show no progress."""


def test_cell_has_value_line_words_and_first_release(run: Build, data: ReleaseStore) -> None:
    """A value that both releases have is there since the first; another one since its own."""
    run()

    old, new = data.load("vllm")
    cells = new.classes["FastBackend"].cells
    assert [old.version, new.version] == ["0.30.0", "0.31.0"]
    assert cells["dtypes"].value == ["bfloat16"]
    assert cells["dtypes"].words == "supported_dtypes = [torch.bfloat16]"
    assert cells["dtypes"].declared_at == "vllm/fast.py:5"
    assert (cells["dtypes"].since, cells["attention_sinks"].since) == ("0.30.0", "0.31.0")
    assert new.classes["FastBackend"].since == "0.30.0"


def test_release_has_names_root_platforms_and_conditions(run: Build, data: ReleaseStore) -> None:
    """The class of all others has its values too, and a condition its words."""
    run()

    old = data.load("vllm")[0]
    assert old.root is not None
    assert old.root.cells["dtypes"].value == ["float16"]
    assert old.root.cells["attention_arch"].value == ["mha"]
    assert old.classes["FastBackend"].platforms == {"cuda": "vllm/platforms/cuda.py:3"}
    assert old.classes["SlowBackend"].platforms is None
    assert [each.name for each in old.names["FAST"]] == ["FastBackend"]
    sinks = old.classes["SlowBackend"].cells["attention_sinks"]
    assert sinks.when is not None
    assert [(each.given, each.value) for each in sinks.when] == [({"expression": "is_new()"}, True)]


def test_class_that_is_gone_and_comes_back_is_there_since_then(
    run: Build, data: ReleaseStore, wheels: Path
) -> None:
    """`since` names an unbroken row of releases."""
    write_vllm(wheels, "0.32.0")

    run()

    assert data.load("vllm")[2].classes["SlowBackend"].since == "0.32.0"


def test_second_build_reads_what_is_new(run: Build, wheels: Path) -> None:
    """What is there by this reader is kept, whatever order releases come in."""
    first = run("vllm>=0.31")
    write_vllm(wheels, "0.29.0")

    second = run()

    assert first == Built(read=["vllm 0.31.0"], kept=[])
    assert second == Built(read=["vllm 0.29.0", "vllm 0.30.0"], kept=["vllm 0.31.0"])


@pytest.mark.parametrize("spoilt", ["{}", "reader"])
def test_release_is_read_again_if_damaged_or_by_another_reader(
    run: Build, data: ReleaseStore, spoilt: str
) -> None:
    """A build never stands on what it did not make."""
    run()
    path = data.path("vllm", "0.30.0")
    text = path.read_text()
    reader = data.load("vllm")[0].reader
    path.write_text("{}" if spoilt == "{}" else text.replace(reader, "another"))

    again = run()

    assert (again.read, path.read_text()) == (["vllm 0.30.0"], text)


def test_same_wheels_give_the_same_bytes(run: Build, data: ReleaseStore, tmp_path: Path) -> None:
    """In whatever order and by however many processes they are read."""
    run("vllm==0.31.0")
    run()
    other = ReleaseStore(tmp_path / "other")
    build(other, ("vllm",), releases_in(tmp_path / "wheels"), workers=2, progress=_silent)

    for version in ("0.30.0", "0.31.0"):
        assert data.path("vllm", version).read_bytes() == other.path("vllm", version).read_bytes()


def test_progress_counts_what_is_read(data: ReleaseStore, wheels: Path) -> None:
    """Each release is told once."""
    told: list[tuple[str, int, int]] = []

    build(data, ("vllm",), releases_in(wheels), workers=1, progress=lambda *each: told.append(each))

    assert told == [("vllm 0.30.0", 1, 2), ("vllm 0.31.0", 2, 2)]


def test_build_that_is_ended_keeps_what_it_read(
    run: Build, data: ReleaseStore, wheels: Path
) -> None:
    """A release that cannot be read ends it, and the next build goes on behind it."""
    (wheels / "vllm-0.30.5-py3-none-any.whl").write_text("no wheel")

    for workers in (1, 2):
        with pytest.raises(Exception, match=r"vllm-0\.30\.5"):
            run(workers=workers)

    assert data.path("vllm", "0.30.0").is_file()
    assert run("vllm!=0.30.5").kept != []


@pytest.mark.parametrize(
    ("version", "requires", "beside"),
    [
        pytest.param("7.0", "vllm>=0.30,<0.31", "0.30.0", id="what it requires"),
        pytest.param("7.0", "vllm==0.30.0+cpu", "0.30.0", id="without the local build"),
        pytest.param("0.30.4", "vllm", "0.30.0", id="its own minor version"),
        pytest.param("0.30.4", "vllm>=9", "0.30.0", id="what it requires is not there"),
        pytest.param("0.30.4", "not a requirement!", "0.30.0", id="no requirement"),
        pytest.param("7.0", "", "0.31.0", id="the newest"),
    ],
)
def test_plugin_is_read_beside_the_release_that_it_extends(
    run: Build, data: ReleaseStore, wheels: Path, version: str, requires: str, beside: str
) -> None:
    """Its own classes are in its document, and no rules or classes of the engine."""
    write_plugin(wheels, version, requires=requires)

    run("acme")

    (own,) = data.load("acme")
    assert (own.engine, own.distribution, own.beside) == ("vllm", "acme", beside)
    assert [*own.classes] == ["AcmeBackend"]
    assert own.classes["AcmeBackend"].cells["dtypes"].value == ["float32"]
    assert own.rules == []
    assert data.distributions() == ["acme"]


def test_range_that_is_none_is_an_error(run: Build) -> None:
    """The error has an example."""
    with pytest.raises(AtlasError, match="names no releases") as raised:
        run("vllm=>0.30")

    assert raised.value.code == "atlas-releases-misspelled"


def test_release_that_is_nowhere_is_an_error(run: Build) -> None:
    """Nothing is read then."""
    with pytest.raises(ReleaseError):
        run("vllm>=9")


def test_folder_that_cannot_be_written_is_an_error(run: Build, data: ReleaseStore) -> None:
    """What stands in the way is named."""
    data.folder.parent.mkdir(parents=True)
    data.folder.write_text("a file")

    with pytest.raises(AtlasError, match="cannot be written") as raised:
        run()

    assert raised.value.code == "atlas-not-written"


def test_damaged_data_is_an_error_where_it_is_used(run: Build, data: ReleaseStore) -> None:
    """The error names the file."""
    run()
    data.path("vllm", Version("0.30.0")).write_text("{")

    with pytest.raises(AtlasError, match=r"0\.30\.0\.json is no data of the atlas") as raised:
        data.load("vllm")

    assert raised.value.code == "atlas-data-unreadable"


def test_unchanged_file_is_not_written_again(run: Build, data: ReleaseStore) -> None:
    """A site that is kept under version control shows no change."""
    run()
    (old, _) = data.load("vllm")
    path = data.path("vllm", old.version)
    before = path.stat().st_mtime_ns

    data.store(old)

    assert path.stat().st_mtime_ns == before
    assert path.read_text("utf-8") == f"{json_text(old, indent=1)}\n"


def test_ranges_of_the_whole_atlas_are_ranges() -> None:
    """Both engines come first, then plugins."""
    names = [Requirement(each).name for each in RELEASES]

    assert names[:2] == ["sglang", "vllm"]
    assert len(names[2:]) >= 6
