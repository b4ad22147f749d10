from __future__ import annotations

from contextlib import ExitStack
from http.client import HTTPResponse
from urllib.request import ProxyHandler, build_opener

import pytest
from prometheus_client.parser import text_string_to_metric_families

from backend_caps.runtime.batch import ForwardMode
from backend_caps.runtime.errors import EngineError
from backend_caps.runtime.metrics import Metrics
from backend_caps.runtime.stats import StepStats
from backend_caps.startup.graph_modes import GraphMode
from tests.runtime.made_steps import step

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
def test_metrics_hold_what_steps_told(name: str, value: float) -> None:
    """Three steps are known by their sums, or by the last of them."""
    metrics = _after(
        step(EXTEND, num_made=1, num_retracted=4, total_seq_lens=9),
        step(DECODE, total_seq_lens=31, graph_mode=GraphMode.FULL, waits_for_lengths=True),
        step(EXTEND, num_made=2, num_running=1, num_waiting=0, total_seq_lens=7),
    )

    actual = metrics.samples()[f"backend_caps_{name}"]

    assert actual == value


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
