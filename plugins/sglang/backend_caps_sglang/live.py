"""SGLang's live backend objects, read into uses.

Nothing of SGLang is imported. `_read` is the one place that looks at an object.
"""

from __future__ import annotations

import dis
import reprlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from traceback import format_exception_only
from types import CodeType, FunctionType, MemberDescriptorType

from backend_caps.capability.backend import Problem, Reading
from backend_caps.capability.declaration import Declaration
from backend_caps.capability.kind import Phase, Role
from backend_caps.capability.provenance import BY_HAND, Origin, Source
from backend_caps.capability.vocabulary import Capabilities
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.uses import Use

_FLAG = "needs_cpu_seq_lens"
_BOUND = "max_context_len"
_CAPABILITY = "host_seq_lens"
_EAGLES_SLOTS = 3
"""Target, draft, draft_extend: what Eagle's workers hand over."""
_NOBODY = "nobody"
"""Stands in for a backend where there is none."""

_BY_NAME = frozenset({"setattr", "__setattr__", "__dict__", "vars"})
"""What code sets an attribute with whose name it has as text."""
Place = tuple[Role, Phase]


@dataclass(frozen=True, slots=True)
class _Slot:
    """One entry of `attn_backends`, and what it is run as."""

    index: int
    places: tuple[Place, ...]

    def __str__(self) -> str:
        return f"attn_backends[{self.index}]"


def uses_of_slots(attn_backends: Sequence[object], flags: ServerFlags) -> tuple[Use, ...]:
    """List the uses of the backends that a worker hands over; an empty slot is a use too.

    What is wrong with one is in its `problem`, also where its declaration was read.
    """
    count = len(attn_backends)
    if not count:
        nobody = Problem(
            code="live-no-backend",
            message=f"attn_backends is empty: nothing is known of what runs, so {_FLAG} is True.",
            remedy="Hand over every backend that a forward of this worker runs on.",
        )
        return tuple(_placed(_slot(0, count, flags), _NOBODY, nobody))
    return tuple(
        use
        for index, backend in enumerate(attn_backends)
        for use in _of_slot(_slot(index, count, flags), backend, count, flags)
    )


def _slot(index: int, count: int, flags: ServerFlags) -> _Slot:
    """Return what runs at an index; other numbers of slots than Eagle's are of unknown workers."""
    if index == 0:
        phase = Phase.DECODE if flags.speculative_algorithm is None else Phase.VERIFY
        return _Slot(index, ((Role.TARGET, phase),))
    drafts = ((Role.DRAFT, Phase.DECODE), (Role.DRAFT_EXTEND, Phase.VERIFY))
    return _Slot(index, drafts[index - 1 : index] if count == _EAGLES_SLOTS else drafts)


def _of_slot(slot: _Slot, backend: object, count: int, flags: ServerFlags) -> Iterator[Use]:
    """Put a backend to each of its slot's places: the engine has done so, so it takes the role."""
    if backend is not None:
        reading, kind = _checked(slot, backend), type(backend)
        source = Source(declared_at=f"{kind.__module__}:{kind.__qualname__}")
        if isinstance(reading, Problem):
            return _placed(slot, kind.__name__, reading, source)
        return _placed(slot, kind.__name__, _doubt(slot, backend, reading), source, reading)
    steps = flags.speculative_num_steps
    if (slot.index, count) == (1, _EAGLES_SLOTS) and steps is not None and steps <= 1:
        return iter(())
    empty = Problem(
        code="live-slot-empty",
        message=f"{slot} is empty ({', '.join(role.value for role, _ in slot.places)}): what runs "
        f"there was not handed over, so {_FLAG} is True.",
        remedy="Hand over the backend that runs there, such as the draft runner's own.",
    )
    return _placed(slot, _NOBODY, empty)


def _placed(
    slot: _Slot,
    name: str,
    problem: Problem | None,
    source: Source = BY_HAND,
    reading: Reading | None = None,
) -> Iterator[Use]:
    for role, phase in slot.places:
        yield Use(
            backend=name,
            role=role,
            phase=phase,
            declaration=_declaration(reading, role, problem) if reading else None,
            source=source,
            slot=str(slot),
            problem=problem,
            readings={_CAPABILITY: reading} if reading else {},
        )


def _declaration(reading: Reading, role: Role, problem: Problem | None) -> Declaration:
    stated: dict[str, object] = {"roles": frozenset({role})}
    if reading.origin is Origin.DECLARED:
        stated[_FLAG] = reading.value
        if reading.value is False:
            stated["max_context_len_known"] = problem is None
    return Declaration(capabilities=Capabilities.model_validate(stated))


def _checked(slot: _Slot, backend: object) -> Reading | Problem:
    reading = _read(slot, backend, _FLAG)
    if isinstance(reading, Problem) or reading.origin is Origin.UNDECLARED:
        return reading
    if isinstance(reading.value, bool):
        return reading
    return Problem(
        code="live-flag-not-bool",
        message=f"{_FLAG} of {type(backend).__name__} ({slot}) is {reprlib.repr(reading.value)}; "
        "expected True or False, so it counts as True.",
        remedy="State a bool.",
    )


