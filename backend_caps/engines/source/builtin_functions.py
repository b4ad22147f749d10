"""Python's built-in functions, for values of an interpreted program."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from backend_caps.engines.source.uncertainty import (
    either,
    has_unknown,
    is_open,
    may_have_more,
    short,
)
from backend_caps.engines.source.values import (
    ABSENT,
    ClassValue,
    Descriptor,
    External,
    Hook,
    Instance,
    ModuleValue,
    Native,
    Unknown,
)

if TYPE_CHECKING:
    from backend_caps.engines.source.objects import Objects

_Call = Callable[["Objects", Sequence[Native], Mapping[str, Native]], Native]


def _getattr(run: Objects, args: Sequence[Native], _named: Mapping[str, Native]) -> Native:
    owner, name, *default = args
    if isinstance(name, Unknown):
        return Unknown(f"the attribute {name}")
    if default:
        return run.attribute_or(owner, name, default[0])
    return run.attribute(owner, name)


def _hasattr(run: Objects, args: Sequence[Native], _named: Mapping[str, Native]) -> Native:
    owner, name = args
    if isinstance(name, Unknown):
        return Unknown(f"hasattr {name}")
    found = run.attribute_or(owner, name, ABSENT)
    if isinstance(found, External):  # a module of which names are known is there
        return any(each.startswith(f"{found.path}.") for each in run.natives) or Unknown(found.path)
    if isinstance(owner, ModuleValue) and isinstance(found, Unknown) and not owner.may_bind(name):
        return False
    return Unknown(f"hasattr {name}") if isinstance(found, Unknown) else found is not ABSENT


def _setattr(run: Objects, args: Sequence[Native], _named: Mapping[str, Native]) -> Native:
    run.set_attribute(*args)


def _isinstance(run: Objects, args: Sequence[Native], _named: Mapping[str, Native]) -> Native:
    found = run.is_instance(args[0], args[1])
    return Unknown(f"isinstance of {short(args[0])}") if found is None else found


def _issubclass(_run: Objects, args: Sequence[Native], _named: Mapping[str, Native]) -> Native:
    one, others = args[0], args[1] if isinstance(args[1], tuple) else (args[1],)
    if isinstance(one, ClassValue):
        paths = {str(each) for each in one.line if isinstance(each, External)}
        return any(each in one.line or str(each) in paths for each in others)
    if isinstance(one, type) and all(isinstance(each, type) for each in others):
        return issubclass(one, others)
    return False if isinstance(one, type) else Unknown("issubclass")


def _type(_run: Objects, args: Sequence[Native], _named: Mapping[str, Native]) -> Native:
    """Return a value's class, or make a class of a name, bases and attributes."""
    value, *stated = args
    if stated:
        return _made_class(value, *stated)
    if isinstance(value, Instance):
        return value.cls
    return Unknown("type") if isinstance(value, Unknown | External) else type(value)


def _made_class(name: Native, bases: Native, names: Native) -> Native:
    """Make a class that derives from one of the source, in whose module it is put.

    Python puts it where `type` is called, which is not always there.
    """
    own = bases if isinstance(bases, tuple) else ()
    homes = [each for each in own if isinstance(each, ClassValue)]
    if not homes or not isinstance(names, dict):
        return Unknown("type")
    # Of an abstract class the metaclass calls `type`, in the module `abc`.
    given = {"__module__": "abc"} if homes[0].descends("abc.ABC") else {}
    return ClassValue(name, own, {**given, **names}, homes[0].module)


def _callable(_run: Objects, args: Sequence[Native], _named: Mapping[str, Native]) -> Native:
    value = args[0]
    if isinstance(value, Unknown | External):
        return Unknown("callable")
    if isinstance(value, Instance):
        return value.cls.has("__call__")
    return callable(value) or isinstance(value, ClassValue | Hook)


def _any(run: Objects, args: Sequence[Native], _named: Mapping[str, Native]) -> Native:
    values = run.iterated(args[0])
    if isinstance(values, Unknown):
        return values
    found = either([run.truth(each) for each in values])
    return Unknown("any of them") if found is None else found


def _all(run: Objects, args: Sequence[Native], _named: Mapping[str, Native]) -> Native:
    values = run.iterated(args[0])
    if isinstance(values, Unknown):
        return values
    truths = [run.truth(each) for each in values]
    fails = either([None if each is None else not each for each in truths])
    return Unknown("all of them") if fails is None else not fails


def _iterating(function: Callable[..., Native]) -> _Call:
    def run(self: Objects, args: Sequence[Native], named: Mapping[str, Native]) -> Native:
        values = [self.iterated(each) for each in args]
        if any(isinstance(each, Unknown) for each in values):
            return next(each for each in values if isinstance(each, Unknown))
        return listed(function(*values, **named))

    return run


def _ordered(function: Callable[..., Native]) -> _Call:
    def run(self: Objects, args: Sequence[Native], named: Mapping[str, Native]) -> Native:
        values = self.iterated(args[0]) if len(args) == 1 else list(args)
        if is_open(values):
            return Unknown(f"{function.__name__}(...)")
        key = named.get("key")

        def place(value: Native) -> Native:
            return number_of(value if key is None else self.apply(key, (value,), {}))

        try:
            return function(values, **{**named, "key": place})
        except (TypeError, ValueError) as error:
            raise self.raised(error) from error

    return run


