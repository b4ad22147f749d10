"""Pydantic's records, in an interpreted program: what checks a field, its bounds, and coercion.

What an annotation demands of a value is checked where it is known; a value or an annotation that
is not known is taken as it is.
"""

from __future__ import annotations

import json
import types
import typing
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial

from backend_caps.engines.source.objects import Objects
from backend_caps.engines.source.values import (
    ABSENT,
    Args,
    ClassValue,
    Decorated,
    Descriptor,
    External,
    FieldDefault,
    FunctionValue,
    Hook,
    Instance,
    Named,
    Native,
    Raised,
    Unknown,
    members,
)

_BOUNDS: Mapping[str, tuple[Callable[[Native, Native], bool], str]] = {
    "gt": (lambda value, bound: value > bound, "greater than"),
    "ge": (lambda value, bound: value >= bound, "greater than or equal to"),
    "lt": (lambda value, bound: value < bound, "less than"),
    "le": (lambda value, bound: value <= bound, "less than or equal to"),
}
_TRUE, _FALSE = ("true", "1", "yes", "on", "t", "y"), ("false", "0", "no", "off", "f", "n")


class ValidationError(ValueError):
    """What pydantic raises."""


class _MismatchError(Exception):
    """A value is not what an annotation demands."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Validator(Decorated):
    """A function that checks or changes the value of some fields, or a whole object."""

    fields: Sequence[str]
    """Empty for one of a whole object."""
    mode: str


def _marking(names: Sequence[str], named: Named) -> Native:
    mode = named.get("mode", "after")
    return Hook(lambda _run, args, _named: _Validator(fields=names, mode=mode, function=args[0]))


def _validators(cls: ClassValue) -> Iterator[_Validator]:
    """List the validators of a class and its bases, those of bases first; each name once."""
    found: dict[str, Native] = {}
    for each in reversed(cls.line):
        found |= each.names if isinstance(each, ClassValue) else {}
    return (each for each in found.values() if isinstance(each, _Validator))


class Validation:
    """How pydantic makes an object's fields of what its constructor is given."""

    error = ValidationError

    def before(self, run: Objects, cls: ClassValue, given: Mapping[str, Native]) -> Named:
        """Change the arguments as validators of the whole object do first."""
        values: Native = dict(given)
        for each in _validators(cls):
            if not each.fields and each.mode == "before":
                check = partial(_called, run, cls, each, "", values)
                values = self._refusing(run, cls, "", check)
        return values if isinstance(values, dict) else given

    def field(self, run: Objects, cls: ClassValue, name: str, value: Native) -> Native:
        """Validate one field's value."""
        inner = Hook(lambda _run, args, _named: self._stated(run, cls, name, args[0]))
        for each in _validators(cls):
            if name in each.fields or "*" in each.fields:
                inner = _around(cls, each, name, inner)
        return self._refusing(run, cls, name, lambda: run.apply(inner, (value,), {}))

    def after(self, run: Objects, made: Instance) -> None:
        """Run the validators of a whole object that exists."""
        for each in _validators(made.cls):
            if not each.fields and each.mode == "after":
                self._refusing(run, made.cls, "", partial(run.apply, each.function, (made,), {}))

    def _stated(self, run: Objects, cls: ClassValue, name: str, value: Native) -> Native:
        """Check what the annotation and the field's constraints demand."""
        node, frame = cls.record_fields()[name]
        value = coerced(run, run.value(node, frame), value)
        stated = cls.lookup(name) if cls.has(name) else None
        bounds = stated.bounds if isinstance(stated, FieldDefault) else {}
        for bound, limit in bounds.items():
            holds, words = _BOUNDS[bound]
            if isinstance(value, int | float) and not holds(value, limit):
                words = f"Input should be {words} {limit} [input_value={value!r}]"
                raise run.raised(ValidationError(words))
        return value

    def _refusing(
        self, run: Objects, cls: ClassValue, name: str, check: Callable[[], Native]
    ) -> Native:
        """Let errors of a check be pydantic's, which says the class and the field."""
        where = f"{cls.name} {name}".strip()
        try:
            return check()
        except _MismatchError as error:
            raise run.raised(ValidationError(f"{where}: {error}")) from error
        except Raised as error:
            kinds = (ValueError, AssertionError)
            if run.is_instance(error.value, kinds) is not True or isinstance(
                error.value, ValidationError
            ):
                raise
            raise Raised(ValidationError(error.message), error.at) from error


def _called(run: Objects, cls: ClassValue, own: _Validator, name: str, *args: Native) -> Native:
    """Call a validator that is a class's method, or a function of its body.

    It may take what pydantic tells of the field, after the value.
    """
    function = own.function
    is_static = isinstance(function, Descriptor) and function.kind == "staticmethod"
    function = function.function if isinstance(function, Descriptor) else function
    given = args if is_static else (cls, *args)
    takes = function.node.args.args if isinstance(function, FunctionValue) else given
    if len(takes) > len(given):
        given = (*given, Namespace(field_name=name, data=Unknown("the other fields")))
    return run.apply(function, given, {})


