"""What the check of a backend's class refuses, on several machines, of a small vLLM."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from textwrap import dedent, indent

import pytest

from backend_caps.engines.reading import Acceptance, Acceptances
from backend_caps.engines.source.files import open_tree
from backend_caps.engines.vllm.read import read_vllm
from tests.unit.engines.source.trees import write_folder
from tests.unit.engines.tables import data

_ARGUMENTS = "vllm/engine/arg_utils.py"
_CACHE = "vllm/config/cache.py"
_REGISTRY = "vllm/v1/attention/backends/registry.py"
_ROCM = "vllm/platforms/rocm.py"
_IMPORTS = """
import torch

from vllm import config
from vllm.platforms import current_platform
from vllm.v1.attention.backend import AttentionBackend
"""
_LOST = "torch.no_function_that_is_described()"
_MADE = ("checked(values)", "checked({'heads': values['num_attention_heads']})")
"""The small engine counts heads by its own name; the model is one of the hub."""
_PLAIN = "a plain layer"
_TAKEN = "validate_configuration() refuses nothing"

Files = Mapping[str, str]


def _files(one: str, *changes: tuple[str, str, str]) -> dict[str, str]:
    """Write a small vLLM whose class `One` is given; changes replace a text of a file."""
    files = {**data("vllm_launch")["files"], **data("vllm_acceptance")["files"]}
    files["vllm/one.py"] = _IMPORTS + dedent(one)
    for path, old, new in ((_ARGUMENTS, *_MADE), *changes):
        assert old in files[path], (path, old)
        files[path] = files[path].replace(old, new)
    return {path: text.removeprefix("\n") for path, text in files.items()}


def _one(check: str = "", **returns: str) -> str:
    """Write the class `One`, whose predicates return some expressions, and its own check."""
    text = "class One(AttentionBackend):\n"
    for name, value in returns.items():
        argument = ", kv_cache_dtype" if name == "supports_kv_cache_dtype" else ""
        text += f"    @classmethod\n    def {name}(cls{argument}):\n        return {value}\n\n"
    return text + indent(dedent(check), "    ")


def _decided(folder: Path, files: Files, asked: Collection[str] | None = None) -> Acceptances:
    """Read the files as an engine, and ask the checks of its classes."""
    reading = read_vllm(open_tree("vllm", write_folder(folder, files)))
    assert reading.acceptances is not None
    return reading.acceptances(asked)


def _brief(found: Acceptances) -> list[tuple[Mapping[str, object], bool, str]]:
    return [(each.settings, each.is_accepted, each.message) for each in found.found]


def test_feature_of_some_machines_is_decided_for_each(tmp_path: Path) -> None:
    """A predicate asks for the compute capability; AMD's GPUs are asked as their platform."""
    among = "current_platform.get_device_capability() in [(9, 0), (12, 0), (9, 4)]"
    files = _files(_one(supports_sink=among))

    found = _decided(tmp_path, files)

    no = "sinks not supported"
    assert _brief(found) == [
        ({"attention_sinks": True, "compute_capability": "7.5"}, False, no),
        ({"attention_sinks": True, "compute_capability": "8.0"}, False, no),
        ({"attention_sinks": True, "compute_capability": "9.0"}, True, _TAKEN),
        ({"attention_sinks": True, "compute_capability": "10.0"}, False, no),
        ({"attention_sinks": True, "compute_capability": "12.0"}, True, _TAKEN),
        ({"attention_sinks": True, "platform": "rocm"}, True, _TAKEN),
    ]
    assert found.found[0] == Acceptance(
        name="ONE",
        paths=frozenset({"vllm.one.One"}),
        settings={"attention_sinks": True, "compute_capability": "7.5"},
        is_accepted=False,
        message=no,
        at="vllm/one.py:8",
        launch=f"T4, {_PLAIN}",
    )
    assert found.tried == {"attention_sinks": (True,)}


@pytest.mark.parametrize(
    ("test", "taken", "message"),
    [
        pytest.param("current_platform is not None", True, _TAKEN, id="taken"),
        pytest.param("current_platform is None", False, "sinks not supported", id="refused"),
    ],
)
def test_feature_that_is_the_same_on_all_machines_is_decided_once(
    tmp_path: Path, test: str, taken: object, message: str
) -> None:
    """What is decided names no machine."""
    files = _files(_one(supports_sink=test))

    found = _decided(tmp_path, files)

    assert _brief(found) == [({"attention_sinks": True}, taken, message)]
    assert found.found[0].launch == _PLAIN


def test_first_machines_reason_stands_for_all_that_refuse(tmp_path: Path) -> None:
    """Texts of reasons may differ where the outcome does not."""
    files = _files(_one(supports_non_causal="current_platform is None"))

    found = _decided(tmp_path, files)

    assert _brief(found) == [({"non_causal": True}, False, "not causal with heads of 128 on 7")]


