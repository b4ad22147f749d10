"""What transformers' classes add to a `config.json`, from a table of their defaults.

The table is written by `tests/upstream/transformers_defaults.py`, from the classes themselves. What
a class computes in `__post_init__` is followed in its source (`model_classes`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

from backend_caps.engines.model_classes import COMPUTED, NestedConfig, Values, after_construction

_THETA, _SCALING, _ROPE = "rope_theta", "rope_scaling", "rope_parameters"
_DTYPE, _OLD_DTYPE = "dtype", "torch_dtype"


@cache
def _table() -> Mapping[str, Any]:
    table: Mapping[str, Any] = json.loads(
        Path(__file__).with_name("transformers.json").read_bytes()
    )
    return table


def version_of_table() -> str:
    """Return the version of transformers that the table is of."""
    return str(_table()["transformers"])


def completed(config: Values, model_type: object = None) -> Values | None:
    """Add what transformers' class of a configuration has beside the file's own values.

    Args:
        config: the content of a `config.json`, or a part of one.
        model_type: its type, where it states none itself.

    Returns:
        All values that the loaded configuration has, `COMPUTED` ones among them; None where the
        type, or that of a part, is not in the table.
    """
    known = _table()["types"].get(config.get("model_type", model_type))
    if known is None:
        return None
    aliases: Mapping[str, str] = known.get("aliases", {})
    given = {aliases.get(name, name): value for name, value in config.items()}
    values: dict[str, object] = {**_table()["base"], **known["defaults"], **given}
    for name, formula in known.get("computed", {}).items():
        if given.get(name) is None:
            values[name] = _computed(formula, values)
    for name, part_type in known.get("parts", {}).items():
        part = values.get(name)
        own = completed(part if isinstance(part, dict) else {}, part_type)
        if own is None:
            return None
        values[name] = own
    values |= _of_class(known, given)
    _put_rope(values, given, known.get("rope", {}))
    if _THETA in known["defaults"]:
        values[_THETA] = given.get(_THETA, known["defaults"][_THETA])
    values[_DTYPE] = values[_OLD_DTYPE] = given.get(_DTYPE, given.get(_OLD_DTYPE))
    values |= {alias: values[name] for alias, name in aliases.items() if name in values}
    return {"model_type": model_type, **values}


def _of_class(known: Mapping[str, Any], given: Values) -> Values:
    """Return what a class's own code makes of its fields, and of what a file has beside them."""
    if "source" not in known:
        return {}
    computed, parts = known.get("computed", {}), known.get("parts", {})
    stated = {**dict.fromkeys([*computed, *parts]), **known.get("stated", {})}
    defaults = {**_table()["base"], **known["defaults"], **stated}
    fields = {name: given.get(name, value) for name, value in defaults.items()}
    taken = {*fields, "model_type"} - {*known.get("set", ())}
    others = {name: value for name, value in given.items() if name not in taken}
    own = {name: _part(part_type) for name, part_type in parts.items()}
    found = after_construction(known["source"], fields, own, others)
    # Where it is not known, a formula of the table may tell.
    return {n: value for n, value in found.items() if value is not COMPUTED or n not in computed}


def _part(model_type: str) -> NestedConfig:
    known = _table()["types"][model_type]
    fields = [*known["defaults"], *known.get("computed", {}), *known.get("parts", {})]
    return NestedConfig(partial(completed, model_type=model_type), fields)


def _computed(formula: str | None, values: Values) -> object:
    """Compute `one` or `one // other` of the values; `COMPUTED` where one is not known."""
    name, _, divisor = (formula or "").partition(" // ")
    found = values.get(name, COMPUTED)
    if not divisor:
        return found
    by = values.get(divisor)
    return found // by if isinstance(found, int) and isinstance(by, int) and by else COMPUTED


def _put_rope(values: dict[str, object], given: Values, older: Mapping[str, list[str]]) -> None:
    """Merge older names of the rotary embedding's parameters into the newer, as loading does.

    Args:
        values: of the configuration, which are changed.
        given: by the file.
        older: the types of layers that take the value of an older name, where they have their own.
    """
    default = values.get(_ROPE)
    if not isinstance(default, dict) or _ROPE in given:
        return
    theta, scaling = values.pop(_THETA, None), given.get(_SCALING)
    if any(isinstance(each, dict) for each in default.values()):  # one for each type of layer
        values[_ROPE] = values[_SCALING] = _by_type(default, given, older)
        return
    own = {**default, **(scaling if isinstance(scaling, dict) else {})}
    if theta is not None:
        own[_THETA] = theta
    own["rope_type"] = own["type"] = own.get("rope_type", own.get("type"))
    if isinstance(scaling, dict) and "rope_type" not in scaling and "type" in scaling:
        own["rope_type"] = own["type"] = scaling["type"]
    values[_ROPE] = values[_SCALING] = own


def _by_type(default: Mapping[str, Any], given: Values, older: Mapping[str, list[str]]) -> object:
    """Give the rotary embeddings of each type of layer what older names state of them."""
    found = {label: {**own} for label, own in default.items()}
    for name in (each for each, value in given.items() if "rope" in each and value is not None):
        value = given[name]
        stated = value if isinstance(value, dict) else {_THETA: value}
        if name not in older or (isinstance(value, dict) and "rope_type" not in value):
            return COMPUTED
        for label in older[name]:
            found[label].update(stated)
    return found