def _sum(run: Objects, args: Sequence[Native], _named: Mapping[str, Native]) -> Native:
    values, *start = args
    values = run.iterated(values)
    if is_open(values):
        return Unknown("sum(...)")
    try:
        return sum(map(number_of, values), *start)
    except TypeError as error:
        raise run.raised(error) from error


def _bool(run: Objects, args: Sequence[Native], _named: Mapping[str, Native]) -> Native:
    truth = run.truth(args[0]) if args else False
    return Unknown("bool(...)") if truth is None else truth


def _descriptor(kind: str) -> _Call:
    return lambda _run, args, _named: Descriptor(kind, args[0])


def _str(run: Objects, args: Sequence[Native], named: Mapping[str, Native]) -> Native:
    if args and isinstance(args[0], Instance):
        value = args[0]
        own = value.cls.lookup("__str__")
        if own is not None:
            return run.call(own, value)
        if not value.cls.is_enum:
            return Unknown(f"str({value})")
        is_value = any(map(value.cls.descends, ("enum.StrEnum", "enum.IntEnum")))
        name = f"{value.cls.name}.{value.attributes['name']}"
        return str(value.attributes["value"]) if is_value else name
    if has_unknown([*args]):
        return Unknown("str(...)")
    return str(*args, **named)


def _map(run: Objects, args: Sequence[Native], _named: Mapping[str, Native]) -> Native:
    values = [run.iterated(each) for each in args[1:]]
    if any(isinstance(each, Unknown) for each in values):
        return next(each for each in values if isinstance(each, Unknown))
    return [run.call(args[0], *each) for each in zip(*values, strict=False)]


def _object_set(run: Objects, args: Sequence[Native], _named: Mapping[str, Native]) -> Native:
    owner, name, value = args
    if isinstance(owner, Instance):
        run.set_raw(owner, name, value)


def _object_get(run: Objects, args: Sequence[Native], _named: Mapping[str, Native]) -> Native:
    owner, name = args
    if isinstance(owner, Instance) and name in owner.attributes:
        return owner.attributes[name]
    if isinstance(owner, Instance) and owner.cls.has(name):
        return run.bound(owner.cls.lookup(name), owner, owner.cls)
    raise run.raised(AttributeError(f"no attribute {name!r}"))


def _vars(_run: Objects, args: Sequence[Native], _named: Mapping[str, Native]) -> Native:
    match args:
        case [Instance() as value]:
            return value.attributes
        case [ClassValue() as cls]:
            return {name: each for name, each in cls.names.items() if not name.startswith("\0")}
        case [Namespace() as names]:
            return vars(names)
    return Unknown("vars(...)")


def _len(run: Objects, args: Sequence[Native], _named: Mapping[str, Native]) -> Native:
    value = args[0]
    if isinstance(value, Instance):
        return run.apply(value.cls.lookup("__len__"), (value,), {})
    if isinstance(value, Unknown | External) or may_have_more(value):
        return Unknown("len(...)")
    try:
        return len(value)
    except TypeError as error:
        raise run.raised(error) from error


def _next(run: Objects, args: Sequence[Native], _named: Mapping[str, Native]) -> Native:
    values = run.iterated(args[0])
    if isinstance(values, Unknown):
        return values
    if values:
        return values[0]
    if len(args) > 1:
        return args[1]
    raise run.raised(StopIteration())


OF_OBJECT: Mapping[str, _Call] = {
    "__setattr__": _object_set,
    "__getattribute__": _object_get,
    "__new__": lambda _run, args, _named: Instance(args[0]),
    "__init__": lambda _run, _args, _named: None,
    "__init_subclass__": lambda _run, _args, _named: None,
    "__post_init__": lambda _run, _args, _named: None,
}


SPECIAL: Mapping[Any, _Call] = {
    getattr: _getattr,
    hasattr: _hasattr,
    setattr: _setattr,
    isinstance: _isinstance,
    issubclass: _issubclass,
    type: _type,
    callable: _callable,
    len: _len,
    next: _next,
    iter: lambda run, args, _named: run.iterated(args[0]),
    vars: _vars,
    any: _any,
    all: _all,
    max: _ordered(max),
    min: _ordered(min),
    sorted: _ordered(sorted),
    sum: _sum,
    bool: _bool,
    str: _str,
    map: _map,
    list: _iterating(list),
    tuple: _iterating(tuple),
    set: _iterating(set),
    frozenset: _iterating(frozenset),
    enumerate: lambda run, args, named: _iterating(enumerate)(run, args[:1], {
        "start": args[1] if len(args) > 1 else named.get("start", 0)
    }),
    zip: _iterating(zip),
    reversed: _iterating(reversed),
    property: _descriptor("property"),
    classmethod: _descriptor("classmethod"),
    staticmethod: _descriptor("staticmethod"),
}  # fmt: skip


def number_of(value: Native) -> Native:
    """Return the value of an enumeration's member; other values as they are."""
    return value.attributes["value"] if isinstance(value, Instance) and value.cls.is_enum else value


def listed(value: Native) -> Native:
    """Make a list of a native iterator, which several readers may go through."""
    lazy = (map, filter, zip, enumerate, reversed)
    return list(value) if isinstance(value, lazy) else value
