"""The plan at the server's metrics, from a worker's process to the one that serves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from backend_caps_vllm.metrics import FAMILIES, FOLDER, Served, offer, publish
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest

from backend_caps.report.document import json_text

from .test_vllm_lock import SERVER

LAYERS = (
    'backend_caps_layers{backend="FLASH_ATTN",block_size="16",cache="FullAttentionSpec",'
    'graph_support="ALWAYS",head_size="",layer="Attention",path="vllm.Flash",role="target"} 2.0'
)
VALUES = {"scheduler_config.async_scheduling": True, "model_config.quantization": None}
VALUE = 'backend_caps_value_info{name="scheduler_config.async_scheduling",value="yes"} 1.0'
PROBLEM = 'backend_caps_problem_info{problem="what is wrong"} 1.0'


def test_worker_writes_what_the_server_reads(tmp_path: Path) -> None:
    """Layers, graphs, values and problems are series; two workers with one plan are one."""
    environ = {FOLDER: str(tmp_path)}
    registry = CollectorRegistry()
    registry.register(Served(tmp_path))

    publish(SERVER, VALUES, ["what is wrong"], environ)
    (tmp_path / "other.json").write_bytes(next(tmp_path.glob("*.json")).read_bytes())

    lines = generate_latest(registry).decode().splitlines()
    assert [lines.count(own) for own in (LAYERS, VALUE, PROBLEM)] == [1, 1, 1]


def test_server_without_a_plan_has_no_series(tmp_path: Path) -> None:
    """Before a worker has written, the families are there and empty."""
    registry = CollectorRegistry()
    registry.register(Served(tmp_path))

    found = [*registry.collect()]

    assert {own.name: own.samples for own in found} == {name: [] for name in FAMILIES}


def test_first_process_serves() -> None:
    """The one that was started makes the folder; its children find it and leave it at that."""
    environ: dict[str, str] = {}

    offer(environ)
    offer(environ)

    served = [own for own in REGISTRY._collector_to_names if isinstance(own, Served)]  # noqa: SLF001
    for own in served:
        REGISTRY.unregister(own)
    assert (len(served), Path(environ[FOLDER]).is_dir()) == (1, True)


def test_worker_whose_parent_serves_nothing_writes_nothing(tmp_path: Path) -> None:
    """Without a folder it is not read."""
    publish(SERVER, {}, [], {})

    assert list(tmp_path.iterdir()) == []


JOINS = """\
from prometheus_client import CollectorRegistry, generate_latest, multiprocess
registry = CollectorRegistry()
multiprocess.MultiProcessCollector(registry)
print(generate_latest(registry).decode())
"""


def test_several_serving_processes_join_what_workers_wrote(tmp_path: Path) -> None:
    """With several API servers vLLM has a folder of Prometheus' client, which is written to."""
    environ = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path), FOLDER: "not used"}
    text = json_text(SERVER)
    write = (
        "import sys\n"
        "from backend_caps.report.launches import LaunchDocument\n"
        "from backend_caps_vllm.metrics import publish\n"
        "publish(LaunchDocument.model_validate_json(sys.argv[1]), {}, [])\n"
    )
    for _ in range(2):
        subprocess.run([sys.executable, "-c", write, text], env=environ, check=True, timeout=60)  # noqa: S603 - ours

    done = subprocess.run(  # noqa: S603 - ours
        [sys.executable, "-c", JOINS], env=environ, check=True, timeout=60, capture_output=True
    )

    assert done.stdout.decode().splitlines().count(LAYERS) == 1