_ASKS_CONFIG = _one(
    supports_mm_prefix="config.get_current_vllm_config().cache_config.block_size == 16",
    supports_sink="current_platform is None",
)


def test_check_that_asks_for_the_configuration_has_a_servers(tmp_path: Path) -> None:
    """It is the one that vLLM makes for a model of the hub."""
    found = _decided(tmp_path, _files(_ASKS_CONFIG), {"multimodal_prefix"})

    assert _brief(found) == [({"multimodal_prefix": True}, True, _TAKEN)]


def test_release_whose_configuration_is_not_made_answers_the_other_checks(tmp_path: Path) -> None:
    """Only a check that asks for the configuration raises, and decides nothing."""
    broken = (_ARGUMENTS, "def create_engine_config", "def create_something_else")

    found = _decided(tmp_path, _files(_ASKS_CONFIG, broken))

    assert _brief(found) == [({"attention_sinks": True}, False, "sinks not supported")]
    assert found.tried == {"attention_sinks": (True,), "multimodal_prefix": (True,)}


_DTYPES = ("fp8", "int4")
_ONLY_FP8 = "bool(current_platform) and kv_cache_dtype in ['fp8']"
"""Not a missing dtype either."""


def _of_dtypes(*taken: str) -> list[tuple[Mapping[str, object], bool, str]]:
    no = "kv_cache_dtype not supported"
    return [
        ({"kv_cache_dtypes": each}, each in taken, _TAKEN if each in taken else no)
        for each in _DTYPES
    ]


@pytest.mark.parametrize(
    ("test", "taken"),
    [
        pytest.param("kv_cache_dtype in [None, 'auto', 'fp8']", ("fp8",), id="one"),
        pytest.param("kv_cache_dtype in ['fp8']", ("fp8",), id="one-and-not-none"),
        pytest.param("kv_cache_dtype in ['bfloat16']", (), id="unquantized-and-not-none"),
        pytest.param("kv_cache_dtype in [None, 'auto']", (), id="none"),
        pytest.param("kv_cache_dtype is None", (), id="none-by-name"),
        pytest.param("kv_cache_dtype not in [None, 'auto']", _DTYPES, id="all"),
    ],
)
def test_quantized_dtypes_are_each_decided(
    tmp_path: Path, test: str, taken: tuple[str, ...]
) -> None:
    """A dtype is refused also where a missing one is, in the same words."""
    files = _files(_one(supports_kv_cache_dtype=f"bool(current_platform) and {test}"))

    found = _decided(tmp_path, files)

    assert _brief(found) == _of_dtypes(*taken)
    assert found.tried == {"kv_cache_dtypes": ["fp8", "int4"]}


def test_reason_against_every_dtype_is_none_against_one(tmp_path: Path) -> None:
    """A plain layer of the class is refused for another reason, whatever the dtype is."""
    check = """
        @classmethod
        def validate_configuration(cls, kv_cache_dtype):
            own = cls.supports_kv_cache_dtype(kv_cache_dtype)
            return ["no driver"] + ([] if own else ["kv_cache_dtype not supported"])
        """
    files = _files(_one(check, supports_kv_cache_dtype=_ONLY_FP8))

    assert _brief(_decided(tmp_path, files)) == _of_dtypes("fp8")


def test_reason_of_a_missing_dtype_does_not_hide_that_of_a_feature(tmp_path: Path) -> None:
    """A class that takes no layer without a dtype still has its own reason against sinks."""
    own = _one(supports_kv_cache_dtype=_ONLY_FP8, supports_sink="current_platform is None")
    files = _files(own)

    found = _decided(tmp_path, files, {"attention_sinks"})

    assert _brief(found) == [({"attention_sinks": True}, False, "sinks not supported")]


def test_release_without_a_list_of_dtypes_tries_none(tmp_path: Path) -> None:
    """Older releases have the list elsewhere."""
    own = _one(supports_kv_cache_dtype="bool(current_platform)")
    files = _files(own, (_CACHE, "CacheDType = ", "OtherDType = "))

    assert _decided(tmp_path, files) == Acceptances(found=[], tried={"kv_cache_dtypes": []})


@pytest.mark.parametrize("is_sparse", [False, True])
def test_class_for_latent_attention_is_asked_as_one(tmp_path: Path, *, is_sparse: bool) -> None:
    """With a layer that it does not refuse: its check stops at one of another family."""
    own = {"is_mla": "True", "is_sparse": str(is_sparse)}
    files = _files(_one(**own, supports_non_causal="current_platform is None"))

    found = _decided(tmp_path, files)

    assert _brief(found) == [({"non_causal": True}, False, "not causal with heads of 576 on 7")]


_CHECK = """
@classmethod
def validate_configuration(cls, {argument}):
    return {returned}
"""


