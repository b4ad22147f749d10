from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import replace
from http.client import HTTPResponse
from io import StringIO
from urllib.request import ProxyHandler, build_opener

import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from backend_caps.runtime import EngineError, GraphMode, StepStats
from backend_caps.runtime.batch import ForwardMode
from backend_caps.runtime.metrics import Metrics
from backend_caps.runtime.progress import CaptureProgress, GenerateProgress
from backend_caps.runtime.stats import StepClock, StepTotals, total_seq_lens
from tests.runtime.memories import make_batch, make_memory


def clock(began_s: float = 0.0) -> StepClock:
    """Tell of a step of 11 s: 4 s of the model, 2 s in flight, 0.5 s of them waited."""
    stations = (0.0, 0.5, 1.0, 2.0, 6.0, 8.0, 9.5, 10.0, 11.0)
    return StepClock(*(began_s + own for own in stations))  # type: ignore[arg-type] # times alone


def step(
    mode: ForwardMode = ForwardMode.DECODE, *, began_s: float = 0.0, **changes: object
) -> StepStats:
    """Tell of a step of two requests."""
    own = StepStats(
        mode=mode,
        num_requests=2,
        num_tokens=2,
        num_made=2,
        num_running=2,
        num_waiting=3,
        num_retracted=0,
        total_seq_lens=30,
        waits_for_lengths=False,
        bytes_to_host=16,
        bytes_to_device=48,
        graph_mode=GraphMode.EAGER,
        in_halves=False,
        clock=clock(began_s),
    )
    return replace(own, **changes)  # type: ignore[arg-type] # of any field


EXTEND, DECODE, MIXED = ForwardMode.EXTEND, ForwardMode.DECODE, ForwardMode.MIXED


def _after(*steps: StepStats) -> Metrics:
    metrics = Metrics()
    for each in steps:
        metrics.observe(each)
    return metrics


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param("num_running_reqs", 1.0, id="running, of the last step"),
        pytest.param("num_queue_reqs", 0.0, id="queued, of the last step"),
        pytest.param("decode_sum_seq_lens", 31.0, id="lengths, of the last decode step"),
        pytest.param("generation_tokens_total", 5.0, id="tokens, summed"),
        pytest.param("retractions_total", 4.0, id="retractions, summed"),
        pytest.param('steps_total{mode="decode",run="full"}', 1.0, id="full graphs of decodes"),
        pytest.param('steps_total{mode="extend",run="eager"}', 2.0, id="eager prefills"),
        pytest.param("step_planned_waits_count", 3.0, id="steps that were asked for waits"),
        pytest.param("step_planned_waits_sum", 4.0, id="waits"),
        pytest.param('transferred_bytes_total{direction="to_host"}', 48.0, id="to the host"),
        pytest.param('transferred_bytes_total{direction="to_device"}', 144.0, id="to the device"),
        pytest.param("step_host_seconds_sum", 14.5, id="host time outside the model"),
        pytest.param("step_wait_seconds_sum", 1.5, id="waiting for tokens"),
        pytest.param("step_in_flight_seconds_sum", 6.0, id="in flight"),
        pytest.param("overlap_ratio", 0.75, id="overlap, of the last step"),
    ],
)
def test_metrics_hold_what_steps_reported(name: str, value: float) -> None:
    """Three steps are known by their sums, or by the last of them."""
    metrics = _after(
        step(EXTEND, num_made=1, num_retracted=4, total_seq_lens=9),
        step(DECODE, total_seq_lens=31, graph_mode=GraphMode.FULL, waits_for_lengths=True),
        step(EXTEND, num_made=2, num_running=1, num_waiting=0, total_seq_lens=7),
    )

    assert metrics.samples()[f"backend_caps_{name}"] == value


def test_metrics_without_streams_leave_out_what_needs_them() -> None:
    """Where nothing waits and nothing crosses, no metric says 0 or 1 of it."""
    metrics = Metrics(has_streams=False)

    metrics.observe(step(waits_for_lengths=True))

    left = {name for name in _after(step()).samples() if name not in metrics.samples()}
    assert {name.removeprefix("backend_caps_").removesuffix("_sum") for name in left} >= {
        *("step_planned_waits", "step_wait_seconds", "step_in_flight_seconds"),
        *("publish_to_host_seconds", "overlap_ratio"),
        *(f'transferred_bytes_total{{direction="{way}"}}' for way in ("to_host", "to_device")),
    }


