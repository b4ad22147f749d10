"""Out-of-tree plugins of vLLM, read from their own wheels beside the wheel of vLLM 0.33.0.

What their platforms take is compared with the platforms' own methods, which run here: each by
itself, with what it asks of its package put in place.
"""

from __future__ import annotations

import ast
import textwrap
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from backend_caps.capability.backend import EngineClass
from backend_caps.discovery.process import Search
from backend_caps.engines.plugin import EnginePlugin, Platform, PlatformChoice
from backend_caps.engines.read import read_engine
from backend_caps.engines.reading import EngineReading
from backend_caps.report.backend_views import report_view
from backend_caps.report.backends import report_document
from backend_caps.report.sections import markdown

pytestmark = [pytest.mark.upstream, pytest.mark.vllm_wheel]

WHEELS = Path(__file__).resolve().parents[2] / ".cache" / "wheels"
ASCEND = "vllm_ascend-0.23.0"
OLD_ASCEND = "vllm_ascend-0.13.0"
RBLN = "vllm_rbln-0.12.0"
TPU = "tpu_inference-0.32.0"
SPYRE = "vllm_spyre-1.10.0"
LABEL = "label ASCEND"
SLOTS: Mapping[str, Sequence[tuple[str, str, str, str]]] = {
    ASCEND: [
        ("CUSTOM", "AscendAttentionBackend310", "_310p/attention/attention_v1.py:47", LABEL),
        ("CUSTOM", "AscendAttentionBackend", "attention/attention_v1.py:77", LABEL),
    ],
    OLD_ASCEND: [("CUSTOM", "AscendAttentionBackend", "attention/attention_v1.py:54", LABEL)],
    RBLN: [
        (
            "FLASH_ATTN",
            "RBLNFlashAttentionBackend",
            "v1/attention/backends/flash_attention.py:85",
            "in place of FlashAttentionBackend",
        ),
        (
            "FLASH_ATTN_MLA",
            "RBLNFlashAttnMLABackend",
            "v1/attention/backends/mla/flashattn_mla.py:43",
            "in place of FlashAttnMLABackend",
        ),
    ],
    TPU: [
        ("name.upper()", "", "layers/common/attention_backend.py:167", "vllm_backend"),
        (
            "FLASH_ATTN",
            "PallasAttentionBackend",
            "layers/vllm/backends/flash_attn.py:67",
            "in place of FlashAttentionBackend",
        ),
        (
            "FLASH_ATTN_MLA",
            "PallasMLAttentionBackend",
            "layers/vllm/backends/flash_attn_mla.py:34",
            "in place of FlashAttnMLABackend",
        ),
    ],
    SPYRE: [],
}
"""What each registers, and where in its package; read from the sources by eye, as what follows."""
CLASSES: Mapping[str, Mapping[str, str]] = {
    ASCEND: {
        "AscendAttentionBackend": "attention/attention_v1.py:78",
        "AscendAttentionBackend310": "_310p/attention/attention_v1.py:48",
        "AscendDSABackend": "attention/dsa_v1.py:191",
        "AscendFABackend": "attention/fa3_v1.py:12",
        "AscendGDNAttentionBackend": "ops/gdn_attn_builder.py:933",
        "AscendGDNAttentionBackend310": "_310p/ops/gdn_attn_builder_310.py:246",
        "AscendMLABackend": "attention/mla_v1.py:80",
        "AscendSFABackend": "attention/sfa_v1.py:135",
    },
    OLD_ASCEND: {
        "AscendAttentionBackend": "attention/attention_v1.py:55",
        "AscendMLABackend": "attention/mla_v1.py:55",
        "AscendSFABackend": "attention/sfa_v1.py:50",
    },
    RBLN: {
        "RBLNDeepseekV32IndexerBackend": "v1/attention/backends/mla/indexer.py:22",
        "RBLNDeepseekV32IndexerScaleBackend": "v1/attention/backends/mla/indexer.py:65",
        "RBLNFlashAttentionBackend": "v1/attention/backends/flash_attention.py:86",
        "RBLNFlashAttnMLABackend": "v1/attention/backends/mla/flashattn_mla.py:44",
    },
    TPU: {
        "_TPUDeepseekV4Backend": (
            "layers/vllm/custom_ops/experimental/deepseek_v4/deepseek_v4_attention.py:200"
        ),
        "PallasAttentionBackend": "layers/vllm/backends/flash_attn.py:68",
        "PallasMLAttentionBackend": "layers/vllm/backends/flash_attn_mla.py:35",
    },
    SPYRE: {},
}
PLATFORMS: Mapping[str, tuple[str, str, str]] = {
    ASCEND: ("NPUPlatform", "vllm_ascend/platform.py:128", "vllm_ascend/platform.py:815"),
    OLD_ASCEND: ("NPUPlatform", "vllm_ascend/platform.py:81", "vllm_ascend/platform.py:398"),
    RBLN: (
        "RblnPlatform",
        "vllm_rbln/platform/__init__.py:87",
        "vllm_rbln/platform/__init__.py:111",
    ),
    TPU: (
        "TpuPlatform",
        "tpu_inference/platforms/tpu_platform.py:186",
        "tpu_inference/platforms/tpu_platform.py:233",
    ),
    SPYRE: ("SpyrePlatform", "vllm_spyre/platform.py:62", "vllm/platforms/interface.py:389"),
}
PROBLEMS: Mapping[str, Sequence[str]] = {
    ASCEND: [],
    OLD_ASCEND: ["engine-plugin-bases-missing"],
    RBLN: ["engine-plugin-other-version"],
    TPU: [],
    SPYRE: ["engine-plugin-other-version"],
}
each_plugin = pytest.mark.parametrize("wheel", SLOTS)


