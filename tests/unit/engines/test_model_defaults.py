"""What transformers' classes add to a model's file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest

from backend_caps.engines import model_defaults
from backend_caps.engines.model_classes import COMPUTED, NestedConfig, after_construction
from backend_caps.engines.model_defaults import completed, version_of_table

FULL, SLIDING = "full_attention", "sliding_attention"
_LLAMA = {"model_type": "llama", "hidden_size": 8192, "num_attention_heads": 64}


def _of(**own: object) -> dict[str, object]:
    found = completed({**_LLAMA, **own})
    assert found is not None
    return dict(found)


def test_defaults_are_added_under_the_files_own_values() -> None:
    """Of the class and of the base that all have; what neither has is missing."""
    found = _of(num_hidden_layers=80)

    assert (found["num_hidden_layers"], found["vocab_size"]) == (80, 32000)
    assert found["is_encoder_decoder"] is False
    assert "thinker_config" not in found


@pytest.mark.parametrize(
    ("own", "name", "value"),
    [
        pytest.param({}, "head_dim", 128, id="a quotient"),
        pytest.param({"head_dim": 64}, "head_dim", 64, id="given"),
        pytest.param({"head_dim": None}, "head_dim", 128, id="null"),
        pytest.param({}, "num_key_value_heads", 64, id="another value"),
        pytest.param({"num_attention_heads": 0}, "head_dim", COMPUTED, id="of no number"),
        pytest.param({"torch_dtype": "bfloat16"}, "dtype", "bfloat16", id="the older name"),
        pytest.param({"dtype": "float16"}, "torch_dtype", "float16", id="the newer name"),
        pytest.param({}, "dtype", None, id="no dtype"),
    ],
)
def test_values_follow_from_others(own: dict[str, object], name: str, value: object) -> None:
    """A class computes some values, and has some under two names."""
    assert _of(**own)[name] == value


def test_value_that_is_not_followed_is_not_known() -> None:
    """It is there; what it is depends on a constant of the class's module, or on its own checks."""
    found = completed(
        {"model_type": "deepseek_v4", "compress_ratios": [4, 0], "num_hidden_layers": 2}
    )
    refused = completed({"model_type": "gemma3n_text", "intermediate_size": [1, 2]})

    assert found is not None
    assert refused is not None
    assert found["layer_types"] is refused["layer_types"] is COMPUTED
    assert repr(COMPUTED) == "computed"


@pytest.mark.parametrize(
    ("model_type", "own", "name", "value"),
    [
        pytest.param("qwen3", {"num_hidden_layers": 2}, "layer_types", [FULL] * 2, id="all alike"),
        pytest.param(
            "qwen3",
            {
                "use_sliding_window": True,
                "sliding_window": 8,
                "max_window_layers": 1,
                "num_hidden_layers": 2,
            },
            "layer_types",
            [FULL, SLIDING],
            id="by two values",
        ),
        pytest.param(
            "qwen3", {"sliding_window": 8}, "sliding_window", None, id="a value that is dropped"
        ),
        pytest.param(
            "gemma3_text",
            {"num_hidden_layers": 3, "sliding_window_pattern": 2},
            "layer_types",
            [SLIDING, FULL, SLIDING],
            id="by a name that is no field",
        ),
        pytest.param(
            "gemma4_text",
            {"num_hidden_layers": 7, "global_head_dim": 64},
            "per_layer_config",
            {5: {"head_dim": 64}, 6: {"head_dim": 64}},
            id="of some layers",
        ),
        pytest.param(
            "nemotron_h",
            {},
            "layer_types",
            ["linear_attention", "moe", FULL, "mlp"],
            id="by another name",
        ),
        pytest.param("bamba", {}, "mamba_d_head", 64, id="of a word"),
        pytest.param(
            "modernbert-decoder",
            {"sliding_window": 3},
            "sliding_window",
            3,
            id="that the file has, and the class sets",
        ),
    ],
)
def test_values_that_the_class_computes(
    model_type: str, own: dict[str, object], name: str, value: object
) -> None:
    """Its own code is followed, with what the file gives it."""
    found = completed({"model_type": model_type, **own})

    assert found is not None
    assert found[name] == value


@pytest.mark.parametrize(
    ("own", "rope"),
    [
        pytest.param({}, {"rope_theta": 10000.0, "rope_type": "default"}, id="the class's"),
        pytest.param({"rope_theta": 5}, {"rope_theta": 5, "rope_type": "default"}, id="theta"),
        pytest.param(
            {"rope_scaling": {"type": "yarn", "factor": 4.0}},
            {"rope_theta": 10000.0, "rope_type": "yarn", "factor": 4.0},
            id="the oldest name of the type",
        ),
        pytest.param(
            {"rope_scaling": {"rope_type": "llama3"}, "rope_theta": 7},
            {"rope_theta": 7, "rope_type": "llama3"},
            id="both",
        ),
    ],
)
def test_older_names_of_rotary_parameters_are_merged(
    own: dict[str, object], rope: dict[str, object]
) -> None:
    """As loading does; the older name of all is another name of them."""
    found = _of(**own)

    assert found["rope_parameters"] == found["rope_scaling"] == {**rope, "type": rope["rope_type"]}
    assert "rope_theta" not in found


def test_rotary_parameters_that_are_given_stay() -> None:
    """A file of the newer form has them already."""
    assert _of(rope_parameters={"rope_theta": 3})["rope_parameters"] == {"rope_theta": 3}


_LOCAL = {"rope_type": "default", "rope_theta": 10000.0}
_GLOBAL = {"rope_type": "default", "rope_theta": 1000000.0}
_LINEAR = {"rope_type": "linear", "factor": 8.0}