def _doubt(slot: _Slot, backend: object, reading: Reading) -> Problem | None:
    """Return why an opt-out does not count; None where it does."""
    if reading.value is not False:
        return None
    if reading.origin is Origin.INHERITED:
        name = type(backend).__name__
        base = f" of {reading.inherited_from}" if reading.inherited_from else ""
        return Problem(
            code="live-opt-out-inherited",
            message=f"{name} ({slot}) inherits {reading.words}{base}; an opt-out counts where it "
            "is stated.",
            remedy=f"State {_FLAG} = False in {name}, if that is true of it.",
        )
    # SGLang sizes the tree mask by the target's bound alone (0.5.13 eagle_worker_v2.py:459,
    # 0.5.23 eagle_worker_common.py:425); its FlashAttentionMultiStepBackend has none.
    return _bound_doubt(slot, backend) if slot.index == 0 else None


def _bound_doubt(slot: _Slot, backend: object) -> Problem | None:
    bound = _read(slot, backend, _BOUND)
    if isinstance(bound, Problem):
        return bound
    value = bound.value
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return None
    return Problem(
        code="live-opt-out-without-bound",
        message=f"{type(backend).__name__} ({slot}) states {_FLAG}=False, and its {_BOUND} is "
        f"{reprlib.repr(value)}; the tree mask is sized by it where there is no mirror, so the "
        "opt-out does not count.",
        remedy=f"Set {_BOUND} on the backend, to the longest context in tokens.",
    )


def _read(slot: _Slot, backend: object, name: str) -> Reading | Problem:
    """Read an attribute as SGLang does, by `getattr`, with the class that states it."""
    kind, stater = type(backend), _stater(backend, name)
    try:
        value: object = getattr(backend, name)
    except Exception as error:  # noqa: BLE001 - a property may raise anything
        if stater is None and isinstance(error, AttributeError):
            return Reading(origin=Origin.UNDECLARED, words=f"{name} is not stated")
        return Problem(
            code="live-attribute-unreadable",
            message=f"{name} of {kind.__name__} ({slot}) cannot be read: "
            f"{' '.join(format_exception_only(error)[-1].split())}; the backend counts as "
            "needing the mirror.",
            remedy=f"Let {name} be an attribute that can be read once the backend is made.",
        )
    if stater is kind:
        words = f"{name} = {reprlib.repr(value)}"
        return Reading(origin=Origin.DECLARED, words=words, value=value)
    return Reading(
        origin=Origin.INHERITED,
        words=_inherited_words(kind, stater, name, value),
        value=value,
        inherited_from=None if stater is None else stater.__name__,
    )


def _stater(backend: object, name: str) -> type | None:
    """Find the class that states an attribute, the object's own for what is set from outside.

    What is set on the object is stated by the class whose code sets it, which may be a base's
    constructor. No code of the object's runs. None is an attribute that `__getattr__` takes from
    elsewhere.
    """
    kind = type(backend)
    try:
        own: object = object.__getattribute__(backend, "__dict__")
    except AttributeError:
        own = None
    stater = next((each for each in kind.__mro__ if name in vars(each)), None)
    has_slot = stater is not None and isinstance(vars(stater)[name], MemberDescriptorType)
    is_set_on_object = has_slot or (isinstance(own, dict) and name in own)
    return setter_of(kind, name) or kind if is_set_on_object else stater


def _inherited_words(kind: type, stater: type | None, name: str, value: object) -> str:
    delegates = any("__getattr__" in vars(each) for each in kind.__mro__)
    found = "found before its __getattr__ asks what it wraps" if delegates else ""
    asked = "from what its __getattr__ asks" if stater is None else found
    taken = "SGLang takes it as it is" if value is False else ""
    notes = "; ".join(filter(None, (asked, taken)))
    return f"{name} = {reprlib.repr(value)}{notes and f' ({notes})'}"


def setter_of(kind: type, name: str) -> type | None:
    """Find the first class in a class's order whose own functions set an attribute.

    None is an attribute that is set on the object from outside.
    """
    setters = (each for each in kind.__mro__ if any(_sets(code, name) for code in _codes(each)))
    return next(setters, None)


def _codes(kind: type) -> Iterator[CodeType]:
    """List the code of a class's own functions, with what is in them and what they wrap."""
    pending: list[object] = list(vars(kind).values())
    seen: set[int] = set()
    while pending:
        each = pending.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        match each:
            case CodeType():
                yield each
                pending += each.co_consts
            case FunctionType():
                pending += [each.__code__, *_enclosed(each)]
            case staticmethod() | classmethod():
                pending.append(each.__func__)
            case property():
                pending += [each.fget, each.fset]
            case cached_property():
                pending.append(each.func)


def _enclosed(function: FunctionType) -> Iterator[object]:
    """List what a function closes over, such as the one that a decorator wrapped."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # nothing is in it yet
            continue


def _sets(code: CodeType, name: str) -> bool:
    if name in code.co_consts and not _BY_NAME.isdisjoint(code.co_names):
        return True
    return name in code.co_names and any(
        each.opname == "STORE_ATTR" and each.argval == name for each in dis.get_instructions(code)
    )
