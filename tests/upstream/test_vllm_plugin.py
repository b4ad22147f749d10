"""backend-caps-vllm, loaded by vLLM's own plugin loader out of the wheel of 0.33.0."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module, invalidate_caches
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import Mock, patch

import pytest
from backend_caps_vllm import check
from backend_caps_vllm.__main__ import main
from backend_caps_vllm.metrics import FOLDER

ENGINE = "vllm"
WHEELS = Path(__file__).resolve().parents[2] / ".cache" / "wheels"
_PACKAGES = (
    "",
    ".model_executor",
    ".model_executor.layers",
    ".model_executor.layers.quantization",
    ".model_executor.layers.quantization.utils",
    ".utils",
    ".v1",
    ".v1.attention",
    ".v1.attention.backends",
    ".v1.worker",
)
"""Packages whose own `__init__` imports much, or which have none."""
_QUANT = ("kFp8Dynamic64Sym", "kFp8Dynamic128Sym", "kFp8StaticTensorSym", "kNvfp4Dynamic")


def _resolved(path: str) -> object:
    module, _, name = path.rpartition(".")
    return vars(import_module(module))[name]


class WorkerWrapperBase:
    """vLLM's, whose module imports much; `test_vllm_plugin_releases` reads the real one's text."""

    def init_device(self) -> None:
        """Come before the model is loaded."""

    def initialize_from_config(self, kv_cache_configs: object) -> None:
        """Make the KV cache."""


_STUBS: Mapping[str, Mapping[str, object]] = {
    "vllm.logger": {"init_logger": logging.getLogger},
    "vllm.model_executor.layers.quantization.utils.quant_utils": dict.fromkeys(_QUANT),
    "vllm.utils.import_utils": {"resolve_obj_by_qualname": _resolved},
    "vllm.v1.worker.worker_base": {"WorkerWrapperBase": WorkerWrapperBase},
    "vllm.v1.kv_cache_interface": dict.fromkeys(("KVCacheLayout", "get_kv_quant_mode")),
}


@contextmanager
def vllm_packages() -> Iterator[None]:
    """Let `import vllm.plugins` and what belongs to it find the wheel, while it is entered."""
    wheels = sorted(WHEELS.glob("vllm-0.33.0-*.whl"))
    assert wheels, "no wheel of vllm 0.33.0 in .cache/wheels; fetch it: make vllm"
    with patch.object(sys, "path", [str(wheels[0]), *sys.path]):
        for suffix in _PACKAGES:
            package = ModuleType(f"{ENGINE}{suffix}")
            package.__path__ = [f"{wheels[0]}/{package.__name__.replace('.', '/')}"]
            sys.modules[package.__name__] = package
        for name, values in _STUBS.items():
            sys.modules[name] = ModuleType(name)
            vars(sys.modules[name]).update(values)
        try:
            yield
        finally:
            for name in [name for name in sys.modules if name.partition(".")[0] == ENGINE]:
                del sys.modules[name]


pytestmark = [pytest.mark.upstream, pytest.mark.vllm_wheel]

PLUGIN = """\
from vllm.v1.attention.backend import AttentionBackend, AttentionCGSupport
from vllm.v1.attention.backend import AttentionMetadataBuilder
from vllm.v1.attention.backends.registry import register_backend


class Always(AttentionMetadataBuilder):
    _cudagraph_support = AttentionCGSupport.ALWAYS


class Builder({base}):
{body}


class Acme:
    @staticmethod
    def get_builder_cls():
        return Builder


def register():
    register_backend("ACME", "acme_vllm.Acme")
"""
Logged = Callable[[], list[tuple[str, str]]]
STATES = "    _cudagraph_support = AttentionCGSupport.{level}"
ROOT = "AttentionMetadataBuilder"
DECLARED = """\
from backend_caps import BatchKind, Capabilities, Declaration, Given, When

DECLARATION = Declaration(
    capabilities=Capabilities(graph_replay={kinds}),
    conditions={conditions},
    adapters={{"vllm": "acme_vllm:Acme"}},
)
"""
WHEN = (
    "[When(given=Given(page_size={16}), capabilities=Capabilities(graph_replay=set()), reason='x')]"
)


@pytest.fixture(autouse=True)
def environ(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is allowed is of one test."""
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    monkeypatch.delenv("BACKEND_CAPS_PLUGINS", raising=False)
    monkeypatch.setenv(FOLDER, "a folder of another process")


@pytest.fixture
def vllm() -> Iterator[SimpleNamespace]:
    """Modules of vLLM, in a process that has not loaded plugins."""
    with vllm_packages():
        yield modules()
    sys.modules.pop("acme_vllm", None)


def modules() -> SimpleNamespace:
    """Import what is looked at."""
    return SimpleNamespace(
        load=import_module("vllm.plugins").load_general_plugins,
        registry=import_module("vllm.v1.attention.backends.registry"),
        backend=import_module("vllm.v1.attention.backend"),
    )


@pytest.fixture
def acme(vllm: SimpleNamespace, tmp_path: Path) -> Path:  # noqa: ARG001 - in its context
    """A folder in front of the path, for distributions of others; the path goes with vLLM."""
    sys.path.insert(0, str(tmp_path))
    invalidate_caches()
    return tmp_path