def _around(cls: ClassValue, own: _Validator, name: str, inner: Native) -> Native:
    """Put a validator around those that come after it, or before."""

    def before(run: Objects, args: Args, _named: Named) -> Native:
        return run.apply(inner, (_called(run, cls, own, name, args[0]),), {})

    def after(run: Objects, args: Args, _named: Named) -> Native:
        return _called(run, cls, own, name, run.apply(inner, args, {}))

    def wrap(run: Objects, args: Args, _named: Named) -> Native:
        return _called(run, cls, own, name, args[0], inner)

    def plain(run: Objects, args: Args, _named: Named) -> Native:
        return _called(run, cls, own, name, args[0])  # in place of what the annotation demands

    return Hook({"before": before, "wrap": wrap, "plain": plain}.get(own.mode, after))


def coerced(run: Objects, kind: Native, value: Native) -> Native:
    """Return a value as an annotation makes it.

    Raises:
        _MismatchError: it is none of what the annotation takes.
    """
    if isinstance(value, Unknown | External) or isinstance(kind, str | Unknown | External):
        return value
    kind = type(None) if kind is None else kind
    is_union = isinstance(kind, tuple)
    stated: Native = typing.get_origin(kind)
    origin = typing.Union if is_union else stated
    convert = _OF_ORIGIN.get(origin)
    if convert is not None:
        return convert(run, kind if is_union else typing.get_args(kind), value)
    if isinstance(kind, ClassValue):
        return _of_class(run, kind, value)
    return _OF_TYPE[kind](run, (), value) if kind in _OF_TYPE else value


def _or_mismatch(holds: bool, value: Native, wanted: str) -> Native:
    if not holds:
        words = f"Input should be {wanted} [input_value={value!r}]"
        raise _MismatchError(words)
    return value


def _of_union(run: Objects, kinds: Args, value: Native) -> Native:
    """Take the kind that fits a value as it is, else the first that it can be made to fit."""
    if value is None and (None in kinds or type(None) in kinds):
        return None
    errors: list[str] = []
    for each in sorted(kinds, key=lambda kind: not _fits(run, kind, value)):
        try:
            return coerced(run, each, value)
        except _MismatchError as error:
            errors.append(str(error))
        except Raised as error:
            errors.append(error.message)
    raise _MismatchError(errors[0])


def _fits(run: Objects, kind: Native, value: Native) -> bool:
    if isinstance(kind, type):
        return type(value) is kind
    if isinstance(kind, ClassValue):
        return run.is_instance(value, kind) is True
    origin: Native = typing.get_origin(kind)
    return origin is typing.Literal and value in typing.get_args(kind)


def _of_literal(_run: Objects, args: Args, value: Native) -> Native:
    found = [each for each in args if each == value and type(each) is type(value)]
    return _or_mismatch(bool(found), value, " or ".join(map(repr, args)))


def _of_class(run: Objects, kind: ClassValue, value: Native) -> Native:
    if run.is_instance(value, kind) is not False or not (kind.is_enum or kind.is_record):
        return value
    if kind.is_enum:
        is_number = isinstance(value, str) and value.isdecimal()
        numbered = is_number and isinstance(members(kind)[0].attributes["value"], int)
        return run.call(kind, int(value) if numbered else value)
    is_given = isinstance(value, dict)
    _or_mismatch(is_given, value, f"a dictionary or an instance of {kind.name}")
    return run.call(kind, **value)


def _of_annotated(run: Objects, args: Args, value: Native) -> Native:
    is_free = any(isinstance(each, _SkipValidation) for each in args)
    return value if is_free else coerced(run, args[0], value)


def _of_bool(_run: Objects, _args: Args, value: Native) -> Native:
    if isinstance(value, str) and value.lower() in (*_TRUE, *_FALSE):
        return value.lower() in _TRUE
    if isinstance(value, int | float) and value in (0, 1):
        return bool(value)
    return _or_mismatch(isinstance(value, bool), value, "a valid boolean")


def _of_text(_run: Objects, _args: Args, value: Native) -> Native:
    return _or_mismatch(isinstance(value, str), value, "a valid string")


def _of_none(_run: Objects, _args: Args, value: Native) -> Native:
    return _or_mismatch(value is None, value, "None")


def _of_int(_run: Objects, _args: Args, value: Native) -> Native:
    return _of_number(int, value, "a valid integer")


def _of_float(_run: Objects, _args: Args, value: Native) -> Native:
    return _of_number(float, value, "a valid number")


