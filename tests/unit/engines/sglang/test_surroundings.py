"""What a program that is interpreted sees of machine, files and a model's configuration."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from backend_caps.capability.gpu import gpus
from backend_caps.engines.sglang.surroundings import surroundings
from backend_caps.engines.source.interpreter import Interpreter
from backend_caps.engines.source.library import library
from backend_caps.engines.source.values import Native, Unknown
from tests.unit.engines.source.trees import index_of

_CONFIG = {"model_type": "plain", "hidden_size": 8, "text_config": {"num_layers": 2}}


_FILES: Mapping[str, Mapping[str, object]] = {
    "models/m": _CONFIG,
    "models/m/config.json": _CONFIG,  # `config_of` takes the path of the file too
    "models/llama": {"model_type": "llama"},
    "models/qwen3": {"model_type": "qwen3"},
    "models/vl": {"model_type": "qwen2_5_vl"},
    "models/own-code": {"model_type": "llama", "auto_map": {"AutoConfig": "own.Config"}},
}


def _run(code: str, gpu: str = "H100") -> Native:
    index = index_of(m=code)
    run = Interpreter(index, {**library({}), **surroundings(index, gpus()[gpu], 2, _FILES.get)})
    return run.call(run.found("engine.m.f"))


@pytest.mark.parametrize(
    ("gpu", "known"),
    [
        ("H100", [True, 2, (9, 0), "NVIDIA H100 80GB HBM3", 132, True, "13.0", None]),
        ("MI300X", [True, 2, (9, 4), "AMD Instinct MI300X", 304, True, None, "7.0"]),
    ],
)
def test_torch_describes_the_machine(gpu: str, known: list[object]) -> None:
    """A dozen answers of torch are those of the GPU; anything else is not known."""
    found = _run(
        """
        import torch

        def f():
            major, minor = torch.cuda.get_device_capability(0)
            properties = torch.cuda.get_device_properties(0)
            return [torch.cuda.is_available(), torch.cuda.device_count(), (major, minor),
                    torch.cuda.get_device_name(), properties.multi_processor_count,
                    properties.total_memory == torch.cuda.mem_get_info()[1], torch.version.cuda,
                    torch.version.hip], properties.warp_size, torch.cuda.memory_allocated()
        """,
        gpu,
    )

    assert found[0] == known
    assert all(isinstance(each, Unknown) for each in found[1:])


def test_dtypes_and_devices_are_told_apart() -> None:
    """A dtype equals its other names, is a key, and is a `torch.dtype`; a device has its parts."""
    found = _run("""
        import torch

        def f():
            sizes = {torch.float16: 2, torch.int8: 1}
            device, plain = torch.device("cuda:1"), torch.device("cpu")
            return [sizes[torch.float16], torch.half == torch.float16, str(torch.int8),
                    isinstance(torch.int8, torch.dtype), isinstance(torch.int8, str),
                    device.type, device.index, plain.index], torch.device(torch.somewhere())
    """)

    assert found[0] == [2, True, "torch.int8", True, False, "cuda", 1, None]
    assert isinstance(found[1], Unknown)


def test_folder_of_the_model_holds_its_configuration_and_no_more() -> None:
    """What is in another folder is not known."""
    known, unknown = _run("""
        import glob
        import os
        import torch
        from pathlib import Path

        def f():
            path = Path("models/m")
            file = path / "config.json"
            return [path.exists(), path.is_dir(), path.is_file(), file.is_file(), file.exists(),
                    (path / "other.json").exists(), os.path.isfile("models/m/config.json"),
                    os.path.exists("models/m/a/b"), file.name, file.suffix, file.stem,
                    str(file.parent), list(path.glob("*.bin")), path.as_posix(), str(path),
                    os.path.abspath("x"), os.fspath(path), glob.glob("*"), path.is_absolute(),
                    getattr(path, "zz", 5)], [
                    Path("elsewhere").exists(), Path("else/where").is_dir(),
                    Path("elsewhere").glob("*"), path.read_text(), Path(torch.somewhere()),
                    os.path.exists(torch.somewhere())]
    """)

    assert known[:8] == [True, True, False, True, True, False, True, False]
    assert known[8:12] == ["config.json", ".json", "config", "models/m"]
    assert known[12:] == [[], "models/m", "models/m", "x", "models/m", [], False, 5]
    assert all(isinstance(each, Unknown) for each in unknown)


def test_configuration_has_what_its_file_has() -> None:
    """A value that the file lacks may be a default of transformers', so it is not known."""
    known, unknown = _run("""
        import copy
        from sglang.srt.utils.hf_transformers.config import get_config
        from transformers import PretrainedConfig

        def f():
            config = get_config("models/m", model_override_args={"rope_theta": 5})
            other = copy.deepcopy(config)
            config.update({"hidden_size": 16})
            config.extra = 1
            return [config.hidden_size, other.hidden_size, config.rope_theta, config.extra,
                    config.get_text_config().get_text_config().num_layers,
                    other.text_config.num_layers,
                    config.to_dict()["model_type"], config.tie_word_embeddings,
                    getattr(config, "quantization_config", None), f"{config}",
                    isinstance(config, PretrainedConfig), isinstance(config, str)], [
                    config.num_experts, get_config("elsewhere")]
    """)

    assert known == [
        *(16, 8, 5, 1, 2, 2, "plain", True, None),
        *("the model's plain configuration", True, False),
    ]
    assert all(isinstance(each, Unknown) for each in unknown)


def test_configuration_is_of_the_class_that_its_type_names() -> None:
    """Transformers names its own classes after the types, without their underscores."""
    found = _run("""
        import other
        from sglang.srt.utils.hf_transformers.config import get_config
        from transformers import LlamaConfig, Qwen2Config
        from transformers.models.qwen2_5_vl import Qwen2_5_VLConfig

        def f():
            llama, vl = get_config("models/llama", True), get_config("models/vl", True)
            return [isinstance(llama, LlamaConfig), isinstance(vl, Qwen2_5_VLConfig),
                    isinstance(llama, Qwen2Config), isinstance(llama, other.LlamaConfig)]
    """)

    assert found == [True, True, False, False]


def test_file_is_completed_where_its_class_is_known() -> None:
    """By transformers' defaults, unless code of the model's own is run."""
    known, *unknown = _run("""
        from sglang.srt.utils.hf_transformers.config import get_config

        def f():
            llama, own = get_config("models/llama", True), get_config("models/own-code", False)
            return [[hasattr(llama, "thinker_config"), hasattr(own, "thinker_config"),
                     llama.head_dim, own.head_dim,
                     get_config("models/qwen3", False).layer_types[0]],
                    get_config("models/own-code", True).head_dim,
                    get_config("models/own-code", trust_remote_code=True).thinker_config]
    """)

    assert known == [False, False, 128, 128, "full_attention"]
    assert all(isinstance(each, Unknown) for each in unknown)
