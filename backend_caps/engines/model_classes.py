"""What the `__post_init__` of transformers' configuration classes computes, by its source.

The table of their defaults has the sources; they are interpreted, and nothing of them is executed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from textwrap import indent
from typing import Final

from backend_caps.engines.source.calls import NotFollowedError
from backend_caps.engines.source.files import Tree
from backend_caps.engines.source.index import Index
from backend_caps.engines.source.interpreter import Interpreter
from backend_caps.engines.source.library import library
from backend_caps.engines.source.objects import Objects
from backend_caps.engines.source.uncertainty import has_unknown, merge
from backend_caps.engines.source.values import Args, Hook, Instance, Named, Native, Raised, Unknown

Values = Mapping[str, object]
"""The values of a configuration, by name."""


class _Computed:
    """A value that a class computes from others, in a way that is not followed."""

    def __repr__(self) -> str:
        return "computed"


COMPUTED: Final = _Computed()
"""Stands for a value that is there, and is not known."""
_METHOD = "__post_init__"
_BASE = f"transformers.PreTrainedConfig.{_METHOD}"
_HEAD = """
import inspect, math, transformers
from collections.abc import Mapping, Sequence

class Part:
    pass

class Own(transformers.PreTrainedConfig):
"""
"""The module that a `__post_init__` is put into. `Own` is its class, of which other attributes are
not known; `Part` stands for the configurations in it, which have none but those they are given."""
_SIGNATURE = "inspect.signature"
_DEEPEST = 6
"""As deep as values of a configuration nest, and deeper."""


@dataclass(frozen=True, slots=True)
class NestedConfig:
    """A configuration that is a value of another one."""

    complete: Callable[[Values], Values | None]
    """Adds what its class has beside the values that it is given; None where that is not known."""
    fields: Sequence[str]
    """What its constructor takes."""


def after_construction(
    source: str, fields: Values, parts: Mapping[str, NestedConfig], others: Values
) -> Values:
    """Return the values that a configuration has when it is made, `COMPUTED` ones among them.

    Args:
        source: the text of the class's `__post_init__`.
        fields: the values that the class's fields are given, its parts among them.
        parts: the fields that are configurations themselves.
        others: what a file has beside them, which `__post_init__` takes by name.

    Returns:
        The values and the parts; none where the class refuses them, or is not followed.
    """
    text = f"{_HEAD}{indent(source, '    ')}\n"
    tree = Tree(package="table", source="table", files={"table/own.py": text.encode()})
    natives = {_BASE: Hook(partial(_after_base, parts)), _SIGNATURE: Hook(lambda _r, a, _n: a[0])}
    run = Interpreter(Index(tree), {**library({}), **natives})
    cls = run.found("table.own.Part")
    made = Instance(run.found("table.own.Own"), _opened(fields))
    made.attributes["_part"] = cls
    made.attributes["sub_configs_defaults"] = {
        name: Instance(cls, {"config_class": Instance(cls, {"__init__": _signature(cls, part)})})
        for name, part in parts.items()
    }
    try:
        run.call(run.attribute(made, _METHOD), **_opened(others))
    except (Raised, NotFollowedError):
        return {}
    del made.attributes["sub_configs_defaults"]
    return _closed(made.attributes)


def _signature(cls: Native, part: NestedConfig) -> Instance:
    return Instance(cls, {"parameters": dict.fromkeys(part.fields)})


def _after_base(
    parts: Mapping[str, NestedConfig], _run: Objects, args: Args, named: Named
) -> Native:
    """Do what the base does: make the parts, and keep what names the class does not take."""
    own = args[0].attributes
    for name, part in parts.items():
        given = own.get(name)
        if isinstance(given, dict | None):
            values = part.complete(given or {})
            own[name] = Unknown(name) if values is None else Instance(own["_part"], _opened(values))
    merge(own, named)


def _opened(values: Values) -> dict[str, Native]:
    """Make what is not known a value that the interpreter carries on."""
    return {name: Unknown(name) if value is COMPUTED else value for name, value in values.items()}


def _closed(attributes: Mapping[Native, Native]) -> Values:
    """Name what the interpreter does not know, and leave out what a class keeps to itself."""
    return {
        name: _closed(value.attributes)
        if isinstance(value, Instance)
        else COMPUTED
        if has_unknown(value, _DEEPEST)
        else value
        for name, value in attributes.items()
        if isinstance(name, str) and not name.startswith("_")
    }