def install(folder: Path, *, base: str = ROOT, body: str = "    pass") -> None:
    """Install a plugin of vLLM that registers one backend."""
    (folder / "acme_vllm.py").write_text(PLUGIN.format(base=base, body=body))
    entry_points(folder, "vllm.general_plugins", "acme_vllm:register")


def entry_points(folder: Path, group: str, value: str) -> None:
    """Write the metadata of a distribution with one entry point more."""
    info = folder / "acme-1.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    with (info / "entry_points.txt").open("a") as file:
        file.write(f"[{group}]\nacme = {value}\n")


def declare(folder: Path, kinds: str, conditions: str = "()") -> None:
    """Let the same distribution declare the backend to backend-caps."""
    (folder / "acme_caps.py").write_text(DECLARED.format(kinds=kinds, conditions=conditions))
    entry_points(folder, "backend_caps.backends", "acme_caps:DECLARATION")


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Logged:
    """List what the plugin logged, the level and the line; information is kept, as vLLM does."""
    caplog.set_level(logging.INFO, "vllm")
    return lambda: [
        (each.levelname, each.getMessage())
        for each in caplog.records
        if each.name == "vllm.backend_caps_vllm"
    ]


def test_loader_reports_what_a_backend_states(
    vllm: SimpleNamespace, acme: Path, logged: Logged
) -> None:
    """One line says the name, the class and what its own builder states."""
    install(acme, body=STATES.format(level="UNIFORM_BATCH"))

    vllm.load()

    words = "ACME (acme_vllm.Acme): Builder states _cudagraph_support = UNIFORM_BATCH."
    assert logged() == [("INFO", f"vLLM 0.33.0: {words}")]


def test_loader_changes_nothing_of_vllms(vllm: SimpleNamespace, acme: Path) -> None:
    """What the other plugin registered is all that is in the registry."""
    install(acme, body=STATES.format(level="ALWAYS"))

    vllm.load()

    overrides = vllm.registry._ATTN_OVERRIDES  # noqa: SLF001
    assert {own.name: path for own, path in overrides.items()} == {"ACME": "acme_vllm.Acme"}
    assert vllm.registry._MAMBA_ATTN_OVERRIDES == {}  # noqa: SLF001


DECIDES = "    @classmethod\n    def get_cudagraph_support(cls, *args): ..."
NO_CLASS = "    pass\n\n\nBuilder = None"
LATER = "decides by its configuration, in Builder.get_cudagraph_support()"


@pytest.mark.parametrize(
    ("base", "body", "level", "words"),
    [
        pytest.param(ROOT, "    pass", "INFO", "so vLLM captures none", id="nothing"),
        pytest.param(ROOT, DECIDES, "INFO", LATER, id="a-method"),
        pytest.param("Always", "    pass", "INFO", "Always states", id="the-authors-own-base"),
        pytest.param(
            ROOT, "    _cudagraph_support = True", "WARNING", "no level of", id="no-level"
        ),
        pytest.param(ROOT, NO_CLASS, "WARNING", "get_builder_cls() returned", id="no-class"),
    ],
)
def test_statement_is_reported(
    base: str, body: str, level: str, words: str, vllm: SimpleNamespace, acme: Path, logged: Logged
) -> None:
    """What states nothing or decides later is information, somebody's fault is a warning."""
    install(acme, base=base, body=body)

    vllm.load()

    ((found, line),) = logged()
    assert (found, words in line) == (level, True)


def test_claim_of_vllms_own_builder_is_a_warning_where_it_is_inherited(
    vllm: SimpleNamespace, acme: Path, logged: Logged
) -> None:
    """What made torchtitan's backend compute NaN is reported with what to state."""
    own = {
        "__module__": "vllm.v1.attention.backends.flash_attn",
        "_cudagraph_support": vllm.backend.AttentionCGSupport.ALWAYS,
    }
    root = vllm.backend.AttentionMetadataBuilder
    vllm.backend.FlashBuilder = type("FlashBuilder", (root,), own)
    install(acme, base="__import__('vllm').v1.attention.backend.FlashBuilder")
    attention = SimpleNamespace(backend=vllm.backend)
    vars(sys.modules["vllm"])["v1"] = SimpleNamespace(attention=attention)

    vllm.load()

    ((level, line),) = logged()
    assert level == "WARNING"
    assert "Builder inherits _cudagraph_support of vllm.v1.attention.backends.flash_attn" in line
    assert line.endswith("State _cudagraph_support in Builder, if that is true of it.")


@pytest.mark.parametrize(
    ("kinds", "conditions", "level"),
    [
        pytest.param("set(BatchKind)", "()", "WARNING", id="other"),
        pytest.param("{BatchKind.SINGLE_TOKEN_DECODE}", "()", "INFO", id="the-same"),
        pytest.param("set(BatchKind)", WHEN, "INFO", id="it-depends"),
    ],
)
def test_declared_graphs_are_held_to_what_the_class_states(
    kinds: str, conditions: str, level: str, vllm: SimpleNamespace, acme: Path, logged: Logged
) -> None:
    """Where a declaration names the class as its adapter, the two are to say the same."""
    install(acme, body=STATES.format(level="UNIFORM_SINGLE_TOKEN_DECODE"))
    declare(acme, kinds, conditions)

    vllm.load()

    ((found, line),) = logged()
    assert (found, "of acme 1.0 declares graph_replay=" in line) == (level, level == "WARNING")


