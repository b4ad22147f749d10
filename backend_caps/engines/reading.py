"""The result of reading an engine: backends, rules, options and problems; or an error."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from backend_caps.capability.backend import Backend, EngineClass, Reading
from backend_caps.capability.declaration import Declaration, When
from backend_caps.capability.facts import Facts, Given
from backend_caps.capability.gpu import Gpu
from backend_caps.capability.kind import UNDECLARED
from backend_caps.capability.provenance import Problem, Source, problem_texts
from backend_caps.capability.vocabulary import AttentionArch, Capabilities
from backend_caps.discovery.registry import Registry
from backend_caps.engines.plugin import EnginePlugin
from backend_caps.errors import CodedError
from backend_caps.resolution.engine import Engine
from backend_caps.resolution.launch import Launch
from backend_caps.resolution.rules import RuleSet
from backend_caps.resolution.uses import Use

if TYPE_CHECKING:
    from backend_caps.engines.model import Model


VERSION_UNKNOWN = "engine-version-unknown"
"""The code of the problem of a version that a reader was not checked with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What a class cannot do although the engine's arguments take it, as a check found."""

    path: str
    """The class, with its module."""
    phase: str | None = None
    """The phase that fails; None is each."""
    at: str
    """The engine's `file:line`."""
    message: str
    """What fails there, or what the class imports that other hardware lacks."""
    devices: frozenset[str] = frozenset()
    """The torch device types, or `rocm`, on which it does not fail."""

    def holds(self, path: str | None, phase: str, device: str | None) -> bool:
        """Return whether a class fails in a phase, on a device; an unknown device is none."""
        on_other = not self.devices or (device is not None and device not in self.devices)
        return path == self.path and self.phase in {None, phase} and on_other


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchQuery:
    """Command lines of servers, whose start on a machine is followed."""

    lines: Sequence[Sequence[str]]
    """The command lines; their `--model-path` is replaced by `model`."""
    gpu: Gpu
    """The machine's GPUs."""
    num_gpus: int
    """How many it has."""
    model: Model
    """The model, by its configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """What the processing of an engine's arguments decides of a backend with a setting."""

    name: str
    """The backend's name on the command line."""
    paths: frozenset[str]
    """The classes that are constructed for it where the setting is left out; none for all."""
    settings: Mapping[str, object]
    """By capability, or `platform`, the value that was set; several where only both decide."""
    is_accepted: bool
    """Whether a server starts with the setting and the backend as they were given."""
    message: str
    """The engine's own words, or the value that it takes instead."""
    at: str
    """The engine's `file:line`."""
    launch: str
    """The machine and the model that the server was followed on, such as `H100, llama-3.1-8b`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptances:
    """What an engine's arguments decide of all backends."""

    found: Sequence[Acceptance]
    """Refusals, and those settings taken that the engine looks at."""
    tried: Mapping[str, Sequence[object]]
    """By capability, or `platform`, the values that were set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReading:
    """One version of an engine, read without importing it."""

    engine: str
    """`sglang` or `vllm`."""
    version: str | None
    """None where the source states none."""
    source: str
    """Where it was read: a folder, a wheel's file name, or `installed`."""
    backends: tuple[Backend, ...]
    """A record for each class, and one for each name that flags use, whose parts are classes."""
    root: Backend | None = None
    """The class that all others are made of, whose values a class has that states none; None for
    an engine whose classes declare nothing but what they state."""
    platforms: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By registered name and platform, such as `rocm`, the `file:line` at which the engine's own
    code for that platform names it; empty where the engine has no such code."""
    rules: RuleSet | None
    """What its flags force; None where that is not known."""
    command_line: Engine | None
    """The options that its server takes; None where they are not read."""
    problems: tuple[Problem, ...]
    """What could not be read, and what was not found where it is expected."""
    faults: tuple[Fault, ...] = ()
    """What is known to fail in this version."""
    plugins: tuple[EnginePlugin, ...] = ()
    """The distributions that extend it; their classes are among `backends`."""
    num_files: int
    """Python files of the engine."""
    num_parsed: int
    """How many of them were parsed."""
    launches: Callable[[LaunchQuery], Sequence[Launch]] | None = field(
        default=None, compare=False, repr=False
    )
    """Follows command lines; None where the engine's arguments are not followed."""
    acceptances: Callable[[Collection[str] | None], Acceptances] | None = field(
        default=None, compare=False, repr=False
    )
    """Asks the backends' own check, on several machines, what their source leaves open of some
    capabilities, or of all; None where backends have no such check."""

    def unread(self, facts: Facts, launch: Launch | None = None) -> tuple[Problem, ...]:
        """List the problems that leave a plan for these facts, and of this launch, uncertain."""
        if launch is not None and launch.layers:  # the engine took classes, whatever names it has
            return tuple(each for each in self.problems if each.code == VERSION_UNKNOWN)
        is_wrapped = facts.attention_arch is AttentionArch.SSM
        if self.engine != "sglang" or not is_wrapped or (launch and launch.classes):
            return self.problems
        unchecked = problem(
            "engine-wrapper-not-checked",
            engine=self.engine,
            wrapper="HybridLinearAttnBackend",
            fact="attention_arch is ssm",
        )
        return (*self.problems, unchecked)

    def known_faults(self, uses: Iterable[Use], facts: Facts) -> Iterator[Problem]:
        """List what is known to fail among uses, on the machine of these facts."""
        paths = {each.name: each.engine_class.path for each in self.backends if each.engine_class}
        device = "rocm" if facts.rocm else facts.device
        for use in uses:
            for fault in self.faults:
                if fault.holds(paths.get(use.backend), use.phase.value, device):
                    yield problem(
                        "engine-other-hardware" if fault.devices else "engine-known-fault",
                        engine=self.title,
                        name=use.backend,
                        phase=use.phase.value,
                        message=fault.message,
                        at=fault.at,
                        device=device,
                        devices=" or ".join(sorted(fault.devices)),
                    )

    @property
    def title(self) -> str:
        """The engine, with its version where the source has one."""
        return " ".join(part for part in (self.engine, self.version) if part)

    @property
    def registry(self) -> Registry:
        """The backends, to look up by name and to resolve a server's flags with."""
        return Registry.of(self.backends, problems=self.problems)


