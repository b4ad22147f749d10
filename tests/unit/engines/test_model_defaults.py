"""What transformers' classes add to a model's file."""

from __future__ import annotations

import pytest

from backend_caps.engines.model_defaults import COMPUTED, completed

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


def test_value_without_a_formula_is_not_known() -> None:
    """It is there, and what it is depends on the class's code."""
    found = completed({"model_type": "qwen3"})

    assert found is not None
    assert found["layer_types"] is COMPUTED
    assert repr(COMPUTED) == "computed"


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


def test_rotary_parameters_of_each_type_of_layer_are_not_known() -> None:
    """Which older value goes to which type stands in the class's code."""
    found = completed({"model_type": "gemma3_text", "rope_theta": 1})

    assert found is not None
    assert found["rope_parameters"] is COMPUTED


def test_parts_are_completed_by_their_own_class() -> None:
    """Also one that the file leaves out, or that states no type."""
    found = completed({"model_type": "qwen3_vl", "text_config": {"hidden_size": 64}})

    assert found is not None
    text, vision = found["text_config"], found["vision_config"]
    assert isinstance(text, dict)
    assert isinstance(vision, dict)
    assert (text["hidden_size"], text["model_type"]) == (64, "qwen3_vl_text")
    assert vision["depth"] == 27


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
