"""Objects of an interpreted program: attributes, items, construction, types and truth."""

from __future__ import annotations

import argparse
import ast
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from backend_caps.engines.source.builtin_functions import OF_OBJECT
from backend_caps.engines.source.containers import Containers
from backend_caps.engines.source.uncertainty import all_joined, either, same, values_of
from backend_caps.engines.source.values import (
    ABSENT,
    CONTAINERS,
    EXACT,
    MISSING,
    PLAIN,
    ClassValue,
    Decorated,
    Descriptor,
    External,
    FieldDefault,
    Frame,
    FunctionValue,
    Hook,
    Instance,
    Method,
    ModuleValue,
    Native,
    Options,
    Perhaps,
    Raised,
    Unknown,
    as_tuple,
    is_enum,
    members,
)

_SAFE = frozenset({"__name__", "__doc__", "__class__", "__args__", "__qualname__", "__module__"})
"""Names with two underscores that native values are asked for."""
_EMPTY_BASES = frozenset({"msgspec.Struct", "abc.ABC", "object"}).union(
    *({f"typing.{each}", f"typing.{each}[]"} for each in ("Generic", "Protocol"))
)
"""Bases outside of the program that bring no attributes."""
_PROTOCOLS = frozenset({"typing.Protocol", "typing.Protocol[]"})
_NOT_ASKED_FOR = frozenset({"__doc__", "__init__", "__module__", "__slots__"})
"""Names of a protocol's body that no object needs to have."""


