"""Records of an interpreted program: of `dataclasses`, of `msgspec`, and with names for items."""

from __future__ import annotations

import ast
import typing

from backend_caps.engines.source.instances import library_class
from backend_caps.engines.source.objects import Objects
from backend_caps.engines.source.values import (
    ABSENT,
    Args,
    ClassValue,
    External,
    FieldDefault,
    Frame,
    FunctionValue,
    Hook,
    Instance,
    Named,
    Native,
    Unknown,
)


def _dataclass(_run: Objects, args: Args, named: Named) -> Native:
    def mark(cls: Native) -> Native:
        cls.is_record, cls.is_frozen = True, named.get("frozen") is True
        return cls

    return mark(args[0]) if args else Hook(lambda _run, own, _named: mark(own[0]))


def _field(_run: Objects, _args: Args, named: Named) -> Native:
    factory = named.get("default_factory")
    if factory is _ABSENT:  # `MISSING`, which is passed on
        factory = None
    default = named.get("default", _ABSENT)
    if default is _ABSENT:
        default = ABSENT
    is_compared = named.get("compare") is not False
    return FieldDefault(default, factory, init=named.get("init") is not False, compare=is_compared)


class Field:
    """A field of a record, as `dataclasses.fields` and `msgspec.structs.fields` list it."""

    def __init__(self, run: Objects, cls: ClassValue, name: str) -> None:
        self.name = name
        stated = cls.lookup(name) if cls.has(name) else _ABSENT
        self.default: Native = stated
        self.default_factory: Native = _ABSENT
        self.init = self.compare = True
        if isinstance(stated, FieldDefault):
            has = stated.factory is not None
            self.default = _ABSENT if has or stated.value is ABSENT else stated.value
            self.default_factory = stated.factory if has else _ABSENT
            self.init, self.compare = stated.init, stated.compare
        elif isinstance(stated, list | dict | set):
            self.default, self.default_factory = _ABSENT, Hook(lambda *_: stated.copy())
        self._run, self._cls = run, cls

    @property
    def type(self) -> Native:
        """The field's annotation."""
        return _evaluated(self._run, self._cls, self.name)


_ABSENT = object()
"""Where a field has no default: `dataclasses.MISSING` and `msgspec.NODEFAULT`."""


def _fields(run: Objects, args: Args, _named: Named) -> Native:
    cls = args[0].cls if isinstance(args[0], Instance) else args[0]
    if not isinstance(cls, ClassValue):
        return Unknown("fields(...)")
    own = (each for each in cls.record_fields() if not cls.is_passed_on(each))
    return tuple(Field(run, cls, name) for name in own)


def _is_dataclass(_run: Objects, args: Args, _named: Named) -> Native:
    cls = args[0].cls if isinstance(args[0], Instance) else args[0]
    return isinstance(cls, ClassValue) and cls.is_record


def _replace(run: Objects, args: Args, named: Named) -> Native:
    value = args[0]
    if not isinstance(value, Instance):
        return Unknown("replace(...)")
    fields = (Field(run, value.cls, name) for name in value.cls.record_fields())
    own = {each.name: value.attributes[each.name] for each in fields if each.init}
    return run.call(value.cls, **{**own, **named})


def _as_dict(run: Objects, args: Args, _named: Named) -> Native:
    value = args[0]
    if not isinstance(value, Instance):
        return Unknown("asdict(...)")
    return {name: _plain(run, value.attributes[name]) for name in value.cls.record_fields()}


def _plain(run: Objects, value: Native) -> Native:
    if isinstance(value, Instance) and value.cls.is_record:
        return _as_dict(run, [value], {})
    if isinstance(value, list | tuple):
        return type(value)(_plain(run, each) for each in value)
    return value


def _evaluated(run: Objects, cls: ClassValue, name: str) -> Native:
    node, frame = cls.record_fields()[name]
    return run.value(node, frame)


def _type_hints(run: Objects, args: Args, _named: Named) -> Native:
    cls = args[0]
    if not isinstance(cls, ClassValue):
        return Unknown("get_type_hints(...)")
    return {name: _evaluated(run, cls, name) for name in cls.record_fields()}


def _defstruct(run: Objects, args: Args, named: Named) -> Native:
    """Make a struct's class as `msgspec.defstruct` does."""
    name, fields, *_ = args
    struct = External("msgspec.Struct")
    bases = named.get("bases") or (struct,)
    made = ClassValue(name, tuple(bases), dict(named.get("namespace") or {}), _home(run, named))
    made.is_record = True
    for each in fields:
        own = each if isinstance(each, tuple) else (each, typing.Any)
        made.annotations[own[0]] = _stated(own[1], made)
        if len(own) > 2:  # noqa: PLR2004 - name, type and default
            made.names[own[0]] = own[2]
        else:
            made.names.pop(own[0], None)
    return made