@pytest.mark.parametrize(
    ("steps", "seconds"),
    [
        pytest.param([step(), step(began_s=10, waits_for_lengths=True)], [3.0], id="waited"),
        pytest.param([step(), step(began_s=10)], [], id="knew the lengths"),
        pytest.param([step(waits_for_lengths=True)], [], id="nothing before it"),
        pytest.param(
            [step(), *(step(began_s=s, waits_for_lengths=True) for s in (10, 22))],
            [3.0, 5.0],
            id="from the newest launch",
        ),
    ],
)
def test_publish_to_host_counts_from_the_launch_before(
    steps: list[StepStats], seconds: list[float]
) -> None:
    """Lengths are timed from the launch of the step that published them, where a step waits."""
    samples = _after(*steps).samples()

    name = "backend_caps_publish_to_host_seconds"
    assert (samples[f"{name}_count"], samples[f"{name}_sum"]) == (len(seconds), sum(seconds))


def test_rendered_metrics_are_read_by_prometheus() -> None:
    """The text is Prometheus' own: its parser finds every value that was counted."""
    metrics = _after(step(EXTEND), step(MIXED, waits_for_lengths=True))

    families = text_string_to_metric_families(metrics.render())

    read = {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}
    assert read["backend_caps_steps_total", "mixed", "eager"] == 1.0
    assert read["backend_caps_step_host_seconds_bucket", "+Inf"] == 2.0


def test_metric_names_end_in_their_base_unit() -> None:
    """Every histogram of times is in seconds, and every name has the package's prefix."""
    families = list(Metrics().registry.collect())

    names = {family.name for family in families}
    assert {name for name in names if not name.startswith("backend_caps_")} == set()
    histograms = {family.name for family in families if family.type == "histogram"}
    assert {name for name in histograms if not name.endswith("_seconds")} == {
        "backend_caps_step_planned_waits"
    }


def test_served_metrics_are_what_is_rendered() -> None:
    """Over HTTP comes the same text."""
    metrics = _after(step())

    with metrics.serve(0) as port, _asked(port) as answer:
        text = answer.read().decode()

    assert text == metrics.render()


def _asked(port: int) -> HTTPResponse:
    """Ask for the metrics past any proxy that is set for this machine."""
    direct = build_opener(ProxyHandler({}))
    answer: HTTPResponse = direct.open(f"http://127.0.0.1:{port}/metrics", timeout=60)
    return answer


def test_taken_port_is_refused_by_name() -> None:
    """A port that somebody has is an error that names it."""
    metrics = Metrics()

    with ExitStack() as stack:
        port = stack.enter_context(metrics.serve(0))
        with pytest.raises(EngineError, match=rf"served on 127\.0\.0\.1:{port}: .*in use"):
            stack.enter_context(metrics.serve(port))


@pytest.mark.parametrize(
    ("waits_for_lengths", "num_waits", "host_s"), [(False, 1, 5.0), (True, 2, 4.5)]
)
def test_step_tells_its_waits_and_the_hosts_own_time(
    waits_for_lengths: bool, num_waits: int, host_s: float
) -> None:
    """The host always waits for the tokens, and for lengths where the plan says so.

    Its own time is the launch without the model's 4 s and the half second for lengths, and the 1 s
    behind the tokens. Of 2 s in flight it waited 0.5 s.
    """
    own = step(began_s=100.0, waits_for_lengths=waits_for_lengths)

    assert own.planned_waits == num_waits
    assert [own.host_s, own.wait_s, own.overlap_ratio] == pytest.approx([host_s, 0.5, 0.75])


def test_total_seq_lens_sums_the_mirror() -> None:
    """With a mirror, the total is the mirror's."""
    memory = make_memory()
    batch = make_batch(memory, 3, 4)
    batch.seq_lens_cpu = torch.tensor([10, 20])

    assert total_seq_lens(batch) == 30


def test_total_seq_lens_without_a_mirror_counts_what_the_host_has_seen() -> None:
    """Where nobody keeps a mirror, prompts and outputs are counted, behind by steps under way."""
    memory = make_memory()
    batch = make_batch(memory, 3, 4)
    batch.requests[0].take(9)
    batch.seq_lens_cpu = None

    assert total_seq_lens(batch) == 3 + 4 + 1


