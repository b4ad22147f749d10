"""Objects of a program's classes: how they are constructed, and their `super()`."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from backend_caps.engines.source.builtin_functions import OF_OBJECT
from backend_caps.engines.source.module import Module
from backend_caps.engines.source.objects import Objects
from backend_caps.engines.source.uncertainty import has_unknown, same, short
from backend_caps.engines.source.values import (
    ABSENT,
    MISSING,
    ClassValue,
    Descriptor,
    External,
    FieldDefault,
    FunctionValue,
    Hook,
    Instance,
    Method,
    ModuleValue,
    Native,
    Unknown,
    members,
)


class Instances(Objects):
    """Makes objects of a class."""

    def construct(
        self, cls: ClassValue, args: Sequence[Native], named: Mapping[str, Native]
    ) -> Native:
        """Make an object of a class."""
        replaced = self.natives.get(cls.path)
        if isinstance(replaced, Hook):
            return replaced.run(self, (cls, *args), named)
        if cls.is_enum:
            return self._member_of(cls, args)
        native = next((each for each in cls.externals if isinstance(each, type)), None)
        if native is not None and issubclass(native, BaseException) and not cls.has("__init__"):
            return Instance(cls, {"args": tuple(args)})
        made = self._fresh(Instance(cls))
        maker = cls.lookup("__new__")
        if maker is not None and isinstance(maker, FunctionValue):
            made = self.apply(maker, (cls, *args), named)
            if not isinstance(made, Instance):
                return made
        if cls.has("__init__"):
            self.apply(cls.lookup("__init__"), (made, *args), named)
        elif cls.is_record:
            self._fill(made, args, named)
        elif (outside := self.of_bases(cls, "__init__")) is not None:
            self.apply(outside, (made, *args), named)
        return made

    def _member_of(self, cls: ClassValue, args: Sequence[Native]) -> Native:
        for member in members(cls):
            if member is args[0] or same(member.attributes["value"], args[0]):
                return member
        if has_unknown(args[0]):
            return Unknown(f"{cls.name}({short(args[0])})")
        if cls.has("_missing_"):
            found = self.apply(self._of_class(cls, "_missing_", None), (args[0],), {})
            if found is not None:
                return found
        raise self.raised(ValueError(f"{args[0]!r} is not a valid {cls.name}"))

    def _fill(self, made: Instance, args: Sequence[Native], named: Mapping[str, Native]) -> None:
        """Set the fields of a record, as a dataclass's or a struct's constructor does."""
        cls = made.cls
        fields = list(cls.record_fields())
        given = {**named, **dict(zip(fields, args, strict=False))}
        check = cls.validation
        if check is not None:
            given = {**check.before(self, cls, given)}
        unknown = sorted(given.keys() - {name for name in fields if _takes(cls, name)})
        if unknown:
            words = f"{cls.name}() got an unexpected keyword argument {unknown[0]!r}"
            raise self.raised((TypeError if check is None else check.error)(words))
        passed: list[Native] = []
        for name in fields:
            value = given.get(name, MISSING)
            if value is MISSING:
                value = self._default(cls, name)
            elif check is not None:
                value = check.field(self, cls, name, value)
            if cls.is_passed_on(name):
                passed.append(value)
            elif value is not MISSING:
                made.attributes[name] = value
        if cls.has("__post_init__"):
            self.apply(cls.lookup("__post_init__"), (made, *passed), {})
        if check is not None:
            check.after(self, made)

    def _default(self, cls: ClassValue, name: str) -> Native:
        """Return a field's default; `MISSING` where the constructor leaves it unset."""
        stated: Native = cls.lookup(name) if cls.has(name) else FieldDefault(ABSENT)
        is_open = isinstance(stated, FieldDefault) and stated.value is ABSENT and not stated.factory
        if not is_open:
            return self.default_of(stated)
        if stated.init:
            raise self.raised(TypeError(f"{cls.name}() lacks {name!r}"))
        return MISSING

    def default_of(self, stated: Native) -> Native:
        """Return the default that a record's field states."""
        if isinstance(stated, FieldDefault):
            return self.apply(stated.factory, (), {}) if stated.factory else stated.value
        return stated.copy() if isinstance(stated, list | dict | set) else stated


def _takes(cls: ClassValue, name: str) -> bool:
    """Return whether a record's constructor takes a field."""
    stated = cls.lookup(name)
    return not isinstance(stated, FieldDefault) or stated.init


@dataclass(frozen=True, slots=True, eq=False)
class Super:
    """What `super()` returns."""

    run: Objects
    owner: ClassValue
    value: Native

    def interpreted_attribute(self, name: str, default: Native) -> Native:
        """Find an attribute in the classes after the owner."""
        cls: Native = getattr(self.value, "cls", self.value)
        if self.owner not in cls.line:  # in a method of the class's own class
            return Hook(lambda run, args, _named: run.member_named(self.value, args[0]))
        found = cls.lookup(name, after=self.owner)
        if found is not None:
            is_class = isinstance(self.value, ClassValue)
            return self.run.bound(found, None if is_class else self.value, cls)
        if name == "__new__":  # a static method, of which the class is an argument
            return Hook(OF_OBJECT[name])
        outside = self.run.of_bases(cls, name)
        if outside is not None or name in OF_OBJECT:
            return Method(outside or Hook(OF_OBJECT[name]), self.value)
        return Unknown(f"super().{name}") if default is MISSING else default


def make_members(cls: ClassValue) -> None:
    """Make the values of an enum's body its members."""
    last = 0
    for name, value in list(cls.names.items()):
        is_function = isinstance(value, FunctionValue | Descriptor | Hook)
        if name.startswith("_") or is_function:
            continue
        own = value
        if isinstance(value, External | Unknown):
            own = last + 1 if str not in cls.externals else name.lower()
        last = own if isinstance(own, int) else last
        cls.names[name] = Instance(cls, {"name": name, "value": own, "_value_": own})


def library_class(
    path: str,
    names: Mapping[str, Native],
    bases: tuple[Native, ...] = (),
    *,
    is_record: bool = False,
) -> ClassValue:
    """Make a class of Python's library whose methods are ours.

    Args:
        path: its module and name.
        names: its methods and other attributes.
        bases: the classes that it derives from.
        is_record: whether its constructor takes the annotated names.
    """
    module, _, name = path.rpartition(".")
    home = ModuleValue(Module(module, f"{module}.py", ast.Module([], []), b""))
    return ClassValue(name, bases, dict(names), home, is_record=is_record)