def _home(run: Objects, named: Named) -> Native:
    functions = [v for v in (named.get("namespace") or {}).values() if isinstance(v, FunctionValue)]
    return functions[0].frame.module if functions else next(iter(run.modules.values()))


def _stated(value: Native, cls: ClassValue) -> Native:
    """Write an annotation that is evaluated already as one that is not."""
    name = ast.Name(id="annotation", ctx=ast.Load())
    return name, Frame(cls.module, {"annotation": value}, is_class_body=False)


def _struct_dict(_run: Objects, args: Args, _named: Named) -> Native:
    value = args[0]
    if not isinstance(value, Instance):
        return Unknown("asdict(...)")
    return {name: value.attributes[name] for name in value.cls.record_fields()}


def _named_tuple_items(owner: Instance) -> tuple[Native, ...]:
    return tuple(owner.attributes.values())


def _tuple_replace(run: Objects, args: Args, named: Named) -> Native:
    owner = args[0]
    return run.call(owner.cls, **{**owner.attributes, **named})


_OF_TUPLE: dict[str, Native] = {
    "_asdict": Hook(lambda _run, args, _named: dict(args[0].attributes)),
    "_replace": Hook(_tuple_replace),
    "__iter__": Hook(lambda _run, args, _named: _named_tuple_items(args[0])),
    "__len__": Hook(lambda _run, args, _named: len(args[0].attributes)),
    "__getitem__": Hook(lambda run, args, _named: run.item(_named_tuple_items(args[0]), args[1])),
    "__hash__": Hook(lambda _run, args, _named: hash(args[0])),
}
NAMED_TUPLE = library_class("typing.NamedTuple", _OF_TUPLE, is_record=True)
"""The base of `NamedTuple` classes."""


_ITEMS = "\0items"


def _init_dict(run: Objects, args: Args, named: Named) -> Native:
    owner, *given = args
    owner.attributes[_ITEMS] = run.apply(dict, given, named)


def _of_dict(name: str) -> Hook:
    def call(run: Objects, args: Args, named: Named) -> Native:
        owner, *others = args
        return run.apply(getattr(owner.attributes[_ITEMS], name), others, named)

    return Hook(call)


MAPPING = library_class(
    "builtins.dict",
    {
        "__init__": Hook(_init_dict),
        "__getitem__": Hook(
            lambda run, args, _named: run.item(args[0].attributes[_ITEMS], args[1])
        ),
        "__setitem__": Hook(
            lambda run, args, _named: run.set_item(args[0].attributes[_ITEMS], args[1], args[2])
        ),
        "__contains__": Hook(
            lambda run, args, _named: run.contains(args[0].attributes[_ITEMS], args[1])
        ),
        "__iter__": Hook(lambda _run, args, _named: list(args[0].attributes[_ITEMS])),
        "__len__": Hook(lambda _run, args, _named: len(args[0].attributes[_ITEMS])),
        **{
            name: _of_dict(name)
            for name in ("get", "items", "keys", "values", "update", "pop", "setdefault", "copy")
        },
    },
)
"""The base, beside `dict` itself, of classes that derive from `dict`."""


def native_bases(base: Native) -> tuple[Native, ...]:
    """Return what a class derives from by a base: beside `dict` itself, what its methods do."""
    origin: Native = typing.get_origin(base)
    return (MAPPING, dict) if dict in (base, origin) else (base,)


RECORDS: dict[str, Native] = {
    "dataclasses.dataclass": Hook(_dataclass),
    "dataclasses.field": Hook(_field),
    "dataclasses.fields": Hook(_fields),
    "dataclasses.is_dataclass": Hook(_is_dataclass),
    "dataclasses.replace": Hook(_replace),
    "dataclasses.asdict": Hook(_as_dict),
    "dataclasses.MISSING": _ABSENT,
    "msgspec.field": Hook(_field),
    "msgspec.defstruct": Hook(_defstruct),
    "msgspec.structs.fields": Hook(_fields),
    "msgspec.structs.asdict": Hook(_struct_dict),
    "msgspec.structs.replace": Hook(_replace),
    "msgspec.Struct.__setattr__": Hook(
        lambda run, args, _n: run.set_raw(args[0], args[1], args[2])
    ),
    "msgspec.NODEFAULT": _ABSENT,
    "typing.NamedTuple": NAMED_TUPLE,
    "typing.get_type_hints": Hook(_type_hints),
}
"""What names of these libraries mean."""
