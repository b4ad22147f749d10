"""The sizes that a dry run reads from a server's command line."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import click
import pytest

from backend_caps.cli.dry_run import dry_run
from backend_caps.cli.invocation import Invocation
from backend_caps.cli.options import request_of
from backend_caps.cli.server_sizes import is_size, sizes_in, sizes_of
from backend_caps.errors import BackendCapsError
from backend_caps.insight.run_sizes import GraphSizes, ServerSizes
from backend_caps.resolution.engine import Engine
from tests.unit.report.sides import reading

NEW = "--rules sglang-0.5.23"


def _context(line: str) -> click.Context:
    words, _, flags = line.partition("-- ")
    if "--rules" not in words:
        words = f"--rules sglang-0.5.13 {words}"
    invocation = Invocation(server_flags=tuple(flags.split()))
    return dry_run.make_context("dry-run", words.split(), obj=invocation)


def _sizes(line: str) -> ServerSizes:
    ctx = _context(line)
    return sizes_in(ctx, request_of(ctx, reads=is_size))


def _batches(line: str) -> GraphSizes:
    batches = _sizes(line).batches
    assert batches is not None
    return batches


@pytest.mark.parametrize(
    ("line", "sizes", "largest"),
    [
        pytest.param("-- --cuda-graph-bs 4 1 2 --tp 2", (4, 1, 2), None, id="a list"),
        pytest.param("-- --cuda-graph-bs=4", (4,), None, id="joined"),
        pytest.param("-- --cuda-graph-max 16", None, 16, id="abbreviated"),
        pytest.param(f"{NEW} -- --cuda-graph-bs-decode 8 16", (8, 16), None, id="newer list"),
        pytest.param(f"{NEW} -- --cuda-graph-max-bs-decode 4", None, 4, id="newer bound"),
        pytest.param("--", None, None, id="nothing"),
    ],
)
def test_batches_of_graphs_are_read_as_the_version_spells_them(
    line: str, sizes: tuple[int, ...] | None, largest: int | None
) -> None:
    """Each version's own flags are read, with as many words as they have."""
    batches = _batches(line)

    assert (batches.sizes, batches.largest) == (sizes, largest)


def test_flags_of_another_version_are_no_sizes() -> None:
    """A flag that the version lacks is not read, and does not matter."""
    sizes = _sizes("-- --cuda-graph-bs-decode 1 2")

    assert sizes.batches == GraphSizes(flag="--cuda-graph-bs", largest_flag="--cuda-graph-max-bs")


def test_engine_without_flags_for_graphs_has_no_sizes_of_them() -> None:
    """A version that spells them otherwise leaves the run's own sizes."""
    ctx = _context("-- --cuda-graph-bs 1 2")
    line = Engine(name="sglang-9.9", options={}, attention_backends=frozenset())
    read = replace(reading(), command_line=line)

    sizes = sizes_in(ctx, replace(request_of(ctx), reading=read))

    assert (sizes.batches, sizes.tokens) == (None, None)


def test_tokens_of_graphs_are_named_by_their_flags() -> None:
    """What prompts are captured for has the flags of its version."""
    tokens = _sizes(f"{NEW} -- --cuda-graph-bs-prefill 64 128").tokens

    assert tokens == GraphSizes(
        flag="--cuda-graph-bs-prefill", largest_flag="--cuda-graph-max-bs-prefill", sizes=(64, 128)
    )


def test_flags_of_single_phases_are_kept_as_they_were_given() -> None:
    """Flags that switch graphs off in one phase are reported, with their values."""
    sizes = _sizes(f"{NEW} -- --disable-prefill-cuda-graph --cuda-graph-backend-decode disabled")

    told = ("--disable-prefill-cuda-graph", "--cuda-graph-backend-decode disabled")
    assert sizes.of_phases == told


def test_padding_can_be_switched_off() -> None:
    """Without padding, graphs hold batches of their own sizes alone."""
    padded = [_sizes(f"-- {own}").pads_graphs for own in ("", "--disable-cuda-graph-padding")]

    assert padded == [True, False]


def test_command_line_goes_before_files(tmp_path: Path) -> None:
    """The words after -- go before the file of flags, which goes before the settings' file."""
    flags, config = tmp_path / "flags.yaml", tmp_path / "config.yaml"
    flags.write_text("max-running-requests: 5\nchunked-prefill-size: 6\n")
    config.write_text(
        "server:\n  max-running-requests: 7\n  chunked-prefill-size: 8\n  cuda-graph-bs: [1, 2]\n"
    )

    said = _sizes(f"--config {config} --flags-file {flags} -- --max-running-requests 4")

    assert (said.max_running_requests, said.chunked_prefill_size) == (4, 6)
    assert said.batches is not None
    assert said.batches.sizes == (1, 2)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        pytest.param("--cuda-graph-bs 1 two", "--cuda-graph-bs is '1 two'", id="no number"),
        pytest.param("--cuda-graph-bs 0 2", "expected numbers of at least 1", id="no batch"),
        pytest.param("--max-running-requests 0", "a number of at least 1", id="no request"),
        pytest.param("--chunked-prefill-size -2", "a number of at least -1", id="no chunk"),
        pytest.param("--cuda-graph-bs", "--cuda-graph-bs has no value", id="no word"),
    ],
)
def test_size_that_no_server_takes_is_refused(flags: str, told: str) -> None:
    """A size is a number that a server could have."""
    with pytest.raises(BackendCapsError) as raised:
        _sizes(f"-- {flags}")

    assert told in str(raised.value)


def test_flags_that_are_read_matter(capsys: pytest.CaptureFixture[str]) -> None:
    """Flags that set a size are not counted among those that do not matter."""
    read = "--max-running-requests 4 --chunked-prefill-size 16 --cuda-graph-bs 1 2"

    _sizes(f"--verbose -- {read} --mem-fraction-static 0.8")

    assert capsys.readouterr().err == (
        "server flags that do not matter here: 1 (--mem-fraction-static)\n"
    )


def test_sizes_that_were_said_are_listed_by_their_flags() -> None:
    """What ranks compare is what was said, under the names that the operator gave."""
    sizes = _sizes("-- --max-run 4 --cuda-graph-bs 1 2 --disable-cuda-graph-padding")

    assert sizes.given == {
        "--max-running-requests": 4,
        "--disable-cuda-graph-padding": True,
        "--cuda-graph-bs": "1 2",
    }


def test_sizes_of_vllm_are_its_final_values() -> None:
    """A value that is not known, or that a release does not have, is none."""
    batches = partial(
        GraphSizes,
        flag="--cudagraph-capture-sizes",
        largest_flag="--max-cudagraph-capture-size",
        largest=None,
    )
    known = sizes_of(
        {
            "scheduler_config.max_num_seqs": 8,
            "scheduler_config.max_num_batched_tokens": 2048,
            "compilation_config.cudagraph_capture_sizes": [1, 2, 4],
        }
    )

    assert known == ServerSizes(
        max_running_requests=8, chunked_prefill_size=2048, batches=batches(sizes=(1, 2, 4))
    )
    unknown = {"unknown": "it is not followed"}
    open_ = sizes_of({"scheduler_config.max_num_seqs": unknown})
    assert open_ == ServerSizes(batches=batches(sizes=None))
