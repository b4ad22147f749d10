"""What reading an engine gives: its backends, and problems by their codes; or an error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from backend_caps.capability.backend import Backend, EngineClass, Reading
from backend_caps.capability.declaration import Declaration, When
from backend_caps.capability.facts import Facts, Given
from backend_caps.capability.kind import UNDECLARED
from backend_caps.capability.provenance import Problem, Source, Status
from backend_caps.capability.vocabulary import AttentionArch, Capabilities
from backend_caps.discovery.problems import ProblemText
from backend_caps.discovery.registry import Registry
from backend_caps.errors import CodedError
from backend_caps.resolution.engine import Engine
from backend_caps.resolution.rules import RuleSet

_REST = "The rest of the engine is read."
_UNDECLARED = "What the class does not state itself counts as undeclared."
_NEWER = "use a backend-caps that knows"
_BAD_WHEEL = "Do not install this wheel: get it from its publisher again."
TEXTS: Mapping[str, ProblemText] = {
    "engine-anchor-missing": ProblemText(
        "something is not where every known version of the engine has it",
        "{engine} {version} has no {what} in {path}, where known versions have it.",
        f"What it says is unknown; {_NEWER} this version.",
    ),
    "engine-base-dynamic": ProblemText(
        "a class takes its base from what only running code knows",
        "{at}: class {name} takes its base from {base}, which only running code "
        "knows; what it inherits from there is not read.",
        _UNDECLARED,
    ),
    "engine-base-not-found": ProblemText(
        "a class has a base of the engine's own that its source lacks",
        "{at}: class {name} has the base {base}, which is not in the source.",
        _UNDECLARED,
    ),
    "engine-bases-inconsistent": ProblemText(
        "the bases of a class have no method resolution order",
        "{at}: the bases of class {name} have no common order.",
        _UNDECLARED,
    ),
    "engine-class-defined-twice": ProblemText(
        "a module defines a class more than once, under conditions",
        "{at}: class {name} is defined again at {others}; which one runs depends on a condition.",
        "Each is listed by itself, and all of them count.",
    ),
    "engine-file-not-parsed": ProblemText(
        "a file is no Python that this interpreter can parse",
        "{path} is no Python that this interpreter can parse: {error}.{lost}",
        f"{_REST} Use the Python that the engine runs on, or install the engine again.",
    ),
    "engine-file-repeated": ProblemText(
        "a wheel holds a file more than once",
        "the wheel holds {path!r} more than once; the last one was read.",
        _BAD_WHEEL,
    ),
    "engine-file-too-large": ProblemText(
        "a file is larger than what is read of one",
        "{path} has more than the {limit:,} bytes that are read.",
        f"{_REST} If backends stand in it, tell the authors of backend-caps.",
    ),
    "engine-file-unreadable": ProblemText(
        "a file cannot be opened or unpacked",
        "{path} cannot be read: {error}.",
        f"{_REST} Install the engine again.",
    ),
    "engine-import-circle": ProblemText(
        "modules import a name from one another in a circle",
        "{path}: {name} is imported in a circle: {circle}.",
        "What hangs on it counts as undeclared.",
    ),
    "engine-name-not-followed": ProblemText(
        "no class was found behind a name that the engine registers",
        "what {engine} makes for the name {name!r}{when} ({at}) could not be followed to a class.",
        "The name counts as undeclared{there}.",
    ),
    "engine-name-registered-twice": ProblemText(
        "more than one file registers a name",
        "{engine} registers the name {name!r} in several files: {files}; "
        "which one counts depends on what is imported last.",
        "All of them count.",
    ),
    "engine-name-unusable": ProblemText(
        "a registered name cannot be printed, or is none",
        "{engine} registers the name {name!a} ({at}); expected printable text "
        "without spaces around it.",
        "It is left out: nothing that flags say can mean it.",
    ),
    "engine-path-unsafe": ProblemText(
        "a wheel holds a path that is none inside it",
        "the wheel holds {path!r}, which is no path inside it; it was not read.",
        _BAD_WHEEL,
    ),
    "engine-rule-unknown": ProblemText(
        "the engine forces something under a condition that no rule knows",
        "{engine} {version} also keeps the copy where {condition} ({at}), and no "
        "known rule says so.",
        f"It counts as open, so the copy stays on; {_NEWER} it.",
    ),
    "engine-star-import": ProblemText(
        "a name may come from a star import of what the source lacks",
        "{path}: {name} may come from `from {module} import *`, which is not in the source.",
        "What hangs on it counts as undeclared.",
    ),
    "engine-value-not-bool": ProblemText(
        "a class gives a flag a value that is neither True nor False",
        "{at}: {words}, which is neither True nor False; the engine takes its truth.",
        "It counts as undeclared.",
    ),
    "engine-version-unknown": ProblemText(
        "nobody has compared this version of the engine with the reader",
        "{engine} {version} is not a version that the reader was checked with ({known}).",
        "Compare what the report says with the engine's source, line by line.",
    ),
    "engine-wrapper-not-checked": ProblemText(
        "the engine wraps its backends in what no flag names",
        "where {fact}, {engine} runs its backends in a {wrapper}, whose own word is not "
        "in this plan.",
        "See what the report says of it; where it is undeclared, the copy stays on.",
    ),
}
"""Each stable code with its meaning, its message and its remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReading:
    """One version of an engine, read without importing it."""

    engine: str
    """`sglang` or `vllm`."""
    version: str | None
    """None where the source does not say."""
    source: str
    """Where it was read: a folder, a wheel's file name, or `installed`."""
    backends: tuple[Backend, ...]
    """A record for each class, and one for each name that flags use, whose parts are classes."""
    rules: RuleSet | None
    """What its flags force; None for an engine whose rules are not known (vLLM)."""
    command_line: Engine | None
    """The options that its server takes; None where they are not read."""
    problems: tuple[Problem, ...]
    """What could not be read, and what was not found where it is expected."""
    num_files: int
    """Python files of the engine."""
    num_parsed: int
    """Those of them that had to be parsed."""

    def unread(self, facts: Facts) -> tuple[Problem, ...]:
        """List what a plan for these facts rests on, and what was not read of it."""
        if self.engine != "sglang" or facts.attention_arch is not AttentionArch.SSM:
            return self.problems
        unchecked = problem(
            "engine-wrapper-not-checked",
            engine=self.engine,
            wrapper="HybridLinearAttnBackend",
            fact="attention_arch is ssm",
        )
        return (*self.problems, unchecked)

    @property
    def registry(self) -> Registry:
        """The backends, to look up by name and to resolve a server's flags with."""
        return Registry.of(self.backends, problems=self.problems)


