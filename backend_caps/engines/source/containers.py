"""Containers of an interpreted program: their items, what they iterate over, and membership."""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence

from backend_caps.engines.source.state import State
from backend_caps.engines.source.uncertainty import (
    either,
    has_unknown,
    joined,
    may_have_more,
    same,
    short,
)
from backend_caps.engines.source.values import (
    CONTAINERS,
    EXACT,
    MISSING,
    ClassValue,
    External,
    Instance,
    Native,
    Perhaps,
    Unknown,
    members,
)


class Containers(State):
    """What values of the program contain."""

    @abstractmethod
    def apply(
        self, function: Native, args: Sequence[Native], named: Mapping[str, Native]
    ) -> Native:
        """Call a function, a class or a method."""

    @abstractmethod
    def truth(self, value: Native) -> bool | None:
        """Return a value's truth; None where it is not known."""

    def set_item(self, owner: Native, key: Native, value: Native) -> None:
        """Set an item."""
        if isinstance(owner, Instance):
            setter = owner.cls.lookup("__setitem__")
            if setter is None:
                words = f"{owner.cls.name!r} object does not support item assignment"
                raise self.raised(TypeError(words))
            self.apply(setter, (owner, key, value), {})
        elif isinstance(owner, dict) and has_unknown(key):
            for each in owner:  # it may be any of them, or another one
                owner[each] = joined(owner[each], value)
            owner[key] = Perhaps("its key is not known", value)
        elif isinstance(owner, dict):
            owner[key] = self._weakly(owner.get(key, MISSING), value, self._level(owner))
        elif isinstance(owner, list) and isinstance(key, int | slice):
            owner[key] = self._weakly(owner[key], value, self._level(owner))

    def item(self, owner: Native, key: Native) -> Native:
        """Read an item."""
        match owner:
            case Unknown():
                return Unknown(f"{owner.why}[...]")
            case External(path=path):
                return External(f"{path}[]")
            case Instance():
                own = owner.cls.lookup("__getitem__")
                return (
                    Unknown(f"{owner}[...]") if own is None else self.apply(own, (owner, key), {})
                )
            case ClassValue():
                return self._item_of_class(owner, key)
        if has_unknown(key, 1) or (isinstance(owner, list) and may_have_more(owner)):
            if isinstance(owner, defaultdict):
                owner[key] = Perhaps("its key is not known", Unknown(f"[{short(key)}]"))
            return Unknown(f"[{short(key)}]")
        try:
            found = owner[key]
        except Exception as error:
            raise self.raised(error) from error
        return found.value if isinstance(found, Perhaps) else found

    def _item_of_class(self, owner: ClassValue, key: Native) -> Native:
        meta = owner.metaclass
        own = None if meta is None else meta.lookup("__getitem__")
        return self.member_named(owner, key) if own is None else self.apply(own, (owner, key), {})

    def member_named(self, owner: ClassValue, key: Native) -> Native:
        """Return the member of an enum by its name; another class with type arguments is itself."""
        if not owner.is_enum:
            return owner
        if has_unknown(key, 1):
            return Unknown(f"{owner.name}[{short(key)}]")
        found = (each for each in members(owner) if each.attributes["name"] == key)
        if (member := next(found, None)) is None:
            raise self.raised(KeyError(key))
        return member

    def iterated(self, value: Native) -> Native:
        """List what a value iterates over; unknown where that is not known."""
        match value:
            case Unknown() | External():
                return Unknown(str(value))
            case ClassValue() if value.is_enum:
                return members(value)
            case Instance():
                own = value.cls.lookup("__iter__")
                return (
                    Unknown(f"{value}")
                    if own is None
                    else self.iterated(self.apply(own, (value,), {}))
                )
            case list() | tuple() | dict() | set() | frozenset():
                return Unknown("elements") if may_have_more(value) else list(value)
        try:
            return list(value)
        except TypeError as error:
            raise self.raised(error) from error

    def contains(self, container: Native, value: Native) -> bool | None:
        """Answer `in`; None where it is not known."""
        if isinstance(container, Instance):
            own = container.cls.lookup("__contains__")
            return None if own is None else self.truth(self.apply(own, (container, value), {}))
        if isinstance(container, ClassValue) and container.is_enum:
            container = members(container)
        if isinstance(container, str):
            return None if not isinstance(value, str) else value in container
        if isinstance(container, Unknown | External) or not hasattr(container, "__iter__"):
            return None
        if type(value) in EXACT and isinstance(container, CONTAINERS):
            if value in container:
                perhaps = isinstance(container, dict) and isinstance(container[value], Perhaps)
                return None if perhaps else True
            if EXACT.issuperset(map(type, container)):
                return False
        found = either([same(each, value) for each in container])
        if found and isinstance(container, dict) and isinstance(container.get(value), Perhaps):
            return None
        return found