class Objects(Containers):
    """What values of the program have and do."""

    def __init__(self, natives: Mapping[str, object]) -> None:
        """Take what external names mean, and names of the program that are replaced."""
        super().__init__()
        self.natives = dict(natives)
        self.modules: dict[str, ModuleValue] = {}
        self._changed: list[tuple[ClassValue, str, Native]] = []
        """What classes of libraries had before the program set it."""
        self._readers: Mapping[type, Callable[[Any, str, Native], Native]] = {
            Unknown: self._of_unknown,
            Perhaps: self._of_unknown,
            Options: self._of_options,
            External: self._of_external,
            ModuleValue: self._of_module,
            Instance: self._of_instance,
            ClassValue: self._of_class,
            FunctionValue: _of_function,
            Hook: _of_hook,
            Method: self._of_wrapped,
            Descriptor: self._of_wrapped,
        }

    @abstractmethod
    def call(self, function: Native, *args: Native, **named: Native) -> Native:
        """Call a function, a class or a method, from the outside."""

    @abstractmethod
    def value(self, node: ast.expr, frame: Frame) -> Native:
        """Evaluate an expression."""

    @abstractmethod
    def import_module(self, name: str) -> Native:
        """Run a module, once; one outside of the tree is `External`."""

    @abstractmethod
    def member(self, module: Native, source: str, name: str) -> Native:
        """Return a name of a module."""

    def attribute(self, owner: Native, name: str) -> Native:
        """Read an attribute."""
        found = self.attribute_or(owner, name, MISSING)
        if found is MISSING:
            kind = owner.cls.name if isinstance(owner, Instance) else type(owner).__name__
            raise self.raised(AttributeError(f"{kind!r} object has no attribute {name!r}"))
        return found.value if isinstance(found, Perhaps) else found

    def attribute_or(self, owner: Native, name: str, default: Native) -> Native:
        """Read an attribute, or return a default where there is none."""
        read = self._readers.get(type(owner))
        if read is not None:
            return read(owner, name, default)
        held = getattr(owner, "interpreted_attribute", None)
        if held is not None:
            return held(name, default)
        if owner is object and name in OF_OBJECT:
            return Hook(OF_OBJECT[name])
        if name.startswith("__") and name not in _SAFE:
            return Unknown(f"{type(owner).__name__}.{name}")
        return getattr(owner, name, default)

    def _of_unknown(self, owner: Unknown, name: str, _default: Native) -> Native:
        return Unknown(f"{owner.why}.{name}")

    def _of_options(self, owner: Options, name: str, default: Native) -> Native:
        """Return an attribute that all options have; a method is called on each."""
        found = [self.attribute_or(each, name, default) for each in owner.options]
        if any(each is default or isinstance(each, Unknown) for each in found):
            return Unknown(f"{owner.why}.{name}")

        def call(run: Objects, args: Sequence[Native], named: Mapping[str, Native]) -> Native:
            return all_joined(
                run._of_each(owner, lambda each: run.apply(run.attribute(each, name), args, named))
            )

        return Hook(call)

    def _of_module(self, owner: ModuleValue, name: str, _default: Native) -> Native:
        return self.member(owner, owner.module.name, name)

    def _of_wrapped(self, owner: Method | Descriptor, name: str, default: Native) -> Native:
        if name == "setter" and isinstance(owner, Descriptor):
            return Hook(lambda _run, args, _named: replace(owner, setter=args[0]))
        return self.attribute_or(owner.function, name, default)

    def _of_external(self, owner: External, name: str, default: Native) -> Native:
        if name in {"__dict__", "__annotations__"}:
            return {}
        found = self._external(f"{owner.path}.{name}")
        return default if found is ABSENT else found

    def _external(self, path: str) -> Native:
        if path in self.natives:
            return self.natives[path]
        package, _, _ = path.partition(".")
        other: Native = self.natives.get(f"{package}.*", External)
        return other(path)

    def _of_instance(self, owner: Instance, name: str, default: Native) -> Native:
        if name in owner.attributes:
            return owner.attributes[name]
        if name in {"__dict__", "__class__"}:
            return owner.attributes if name == "__dict__" else owner.cls
        if owner.cls.has(name):
            return self.bound(owner.cls.lookup(name), owner, owner.cls)
        finder = owner.cls.lookup("__getattr__")
        if finder is not None:
            return self._from_finder(finder, owner, name, default)
        if name in OF_OBJECT:
            return Method(Hook(OF_OBJECT[name]), owner)
        others = (each for each in owner.cls.externals if isinstance(each, External | Unknown))
        if any(str(each) not in _EMPTY_BASES for each in others):
            return Unknown(f"{owner.cls.name}.{name}")
        return default

    def _from_finder(self, finder: Native, owner: Instance, name: str, default: Native) -> Native:
        """Call a class's `__getattr__`."""
        try:
            return self.apply(finder, (owner, name), {})
        except Raised as error:
            if default is not MISSING and self.is_instance(error.value, AttributeError):
                return default
            raise

    def bound(self, value: Native, owner: Native, cls: ClassValue) -> Native:
        """Return what an attribute of a class is on an object, or on the class where it is None."""
        match value:
            case FunctionValue() | Hook():
                return value if owner is None else Method(value, owner)
            case Descriptor(kind="property" | "cached_property", function=function):
                return value if owner is None else self.apply(function, (owner,), {})
            case Descriptor(kind="classmethod", function=function):
                return Method(function, cls)
            case Descriptor(kind="staticmethod", function=function):
                return function
            case Instance() if value.cls.has("__get__"):
                return self.apply(value.cls.lookup("__get__"), (value, owner, cls), {})
            case Decorated():
                return self.bound(value.function, owner, cls)
            case FieldDefault() if cls.is_record and value.value is not ABSENT:
                return value.value  # which a dataclass has in place of its field
        return value

    def _of_class(self, owner: ClassValue, name: str, default: Native) -> Native:
        if owner.has(name):
            return self.bound(owner.lookup(name), None, owner)
        if name.startswith("__") and name in (known := owner.special_attributes):
            return known[name]
        if owner.is_enum and name == "__members__":
            return {each.attributes["name"]: each for each in members(owner)}
        for base in owner.externals:
            is_open = isinstance(base, External | Unknown) and str(base) not in _EMPTY_BASES
            if is_open and not is_enum(base):
                found = self.attribute_or(base, name, default)
                return found if found is not default else Unknown(f"{owner.name}.{name}")
        return default

    def set_attribute(self, owner: Native, name: str, value: Native) -> None:
        """Set an attribute, by the class's own `__setattr__` where it has one."""
        if isinstance(owner, Instance):
            setter = owner.cls.lookup("__setattr__")
            if setter is not None:
                self.apply(setter, (owner, name, value), {})
            elif (of_class := owner.cls.lookup(name)) and isinstance(of_class, Descriptor):
                self._set_property(owner, name, of_class, value)
            else:
                self.set_raw(owner, name, value)
        elif isinstance(owner, ClassValue | ModuleValue):
            if isinstance(owner, ClassValue) and owner.node is None:  # of all programs
                self._changed.append((owner, name, owner.names.get(name, MISSING)))
            owner.names[name] = self._weakly(owner.names.get(name, MISSING), value, 0)
        elif isinstance(owner, FunctionValue):
            owner.attributes[name] = value
        elif hasattr(owner, "interpreted_set"):
            now = owner.interpreted_attribute(name, MISSING)
            owner.interpreted_set(name, self._weakly(now, value, self._level(owner)))
        elif isinstance(owner, argparse.Namespace):
            now = getattr(owner, name, MISSING)
            setattr(owner, name, self._weakly(now, value, self._level(owner)))

    def restore(self) -> None:
        """Give classes of libraries, which all programs share, the attributes that they had."""
        while self._changed:
            cls, name, before = self._changed.pop()
            if before is MISSING:
                del cls.names[name]
            else:
                cls.names[name] = before

    def _set_property(self, owner: Instance, name: str, own: Descriptor, value: Native) -> None:
        if own.setter is not None:
            self.apply(own.setter, (owner, value), {})
        elif own.kind == "property":
            words = f"property {name!r} of {owner.cls.name!r} object has no setter"
            raise self.raised(AttributeError(words))
        else:
            self.set_raw(owner, name, value)

    def set_raw(self, owner: Instance, name: str, value: Native) -> None:
        """Set an attribute as `object.__setattr__` does."""
        now = owner.attributes.get(name, MISSING)
        owner.attributes[name] = self._weakly(now, value, self._level(owner))

    def truth(self, value: Native) -> bool | None:
        """Return a value's truth; None where it is not known."""
        if type(value) in EXACT:
            return bool(value)
        match value:
            case Options(options=options):
                truths = {self.truth(each) for each in options}
                return truths.pop() if len(truths) == 1 else None
            case Unknown() | External():
                return None
            case Instance():
                return self._truth_of_instance(value)
            case ClassValue() | FunctionValue() | Method() | ModuleValue() | Hook():
                return True
        # What may be there cannot make a container empty that has something else.
        if isinstance(value, CONTAINERS) and {*map(type, values_of(value))} == {Perhaps}:
            return None
        return bool(value)

    def _truth_of_instance(self, value: Instance) -> bool | None:
        for name in ("__bool__", "__len__"):
            if value.cls.has(name):
                return self.truth(self.apply(value.cls.lookup(name), (value,), {}))
        if value.cls.is_enum and isinstance(value.attributes["value"], str | int):
            mixed = any(each in (str, int) for each in value.cls.externals)
            return bool(value.attributes["value"]) if mixed else True
        return True

    def _equal(self, left: Native, right: Native) -> bool | None:
        if isinstance(left, Instance) and (own := left.cls.lookup("__eq__")):
            found = self.apply(own, (left, right), {})
            if found is not NotImplemented:
                return self.truth(found)
        return same(as_tuple(left), as_tuple(right))

    def of_bases(self, cls: ClassValue, name: str) -> Native | None:
        """Return what the table has of a class's bases outside of the program; None for nothing."""
        paths = (f"{each}.{name}" for each in cls.externals)
        return next((self.natives[path] for path in paths if path in self.natives), None)

    def is_instance(self, value: Native, wanted: Native) -> bool | None:
        """Answer `isinstance`; None where it is not known."""
        if isinstance(wanted, tuple):
            return either([self.is_instance(value, each) for each in wanted])
        if isinstance(value, Options):
            truths = {self.is_instance(each, wanted) for each in value.options}
            return truths.pop() if len(truths) == 1 else None
        held = getattr(value, "interpreted_instance", None)
        if held is not None and not isinstance(value, type):
            return bool(held(self, wanted))
        return self._is_instance_of(value, wanted)

    def _is_instance_of(self, value: Native, wanted: Native) -> bool | None:
        match value, wanted:
            case (Unknown() | External(), _) | (_, Unknown()):
                return None
            case Instance() | ClassValue(), ClassValue() if _is_protocol(wanted):
                return self._has_all(value, wanted)
            case Instance(), _:
                return _is_of(value, wanted)
            case ClassValue(), _ if wanted is type:
                return True
            case _, type():
                return isinstance(value, wanted)
            case _, External():
                own = type(value).__module__.startswith("backend_caps.")
                return False if own or isinstance(value, (*PLAIN, *CONTAINERS)) else None
        return False

    def _has_all(self, value: Instance | ClassValue, protocol: ClassValue) -> bool | None:
        """Return whether a value derives from a protocol, or has all that it names."""
        if isinstance(value, Instance) and protocol in value.cls.line:
            return True
        found = (self.attribute_or(value, name, ABSENT) for name in _names_of(protocol))
        truths = [None if isinstance(each, Unknown) else each is ABSENT for each in found]
        lacks = either(truths)
        return None if lacks is None else not lacks


