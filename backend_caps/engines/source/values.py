"""The values of a program that is interpreted: Python's own, and these beside them.

What is not known is `Unknown`. Code that computes with it goes on, and gets `Unknown`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from backend_caps.engines.source.module import Module
from backend_caps.engines.source.traits import NO_TRAITS, Traits

if TYPE_CHECKING:
    from backend_caps.engines.source.validation import Validation

Native: TypeAlias = Any
"""Any value of the interpreted program."""
Args: TypeAlias = Sequence[Native]
"""Arguments of a call by position."""
Named: TypeAlias = Mapping[str, Native]
"""Arguments of a call by name."""
PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...), range, slice)
"""Types whose values have no parts."""
CONTAINERS = (list, tuple, dict, set, frozenset)
SIMPLE = (type(None), bool, int, float, str)
EXACT = frozenset({*SIMPLE, bytes})
"""Types whose values Python itself compares, without a part that is unknown."""
MISSING = object()
"""What an attribute or a name has that is not there."""
ABSENT = object()
"""In a table of external names, one that its module lacks."""


@dataclass(frozen=True, slots=True, eq=False)
class Unknown:
    """A value that the source alone does not decide."""

    why: str
    """What would have to be known, such as `torch.version.git_version`."""

    def __str__(self) -> str:
        return self.why


@dataclass(frozen=True, slots=True, eq=False)
class Perhaps(Unknown):
    """In a container, an element that may be there; as a value, one that may be missing."""

    value: Native = Unknown("what it would be")
    """The value where it is there."""


@dataclass(frozen=True, slots=True, eq=False)
class Options(Unknown):
    """One of a few known values."""

    options: tuple[Native, ...] = ()


@dataclass(frozen=True, slots=True)
class External:
    """A module, class, function or value outside the source, by its dotted name."""

    path: str

    def __str__(self) -> str:
        return self.path


@dataclass(frozen=True, slots=True)
class Lazy:
    """A name that is imported when it is used."""

    module: str
    name: str
    is_missing: bool = False
    """Whether its import has failed, so that it is not defined."""


@dataclass(eq=False, slots=True, repr=False)
class ModuleValue:
    """A module of the source that runs, or has run."""

    module: Module
    names: dict[str, Native] = field(default_factory=dict)

    def may_bind(self, name: str) -> bool:
        """Return whether a statement of the module may bind a name."""
        return bool({name, "*"} & self.module.scope.keys()) or "__getattr__" in self.names


@dataclass(eq=False, slots=True, repr=False)
class Frame:
    """The names of a running function, or of a running module or class body."""

    module: ModuleValue
    names: dict[str, Native]
    outer: Frame | None = None
    """The function around it; None in a module."""
    owner: ClassValue | None = None
    """The class that has the method which runs."""
    function: FunctionValue | None = None
    level: int = 0
    """Under how many unknown conditions it runs."""
    traits: Traits = NO_TRAITS
    """What its statements declare."""
    returned: list[Native] = field(default_factory=list)
    """What a branch that may run would have returned."""
    num_leaves: int = 0
    """How many branches that may run have left it, or a round of a loop."""
    yielded: list[Native] = field(default_factory=list)
    around: Callable[[Native], None] | None = None
    """In a context manager's function, what runs where it yields."""
    is_class_body: bool = False