def test_class_that_nobody_imported_is_left_alone(
    vllm: SimpleNamespace, acme: Path, logged: Logged
) -> None:
    """A path alone imports nothing in vLLM's process."""
    (acme / "acme_lazy.py").write_text("raise RuntimeError('imported')\n")
    vllm.registry.register_backend("ACME", "acme_lazy.Acme")

    check()

    assert "acme_lazy" not in sys.modules
    assert "its module is not imported yet, and was not looked at" in logged()[0][1]


def test_label_is_information(vllm: SimpleNamespace, logged: Logged) -> None:
    """A label in vLLM's own registry, as of vllm-ascend, is no fault of the plugin."""
    vllm.registry.register_backend(vllm.registry.AttentionBackendEnum.CUSTOM, "ACME")

    check()

    ((level, line),) = logged()
    assert (level, "CUSTOM (ACME): a label, which names no class" in line) == ("INFO", True)


def test_plugins_that_come_later_are_named(
    vllm: SimpleNamespace, tmp_path: Path, logged: Logged
) -> None:
    """What a plugin behind ours on the path registers is not seen, and the plugin is named."""
    install(tmp_path, body=STATES.format(level="ALWAYS"))
    sys.path.append(str(tmp_path))

    vllm.load()

    ((_, line),) = logged()
    assert "later, and what they register was not looked at: acme." in line


@pytest.mark.parametrize(
    ("wrapper", "words"),
    [
        pytest.param(object(), "WorkerWrapperBase is neither in", id="no-class"),
        pytest.param(
            type("WorkerWrapperBase", (), {"init_device": lambda self: self}),
            "WorkerWrapperBase.initialize_from_config is not there, where",
            id="no-function",
        ),
        pytest.param(
            type("WorkerWrapperBase", (), {"init_device": lambda self, device: (self, device)}),
            "init_device takes (self, device), where (self) was expected",
            id="other-parameters",
        ),
    ],
)
def test_vllm_without_what_is_hooked_is_one_line(
    wrapper: object, words: str, vllm: SimpleNamespace, acme: Path, logged: Logged
) -> None:
    """A release that lacks it is not guessed at, whatever its number, and nothing is looked at."""
    vars(sys.modules["vllm.v1.worker.worker_base"])["WorkerWrapperBase"] = wrapper
    install(acme, body=STATES.format(level="ALWAYS"))

    vllm.load()

    ((level, line),) = logged()
    assert (level, words in line) == ("ERROR", True)
    assert line.startswith("backend-caps-vllm does nothing here: of vLLM 0.33.0, ")


def test_registry_of_another_shape_is_one_line(vllm: SimpleNamespace, logged: Logged) -> None:
    """A registry that keeps its overrides otherwise is not guessed at."""
    vllm.registry._ATTN_OVERRIDES = []  # noqa: SLF001

    check()

    ((level, line),) = logged()
    assert (level, "_ATTN_OVERRIDES is of type list, not dict" in line) == ("ERROR", True)


def test_fault_of_our_own_is_not_raised(
    vllm: SimpleNamespace,  # noqa: ARG001 - is there
    monkeypatch: pytest.MonkeyPatch,
    logged: Logged,
) -> None:
    """Plugins are not isolated by vLLM's loader, so ours does it itself."""
    monkeypatch.setattr("backend_caps_vllm.hooks.statements_of", Mock(side_effect=RuntimeError))

    check()

    assert [level for level, _ in logged()] == ["ERROR"]


def test_refused_setting_is_one_line(
    vllm: SimpleNamespace, acme: Path, monkeypatch: pytest.MonkeyPatch, logged: Logged
) -> None:
    """Settings of backend-caps hold here too; a wrong one is reported, and vLLM loads on."""
    monkeypatch.setenv("BACKEND_CAPS_DISCOVERY_DEADLINE", "soon")
    install(acme)

    vllm.load()

    ((level, line),) = logged()
    assert (level, "BACKEND_CAPS_DISCOVERY_DEADLINE" in line) == ("ERROR", True)


def test_program_loads_all_and_fails_for_a_fault(
    vllm: SimpleNamespace,  # noqa: ARG001 - is there
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The program sees what later plugins register, and its status says whether all is well."""
    install(tmp_path, body="    _cudagraph_support = 3")
    sys.path.append(str(tmp_path))

    assert main() == 1
    assert capsys.readouterr().out.startswith("ACME (acme_vllm.Acme): Builder states")


def test_program_without_out_of_tree_backends(
    vllm: SimpleNamespace,  # noqa: ARG001 - is there
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Where nobody registered anything, that is said."""
    status = main()

    assert (status, capsys.readouterr().out) == (0, "vLLM 0.33.0 has no out-of-tree backend.\n")