def problem(code: str, **values: object) -> Problem:
    """Fill in the text of a code."""
    return TEXTS[code].problem(code, **values)


def not_followed(engine: str, name: str, at: str, condition: str = "") -> Problem:
    """Return the problem of a registered name behind which no class was found."""
    when, there = (f" where {condition}", " there") if condition else ("", "")
    return problem(
        "engine-name-not-followed", engine=engine, name=name, at=at, when=when, there=there
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One capability as a class's source states it: the reading, and what can be declared."""

    reading: Reading
    base: object = UNDECLARED
    """What holds where no condition does."""
    conditions: Sequence[tuple[Given, object, str]] = ()
    """Each condition with its value, and the reason in the source's words."""


def class_record(
    name: str,
    source: Source,
    findings: Mapping[str, Finding],
    engine_class: EngineClass,
    implementation: str | None = None,
) -> Backend:
    """Make the record of a class, which declares what was found of it, by capability."""
    base = {key: each.base for key, each in findings.items() if each.base is not UNDECLARED}
    conditions = [
        When(given=given, capabilities=Capabilities.model_validate({key: value}), reason=reason)
        for key, each in findings.items()
        for given, value, reason in each.conditions
    ]
    declaration = Declaration(
        capabilities=Capabilities.model_validate(base),
        conditions=conditions,
        implementation=implementation,
    )
    readings = {key: each.reading for key, each in findings.items()}
    return record(name, source, declaration, replace(engine_class, readings=readings))


def record(
    name: str,
    source: Source,
    declaration: Declaration,
    engine_class: EngineClass | None = None,
) -> Backend:
    """Make the record of what was read."""
    return Backend(
        name=name,
        status=Status.OK,
        source=source,
        declaration=declaration,
        engine_class=engine_class,
    )


class EngineError(CodedError):
    """An engine that was named cannot be read at all."""

    codes: ClassVar[Mapping[str, str]] = {
        "unknown-engine": "there is no reader for the engine that is named",
        "engine-not-installed": "the installed engine is asked for, and there is none",
        "engine-source-unusable": "a source holds no such engine, or cannot be opened",
        "attn-backends-no-sequence": "what SGLang hands over as backends is no sequence",
        "runtime-context-unreadable": "SGLang's runtime context has not published its flags",
    }