@pytest.mark.parametrize(
    ("sinks", "check"),
    [
        pytest.param("current_platform.lost", "", id="raises"),
        pytest.param(_LOST, "", id="not-known"),
        pytest.param(_LOST, _CHECK.format(argument="has_sink", returned=f"[{_LOST}]"), id="holds"),
        pytest.param(_LOST, _CHECK.format(argument="has_sink", returned=None), id="no-list"),
        pytest.param(_LOST, "validate_configuration = None", id="no-check"),
        pytest.param(_LOST, _CHECK.format(argument="**rest", returned=[]), id="no-parameter"),
    ],
)
def test_check_that_has_no_answer_decides_nothing(tmp_path: Path, sinks: str, check: str) -> None:
    """It raises, returns what is not known or no list, is missing, or lacks the parameter."""
    found = _decided(tmp_path, _files(_one(check, supports_sink=sinks)))

    assert found == Acceptances(found=[], tried={"attention_sinks": (True,)})


def test_machine_whose_check_raises_leaves_the_others(tmp_path: Path) -> None:
    """Each machine is asked for itself."""
    files = _files("""
        class One(AttentionBackend):
            @classmethod
            def supports_sink(cls):
                major = current_platform.get_device_capability()[0]
                if major == 8:
                    raise ImportError("no such package")
                return major > 9
        """)

    found = _decided(tmp_path, files)

    assert [(each.launch.partition(",")[0], each.is_accepted) for each in found.found] == [
        ("T4", False),
        ("H100", False),
        ("B200", True),
        ("RTX5090", True),
        ("MI300X", False),
    ]


_BY_PLATFORM = _one(supports_sink="current_platform.get_device_capability() != (9, 0)")


@pytest.mark.parametrize(
    "platform",
    [
        pytest.param("class OtherPlatform(NonNvmlCudaPlatform):", id="missing"),
        pytest.param(
            "class RocmPlatform(NonNvmlCudaPlatform):\n"
            "    def __init__(self):\n"
            "        raise OSError('no driver')\n",
            id="raises",
        ),
    ],
)
def test_machine_whose_platform_is_not_made_answers_nothing(tmp_path: Path, platform: str) -> None:
    """A release may have none for it, or one that raises; the other machines are asked."""
    files = _files(_BY_PLATFORM, (_ROCM, "class RocmPlatform(NonNvmlCudaPlatform):", platform))

    found = _decided(tmp_path, files)

    machines = [each.launch.partition(",")[0] for each in found.found]
    assert machines == ["T4", "A100", "H100", "B200", "RTX5090"]


def test_engine_without_platforms_answers_nothing(tmp_path: Path) -> None:
    """A tree that has none is read all the same."""
    files = {path: text for path, text in _files(_BY_PLATFORM).items() if "/platforms/" not in path}

    assert _decided(tmp_path, files) == Acceptances(found=[], tried={})


def test_server_has_the_instructions_of_a_new_cpu(tmp_path: Path) -> None:
    """What depends on them is what a current server does."""
    both = "torch.cpu._is_amx_tile_supported() and torch.cpu._is_avx512_supported()"

    found = _decided(tmp_path, _files(_one(supports_sink=both)))

    assert _brief(found) == [({"attention_sinks": True}, True, _TAKEN)]


def test_machine_leaves_nothing_to_the_next(tmp_path: Path) -> None:
    """What vLLM sets on a class of a library, which all programs share, is taken back."""
    files = _files("""
        import argparse

        is_second = hasattr(argparse.ArgumentParser, "was_here")
        argparse.ArgumentParser.was_here = True

        class One(AttentionBackend):
            @classmethod
            def supports_sink(cls):
                return is_second
        """)

    found = _decided(tmp_path, files)

    assert _brief(found) == [({"attention_sinks": True}, False, "sinks not supported")]


def test_each_name_of_a_class_has_its_answers(tmp_path: Path) -> None:
    """A question names one of them; an enum's alias is a name as well."""
    name = '    ONE = "vllm.one.One"\n'
    files = _files(
        _one(supports_sink="current_platform is None"),
        (_REGISTRY, name, name + name.replace("ONE", "TWO")),
    )

    found = _decided(tmp_path, files)

    assert [(each.name, each.is_accepted) for each in found.found] == [
        ("ONE", False),
        ("TWO", False),
    ]


def test_only_what_is_asked_for_and_left_open_is_decided(tmp_path: Path) -> None:
    """What a class states needs no check; where nothing is left, no machine is made."""
    own = _one(supports_sink="True", supports_mm_prefix="current_platform is None")
    files = _files(own)

    assert _decided(tmp_path, files, {"attention_sinks", "head_sizes"}).tried == {}
    assert [*_decided(tmp_path, files, {"multimodal_prefix", "attention_sinks"}).tried] == [
        "multimodal_prefix"
    ]