@dataclass(eq=False, slots=True, repr=False)
class ClassValue:
    """A class of the source."""

    name: str
    bases: tuple[Native, ...]
    names: dict[str, Native]
    module: ModuleValue
    node: ast.ClassDef | None = None
    annotations: dict[str, tuple[ast.expr, Frame]] = field(default_factory=dict)
    """The annotated names of its body, unevaluated."""
    is_record: bool = False
    """Whether it is a dataclass or a struct, whose constructor takes the annotated names."""
    is_enum: bool = False
    is_tuple: bool = False
    """Whether it is a named tuple, which equals a tuple of its values."""
    keywords: Mapping[str, Native] = field(default_factory=dict)
    line: list[Native] = field(default_factory=list)
    """The classes that attributes are looked up in, in order; each once, at its last place."""
    validation: Validation | None = None
    """What checks a record's fields; None for one that takes what it is given."""
    is_frozen: bool = False
    """Whether it is a dataclass whose objects hash by their values."""
    _fields: dict[str, tuple[ast.expr, Frame]] | None = None
    _compared: tuple[str, ...] | None = None
    _passed_on: frozenset[str] | None = None

    def __post_init__(self) -> None:
        found: list[Native] = [self]
        for base in self.bases:
            found += base.line if isinstance(base, ClassValue) else [base]
        self.line = [each for at, each in enumerate(found) if each not in found[at + 1 :]]

    @property
    def metaclass(self) -> ClassValue | None:
        """The class of the class, where it is one of the source."""
        stated = (each.keywords.get("metaclass") for each in self.line if type(each) is ClassValue)
        return next((each for each in stated if isinstance(each, ClassValue)), None)

    @property
    def path(self) -> str:
        """`package.module.Class`, as the class itself says where it sets other names."""
        own = (self.names.get(each) for each in ("__module__", "__qualname__"))
        module, name = (each if isinstance(each, str) else None for each in own)
        return f"{module or self.module.module.name}.{name or self.name}"

    def lookup(self, name: str, *, after: ClassValue | None = None) -> Native | None:
        """Find a name in the class and its bases, or in what comes after one; None if missing."""
        line = self.line
        if after is not None:
            line = line[line.index(after) + 1 :]
        for each in line:
            if type(each) is ClassValue and name in each.names:
                return each.names[name]
        return None

    def has(self, name: str) -> bool:
        """Return whether the class or a base defines a name."""
        return any(type(each) is ClassValue and name in each.names for each in self.line)

    @property
    def externals(self) -> Iterator[Native]:
        """The bases, direct or not, that are not of the source."""
        return (each for each in self.line if not isinstance(each, ClassValue))

    def descends(self, path: str) -> bool:
        """Return whether a class outside the source is among its bases."""
        return any(isinstance(each, External) and each.path == path for each in self.externals)

    def record_fields(self) -> dict[str, tuple[ast.expr, Frame]]:
        """The fields of a record, those of bases first; asked for when the class is whole."""
        if self._fields is None:
            self._fields = {
                name: stated
                for each in reversed(self.line)
                if isinstance(each, ClassValue)
                for name, stated in each.annotations.items()
                if "ClassVar" not in ast.unparse(stated[0])
            }
        return self._fields

    @property
    def compared(self) -> tuple[str, ...]:
        """The fields of a record by which two of its objects are equal."""
        if self._compared is None:
            stated = ((name, self.lookup(name)) for name in self.record_fields())
            left_out = {n for n, own in stated if isinstance(own, FieldDefault) and not own.compare}
            self._compared = tuple(each for each in self.record_fields() if each not in left_out)
        return self._compared

    def is_passed_on(self, name: str) -> bool:
        """Return whether a field is an `InitVar`, which `__post_init__` takes, and no attribute."""
        if self._passed_on is None:  # asked for each field of each object
            texts = ((each, ast.unparse(of)) for each, (of, _) in self.record_fields().items())
            passed = ("InitVar", "dataclasses.Ini")
            self._passed_on = frozenset(each for each, text in texts if text.startswith(passed))
        return name in self._passed_on

    @property
    def special_attributes(self) -> Mapping[str, Native]:
        """What every class has, by name."""
        fields = self.record_fields() if self.is_record else {}
        return {
            "__name__": self.name,
            "__qualname__": self.name,
            "__module__": self.module.module.name,
            "__dict__": self.names,
            "__mro__": tuple(self.line),
            "__bases__": self.bases,
            "__doc__": None,
            "__annotations__": self.names.setdefault("\0annotations", {}),
            "__struct_fields__": tuple(fields),
            "__dataclass_fields__": fields,
        }


