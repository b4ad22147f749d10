"""The configuration of a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backend_caps.engines.model import (
    IS_COMPLETE,
    OWN_KEYS,
    as_path,
    config_of,
    in_folders,
    model_of,
    stored_models,
    with_paths,
)
from backend_caps.engines.reading import EngineError

_CONFIG = {"architectures": ["Small"], "model_type": "small"}


@pytest.mark.parametrize("name", stored_models())
def test_stored_configuration_is_complete(name: str) -> None:
    """Each stored one has transformers' defaults, so that what it lacks is missing."""
    config = model_of(name).config

    assert config[IS_COMPLETE] is True
    assert config["architectures"]


def test_model_is_a_folder_or_a_file(tmp_path: Path) -> None:
    """A folder's config.json is read, or the file that is named."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps(_CONFIG))

    assert model_of(str(tmp_path)).config == _CONFIG
    assert model_of(str(file)).config == config_of(str(file)) == _CONFIG


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(None, "no configuration of a model is read from", id="missing"),
        pytest.param("{", "Expected a folder with a config.json", id="no JSON"),
        pytest.param("{}", "it names no architectures", id="of nothing"),
        pytest.param("[]", "it names no architectures", id="a list"),
    ],
)
def test_model_that_cannot_be_read_is_an_error(
    tmp_path: Path, text: str | None, words: str
) -> None:
    """What is wrong is named, with what was expected."""
    if text is not None:
        (tmp_path / "config.json").write_text(text)

    with pytest.raises(EngineError, match=words):
        model_of(str(tmp_path))
    assert config_of(str(tmp_path)) is None


def test_stored_configurations_are_written_into_folders(tmp_path: Path) -> None:
    """A process reads configurations from folders; a folder that is named stays."""
    (tmp_path / "config.json").write_text(json.dumps(_CONFIG))
    argv = ["--draft=gemma-2-9b", "--model", "llama-3.1-8b", "--tp", "2"]

    with in_folders([argv], model_of(str(tmp_path))) as (around, [words], path):
        assert path == str(tmp_path)
        assert words == [
            f"--draft={around}/gemma-2-9b",
            "--model",
            f"{around}/llama-3.1-8b",
            *argv[3:],
        ]
        written = json.loads((around / "gemma-2-9b" / "config.json").read_text())
    stored = model_of("google/gemma-2-9b").config
    assert written == {name: each for name, each in stored.items() if name not in OWN_KEYS}


@pytest.mark.parametrize(
    ("word", "named"),
    [
        pytest.param("gemma-2-9b", "of/gemma-2-9b", id="a word"),
        pytest.param("--draft=google/gemma-2-9b", "--draft=of/google/gemma-2-9b", id="on the hub"),
        pytest.param(
            '{"a": {"model": "gemma-2-9b"}}', '{"a": {"model": "of/gemma-2-9b"}}', id="JSON"
        ),
        pytest.param('--c={"model": "gemma-2-9b"}', '--c={"model": "of/gemma-2-9b"}', id="both"),
        pytest.param('{"model":"acme"}', '{"model":"acme"}', id="JSON of no stored one"),
        pytest.param("{", "{", id="no JSON"),
    ],
)
def test_stored_names_in_a_command_line_are_replaced(word: str, named: str) -> None:
    """Where they are words, values of options, or values of JSON."""
    assert with_paths([word], lambda name: f"of/{name}") == [named]


def test_stored_configuration_has_a_path() -> None:
    """By it, as by its name, the configuration is found."""
    assert config_of(as_path("llama-3.1-8b")) == config_of("llama-3.1-8b")


def test_file_of_a_configuration_is_written_into_a_folder(tmp_path: Path) -> None:
    """A process does not read a file of another name."""
    file = tmp_path / "small.json"
    file.write_text(json.dumps(_CONFIG))

    with in_folders([], model_of(str(file))) as (around, _, path):
        assert path == f"{around}{str(file).removesuffix('.json')}"
        assert json.loads((Path(path) / "config.json").read_text()) == _CONFIG
