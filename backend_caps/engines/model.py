"""The configuration of the model that a server is started with: a `config.json`, or a stored one.

The stored ones are of common architectures, complete with transformers' own defaults.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from backend_caps.engines.reading import EngineError

_STORED = Path(__file__).with_name("models")
_FILE = "config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model by its configuration."""

    name: str
    """As it was named: a stored one's name, or a path."""
    config: Mapping[str, object]

    def __call__(self, path: str) -> Mapping[str, object] | None:
        """Return the configuration of a path, if it is this model's."""
        return self.config if path == self.name else None


def stored_models() -> Sequence[str]:
    """List the names of the stored configurations."""
    return sorted(file.stem for file in _STORED.glob("*.json"))


def model_of(text: str) -> Model:
    """Read the configuration of a model.

    Args:
        text: the name of a stored one, a folder with a `config.json`, or the path of such a file.

    Raises:
        EngineError: there is none of that name, or it cannot be read.
    """
    path = Path(text)
    if text in stored_models():
        file = _STORED / f"{text}.json"
    elif path.is_dir():
        file = path / _FILE
    else:
        file = path
    try:
        config = json.loads(file.read_bytes())
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