def _wheel(name: str) -> Path:
    wheels = sorted(WHEELS.glob(f"{name}-*.whl"))
    assert wheels, f"no wheel of {name} in .cache/wheels; fetch it: make vllm"
    return wheels[0]


@cache
def reading(name: str) -> EngineReading:
    """Read vLLM with a plugin beside it."""
    return read_engine("vllm", _wheel("vllm-0.33.0"), plugins=Search.of_folders([_wheel(name)]))


def plugin_of(name: str) -> EnginePlugin:
    """Return the plugin of a wheel."""
    (plugin,) = reading(name).plugins
    return plugin


def platform_of(name: str) -> Platform:
    """Return its platform."""
    (platform,) = plugin_of(name).platforms
    return platform


def class_of(name: str, backend: str) -> EngineClass:
    """Return the class that a record was read from."""
    found = reading(name).registry[backend].engine_class
    assert found is not None
    return found


@each_plugin
def test_slots_are_those_of_the_source(wheel: str) -> None:
    """Every call that registers a backend is there, with its line, class and second argument."""
    package = wheel.partition("-")[0]

    assert [
        (
            each.slot,
            each.backend or "",
            each.at.removeprefix(f"{package}/"),
            f"label {each.label}"
            if each.label
            else f"in place of {each.replaces}"
            if each.replaces
            else each.given or "",
        )
        for each in plugin_of(wheel).registrations
    ] == SLOTS[wheel]


@each_plugin
def test_classes_are_those_of_the_source(wheel: str) -> None:
    """Every backend is there, with the distribution and the line of its class."""
    package = wheel.partition("-")[0]
    found = {each: reading(wheel).registry[each].source for each in plugin_of(wheel).backends}

    assert {n: str(s.declared_at).removeprefix(f"{package}/") for n, s in found.items()} == CLASSES[
        wheel
    ]
    owners = {each.distribution for each in found.values()}
    assert owners <= {plugin_of(wheel).distribution}


@each_plugin
def test_platform_is_that_of_the_source(wheel: str) -> None:
    """The class and its method have their lines."""
    own = platform_of(wheel)

    assert (own.path.rpartition(".")[2], own.at, own.chooser) == PLATFORMS[wheel]


@each_plugin
def test_problems_are_of_the_version_alone(wheel: str) -> None:
    """A plugin that fits has none, and nobody is told to repair or uninstall anything."""
    own = plugin_of(wheel).problems

    assert [each.code for each in own] == PROBLEMS[wheel]
    assert not any(word in each.remedy for each in own for word in ("epair", "ninstall"))


def test_capabilities_are_read_under_vllms_roots() -> None:
    """A plugin's class inherits from vLLM's, and states what its own source does."""
    rbln = class_of(RBLN, "RBLNFlashAttnMLABackend").readings
    ascend = class_of(ASCEND, "AscendMLABackend").readings

    assert (rbln["attention_arch"].origin.value, rbln["attention_arch"].inherited_from) == (
        "inherited",
        "MLACommonBackend",
    )
    assert rbln["dtypes"].value == {"float16", "bfloat16"}
    assert ascend["page_sizes"].declared_at == "vllm_ascend/attention/mla_v1.py:117"


def test_wheel_of_another_api_refuses_every_layer() -> None:
    """The method of vllm-ascend 0.13.0 takes no `num_heads`, which vLLM 0.33.0 gives it."""
    (choice,) = platform_of(OLD_ASCEND).choices

    assert (choice.given, choice.backend) == ("", None)
    assert "num_heads" in str(choice.refusal)


# What the platforms' own methods answer.


@dataclass
class Member:
    """A member of vLLM's enumeration, with the class that a plugin puts there."""

    name: str
    path: str

    def get_path(self) -> str:
        """Return the path, as vLLM's does."""
        return self.path


@dataclass
class Enum:
    """vLLM's enumeration, as far as the methods ask."""

    members: Mapping[str, Member] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Member:
        return self.members[name]


@cache
def enum_of(name: str) -> Enum:
    """List vLLM's members; what a plugin registers takes their place."""
    with zipfile.ZipFile(_wheel("vllm-0.33.0")) as archive:
        text = archive.read("vllm/v1/attention/backends/registry.py").decode()
    (enum,) = (
        node
        for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef) and node.name == "AttentionBackendEnum"
    )
    stated = {
        ast.unparse(each.targets[0]): str(ast.literal_eval(each.value))
        for each in enum.body
        if isinstance(each, ast.Assign)
    }
    own = {
        each.slot: each.label or class_of(name, each.backend).path
        for each in plugin_of(name).registrations
        if each.backend
    }
    return Enum({member: Member(member, own.get(member, path)) for member, path in stated.items()})