def _of_number(kind: type, value: Native, wanted: str) -> Native:
    if isinstance(value, str):
        try:
            return kind(value.strip())
        except ValueError:
            return _or_mismatch(False, value, wanted)  # noqa: FBT003 - a condition
    is_whole = isinstance(value, float) and value.is_integer()
    is_number = isinstance(value, int) or is_whole or (isinstance(value, float) and kind is float)
    _or_mismatch(is_number, value, wanted)
    return kind(value)


def _of_mapping(run: Objects, args: Args, value: Native) -> Native:
    _or_mismatch(isinstance(value, Mapping), value, "a valid dictionary")
    if not args:
        return value
    return {coerced(run, args[0], k): coerced(run, args[1], v) for k, v in value.items()}


def _of_many(origin: type) -> _Convert:
    def convert(run: Objects, args: Args, value: Native) -> Native:
        is_many = isinstance(value, list | tuple | AbstractSet)
        _or_mismatch(is_many, value, f"a valid {origin.__name__}")
        if not args or (origin is tuple and args[-1] is not Ellipsis):
            return origin(value)
        return origin([coerced(run, args[0], each) for each in value])

    return convert


_Convert = Callable[[Objects, Args, Native], Native]
"""Makes a value what an annotation with these arguments demands."""
_OF_TYPE: Mapping[Native, _Convert] = {
    bool: _of_bool,
    int: _of_int,
    float: _of_float,
    str: _of_text,
    type(None): _of_none,
    dict: _of_mapping,
    **{each: _of_many(each) for each in (list, tuple, set, frozenset)},
}
_OF_ORIGIN: Mapping[Native, _Convert] = {
    typing.Union: _of_union,
    types.UnionType: _of_union,
    typing.Annotated: _of_annotated,
    typing.Literal: _of_literal,
    dict: _of_mapping,
    **{each: _of_many(each) for each in (list, tuple, set, frozenset)},
}


VALIDATION = Validation()


def _dataclass(_run: Objects, args: Args, _named: Named) -> Native:
    def mark(cls: Native) -> Native:
        cls.is_record, cls.validation = True, VALIDATION
        return cls

    return mark(args[0]) if args else Hook(lambda _run, own, _named: mark(own[0]))


def _field(_run: Objects, args: Args, named: Named) -> Native:
    factory = named.get("default_factory")
    bounds = {name: named[name] for name in _BOUNDS if named.get(name) is not None}
    if factory is not None:
        return FieldDefault(None, factory, bounds, init=named.get("init") is not False)
    default = args[0] if args else named.get("default", ABSENT)
    return FieldDefault(default, None, bounds, init=named.get("init") is not False)


def _adapter(_run: Objects, args: Args, _named: Named) -> Native:
    kind = args[0]

    def of_json(run: Objects, own: Args, _named: Named) -> Native:
        if not isinstance(own[0], str):
            return Unknown("validate_json(...)")
        try:
            value = json.loads(own[0])
        except ValueError as error:
            raise run.raised(ValidationError(f"Invalid JSON: {error}")) from error
        return of_python(run, [value], {})

    def of_python(run: Objects, own: Args, _named: Named) -> Native:
        try:
            return coerced(run, kind, own[0])
        except _MismatchError as error:
            raise run.raised(ValidationError(str(error))) from error

    return _Adapter({"validate_json": Hook(of_json), "validate_python": Hook(of_python)})


@dataclass(frozen=True, slots=True, eq=False)
class _Adapter:
    """Pydantic's `TypeAdapter` of a type."""

    attributes: Mapping[str, Native]

    def interpreted_attribute(self, name: str, _default: Native) -> Native:
        """Return one of its methods."""
        return self.attributes.get(name, Unknown(f"TypeAdapter.{name}"))


class _SkipValidation:
    """Pydantic's `SkipValidation`, whose fields take any value."""

    def __getitem__(self, kind: Native) -> Native:
        is_stated = isinstance(kind, type) or typing.get_origin(kind) is not None
        return typing.Annotated[kind, self] if is_stated else typing.Any


PYDANTIC: dict[str, Native] = {
    "pydantic.dataclasses.dataclass": Hook(_dataclass),
    "pydantic.Field": Hook(_field),
    "pydantic.fields.Field": Hook(_field),
    "pydantic.fields.FieldInfo": FieldDefault,
    "pydantic.ConfigDict": dict,
    "pydantic.SkipValidation": _SkipValidation(),
    "pydantic.ValidationError": ValidationError,
    "pydantic.TypeAdapter": Hook(_adapter),
    "pydantic.field_validator": Hook(lambda _run, args, named: _marking(args, named)),
    "pydantic.model_validator": Hook(lambda _run, _args, named: _marking((), named)),
}
"""What names of pydantic mean."""
