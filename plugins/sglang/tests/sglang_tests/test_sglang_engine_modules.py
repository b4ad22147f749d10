"""How SGLang is imported, over a package that is as empty as it may be."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from backend_caps_sglang.kit import engine_modules, sglang_subject

from backend_caps.discovery.registry import Registry
from backend_caps.engines.read import read_engine
from backend_caps.kit import Forward, KitError, Scenario, draw
from backend_caps.kit.scenarios import forwards_of
from tests.upstream.sglang_wheel import find_wheel

MODULES = (
    "srt/model_executor/forward_batch_info",
    "srt/layers/radix_attention",
    "srt/layers/attention/triton_backend",
    "srt/mem_cache/kv_index_translator",
    "srt/configs/model_config",
    "srt/speculative/eagle_info",
    "srt/model_executor/runner_utils/capture_mode",
    "srt/layers/radix_linear_attention",
    "srt/mem_cache/memory_pool",
    "srt/mem_cache/swa_memory_pool",
    "srt/configs/mamba_utils",
)
CONTEXT = """\
from types import SimpleNamespace
published = []
def get_context():
    def override_server_args(**flags):
        return SimpleNamespace(install=lambda: published.append(flags))
    return SimpleNamespace(override_server_args=override_server_args)
def get_parallel():
    return SimpleNamespace(override_permanently=lambda **ranks: published.append(ranks))
"""
BACKEND = "import torchvision.transforms as T\nclass TritonAttnBackend: transforms = T.Compose\n"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Put an SGLang of empty modules on the path, and take it away again."""
    root = tmp_path / "sglang"
    for module in MODULES:
        file = root / f"{module}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(BACKEND if "triton" in module else "")
    (root / "__init__.py").write_text("")
    (root / "srt" / "runtime_context.py").write_text(CONTEXT)
    info = tmp_path / "sglang-0.0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.0.1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    engine_modules.load_sglang.cache_clear()
    yield root
    engine_modules.load_sglang.cache_clear()
    for name in [own for own in sys.modules if own.partition(".")[0] in {"sglang", "torchvision"}]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def registry() -> Registry:
    """Read SGLang's classes from its wheel."""
    return read_engine("sglang", find_wheel("0.5.23")).registry


@pytest.mark.usefixtures("package")
def test_loading_publishes_a_plain_server() -> None:
    """SGLang's modules are imported, and its configuration is that of a server on one CPU."""
    found = engine_modules.load_sglang()

    assert found.version == "0.0.1"
    assert found.context.published == [{"device": "cpu"}, {"attn_dcp_rank": 0, "attn_tp_rank": 0}]


@pytest.mark.usefixtures("package")
def test_subject_takes_what_is_read_and_what_is_tried(registry: Registry) -> None:
    """A class is checked for what its source declares, and for what a server asks of it."""
    subject = sglang_subject(registry, "TritonAttnBackend")

    assert subject.claim("host_seq_lens").name == "NONE"  # type: ignore[attr-defined]
    assert subject.claim("max_speculative_topk") == 3
    assert Forward.DRAFT not in forwards_of(subject)
    assert Forward.DRAFT_EXTEND in forwards_of(subject)


@pytest.mark.usefixtures("package")
def test_subject_builds_by_its_adapter(registry: Registry) -> None:
    """What a subject builds is asked of SGLang's class, which here wants nothing of a runner."""
    subject = sglang_subject(registry, "TritonAttnBackend")
    build: Callable[..., object] = subject.build

    with pytest.raises(AttributeError, match="get_spec"):
        build(draw(Scenario(forward=Forward.DECODE), 0).pools)


def test_package_that_cannot_be_imported_is_reported(package: Path) -> None:
    """What SGLang's import raises is an error of the kit with its words."""
    (package / "srt" / "layers" / "radix_attention.py").write_text("raise RuntimeError('no GPU')")

    with pytest.raises(KitError, match="RuntimeError: no GPU"):
        engine_modules.load_sglang()


def test_without_sglang_there_is_nothing_to_check(registry: Registry) -> None:
    """Where SGLang is not installed the error says how its environment is built."""
    engine_modules.load_sglang.cache_clear()

    with pytest.raises(KitError, match="make upstream"):
        sglang_subject(registry, "TritonAttnBackend")


def test_class_without_an_adapter_is_reported(registry: Registry) -> None:
    """Another class of SGLang's is an error that names those there are adapters for."""
    with pytest.raises(KitError, match="TorchNativeAttnBackend, TritonAttnBackend"):
        sglang_subject(registry, "FlashInferAttnBackend")
