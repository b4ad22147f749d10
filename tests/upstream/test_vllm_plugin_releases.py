"""What backend-caps-vllm hooks and reads, in every release of vLLM whose wheel is there."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from zipfile import ZipFile

import pytest
from backend_caps_vllm import live
from backend_caps_vllm.engine import CACHE, DEVICE

from tests.upstream.test_vllm_plugin import WHEELS

pytestmark = [pytest.mark.upstream, pytest.mark.vllm_wheel]

RELEASES = [each.name.split("-")[1] for each in sorted(WHEELS.glob("vllm-*.whl"))] or ["0.33.0"]
"""`make vllm` fetches 0.33.0 alone; 0.11.0 to 0.32.0 were looked at with it."""
_RUNNERS = ("vllm/v1/worker/gpu_model_runner.py", "vllm/v1/worker/gpu/model_runner.py")


class Wheel:
    """The source of one release."""

    def __init__(self, release: str) -> None:
        """Open its wheel."""
        self._files = ZipFile(next(WHEELS.glob(f"vllm-{release}-*.whl")))

    def trees(self, *names: str) -> Iterator[ast.Module]:
        """Parse those of the files that the release has."""
        for name in names:
            if name in self._files.namelist():
                yield ast.parse(self._files.read(name))

    def of_class(self, name: str, *files: str) -> ast.ClassDef:
        """Find a class."""
        found = (node for tree in self.trees(*files) for node in ast.walk(tree))
        return next(node for node in found if isinstance(node, ast.ClassDef) and node.name == name)


@pytest.fixture(params=RELEASES)
def wheel(request: pytest.FixtureRequest) -> Wheel:
    """One release after the other."""
    return Wheel(request.param)


def functions(tree: ast.AST) -> dict[str, ast.FunctionDef]:
    """Map the functions that stand anywhere in a part of the source, by name."""
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def fields(cls: ast.ClassDef) -> set[str]:
    """Name the annotated fields of a class."""
    return {ast.unparse(own.target) for own in cls.body if isinstance(own, ast.AnnAssign)}


def test_worker_is_called_through_what_is_hooked(wheel: Wheel) -> None:
    """Two functions of one class, whose parameters have not changed."""
    places = ("vllm/v1/worker/worker_base.py", "vllm/worker/worker_base.py")
    found = functions(wheel.of_class("WorkerWrapperBase", *places))

    parameters = [[each.arg for each in found[name].args.args] for name in (DEVICE, CACHE)]
    assert parameters == [["self"], ["self", "kv_cache_configs"]]


def test_groups_of_layers_have_what_is_read(wheel: Wheel) -> None:
    """Both model runners keep groups, each with its backend, its layers and its builders."""
    group = wheel.of_class("AttentionGroup", "vllm/v1/worker/utils.py")
    runners = [*wheel.trees(*_RUNNERS)]

    assert {"backend", "layer_names", "kv_cache_spec", "metadata_builders"} <= fields(group)
    assert runners
    assert ["self.attn_groups" in ast.unparse(own) for own in runners] == [True] * len(runners)
    assert ["get_model" in functions(own) for own in runners] == [True] * len(runners)


def test_configuration_has_what_is_read(wheel: Wheel) -> None:
    """Layers by name, and a mode of graphs that is rewritten in place."""
    config = wheel.of_class("CompilationConfig", "vllm/config/compilation.py")

    assert {"static_forward_context", "cudagraph_mode"} <= fields(config)


def test_mode_of_graphs_is_lowered_with_a_warning_in_a_function_that_is_heard(wheel: Wheel) -> None:
    """The function that assigns the mode warns, and its name is one of those that are kept."""
    trees = wheel.trees(*_RUNNERS, "vllm/config/compilation.py")
    found = (each for tree in trees for each in functions(tree).values())

    heard = [ast.unparse(own) for own in found if own.name in live.RESOLVING]
    lowering = [own for own in heard if "logger.warning" in own]
    assert ["cudagraph_mode = " in own for own in lowering] == [True] * len(lowering)
    assert lowering
