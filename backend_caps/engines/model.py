"""The configuration of a model that a server is started with: a `config.json`, or a stored one.

The stored ones are of common architectures, complete with transformers' own defaults.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from backend_caps.engines.reading import EngineError

_STORED = Path(__file__).with_name("models")
_FILE = "config.json"
IS_COMPLETE = "_complete"
"""The key that a configuration has to which transformers' defaults have been added."""
_IDS = "_ids"
"""The key of a stored configuration with the names of its models on the hub."""
OWN_KEYS = frozenset({IS_COMPLETE, _IDS})
"""Keys that are ours, and not of a model's file."""
STORED_PATH = "backend-caps/models/"
"""What a stored configuration is named by where a path is wanted."""
MODEL_OPTIONS = frozenset({"--model-path", "--model"})
"""The options of a server that name its model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model by its configuration."""

    name: str
    """As it was named: a stored one's name, or a path."""
    config: Mapping[str, object]


@cache
def stored_models() -> Sequence[str]:
    """List the names of the stored configurations."""
    return sorted(file.stem for file in _STORED.glob("*.json"))


@cache
def _stored_by_id() -> Mapping[str, str]:
    """List the stored names by the names of their models on the hub."""
    return {
        each: name
        for name in stored_models()
        for each in json.loads((_STORED / f"{name}.json").read_bytes())[_IDS]
    }


def model_of(text: str) -> Model:
    """Read the configuration of a model.

    Args:
        text: the name of a stored one, or of its model on the hub; a folder with a `config.json`,
            or the path of such a file.

    Raises:
        EngineError: there is none of that name, or it cannot be read.
    """
    try:
        config = json.loads(_file_of(text).read_bytes())
    except (OSError, ValueError) as error:
        cause = " ".join(str(error).split())
        raise EngineError(
            "model-unreadable",
            f"no configuration of a model is read from {text!r}: {cause}. Expected a folder with "
            f"a {_FILE}, the path of such a file, or one of: {', '.join(stored_models())}.",
        ) from error
    if not isinstance(config, dict) or not config.get("architectures"):
        raise EngineError(
            "model-unreadable",
            f"{text!r} holds no configuration of a model: it names no architectures. Expected "
            "what `save_pretrained` writes.",
        )
    return Model(name=text, config=config)


def config_of(path: str) -> Mapping[str, object] | None:
    """Return the configuration behind a path or a stored name; None where there is none."""
    try:
        return model_of(path).config
    except EngineError:
        return None


def _file_of(text: str) -> Path:
    name = text.removeprefix(STORED_PATH)
    stored = _stored_by_id().get(name, name)
    if stored in stored_models():
        return _STORED / f"{stored}.json"
    path = Path(text)
    return path / _FILE if path.is_dir() else path


@contextmanager
def in_folders(
    lines: Sequence[Sequence[str]], model: Model
) -> Iterator[tuple[Path, list[list[str]], str]]:
    """Write the stored configurations that command lines name into folders of their own.

    Yields:
        The folder around them, the command lines with their paths in place of names, and the path
        of the model's folder.
    """
    with tempfile.TemporaryDirectory(prefix="backend-caps-models-") as text:
        around = Path(text)
        named = [
            with_paths(words, lambda name: _written(around, model_of(name))) for words in lines
        ]
        own = Path(model.name)
        yield around, named, str(own) if own.is_dir() else _written(around, model)


def with_paths(words: Sequence[str], path_of: Callable[[str], str]) -> list[str]:
    """Replace the stored names of models in a command line, those in its JSON too.

    Args:
        words: the command line.
        path_of: returns what stands for a stored name.
    """
    return [_with_path(word, path_of) for word in words]


def as_path(name: str) -> str:
    """Name a stored configuration by a path: a name with a dot may be a class to an engine."""
    return f"{STORED_PATH}{name}"


def _with_path(word: str, path_of: Callable[[str], str]) -> str:
    option, equals, value = word.rpartition("=")
    if _is_stored(value):
        return f"{option}{equals}{path_of(value)}"
    try:
        held = json.loads(value) if value.startswith("{") else None
    except ValueError:
        return word
    named = _in_values(held, path_of)
    return word if named == held else f"{option}{equals}{json.dumps(named)}"


def _in_values(held: object, path_of: Callable[[str], str]) -> object:
    if isinstance(held, dict):
        return {name: _in_values(each, path_of) for name, each in held.items()}
    return path_of(held) if isinstance(held, str) and _is_stored(held) else held


def _is_stored(name: str) -> bool:
    return name in stored_models() or name in _stored_by_id()


def _written(around: Path, model: Model) -> str:
    folder = around / model.name.removesuffix(".json").lstrip("/")
    folder.mkdir(parents=True, exist_ok=True)
    values = {key: value for key, value in model.config.items() if key not in OWN_KEYS}
    (folder / _FILE).write_text(json.dumps(values), "utf-8")
    return str(folder)
