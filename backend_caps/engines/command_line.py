"""The words of a server's command line: variables before it, and the model that it names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import dropwhile, takewhile
from pathlib import Path

import yaml

from backend_caps.engines.model import MODEL_OPTIONS
from backend_caps.resolution.engine import value_in, without_options

_SERVE = ("vllm", "serve")
"""What starts vLLM's server, with the model behind it."""
CONFIG_OPTIONS = ("--config",)
"""The option that names a YAML file of options."""
_VARIABLE = re.compile(r"[A-Za-z_]\w*=")


def named_model(words: Sequence[str]) -> str | None:
    """Return the model that a command line names: behind `vllm serve`, or of `--model`.

    Else it is the one of the file that `--config` names.
    """
    model, rest = _split(words)
    return model or value_in(rest, MODEL_OPTIONS) or _model_of(value_in(rest, CONFIG_OPTIONS))


def _model_of(path: str | None) -> str | None:
    """Return the model that a file of options names; None where it cannot be read."""
    if path is None:
        return None
    try:
        found = yaml.safe_load(Path(path).read_bytes())
    except (OSError, yaml.YAMLError):
        return None
    return str(found["model"]) if isinstance(found, dict) and "model" in found else None


def without_model(words: Sequence[str]) -> Sequence[str]:
    """Leave out what starts the program, with its variables, and the model."""
    _, rest = _split(words)
    return without_options(rest, MODEL_OPTIONS)


def locked_words(words: Sequence[str]) -> tuple[str, ...]:
    """Leave out what is not the same on every machine: what starts the program, and the model."""
    return (*takewhile(_VARIABLE.match, words), *without_model(words))


def variables_of(words: Sequence[str]) -> dict[str, str]:
    """Return the environment variables that stand as `NAME=value` before a command line."""
    own = (each.partition("=") for each in takewhile(_VARIABLE.match, words))
    return {name: value for name, _, value in own}


def _split(words: Sequence[str]) -> tuple[str | None, Sequence[str]]:
    """Return the model behind `vllm serve`, where one stands there, and the options."""
    words = [*dropwhile(_VARIABLE.match, words)]
    if tuple(words[:2]) != _SERVE:
        return None, words
    rest = words[2:]
    return (rest[0], rest[1:]) if rest and not rest[0].startswith("-") else (None, rest)
