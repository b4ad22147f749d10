"""A lock: installed releases and a request, in a file that is equal on every machine.

It holds no time, no host and no absolute path: two runs over the same releases write the same
bytes, so the file can stand in a repository and be compared.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Annotated, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    PlainSerializer,
    ValidationError,
    field_validator,
)

from backend_caps.capability.backend import Backend, Problem, Status
from backend_caps.capability.declaration import Declaration
from backend_caps.capability.facts import Facts, text_of
from backend_caps.capability.model import FrozenModel
from backend_caps.capability.provenance import Origin
from backend_caps.capability.vocabulary import Capabilities
from backend_caps.discovery.registry import Registry
from backend_caps.engines.reading import EngineReading
from backend_caps.errors import CodedError
from backend_caps.report.document import LEFT_OUT, json_text
from backend_caps.report.plans import PlanDocument
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.plan import Policy
from backend_caps.resolution.rules import Rule, RuleSet

LOCK_SCHEMA: Literal["backend-caps/lock@1"] = "backend-caps/lock@1"
"""The schema that this version writes and reads."""
_LONGEST_INPUT = 60
"""Characters of a wrong value that a sentence repeats."""
_FOLDER = "a folder's model"
"""The name of a model whose folder lies elsewhere on each machine."""
_WORKING_DIRECTORY = "working-directory"
"""The problem of a plugin that was found only because it is in the working directory."""


@dataclass(eq=False)
class LockError(CodedError):
    """A lock file cannot be read or written."""

    codes: ClassVar[Mapping[str, str]] = {
        "not-read": "the file is not there, is truncated, or is no lock",
        "not-written": "its folder is not there, or its disk is full; what was there is kept",
        "other-schema": "another version wrote it, or it is another document",
    }


GivenFlags = Annotated[
    ServerFlags,
    PlainSerializer(lambda flags: dict(flags.given()), return_type=dict[str, JsonValue]),
]
"""Server flags, written without those that were not given."""
ValueText = Annotated[str | None, BeforeValidator(lambda v: None if v is None else text_of(v))]
"""A value of a reading, in words; a file has it in words already."""
Sorted = Annotated[tuple[str, ...], AfterValidator(lambda names: tuple(sorted(names)))]
"""Names in their order."""


class _Locked(FrozenModel):
    model_config = ConfigDict(validate_by_name=True, serialize_by_alias=True, from_attributes=True)


class LockedRequest(_Locked):
    """The request, so that `backend-caps verify` can repeat it."""

    flags: GivenFlags
    """The server flags that were given, by name."""
    facts: Facts
    """The facts of machine and model that were given."""
    unsafe_override: Capabilities | None
    """The values that were put in place of the joined ones."""
    policy: Policy
    """What is done about the plan's problems."""
    rules: str | None
    """The rule set that was named; null for the engine's own."""
    engine: str | None
    """The engine whose source is read; null for none."""
    words: Annotated[tuple[str, ...] | None, LEFT_OUT] = None
    """The command line that the engine's own functions read, without its model; left out where
    they are not followed."""
    model: Annotated[str | None, LEFT_OUT] = None
    """The model by whose configuration they are; left out for a folder by its absolute path."""
    requires_evidence: Annotated[bool | None, LEFT_OUT] = None
    """True where what is not verified counts as undeclared; left out where it does not."""


class LockedEngine(_Locked):
    """The engine that was read."""

    name: str
    """`sglang` or `vllm`."""
    version: str | None
    """Its version; null where the source does not say."""


class LockedRules(_Locked):
    """The rule set, third parties' rules included."""

    name: str
    """Its name."""
    relays: Sorted
    """The speculative algorithms whose steps overlap, sorted."""
    rules: tuple[Rule, ...]
    """The rules, in the set's order."""


