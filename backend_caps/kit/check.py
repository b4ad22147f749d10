"""A check: one question about a declaration, asked in many cases; and what it found.

Backends, checks and devices are looked up here by the names that people give them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec

from backend_caps.capability.kind import Scale
from backend_caps.discovery.registry import Registry
from backend_caps.kit.errors import KitError
from backend_caps.kit.rig import Rig
from backend_caps.kit.scenarios import Forward, Scenario, forwards_of, scenarios_of
from backend_caps.kit.subject import Subject
from backend_caps.report.check_catalog import CheckDescription
from backend_caps.resolution.errors import nearest
from backend_caps.simulator import DEVICE_NAME, Schedule, Site
from backend_caps.startup.configure import check_device

EAGER = Schedule()
"""The order in which everything runs as soon as it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is tried."""

    seeds: Sequence[int] = range(4)
    """What requests are drawn by, in each scenario."""
    num_steps: int = 1000
    """Steps of a check that looks for growth."""

    @classmethod
    def quick(cls) -> Effort:
        """Try a little of everything."""
        return cls(seeds=range(2), num_steps=100)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One try of a check; its name is enough to repeat it."""

    check: str
    """The check's code."""
    scenario: Scenario | None = None
    """What its batches are made of; None where it runs none."""
    schedule: Schedule = EAGER
    """The order in which the device's work runs."""
    seed: int = 0
    """What its requests are drawn by."""
    num_steps: int = 0
    """How long it goes on, where it looks for growth."""

    @property
    def name(self) -> str:
        """`CHECK/SCENARIO@SCHEDULE#SEED`."""
        scenario = "-" if self.scenario is None else self.scenario.name
        return f"{self.check}/{scenario}@{self.schedule}#{self.seed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What a case found wrong."""

    what: str
    """What was seen and what was expected, with values; no full stop."""
    site: Site | None = None
    """The line of the backend that did it, where that is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """A claim that may be too modest: no case needed it."""

    claim: str
    """The capability."""
    what: str
    """What was claimed, what was seen instead, and over what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One question about a declaration.

    A check compares a backend with itself, with one thing changed: so one lie is found by one
    check. `numerics` alone compares with the definition of attention.
    """

    about: CheckDescription
    """What it asks, proves and cannot find."""
    cases: Callable[[Subject, Effort], Iterable[Case]]
    """Lists what it tries."""
    run: Callable[[Rig, Case], Iterable[Fault]]
    """Tries one case. What the backend raises is a fault too."""
    excuse: Callable[[Subject], str | None] = lambda _subject: None
    """Why it does not apply to what a backend claims; None: it applies."""
    hints: Callable[[Subject, Sequence[Case], Rig], Iterable[Hint]] | None = None
    """Suggests claims beyond those made, from what its cases saw; an excused check has none, and
    may still suggest."""
    unfit: Callable[[str], str | None] = lambda _device: None
    """Why it cannot run on a device (`sim`, `cpu`, `cuda`); None: it can."""

    @property
    def code(self) -> str:
        """Its stable name."""
        return self.about.code

    @property
    def claims(self) -> tuple[str, ...]:
        """The capabilities that it is about."""
        return tuple(self.about.claims)

    @property
    def after(self) -> Sequence[str]:
        """Checks without whose pass this one says nothing."""
        return self.about.after


def unless_claimed(claim: str) -> Callable[[Subject], str | None]:
    """Excuse backends that do not claim something that is true or false."""
    return lambda subject: None if subject.claim(claim) is True else f"it does not claim {claim}"


def scenario_of(case: Case) -> Scenario:
    """Return the scenario of a case that runs batches."""
    assert case.scenario is not None, "each case has batches"
    return case.scenario


def counted(cases: Sequence[Case]) -> str:
    """Count cases, and name their forwards."""
    forwards = sorted({scenario_of(case).forward.value for case in cases})
    return f"in {len(cases)} cases over {len(forwards)} forwards ({', '.join(forwards)})"


def cases_of(code: str, scenarios: Iterable[Scenario], effort: Effort) -> Iterator[Case]:
    """Try each scenario by each seed, in plain order."""
    for scenario in scenarios:
        for seed in effort.seeds:
            yield Case(check=code, scenario=scenario, seed=seed)


def cases_by_seed(
    code: str,
    scenarios_of_seed: Callable[[Subject, int], Iterable[Scenario]],
    subject: Subject,
    effort: Effort,
) -> Iterator[Case]:
    """Try seed after seed in plain order, each in scenarios of its own, none of them twice."""
    for seed in effort.seeds:
        for scenario in dict.fromkeys(scenarios_of_seed(subject, seed)):
            yield Case(check=code, scenario=scenario, seed=seed)


class Verdict(Scale):
    """What became of a check, or of a claim; of several the last one here counts."""

    NOT_CHECKED = "not checked"
    """No case looked at it; the reason says why."""
    HELD = "held"
    """Nothing was found against it, in any case."""
    FAILED = "failed"
    """A case found a fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A fault, with all that is needed to see it again."""

    subject: str
    """The backend's name."""
    claims: tuple[str, ...]
    """What it claims that does not hold."""
    case: Case
    """What found it."""
    fault: Fault
    """What was wrong."""
    words: tuple[str, ...] = ()
    """Arguments of `backend-caps check` beside the name."""

    @property
    def replay(self) -> str:
        """The command that runs this case again, alone."""
        words = "".join(f"{word} " for word in self.words)
        return f"backend-caps check {words}{self.subject} --case '{self.case.name}'"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What became of a check."""

    check: Check
    status: Verdict = Verdict.NOT_CHECKED
    reason: str = ""
    """Why it was not checked."""
    cases: Sequence[Case] = ()
    """Those that ran to an answer."""
    num_blocked: int = 0
    """Cases without one: the run to compare with failed."""
    findings: Sequence[Finding] = ()
    hints: Sequence[Hint] = ()
    seconds: float = 0.0
    """How long it took."""

    def with_case(self, subject: Subject, case: Case, faults: Iterable[Fault]) -> CheckResult:
        """Add a case of a subject that ran to an answer, and what it found."""
        name, words, claims = subject.name, subject.words, self.check.claims
        found = [
            Finding(subject=name, claims=claims, case=case, fault=own, words=words)
            for own in faults
        ]
        every, cases = [*self.findings, *found], [*self.cases, case]
        status = Verdict.FAILED if every else Verdict.HELD
        return replace(self, status=status, reason="", cases=cases, findings=every)


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """What became of a backend."""

    subject: Subject
    device: str
    checks: Sequence[CheckResult]

    @property
    def exercised(self) -> frozenset[str]:
        """`role/phase` of each forward that ran."""
        scenarios = [case.scenario for own in self.checks for case in own.cases]
        forwards = {own.forward for own in scenarios if own is not None}
        return frozenset(f"{own.role.value}/{own.phase.value}" for own in forwards)

    @property
    def findings(self) -> Sequence[Finding]:
        """All that was found."""
        return [finding for own in self.checks for finding in own.findings]

    @property
    def claims(self) -> Mapping[str, Verdict]:
        """The verdict of each capability that a check is about; the worst counts."""
        found: dict[str, Verdict] = {}
        for own in self.checks:
            for claim in own.check.claims:
                found[claim] = max(own.status, found.get(claim, own.status))
        return found


_LONG = 400
"""Tokens of a long context: more than a width that a backend rounds short ones up to."""


def rotated_cases(
    code: str, subject: Subject, forwards: Sequence[Forward], effort: Effort, *, share: int = 1
) -> Iterator[Case]:
    """Try each forward at one page size a seed, or at each second seed where `share` is 2."""
    for seed in effort.seeds:
        for place, forward in enumerate(forwards):
            scenarios = list(scenarios_of(subject, [forward]))
            if scenarios and place % share == seed % share:
                # So that both page sizes come up among the forwards of one seed.
                scenario = scenarios[(place // share + seed // share) % len(scenarios)]
                yield Case(check=code, scenario=scenario, seed=seed)


def long_cases(cases: Sequence[Case], effort: Effort) -> Iterator[Case]:
    """Take one case of each seed again, over long contexts."""
    for seed in effort.seeds:
        of_seed = [own.scenario for own in cases if own.seed == seed and own.scenario is not None]
        if of_seed:
            long = replace(of_seed[seed % len(of_seed)], min_context_len=_LONG)
            yield Case(check=cases[0].check, scenario=long, seed=seed)


def reordered(cases: Sequence[Case], schedules: Iterable[Schedule], seed: int) -> Iterator[Case]:
    """Give each schedule one of the cases, another one at the next seed."""
    for place, schedule in enumerate(schedules):
        yield replace(cases[(seed + place) % len(cases)], schedule=schedule)


def replayed_forwards(subject: Subject) -> tuple[Forward, ...]:
    """List the forwards whose batches a backend claims to replay."""
    return tuple(
        forward
        for forward in forwards_of(subject)
        if forward.batch_kind
        in subject.claim_as(frozenset, "graph_replay", forward.role, forward.phase)
    )


_NEAR = 0.6
"""How much of a name has to be right for it to be meant."""


def subject_named(registry: Registry, name: str) -> Subject:
    """Find the backend of a name, and import its implementation.

    Raises:
        KitError: nothing installed declares it.
        KitError: its declaration was not read, or it is a composite.
        ImplementationError: it names no implementation, or none that can be imported.
    """
    if name not in registry:
        declared = tuple(registry)
        meant = nearest(name, declared, cutoff=_NEAR)
        remedy = "Install its plugin." if meant is None else f"Did you mean {meant!r}?"
        raise KitError(
            "unknown-backend",
            f"no backend {name!r} is declared; declared: {', '.join(declared) or 'none'}. {remedy}",
        )
    subject = Subject.of(registry[name])
    subject.load()
    return subject


def require_device(device: str) -> None:
    """Require a device that torch has here; the simulated one is everywhere.

    Raises:
        StartupError: it has none such.
    """
    if device != DEVICE_NAME:
        check_device(device)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineAdapter:
    """What the plugin `backend_caps_<engine>` exports as `kit.ADAPTER`."""

    checks: Sequence[Check]
    """The kit's checks, and those that only the engine's backends have."""
    subject: Callable[[Registry, str], Subject]
    """Builds the subject of a class, by its name, from what was read of the engine's source."""


def engine_adapter(engine: str) -> EngineAdapter:
    """Import the adapter of an engine.

    Raises:
        KitError: the engine's plugin is not installed.
    """
    package = f"backend_caps_{engine}"
    if find_spec(package) is None:
        raise KitError.uncheckable(
            engine,
            f"the adapter of {engine} is in backend-caps-{engine}, which is not installed; "
            f"pip install backend-caps-{engine}",
        )
    adapter = vars(import_module(f"{package}.kit"))["ADAPTER"]
    assert isinstance(adapter, EngineAdapter), "a plugin of this project exports one"
    return adapter