class Instance:
    """An object of a class of the source."""

    __slots__ = ("attributes", "cls")

    def __init__(self, cls: ClassValue, attributes: dict[str, Native] | None = None) -> None:
        self.cls = cls
        self.attributes = {} if attributes is None else attributes

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if self.cls.is_enum:
            return isinstance(other, str | int) and self.attributes["value"] == other
        if not isinstance(other, Instance) or other.cls is not self.cls or not self.cls.is_record:
            return False
        return self.compared == other.compared

    @property
    def compared(self) -> list[Native]:
        """The values by which a record equals another one of its class."""
        return [self.attributes.get(each) for each in self.cls.compared]

    def __hash__(self) -> int:
        if self.cls.is_enum:
            value = self.attributes["value"]
            return hash(value) if isinstance(value, str | int) else id(self)
        if self.cls.is_tuple:
            return hash(tuple(self.attributes.values()))
        return hash(tuple(self.compared)) if self.cls.is_frozen else id(self)

    def __repr__(self) -> str:
        return f"<{self.cls.name}>"


@dataclass(eq=False, slots=True, repr=False)
class FunctionValue:
    """A function of the source."""

    name: str
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    frame: Frame
    """The frame that it was defined in."""
    call: Callable[..., Native]
    """Calls it, from native code too."""
    defaults: Sequence[Native] = ()
    keyword_defaults: Mapping[str, Native] = field(default_factory=dict)
    owner: ClassValue | None = None
    attributes: dict[str, Native] = field(default_factory=dict)

    def __call__(self, *args: Native, **named: Native) -> Native:
        """Call it as native code calls a function."""
        return self.call(self, args, named)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Method:
    """A function with the object that it is called on."""

    function: Native
    owner: Native

    def __call__(self, *args: Native, **named: Native) -> Native:
        """Call it."""
        return self.function(self.owner, *args, **named)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Descriptor:
    """What `property`, `classmethod`, `staticmethod` or `cached_property` makes of a function."""

    kind: str
    function: Native
    setter: Native = None
    """What a property's `setter` decorates."""


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Decorated:
    """A function or descriptor with what a library's decorator adds; it is called as before."""

    function: Native


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Managed:
    """A call of a function that `contextlib.contextmanager` decorates."""

    function: Native
    args: Args
    named: Named


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Suppressed:
    """A call of `contextlib.suppress`."""

    errors: tuple[Native, ...]


class Raised(Exception):  # noqa: N818 - the error of an interpreted program
    """The interpreted program raises an error."""

    def __init__(self, value: Native, at: str) -> None:
        super().__init__(value, at)
        self.value = value
        self.at = at

    @property
    def message(self) -> str:
        """The error's text."""
        parts = self.value.args if isinstance(self.value, BaseException) else ()
        if isinstance(self.value, Instance):
            parts = self.value.attributes.get("args", ())
        return " ".join(" ".join(map(str, parts)).split())

    @property
    def error(self) -> str:
        """The name of the error's class."""
        if isinstance(self.value, Instance):
            return self.value.cls.name
        return type(self.value).__name__


@dataclass(frozen=True, slots=True, eq=False)
class Hook:
    """A function of ours that the interpreted program calls."""

    run: Callable[[Native, Sequence[Native], Mapping[str, Native]], Native]
    """Takes the interpreter, the arguments, and those that are named."""
    attributes: Mapping[str, Native] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class FieldDefault:
    """What `dataclasses.field`, `msgspec.field` or pydantic's `Field` states."""

    value: Native = None
    """`ABSENT` where the field has no default."""
    factory: Native = None
    bounds: Mapping[str, Native] = field(default_factory=dict)
    """What pydantic's `gt`, `ge`, `lt` and `le` demand."""
    init: bool = True
    """Whether the constructor takes the field; by this name programs read it."""
    compare: bool = True
    """Whether two records with other values of the field differ."""


def members(cls: ClassValue) -> list[Instance]:
    """List the members of an enum."""
    found = [value for value in cls.names.values() if isinstance(value, Instance)]
    return [value for value in found if value.cls is cls and "value" in value.attributes]


def as_tuple(value: Native) -> Native:
    """Return the values of a named tuple; other values as they are."""
    is_tuple = isinstance(value, Instance) and value.cls.is_tuple
    return tuple(value.attributes.values()) if is_tuple else value


def is_enum(value: Native) -> bool:
    """Return whether a class, of the program or of Python's library, is an enumeration."""
    if isinstance(value, ClassValue):
        return value.is_enum
    return isinstance(value, External) and value.path.startswith("enum.")