class LockedReading(_Locked):
    """The statement of an engine's source on one capability or attribute."""

    origin: Origin
    """How its value came to be."""
    words: str
    """The source's own words."""
    value: ValueText
    """The value in words; null where it depends on a condition, or is not stated."""
    declared_at: str | None
    """`file:line`, relative to the folder that the engine is imported from."""
    inherited_from: str | None
    """The class that states it, where this one does not."""


LockedReadings = Annotated[
    dict[str, LockedReading], AfterValidator(lambda read: dict(sorted(read.items())))
]
"""Readings by name, sorted."""


class LockedClass(_Locked):
    """The class of an engine that a backend was read from."""

    path: str
    """`package.module.Class`."""
    registered_as: Sorted
    """The names that flags use for it, sorted."""
    readings: LockedReadings
    """By capability, the source's statements."""
    attributes: LockedReadings
    """By the engine's own name, flags that have no capability of ours."""
    composite: str | None
    """How a wrapper makes its answer from its children's, where it does."""


class LockedBackend(_Locked):
    """One claim to a backend's name."""

    name: str
    """The name that flags use, or an engine's class."""
    status: Status
    """The outcome of reading its declaration."""
    distribution: str | None
    """The distribution that ships it."""
    version: str | None
    """The distribution's version."""
    declared_at: str | None
    """`file:line` in an engine's source; null for a plugin, whose files lie elsewhere on each
    machine."""
    problems: tuple[str, ...]
    """The codes of what is wrong with it, sorted."""
    declaration: Declaration | None
    """Its declaration; null where it was not read."""
    engine_class: LockedClass | None
    """The engine's class that it was read from, where it was."""

    @classmethod
    def of(cls, backend: Backend) -> Self:
        """Make it of a backend: its problems' codes alone, and no place on this machine."""
        class_, source = backend.engine_class, backend.source
        return cls(
            name=backend.name,
            status=backend.status,
            distribution=source.distribution,
            version=source.version,
            declared_at=portable_place(source.declared_at),
            problems=codes_of(backend.problems),
            declaration=backend.declaration,
            engine_class=None if class_ is None else LockedClass.model_validate(class_),
        )


class LockDocument(_Locked):
    """What is installed, and the plan for a server where flags were given."""

    schema_: Annotated[Literal["backend-caps/lock@1"], Field(alias="schema")]
    request: LockedRequest
    """The request."""
    engine: LockedEngine | None
    """The engine that was read; null for none."""
    rules: LockedRules
    """What the server's flags may force."""
    backends: tuple[LockedBackend, ...]
    """Every claim to a backend's name, sorted."""
    problems: tuple[str, ...]
    """The codes of problems of no single backend, sorted."""
    plan: PlanDocument | None
    """The plan; null where no server flags were given."""

    @field_validator("plan")
    @classmethod
    def _holds_values(cls, plan: PlanDocument | None) -> PlanDocument | None:
        """Refuse a plan with values outside the vocabulary."""
        for _, name, value in () if plan is None else plan.all_values():
            value.of_capability(name)
        return plan

    def text(self) -> str:
        """Write the file; defaults, such as undeclared capabilities, are left out."""
        return json_text(self, indent=2, exclude_defaults=True) + "\n"


def lock_document(
    request: LockedRequest,
    registry: Registry,
    rules: RuleSet,
    plan: PlanDocument | None,
    reading: EngineReading | None = None,
) -> LockDocument:
    """Make a lock of what is installed, the request, and the plan.

    Plugins that were found only because of the working directory are left out.

    Args:
        request: the request that `verify` repeats.
        registry: every claim to a backend's name, and the problems of no single backend.
        rules: the rule set, third parties' rules included.
        plan: the plan for the request's flags.
        reading: the engine that was read.
    """
    installed = [b for b in registry.entries if not _is_by_working_directory(b.problems)]
    return LockDocument(
        schema_=LOCK_SCHEMA,
        request=request,
        engine=reading and LockedEngine(name=reading.engine, version=reading.version),
        rules=LockedRules.model_validate(rules),
        backends=tuple(map(LockedBackend.of, installed)),
        problems=codes_of(p for p in registry.problems if not _is_by_working_directory([p])),
        plan=plan and _portable_plan(plan),
    )


