"""Steps of a server as a timeline: the command, its files, and what it says."""

from __future__ import annotations

from pathlib import Path
from xml.etree.ElementTree import fromstring

import pytest
from click.testing import CliRunner, Result

from backend_caps.cli.invocation import Invocation
from backend_caps.cli.main import cli
from backend_caps.report.trace_documents import TraceDocument

SERVER = (
    "--attention-backend {} --speculative-algorithm EAGLE3 --speculative-num-steps 1 "
    "--disable-piecewise-cuda-graph"
)
OWN = SERVER.format("torch_padded")
DEEP = OWN.replace("num-steps 1", "num-steps 8")


def _run(own: str, server: str = OWN) -> Result:
    words = f"trace --plugins backend-caps-torch-native --steps 1 {own}".split()
    return CliRunner().invoke(cli, words, obj=Invocation(server_flags=tuple(server.split())))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for files."""
    return tmp_path_factory.mktemp("trace")


@pytest.fixture(scope="module")
def shown(folder: Path) -> str:
    """What one command prints that writes both files."""
    result = _run(f"--output {folder}/t.json --svg {folder}/t.svg")
    assert result.exit_code == 0, result.stderr
    return result.stdout


@pytest.mark.slow
def test_table_fits_eighty_columns(shown: str) -> None:
    """The figures of both levels are in a table that a small terminal has room for."""
    lines = [line.rstrip() for line in shown.splitlines()]

    table = lines[lines.index(next(own for own in lines if "step µs" in own)) :][:4]
    assert [line.split()[0] for line in table if "──" not in line] == [
        "host_seq_lens",
        "exact",
        "none",
    ]
    assert max(map(len, table)) <= 80


def test_files_are_named(shown: str, folder: Path) -> None:
    """What was written is named with what opens it."""
    assert f"{folder}/t.json: open it on ui.perfetto.dev, or at chrome://tracing" in shown
    assert f"{folder}/t.svg: open it in a browser" in shown


@pytest.mark.usefixtures("shown")
def test_json_says_what_it_is_of(folder: Path) -> None:
    """The document names its plan, its clock and its releases, and both levels."""
    told = TraceDocument.model_validate_json((folder / "t.json").read_text()).otherData
    assert (told.clock, [own.level for own in told.levels]) == ("simulated", ["exact", "none"])
    assert {"backend-caps", "torch", "rules"} <= {*told.versions}
    assert told.levels[0].lengths_us > told.levels[1].lengths_us == 0.0


@pytest.mark.usefixtures("shown")
def test_svg_is_one_picture(folder: Path) -> None:
    """The picture is well formed, and names both levels."""
    drawn = fromstring((folder / "t.svg").read_text())  # noqa: S314 - of our own making

    title = drawn.findtext("{http://www.w3.org/2000/svg}title")
    assert title == "Who waits for whom: host_seq_lens exact above none"


@pytest.mark.slow
def test_page_has_the_picture_in_it() -> None:
    """What a browser opens shows the steps, and not their figures alone."""
    result = _run("--format html")

    assert result.exit_code == 0, result.stderr
    assert "<h1>1 decode step of 4 requests on sim</h1>" in result.stdout
    assert result.stdout.count('class="trace"') == 1


def test_stand_in_is_named_and_its_needs_are_kept() -> None:
    """Another's code runs in the place of a backend that is not here, and that is said."""
    result = _run("--stand-in torch_native --format json", SERVER.format("fa3"))

    told = TraceDocument.model_validate_json(result.stdout).otherData
    assert told.stand_in == "torch_native in place of fa3"
    assert [own.level for own in told.levels] == ["exact"]
    assert {own.level for own in told.left_out} == {"none"}


@pytest.mark.parametrize(
    ("own", "server", "status", "words"),
    [
        pytest.param("--device cpu", OWN, 2, "has no streams", id="device"),
        pytest.param("", SERVER.format("fa3"), 2, "Add --engine sglang too", id="backend"),
        pytest.param("--steps 32", DEEP, 2, "cannot be recorded", id="steps"),
        pytest.param("--svg /no/such/t.svg", OWN, 2, "Name another file with --svg", id="svg"),
        pytest.param("--output /no/such/t.json", OWN, 2, "with --output", id="json"),
        pytest.param("--output /dev/full", OWN, 2, "No space left", id="disk"),
    ],
)
def test_what_cannot_be_shown_is_said(own: str, server: str, status: int, words: str) -> None:
    """A trace that cannot be made or written is refused in a sentence with a remedy."""
    result = _run(own, server)

    assert result.exit_code == status
    assert words in result.stderr