def _is_protocol(cls: ClassValue) -> bool:
    """Return whether any object that has the names of a class is one of its objects."""
    return any(isinstance(each, External) and each.path in _PROTOCOLS for each in cls.bases)


def _names_of(protocol: ClassValue) -> set[str]:
    """List the names that a protocol and those it derives from ask for."""
    own = (each for each in protocol.line if isinstance(each, ClassValue) and _is_protocol(each))
    names = {name for each in own for name in (*each.names, *each.annotations)}
    return {name for name in names if not name.startswith("\0")} - _NOT_ASKED_FOR


def _is_of(value: Instance, wanted: Native) -> bool:
    """Answer `isinstance` for an object of the program."""
    if isinstance(wanted, ClassValue):
        return wanted in value.cls.line
    if isinstance(wanted, External):
        return value.cls.descends(wanted.path)
    bases = (each for each in value.cls.externals if isinstance(each, type))
    return wanted is object or any(issubclass(each, wanted) for each in bases)


def _of_hook(owner: Hook, name: str, _default: Native) -> Native:
    return owner.attributes.get(name, Unknown(f"{name} of a function that is not the program's"))


def _of_function(owner: FunctionValue, name: str, default: Native) -> Native:
    known = {
        "__name__": owner.name,
        "__qualname__": owner.name if owner.owner is None else f"{owner.owner.name}.{owner.name}",
        "__module__": owner.frame.module.module.name,
        "__doc__": None,
        "__wrapped__": owner,
    }
    return owner.attributes.get(name, known.get(name, default))