def _is_by_working_directory(problems: Iterable[Problem]) -> bool:
    return any(problem.code == _WORKING_DIRECTORY for problem in problems)


def codes_of(problems: Iterable[Problem]) -> tuple[str, ...]:
    """List the codes of problems, sorted."""
    return tuple(sorted(problem.code for problem in problems))


def portable_place(place: str | None) -> str | None:
    """Return a place unless only this machine has it."""
    if place is None or PurePosixPath(place).is_absolute() or PureWindowsPath(place).is_absolute():
        return None
    return place


def _portable_plan(plan: PlanDocument) -> PlanDocument:
    """Copy a plan, with causes that name no place on this machine."""
    portable = plan.model_copy(deep=True)
    if portable.launch is not None:
        own = {"model": portable_place(portable.launch.model) or _FOLDER}
        launch = portable.launch.model_copy(update=own)
        portable = portable.model_copy(update={"launch": launch})
    for _, _, value in portable.all_values():
        for at, cause in enumerate(value.causes):
            # Of `acme 1.0, /a/folder/caps.py:3`, the distribution is the same everywhere.
            shipped, _, place = (cause.source or "").rpartition(", ")
            kept = ", ".join(part for part in (shipped, portable_place(place)) if part)
            value.causes[at] = cause.model_copy(update={"source": kept or None})
    return portable


def read_lock(path: Path) -> LockDocument:
    """Read a lock file.

    Raises:
        LockError: the file is not there, is truncated, holds something else, or has another
            schema, such as that of a newer version.
    """
    try:
        text = path.read_text("utf-8")
        document = json.loads(text)
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, f"it is no JSON ({error})") from error
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != LOCK_SCHEMA:
        raise LockError(
            "other-schema",
            f"lock file {str(path)!r} has the schema {schema!r}; expected {LOCK_SCHEMA!r}. "
            "Use the backend-caps that wrote it, or write it again with this one.",
        )
    try:
        return LockDocument.model_validate_json(text)
    except ValidationError as error:
        raise _unreadable(path, _fault(error)) from error


def write_lock(text: str, path: Path) -> None:
    """Write a lock file whole, or leave the old one unchanged.

    Raises:
        LockError: the file's folder is not there, or its disk has no room.
    """
    is_device = path.exists() and not path.is_file()
    try:
        if is_device:  # such as /dev/stdout: a rename would put a file in its place
            path.write_bytes(text.encode())
        else:
            _replace(Path(os.path.realpath(path)), text)
    except OSError as error:
        raise LockError(
            "not-written",
            f"lock file {str(path)!r} cannot be written: {error.strerror or error}. Expected a "
            "folder that is there, with room for it. Name another file with --output.",
        ) from error


def _unreadable(path: Path, cause: str) -> LockError:
    return LockError(
        "not-read",
        f"lock file {str(path)!r} cannot be read: {cause}. Expected what `backend-caps lock` "
        "writes. Correct the path, or write the file again.",
    )


def _replace(file: Path, text: str) -> None:
    """Write beside a file and rename: it is always the old text or the new one, whole."""
    written = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        written.write_bytes(text.encode())
        if file.exists():
            shutil.copymode(file, written)
        written.replace(file)
    finally:
        written.unlink(missing_ok=True)


def _fault(error: ValidationError) -> str:
    """Name the first wrong value, and its place in the document."""
    first = error.errors(include_url=False, include_context=False)[0]
    place = ".".join(map(str, first["loc"]))
    if first["type"] == "missing":
        return f"it has no {place!r}"
    value = repr(first["input"])
    shown = value if len(value) <= _LONGEST_INPUT else f"{value[:_LONGEST_INPUT]}..."
    return f"its {place!r} is {shown} ({first['msg']})"
