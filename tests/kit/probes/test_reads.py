from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from backend_caps.kit.probes.reads import BOUND, MIRROR, Read, Reads, told
from backend_caps.kit.scenarios import draw
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.simulator import Site
from tests.kit.liars.mirror import LIARS, LongestOnHost
from tests.kit.made import HONEST, SCENARIO

BATCH = draw(SCENARIO, 1).batch
ROOT = Path("/plugins/own")


def test_watched_batch_is_as_before() -> None:
    """Who watches changes no value, and no kind."""
    watched = Reads(HONEST).watch(BATCH)

    assert isinstance(watched, ForwardBatch)
    assert watched.seq_lens_sum == BATCH.seq_lens_sum
    assert torch.equal(watched.seq_lens, BATCH.seq_lens)


def test_read_names_the_field_and_the_line() -> None:
    """Where no line of the backend runs, it is the line that looked."""
    reads = Reads(HONEST)

    _ = reads.watch(BATCH).seq_lens_sum

    assert [own.name for own in reads.seen] == ["seq_lens_sum"]
    assert reads.seen[0].site.file == __file__


def test_read_is_of_the_backend_that_asked() -> None:
    """A line of the backend's own counts, also where another's code looks in its stead."""
    own = LIARS[0]
    reads = Reads(own.subject)

    LongestOnHost(draw(SCENARIO, 1).pools).seen(reads.watch(BATCH))

    files = {Path(each.site.file).name for each in reads.seen}
    assert (own.name, files) == ("longest_on_host", {"mirror.py"})


@pytest.mark.parametrize(
    "look",
    [
        pytest.param(lambda batch: batch.seq_lens, id="of-the-device"),
        pytest.param(lambda batch: replace(batch, seq_lens_cpu=None).seq_lens_cpu, id="absent"),
        pytest.param(copy, id="copied"),
        pytest.param(replace, id="replaced"),
    ],
)
def test_what_is_no_read_tells_nothing(look: Callable[[ForwardBatch], object]) -> None:
    """Device lengths may be read, what is not there is not read, and a copy passes all on."""
    reads = Reads(HONEST)

    look(reads.watch(BATCH))

    assert reads.seen == []


@pytest.mark.parametrize("duplicate", [copy, replace], ids=["copied", "replaced"])
def test_copy_is_watched(duplicate: Callable[[ForwardBatch], ForwardBatch]) -> None:
    """A backend that reads a copy reads."""
    reads = Reads(HONEST)

    _ = duplicate(reads.watch(BATCH)).seq_lens_cpu

    assert [own.name for own in reads.seen] == ["seq_lens_cpu"]


def test_reads_are_listed_once_a_line() -> None:
    """A line in a loop is one line; fields that are not asked for are left out."""
    reads = Reads(HONEST)
    watched = reads.watch(replace(BATCH, seq_lens_cpu_upper_bound=BATCH.seq_lens_cpu))

    for _ in range(3):
        _ = watched.seq_lens_cpu, watched.seq_lens_cpu_upper_bound

    assert [own.name for own in reads.of(MIRROR)] == ["seq_lens_cpu"]
    assert [own.name for own in reads.of(BOUND)] == ["seq_lens_cpu_upper_bound"]


def test_reads_are_told_by_field() -> None:
    """Lines stand as seen from the backend's folder; one elsewhere by its name alone."""
    places = [("seq_lens_cpu", "a.py"), ("seq_lens_sum", "b/c.py"), ("seq_lens_cpu", "../d.py")]
    reads = [Read(name, Site(str(ROOT / file), 7)) for name, file in places]

    assert told(reads, ROOT) == "seq_lens_cpu (a.py:7, d.py:7) and seq_lens_sum (c.py:7)"