def problem(code: str, **values: object) -> Problem:
    """Make a problem from the texts that `problems.toml` has for its code."""
    return problem_texts(__file__)[code].problem(code, **values)


def not_followed(engine: str, name: str, at: str, condition: str = "") -> Problem:
    """Return the problem of a registered name behind which no class was found."""
    when, there = (f" where {condition}", " there") if condition else ("", "")
    return problem(
        "engine-name-not-followed", engine=engine, name=name, at=at, when=when, there=there
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One capability as a class states it: the reading, and the values to declare."""

    reading: Reading
    base: object = UNDECLARED
    """The value where no condition holds."""
    conditions: Sequence[tuple[Given, object, str]] = ()
    """Each condition with its value, and the reason in the source's words."""


def class_record(
    name: str,
    source: Source,
    findings: Mapping[str, Finding | None],
    engine_class: EngineClass,
    implementation: str | None = None,
) -> Backend:
    """Make the record of a class that declares these findings, by capability."""
    stated = {key: finding for key, finding in findings.items() if finding is not None}
    base = {key: each.base for key, each in stated.items() if each.base is not UNDECLARED}
    conditions = [
        When(given=given, capabilities=Capabilities.model_validate({key: value}), reason=reason)
        for key, finding in stated.items()
        for given, value, reason in finding.conditions
    ]
    declaration = Declaration(
        capabilities=Capabilities.model_validate(base),
        conditions=conditions,
        implementation=implementation,
    )
    readings = {key: finding.reading for key, finding in stated.items()}
    engine_class = replace(engine_class, readings=readings)
    return Backend(name=name, source=source, declaration=declaration, engine_class=engine_class)


class EngineError(CodedError):
    """The engine that the caller named cannot be read."""

    codes: ClassVar[Mapping[str, str]] = {
        "unknown-engine": "there is no reader for the engine that is named",
        "engine-not-installed": "the installed engine is asked for, and there is none",
        "engine-source-unusable": "a source holds no such engine, or cannot be opened",
        "engine-does-not-answer": "the Python of an installed engine cannot be asked for a launch",
        "launch-not-followed": "a process that follows a command line through source ends early",
        "model-unreadable": "there is no configuration of the model that is named",
    }