@pytest.mark.parametrize(
    ("kind", "own", "rope"),
    [
        pytest.param("gemma3_text", {}, {SLIDING: _LOCAL, FULL: _GLOBAL}, id="the class's"),
        pytest.param(
            "gemma3_text",
            {"rope_scaling": _LINEAR, "rope_theta": 3, "rope_local_base_freq": 2},
            {SLIDING: {**_LOCAL, "rope_theta": 2}, FULL: {**_LINEAR, "rope_theta": 3}},
            id="older names, of one type each",
        ),
        pytest.param(
            "modernbert-decoder",
            {"rope_scaling": _LINEAR},
            {SLIDING: {**_LOCAL, **_LINEAR}, FULL: {**_LINEAR, "rope_theta": 160000.0}},
            id="of both",
        ),
        pytest.param(
            "gemma3_text", {"rope_scaling": None}, {SLIDING: _LOCAL, FULL: _GLOBAL}, id="none"
        ),
        pytest.param("gemma4_text", {"rope_scaling": _LINEAR}, COMPUTED, id="another way"),
        pytest.param("gemma3_text", {"rope_scaling": {"type": "linear"}}, COMPUTED, id="older yet"),
    ],
)
def test_rotary_parameters_are_of_each_type_of_layer(
    kind: str, own: dict[str, object], rope: object
) -> None:
    """Which type takes an older value, the table has of the class; else it is not known."""
    found = completed({"model_type": kind, **own})

    assert found is not None
    assert found["rope_parameters"] == rope


def test_parts_are_completed_by_their_own_class() -> None:
    """Also one that the file leaves out, or that states no type."""
    found = completed({"model_type": "qwen3_vl", "text_config": {"hidden_size": 64}})

    assert found is not None
    text, vision = found["text_config"], found["vision_config"]
    assert isinstance(text, dict)
    assert isinstance(vision, dict)
    assert (text["hidden_size"], text["model_type"]) == (64, "qwen3_vl_text")
    assert vision["depth"] == 27


def test_parts_have_what_their_class_computes() -> None:
    """Of a file that has the part's values beside those of the whole, too."""
    nested = completed({"model_type": "qwen3_5_moe", "text_config": {"num_hidden_layers": 4}})
    flat = completed({"model_type": "qwen2_5_vl", "num_hidden_layers": 2, "hidden_size": 64})

    assert nested is not None
    assert flat is not None
    assert nested["text_config"]["layer_types"] == [*["linear_attention"] * 3, FULL]  # type: ignore[index]
    assert flat["text_config"]["layer_types"] == [FULL, FULL]  # type: ignore[index]
    assert flat["text_config"]["hidden_size"] == 64  # type: ignore[index]


def test_part_that_is_not_known_leaves_what_depends_on_it_open() -> None:
    """What a class computes from it is not known either, and the rest is."""
    source = """
def __post_init__(self, **kwargs):
    self.size, self._own, self.other_config = kwargs.pop('size', 1), 1, acme(self)
    super().__post_init__(**kwargs)
    self.depth = self.text_config.depth
"""
    parts = dict.fromkeys(("text_config", "other_config"), NestedConfig(lambda _: None, []))

    found = after_construction(source, {"text_config": None, "a": COMPUTED}, parts, {"b": 2})

    unknown = dict.fromkeys(("text_config", "other_config", "a", "depth"), COMPUTED)
    assert found == {**unknown, "size": 1, "b": 2}


@pytest.mark.slow
@pytest.mark.parametrize("own", [{}, {"num_hidden_layers": 13}], ids=["defaults", "of 13 layers"])
def test_values_are_those_that_transformers_makes(own: dict[str, object]) -> None:
    """Of each type, but for what is not known, and for a few types that are named here."""
    transformers = import_module("transformers")
    assert transformers.__version__ == version_of_table()
    mapping = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    compared, wrong = [], []

    for model_type in _TYPES:
        with suppress(Exception):  # a class that refuses these values
            made = vars(mapping[model_type](**own))
            found = completed({"model_type": model_type, **own}) or {}
            compared.append(model_type)
            wrong += [f"{model_type}.{name}" for name in made if _differs(made[name], found, name)]

    assert len(compared) > 0.9 * len(_TYPES)
    assert {each.partition(".")[0] for each in wrong} <= _DERIVED


_TABLE = Path(model_defaults.__file__).with_name("transformers.json")
_TYPES = sorted(json.loads(_TABLE.read_bytes())["types"])
_DERIVED = {"voxtral", "voxtral_realtime", "longcat_flash", "t5", "udop", "reformer"}
"""Types of which a part has another default than its class, or a value has two names in one."""


def _differs(value: object, found: Mapping[str, object], name: str) -> bool:
    is_plain = isinstance(value, str | int | list | dict | None) and not name.startswith("_")
    own = found.get(name, COMPUTED)
    is_known = own is not COMPUTED and name not in {"dtype", "rope_parameters", "rope_scaling"}
    return is_plain and is_known and json.dumps(own, default=str) != json.dumps(value, default=str)


def test_value_has_every_name_of_it() -> None:
    """An alias of the file sets the value, and both names are there."""
    found = completed({"model_type": "mixtral", "num_experts": 4})

    assert found is not None
    assert (found["num_experts"], found["num_local_experts"]) == (4, 4)


@pytest.mark.parametrize(
    "config",
    [
        pytest.param({"model_type": "acme"}, id="a type"),
        pytest.param({}, id="no type"),
        pytest.param(
            {"model_type": "qwen3_vl", "text_config": {"model_type": "acme"}}, id="a part's type"
        ),
    ],
)
def test_type_that_transformers_does_not_have_stays_open(config: dict[str, object]) -> None:
    """Nothing is known of what its class adds."""
    assert completed(config) is None