def method_of(name: str) -> Callable[..., str]:
    """Take the method out of its file, with the names that it asks of its module."""
    place, line = str(platform_of(name).chooser).rsplit(":", 1)
    with zipfile.ZipFile(_wheel(name)) as archive:
        text = archive.read(place).decode()
    methods = {
        node.name: textwrap.dedent(ast.get_source_segment(text, node, padded=True) or "")
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef)
        and (node.lineno == int(line) or node.name == "_validate_fa3_backend")
    }
    enum = enum_of(name)
    registry = SimpleNamespace(AttentionBackendEnum=enum)
    names: dict[str, Any] = {
        "AttentionBackendEnum": enum,
        "logger": Mock(),
        "is_310p": lambda: False,
        "is_registered_attention_backend": lambda _: False,
        "util": SimpleNamespace(find_spec=lambda _: None),
        "__builtins__": {**vars(__import__("builtins")), "__import__": lambda *_: registry},
    }
    for source in methods.values():
        exec(source.removeprefix("@classmethod\n"), names)  # noqa: S102 - a method of the wheel
    cls = SimpleNamespace(
        **{each: lambda *args, own=each: names[own](None, *args) for each in methods}
    )
    chooser = names["get_attn_backend_cls"]
    return lambda *args, **named: chooser(cls, *args, **named)


def holds(choice: PlatformChoice, named: str | None, others: set[str], **values: bool) -> bool:
    """Return whether a condition holds; `others` are the backends that some condition names."""
    head, has_head, rest = choice.given.partition(" is named")
    rest = rest.removeprefix(" and ") if has_head else choice.given
    backends = head.split(" or ") if has_head else []
    is_named = not has_head or {
        "no backend" if named is None else named if named in others else "another one"
    } <= {*backends}
    util = SimpleNamespace(find_spec=lambda _: None)
    return is_named and bool(eval(rest or "True", {"util": util}, values))  # noqa: S307 - of our reading


def names_in(choices: Sequence[PlatformChoice]) -> set[str]:
    """List the backends that conditions name."""
    heads = (each.given.partition(" is named") for each in choices)
    return {name for head, found, _ in heads if found for name in head.split(" or ")}


def answers(name: str, flags: Sequence[str]) -> Iterator[tuple[object, object]]:
    """Ask the reading and the method for each backend that may be named, and each layer."""
    method, choices = method_of(name), platform_of(name).choices
    for member in (None, *enum_of(name).members.values()):
        for truths in product((False, True), repeat=len(flags)):
            values = dict(zip(flags, truths, strict=True))
            named = None if member is None else member.name
            held = [c for c in choices if holds(c, named, names_in(choices), **values)]
            try:
                answer = method(member, SimpleNamespace(**values), num_heads=None)
            except Exception as error:  # noqa: BLE001 - whatever it refuses with
                answer = type(error).__name__
            yield [_taken(name, each) for each in held], [answer]


def _taken(name: str, choice: PlatformChoice) -> str:
    """Return the path of the class, or the name of the error."""
    if choice.backend is None:
        return str(choice.refusal).removeprefix("raises ").partition(":")[0]
    return class_of(name, choice.backend).path


@pytest.mark.parametrize(
    ("wheel", "flags", "number"),
    [
        pytest.param(ASCEND, ("use_mla", "use_sparse", "use_batch_invariant"), 8, id="ascend"),
        pytest.param(RBLN, ("use_mla", "use_sparse"), 4, id="rbln"),
        pytest.param(TPU, ("use_mla",), 2, id="tpu"),
    ],
)
def test_choices_are_those_of_the_method(wheel: str, flags: Sequence[str], number: int) -> None:
    """For every backend that may be named and every layer, one condition holds, and it is right."""
    found = list(answers(wheel, flags))

    assert len(found) == number * (1 + len(enum_of(wheel).members))
    assert [own for own in found if own[0] != own[1]] == []


@pytest.mark.parametrize(
    ("wheel", "lines"),
    [
        pytest.param(RBLN, ("| ", "- "), id="rbln"),
        pytest.param(TPU, ("| ", "- "), id="tpu"),
        pytest.param(ASCEND, ("| AscendAttention", "- CUSTOM"), id="ascend"),
    ],
)
def test_page_shows_what_is_printed(wheel: str, lines: tuple[str, ...]) -> None:
    """The how-to has the real tables of these plugins, and the slots of vllm-ascend."""
    own = reading(wheel)
    text = markdown(report_view(report_document(own.backends, (), None, reading=own)))
    tables = text.partition("## Out-of-tree plugin")[2].partition("| registered as |")[0]
    tables = tables.partition("| class, where | slot |")[2] if wheel == ASCEND else tables
    page = Path("docs/how-to/see-out-of-tree-plugins.md").read_text("utf-8")

    printed = [line for line in tables.splitlines()[:-1] if line.startswith(lines)]
    assert printed
    assert [line for line in printed if line not in page] == []
