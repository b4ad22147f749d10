"""What transformers' classes add to a `config.json`, from a table of their defaults.

The table is written by `tests/upstream/transformers_defaults.py`, from the classes themselves.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

_Values = Mapping[str, object]


class _Computed:
    """A value that a class computes from others, by no formula that is known here."""

    def __repr__(self) -> str:
        return "computed"


COMPUTED: Final = _Computed()
"""Stands for a value that is there, and is not known."""
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


def completed(config: _Values, model_type: object = None) -> _Values | None:
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
    _put_rope(values, given)
    values[_DTYPE] = values[_OLD_DTYPE] = given.get(_DTYPE, given.get(_OLD_DTYPE))
    values |= {alias: values[name] for alias, name in aliases.items() if name in values}
    return {"model_type": model_type, **values}


def _computed(formula: str | None, values: _Values) -> object:
    """Compute `one` or `one // other` of the values; `COMPUTED` where one is not known."""
    name, _, divisor = (formula or "").partition(" // ")
    found = values.get(name, COMPUTED)
    if not divisor:
        return found
    by = values.get(divisor)
    return found // by if isinstance(found, int) and isinstance(by, int) and by else COMPUTED


def _put_rope(values: dict[str, object], given: _Values) -> None:
    """Merge older names of the rotary embedding's parameters into the newer, as loading does."""
    default = values.get(_ROPE)
    if not isinstance(default, dict) or _ROPE in given:
        return
    theta, scaling = values.pop(_THETA, None), given.get(_SCALING)
    if any(isinstance(each, dict) for each in default.values()):  # one for each type of layer
        values[_ROPE] = values[_SCALING] = COMPUTED
        return
    own = {**default, **(scaling if isinstance(scaling, dict) else {})}
    if theta is not None:
        own[_THETA] = theta
    own["rope_type"] = own["type"] = own.get("rope_type", own.get("type"))
    if isinstance(scaling, dict) and "rope_type" not in scaling and "type" in scaling:
        own["rope_type"] = own["type"] = scaling["type"]
    values[_ROPE] = values[_SCALING] = own
