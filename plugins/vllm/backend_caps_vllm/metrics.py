"""The plan at the server's `/metrics`: layers with their backends, graphs, values and problems.

A worker is a process of its own, and `/metrics` is served by the one that was started. That one
makes a folder, which a worker finds in its environment and writes its plan into. Where several
processes serve, Prometheus' client joins what all of them write into its own folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from backend_caps.capability.facts import text_of
from backend_caps.report.launches import LaunchDocument

if TYPE_CHECKING:
    from prometheus_client import Gauge
    from prometheus_client.core import GaugeMetricFamily

FOLDER = "BACKEND_CAPS_SERVED_PLAN"
"""The environment variable of the folder that plans are written into."""
_JOINED = "PROMETHEUS_MULTIPROC_DIR"
FAMILIES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "backend_caps_layers": (
        "Layers that are alike, by the backend that they run.",
        ("role", "layer", "backend", "path", "graph_support", "cache", "block_size", "head_size"),
    ),
    "backend_caps_graphs_info": (
        "1 for the mode of graphs that results.",
        ("asked", "mode", "support", "by", "words"),
    ),
    "backend_caps_value_info": (
        "1 for each final value of the engine's arguments.",
        ("name", "value"),
    ),
    "backend_caps_problem_info": (
        "1 for each thing that is not as declared, asked for or locked.",
        ("problem",),
    ),
}
"""What is served: by name, its help and its labels."""
_Series = tuple[str, tuple[str, ...], float]
"""A family's name, its labels, and the number."""
_held: list[TemporaryDirectory[str]] = []
"""Keeps the folder of this process as long as the process runs."""


def offer(environ: MutableMapping[str, str]) -> None:
    """Make the folder, and serve what is in it; a process whose parent did so leaves it at that."""
    if FOLDER in environ:
        return
    from prometheus_client import REGISTRY  # noqa: PLC0415 - vLLM's, not this module's to ask for

    folder = TemporaryDirectory(prefix="backend-caps-")
    _held.append(folder)
    environ[FOLDER] = folder.name
    REGISTRY.register(Served(Path(folder.name)))


def publish(
    launch: LaunchDocument,
    values: Mapping[str, object],
    problems: Iterable[str],
    environ: Mapping[str, str] = os.environ,
) -> None:
    """Write a worker's plan to the server's metrics, with the final values of all arguments."""
    found = list(series(launch, values, problems))
    if _JOINED in environ:
        for name, labels, number in found:
            _gauges()[name].labels(*labels).set(number)
    elif FOLDER in environ:
        file = Path(environ[FOLDER], f"{os.getpid()}.json")
        written = file.with_suffix(".new")
        written.write_text(json.dumps(found), "utf-8")
        written.replace(file)


def series(
    launch: LaunchDocument, values: Mapping[str, object], problems: Iterable[str]
) -> Iterator[_Series]:
    """List the series of a plan."""
    for own in launch.layers or ():
        sizes = [_text(own.sizes.get(name)) for name in ("block_size", "head_size")]
        named = (own.role, own.layer, own.backend, own.path)
        labels = (*named, own.graph_support or "", own.cache or "", *sizes)
        yield "backend_caps_layers", labels, own.num_layers
    if (graphs := launch.graphs) is not None:
        said = (graphs.asked, graphs.mode, graphs.support, graphs.by or "", " ".join(graphs.words))
        yield "backend_caps_graphs_info", said, 1
    for name, value in values.items():
        yield "backend_caps_value_info", (name, _text(value)), 1
    for problem in problems:
        yield "backend_caps_problem_info", (problem,), 1


def _text(value: object) -> str:
    return "" if value is None else text_of(value)


class Served:
    """Reads the plans of a folder whenever the metrics are asked for."""

    def __init__(self, folder: Path) -> None:
        """Take the folder; it may be empty."""
        self._folder = folder

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Name the families, so that a registry reads nothing when this is registered."""
        return self._families([])

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Make the families of what is there; what several workers wrote counts once."""
        found: dict[tuple[str, ...], _Series] = {}
        for file in sorted(self._folder.glob("*.json")):
            for name, labels, number in json.loads(file.read_text("utf-8")):
                found[name, *labels] = (name, tuple(labels), number)
        return self._families(found.values())

    def _families(self, found: Iterable[_Series]) -> Iterator[GaugeMetricFamily]:
        from prometheus_client.core import GaugeMetricFamily  # noqa: PLC0415 - see `offer`

        families = {
            name: GaugeMetricFamily(name, words, labels=labels)
            for name, (words, labels) in FAMILIES.items()
        }
        for name, labels, number in found:
            families[name].add_metric(labels, number)
        return iter(families.values())


@cache
def _gauges() -> Mapping[str, Gauge]:
    """Register the metrics of a process whose client joins them with others', once."""
    # When it is imported it looks whether several processes write.
    from prometheus_client import Gauge  # noqa: PLC0415

    return {
        name: Gauge(name, words, labels, multiprocess_mode="max")
        for name, (words, labels) in FAMILIES.items()
    }
