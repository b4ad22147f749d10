"""What is read off a worker's objects."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import SimpleNamespace

import pytest
from backend_caps_vllm.live import GraphWords, LiveServer, is_first_of_stage, live_server

from backend_caps.resolution.launch import GraphMode as Mode
from backend_caps.resolution.launch import LayerGroup

from .small_vllm import (
    Attention,
    Experts,
    GraphMode,
    Name,
    OldBuilder,
    Small,
    SmallBuilder,
    Spec,
    UniformBuilder,
    Worker,
    group,
    platform,
)

pytestmark = pytest.mark.usefixtures("served")
SIZES = {"block_size": 16, "head_size": 64, "dtype": "bfloat16"}


def read(worker: Worker) -> LiveServer:
    """Read a worker whose cache is made while its warnings are collected."""
    words = GraphWords(worker.vllm_config)
    worker.initialize_from_config("cache")
    words.close()
    return live_server(worker, "0.33.0", words)


def layer_group(**changes: object) -> LayerGroup:
    """Make the group of one layer of the target with a cache."""
    known: Mapping[str, object] = {
        "role": "target",
        "layer": "Attention",
        "num_layers": 1,
        "backend": "SMALL",
        "path": "vllm.small.Small",
        "graph_support": "ALWAYS",
        "cache": "Spec",
        "sizes": SIZES,
    }
    return LayerGroup(**{**known, **changes})  # type: ignore[arg-type]


def test_layers_are_grouped_by_what_runs_them() -> None:
    """Layers that are alike are one group; experts are none, and one without a cache says so."""
    layers = {"a": Attention(), "b": Attention(), "c": Attention(), "d": Experts()}

    found = read(Worker(layers, [group("a", "b")])).launch.layers

    bare = layer_group(graph_support=None, cache=None, sizes={})
    assert found == (layer_group(num_layers=2), bare)


def test_layer_that_the_model_does_not_hold_is_the_drafts() -> None:
    """The target's modules are asked, as names of layers say it in no two releases alike."""
    target, draft = Attention(), Attention()

    worker = Worker({"a": target, "b": draft}, [group("a", "b")], of_target=[target])

    assert [own.role for own in read(worker).launch.layers] == ["target", "draft"]


def test_layers_of_one_group_may_have_caches_of_their_own() -> None:
    """A spec of several has one for each layer."""
    both = SimpleNamespace(kv_cache_specs={"a": Spec(), "b": Spec(head_size=32)})

    worker = Worker({"a": Attention(), "b": Attention()}, [group("a", "b", spec=both)])

    sizes = [own.sizes for own in read(worker).launch.layers]
    assert sizes == [SIZES, {**SIZES, "head_size": 32}]


def test_blocks_of_a_kernel_are_shown_where_they_are_others() -> None:
    """The cache manager's blocks may be split for the kernel."""
    split = group("a", builder=SmallBuilder(Spec(block_size=8)))

    server = read(Worker({"a": Attention()}, [split]))

    assert server.launch.layers[0].sizes == {**SIZES, "kernel_block_size": 8}
    assert server.backends[0].facts.page_size == 8


def test_mode_of_graphs_has_the_engines_words_where_it_is_lowered() -> None:
    """Asked before, resulting after; the words are those of the function that lowers it."""
    never = group("b", builder=UniformBuilder())
    layers = {"a": Attention(), "b": Attention()}

    worker = Worker(layers, [group("a"), never], lowers_to=GraphMode.PIECEWISE)

    words = "FULL is not supported, GraphMode.PIECEWISE is taken"
    mode = Mode(asked="FULL", mode="PIECEWISE", support="UNIFORM_BATCH", by="Small", words=(words,))
    assert read(worker).launch.graphs == mode


@pytest.mark.parametrize(
    ("groups", "support", "by"),
    [
        pytest.param([group("a")], "ALWAYS", None, id="all"),
        pytest.param([], "ALWAYS", None, id="no-cache"),
        pytest.param([group("a", builder=OldBuilder())], "NEVER", "Small", id="release-0.11"),
    ],
)
def test_least_support_names_its_class(groups: list[object], support: str, by: str | None) -> None:
    """Where all graphs work, no class is named."""
    graphs = read(Worker({"a": Attention()}, groups)).launch.graphs

    assert graphs is not None
    assert (graphs.support, graphs.by, graphs.words) == (support, by, ())


@pytest.mark.parametrize(
    ("device", "machine"),
    [
        pytest.param("cpu", "cpu", id="cpu"),
        pytest.param("NVIDIA H100 80GB HBM3", "H100", id="by-its-short-name"),
    ],
)
def test_machine_and_values_are_by_the_names_of_a_plan_without_a_gpu(
    device: str, machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `select --engine vllm` says before the start can be held beside it."""
    monkeypatch.setitem(sys.modules, "vllm.platforms", platform(device))

    launch = read(Worker({"a": Attention()}, [group("a")])).launch

    assert (launch.engine, launch.machine, launch.model) == ("vllm-0.33.0", machine, "tiny")
    assert launch.values["scheduler_config.async_scheduling"] is True
    assert launch.values["compilation_config.splitting_ops"] == ["a"]
    assert launch.values["model_config.dtype"] == "bfloat16"
    assert "parallel_config.enable_dbo" not in launch.values


@pytest.mark.parametrize(
    ("asked", "loaded", "expected"),
    [
        pytest.param(None, True, None, id="nothing"),
        pytest.param(Name.SMALL, True, ("SMALL", Small), id="its-class"),
        pytest.param(Name.SMALL, False, ("SMALL", None), id="not-imported"),
        pytest.param(Name.LABEL, True, None, id="a-label"),
        pytest.param(Name.UNSET, True, None, id="not-registered"),
    ],
)
def test_asked_backend_is_found_by_its_class(
    asked: Name | None,
    loaded: bool,
    expected: tuple[str, type | None] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A name stands for a class, where one is registered or imported."""
    if loaded:
        own = SimpleNamespace(Small=Small)
        monkeypatch.setitem(sys.modules, "vllm.small", own)

    found = read(Worker({"a": Attention()}, [group("a")], asked=asked)).asked

    assert (None if found is None else (found.name, found.kind)) == expected


@pytest.mark.parametrize(
    ("rank", "stages", "looks", "is_first"),
    [
        pytest.param(0, 1, True, True, id="first"),
        pytest.param(1, 1, False, True, id="has-the-same-layers"),
        pytest.param(2, 2, True, False, id="of-the-second-stage"),
    ],
)
def test_one_worker_of_a_stage_looks(rank: int, stages: int, looks: bool, is_first: bool) -> None:
    """Four workers of one stage have the same layers; those of another have others."""
    worker = Worker({"a": Attention()}, [group("a")], rank=rank, stages=stages)

    assert (is_first_of_stage(worker), read(worker).is_first) == (looks, is_first)