EXTEND, DECODE = ForwardMode.EXTEND, ForwardMode.DECODE
FULL, PIECEWISE, EAGER = GraphMode


def test_totals_count_every_step() -> None:
    """Steps that are not kept are counted, each as its kind."""
    totals = StepTotals(num_first=0)

    for mode, ran in ((EXTEND, EAGER), (DECODE, FULL), (DECODE, FULL), (EXTEND, PIECEWISE)):
        totals.observe(step(mode, graph_mode=ran, in_halves=ran is FULL))

    assert totals.num_steps == {EXTEND: 2, DECODE: 2}
    assert (totals.num_eager, totals.num_in_pieces) == ({EXTEND: 1}, {EXTEND: 1})
    assert totals.num_in_halves == {DECODE: 2}


def test_totals_sum_what_steps_reported() -> None:
    """Tokens, retractions, waits, bytes and seconds are sums."""
    totals = StepTotals(num_first=0)

    totals.observe(step(num_made=2, num_retracted=1, waits_for_lengths=True))
    totals.observe(step(num_made=3))

    assert (totals.num_made, totals.num_retracted, totals.planned_waits) == (5, 1, 3)
    assert (totals.bytes_to_host, totals.bytes_to_device) == (32, 96)
    assert (totals.host_s, totals.wait_s, totals.in_flight_s) == (9.5, 1.0, 4.0)


def test_overlap_of_a_run_is_weighted_by_time() -> None:
    """The share is that of all the time in flight; without any there is none."""
    totals = StepTotals(num_first=0)

    before = totals.overlap_ratio
    totals.observe(step())

    assert (before, totals.overlap_ratio) == (0.0, 0.75)


def test_totals_count_what_verifies_gave() -> None:
    """Each request of a step that verified counts once; a step of prompts verifies nothing."""
    totals = StepTotals(num_first=0)

    totals.observe(step(accept_lens=(1, 4)))
    totals.observe(step(waits_for_lengths=True))

    assert (totals.num_verified, totals.num_accepted, totals.waits_for_lengths) == (2, 5, 1)


def _console(*, terminal: bool) -> Console:
    return Console(file=StringIO(), force_terminal=terminal, width=120, color_system=None)


def _drawn(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_progress_draws_what_steps_reported() -> None:
    """On a terminal the line has what came of all steps, and who ran in the last; then it goes."""
    console = _console(terminal=True)

    with GenerateProgress(5, console) as progress:
        progress.observe(step(num_made=3, num_running=2, num_waiting=3))
        progress.observe(step(num_made=4, num_running=4, num_waiting=1))
        progress.count_done(2)

    last = [line for line in _drawn(console).splitlines() if "tokens" in line][-1]
    assert all(own in last for own in ("2/5", "7 tokens", "4 running", "1 queued")), last
    assert _drawn(console).endswith("\x1b[2K")


def test_progress_draws_nothing_where_there_is_no_terminal() -> None:
    """In a file or a pipe there is no trace of it."""
    console = _console(terminal=False)

    with GenerateProgress(5, console) as progress:
        progress.observe(step())
        progress.count_done(1)

    assert _drawn(console) == ""


def test_progress_is_on_standard_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Standard output is the document's."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)

    with GenerateProgress(1):
        pass

    captured = capsys.readouterr()
    assert ("generate" in captured.err, captured.out) == (True, "")


def test_wish_for_colours_makes_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`FORCE_COLOR`, which a CI sets, has no progress written into its log."""
    monkeypatch.setenv("FORCE_COLOR", "1")

    with GenerateProgress(1):
        pass

    assert capsys.readouterr().err == ""


def test_capture_progress_draws_what_was_captured() -> None:
    """On a terminal the last line has how many sizes are done, and the last of them."""
    console = _console(terminal=True)

    with CaptureProgress(console) as progress:
        progress.begin(3)
        progress.captured(GraphMode.FULL, 64)
        progress.captured(GraphMode.PIECEWISE, 16)

    drawn = [line for line in _drawn(console).splitlines() if "capture" in line][-1]
    assert "2/3 sizes piecewise, 16 tokens" in drawn


def test_capture_progress_without_captures_draws_nothing() -> None:
    """An engine that captures nothing shows no line."""
    console = _console(terminal=True)

    with CaptureProgress(console):
        pass

    assert "capture" not in _drawn(console)
