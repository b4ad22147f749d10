"""Writes the table of what transformers' configurations add to a model's file.

Run by a Python that has transformers, such as that of an engine's environment:
`python tests/upstream/transformers_defaults.py --write`; without the option the stored table is
compared. Types are those of language models, with text alone or with images, and of their parts.
"""

from __future__ import annotations

import ast
import inspect
import json
import logging
import re
import sys
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import transformers
from transformers import PretrainedConfig
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

TABLE = Path(__file__).parents[2] / "backend_caps" / "engines" / "transformers.json"
_MAPPINGS = (
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES",
)
_SIZES: Mapping[str, tuple[int, ...]] = {
    "hidden_size": (1024, 3072, 6144),
    "num_attention_heads": (8, 24, 48),
    "num_key_value_heads": (2, 4, 8),
    "num_hidden_layers": (12, 40, 64),
    "intermediate_size": (3000, 5000, 7000),
    "head_dim": (32, 96, 160),
    "max_position_embeddings": (1000, 3000, 5000),
    "vocab_size": (5000, 7000, 9000),
}
"""Sizes that are given in turn, to see which other values a class computes from them."""
_FORMULAS = ("hidden_size // num_attention_heads", *_SIZES)
_OLDER_ROPE: Mapping[str, Any] = {
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    "rope_theta": 12345.0,
    "rope_local_base_freq": 54321.0,
}
"""What older files state of rotary embeddings, which newer ones state by type of layer."""
_OF_A_FILE = frozenset({"model_type", "transformers_version"})


def _values(config: PretrainedConfig) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(config).items()
        if not name.startswith("_") and name not in _OF_A_FILE
    }


def _made(cls: type, **given: object) -> dict[str, Any] | None:
    """Return a configuration's values; None where it refuses what is given."""
    try:
        return _values(cls(**given))
    except Exception:  # noqa: BLE001 - each class checks in its own way
        return None


def _computed(cls: type, own: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    """List the values that change with a size, each with the formula that holds."""
    found = set()
    for size in _SIZES.keys() & own.keys():
        for number in _SIZES[size]:
            other = _made(cls, **{size: number}) or {}
            found |= {each for each in own if each in other and other[each] != own[each]} - {size}
    for name in sorted(found):
        if not isinstance(own[name], PretrainedConfig):
            holds = (each for each in _FORMULAS if each != name and _holds(cls, own, name, each))
            yield name, next(holds, None)


def _holds(cls: type, own: Mapping[str, Any], name: str, formula: str) -> bool:
    """Return whether a formula gives a value for all sizes that the class takes."""
    size, _, divisor = formula.partition(" // ")
    tried = 0
    for at in range(3):
        given = {each: _SIZES[each][at] for each in _SIZES if each in own and each != name}
        other = _made(cls, **given)
        if other is None:
            continue
        tried += 1
        found, by = other.get(size), other.get(divisor, 1)
        if not isinstance(found, int) or not isinstance(by, int) or found // by != other.get(name):
            return False
    return tried > 0


def _source(cls: type[PretrainedConfig]) -> str:
    """Return a class's `__post_init__`, with no aliases; an empty text for that of the base."""
    method = inspect.getattr_static(cls, "__post_init__")
    if method is inspect.getattr_static(PretrainedConfig, "__post_init__"):
        return ""
    tree = ast.parse(textwrap.dedent(inspect.getsource(method)))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self":
            node.attr = cls.attribute_map.get(node.attr, node.attr)
    return ast.unparse(tree)


def _fields(cls: type) -> set[str]:
    """List what a class's constructor takes before `__post_init__`, which sets all others."""
    return {*getattr(cls, "__dataclass_fields__", {})}


def _stated(
    cls: type, names: Iterable[str], own: Mapping[str, Any]
) -> Iterator[tuple[str, object]]:
    """List the values that fields are given, where `__post_init__` makes others of them."""
    fields = getattr(cls, "__dataclass_fields__", {})
    for name in sorted(names):
        value = fields[name].default if name in fields else None
        is_plain = isinstance(value, str | int | float | None)
        if is_plain and name in fields and name != "rope_parameters" and value != own[name]:
            yield name, value


def _rope(cls: type, own: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """List the types of layers whose rotary embedding takes each of the older names."""
    default: Any = own.get("rope_parameters")
    is_by_type = isinstance(default, dict) and any(isinstance(v, dict) for v in default.values())
    for name, given in _OLDER_ROPE.items() if is_by_type else ():
        stated = given if isinstance(given, dict) else {"rope_theta": given}
        found = (_made(cls, **{name: given}) or {}).get("rope_parameters")
        if not isinstance(found, dict) or found.keys() != default.keys():
            continue
        takes = [label for label, each in found.items() if each != default[label]]
        if all(found[label] == {**default[label], **stated} for label in takes):
            yield name, takes


def _read(model_type: str) -> dict[str, Any] | None:
    """Describe the class of a type; None where it is not made without values."""
    try:
        cls = CONFIG_MAPPING[model_type]
    except Exception:  # noqa: BLE001 - of packages that are missing
        return None
    own = _made(cls)
    if own is None:
        return None
    base = _values(PretrainedConfig())
    parts = {n: v.model_type for n, v in own.items() if isinstance(v, PretrainedConfig)}
    computed = dict(_computed(cls, own))
    defaults = {
        name: value
        for name, value in own.items()
        if name not in {*parts, *computed} and (name not in base or base[name] != value)
    }
    found = {
        "defaults": json.loads(json.dumps(defaults, default=lambda _: None)),
        "computed": computed,
        "parts": parts,
        "aliases": dict(cls.attribute_map),
        "source": _source(cls),
        "rope": dict(_rope(cls, own)),
        "set": sorted({*defaults, *computed} - _fields(cls)),
        "stated": dict(_stated(cls, {*defaults, *computed} - base.keys(), own)),
    }
    return {key: value for key, value in found.items() if value or key == "defaults"}


def table() -> dict[str, Any]:
    """Describe every type of language model, and their parts."""
    waiting = {name for each in _MAPPINGS for name in getattr(modeling_auto, each, {})}
    types: dict[str, Any] = {}
    while waiting:
        name = waiting.pop()
        found = _read(name)
        if found is not None:
            types[name] = found
            waiting |= set(found.get("parts", {}).values()) - types.keys()
    return {
        "transformers": transformers.__version__,
        "base": _values(PretrainedConfig()),
        "types": dict(sorted(types.items())),
    }


def text() -> str:
    """Write the table, each type in a line of its own."""
    whole = json.dumps(table(), separators=(",", ":"))
    return re.sub(r'(?<=[{,])(?="[\w.-]+":\{"defaults":)', "\n", whole) + "\n"


def main() -> None:
    """Compare the stored table, or write it; exit with 1 where it differs."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    found = text()
    if "--write" in sys.argv:
        TABLE.write_text(found, "utf-8")
    elif TABLE.read_text("utf-8") != found:
        sys.exit(f"{TABLE.name} is stale; renew it: {' '.join(sys.argv)} --write")


if __name__ == "__main__":
    main()
