"""Checks, their cases and results; lookup of backends, devices and engines by name.

A check tests one statement of a declaration, in many cases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from backend_caps.capability.kind import Scale
from backend_caps.discovery.registry import Registry
from backend_caps.kit.dimensions import rotated
from backend_caps.kit.errors import KitError
from backend_caps.kit.rig import Rig
from backend_caps.kit.scenarios import Forward, Scenario, forwards_of, scenarios_of
from backend_caps.kit.subject import Subject
from backend_caps.report.check_catalog import CheckDescription
from backend_caps.resolution.errors import nearest
from backend_caps.simulator import DEVICE_NAME, Schedule, Site
from backend_caps.startup.configure import check_device

if TYPE_CHECKING:
    from backend_caps.kit.issue import IssueScript

EAGER = Schedule()
"""The schedule in which device work runs at its launch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How many cases are run, and how long."""

    seeds: Sequence[int] = range(4)
    """Seeds by which each scenario draws its requests."""
    num_steps: int = 1000
    """Steps of a case that looks for growing memory."""

    @classmethod
    def quick(cls) -> Effort:
        """Return the effort of a quick run: each check in few cases."""
        return cls(seeds=range(2), num_steps=100)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run of a check; its name is enough to repeat it."""

    check: str
    """The check's code."""
    scenario: Scenario | None = None
    """The kind of its batches; None where it runs none."""
    schedule: Schedule = EAGER
    """The order in which device work runs."""
    seed: int = 0
    """The seed by which its requests are drawn."""
    num_steps: int = 0
    """Steps of a case that looks for growing memory; 0 for other cases."""

    @property
    def name(self) -> str:
        """`CHECK/SCENARIO@SCHEDULE#SEED`."""
        scenario = "-" if self.scenario is None else self.scenario.name
        return f"{self.check}/{scenario}@{self.schedule}#{self.seed}"

    @property
    def batch_scenario(self) -> Scenario:
        """The scenario of a case that runs batches."""
        assert self.scenario is not None, "each case has batches"
        return self.scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A broken claim that a case found."""

    what: str
    """The observation and the expectation, with values; no full stop."""
    site: Site | None = None
    """The line of the backend that caused it, where known."""
    stops: bool = False
    """Whether no batch can run: later checks would find the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """A claim that may be weaker than it could be: no case needed it."""

    claim: str
    """The capability."""
    what: str
    """The declared value, the observation, and the cases that show it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A test of one statement of a declaration.

    A check compares a backend with itself with one condition changed, so that each false claim
    fails one check. Only `numerics`, `roles` and `serving` compare with attention's definition.
    """

    about: CheckDescription
    """The catalog's description: what it tests, proves and cannot find."""
    cases: Callable[[Subject, Effort], Iterable[Case]]
    """Lists its cases."""
    run: Callable[[Rig, Case], Iterable[Fault]]
    """Runs one case. An exception of the backend is a fault, too."""
    excuse: Callable[[Subject], str | None] = lambda _subject: None
    """Returns why it does not apply to a backend's claims; None: it applies."""
    hints: Callable[[Subject, Sequence[Case], Rig], Iterable[Hint]] | None = None
    """Suggests stronger claims, from its cases that ran. It runs for an excused check too, without
    cases."""
    unfit: Callable[[str], str | None] = lambda _device: None
    """Returns why it cannot run on a device (`sim`, `cpu`, `cuda`); None: it can."""

    @property
    def code(self) -> str:
        """Its stable name."""
        return self.about.code

    @property
    def claims(self) -> tuple[str, ...]:
        """The capabilities that it tests."""
        return tuple(self.about.claims)

    @property
    def after(self) -> Sequence[str]:
        """The checks that have to pass before this one's result means anything."""
        return self.about.after


def unless_claimed(claim: str) -> Callable[[Subject], str | None]:
    """Excuse backends that do not claim a true-or-false capability."""
    return lambda subject: None if subject.claim(claim) is True else f"it does not claim {claim}"


def counted(cases: Sequence[Case]) -> str:
    """Count cases, and name their forwards."""
    forwards = sorted({case.batch_scenario.forward.value for case in cases})
    return f"in {len(cases)} cases over {len(forwards)} forwards ({', '.join(forwards)})"


def cases_of(code: str, scenarios: Iterable[Scenario], effort: Effort) -> Iterator[Case]:
    """Make a case of each scenario and seed, run eagerly."""
    for scenario in scenarios:
        for seed in effort.seeds:
            yield Case(check=code, scenario=scenario, seed=seed)


def spread_cases(
    code: str, scenarios: Iterable[Scenario], subject: Subject, effort: Effort
) -> Iterator[Case]:
    """Make a case of each scenario and seed, run eagerly; values of dimensions rotate."""
    listed = list(scenarios)
    by_seed = [[*rotated(listed, seed, subject)] for seed in effort.seeds]
    for of_scenario in zip(*by_seed, strict=True):
        for seed, scenario in zip(effort.seeds, of_scenario, strict=True):
            yield Case(check=code, scenario=scenario, seed=seed)


def cases_by_seed(
    code: str,
    scenarios_of_seed: Callable[[Subject, int], Iterable[Scenario]],
    subject: Subject,
    effort: Effort,
) -> Iterator[Case]:
    """Make an eager case of each scenario of each seed; values of dimensions rotate."""
    for seed in effort.seeds:
        # Equal scenarios differ once values rotate.
        listed = rotated(scenarios_of_seed(subject, seed), seed, subject)
        for scenario in dict.fromkeys(listed):
            yield Case(check=code, scenario=scenario, seed=seed)


class Verdict(Scale):
    """The verdict on a check or on a claim; of several, the last in this order counts."""

    NOT_CHECKED = "not checked"
    """No case ran to an answer; `reason` holds why."""
    HELD = "held"
    """No case found a fault."""
    FAILED = "failed"
    """A case found a fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A fault, with everything that replays it."""

    subject: str
    """The backend's name."""
    claims: tuple[str, ...]
    """The backend's claims that do not hold."""
    case: Case
    """The case that found the fault."""
    fault: Fault
    words: tuple[str, ...] = ()
    """Arguments of `backend-caps check` beside the backend's name."""

    @property
    def replay(self) -> str:
        """The command that runs this case alone."""
        words = "".join(f"{word} " for word in self.words)
        return f"backend-caps check {words}{self.subject} --case '{self.case.name}'"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The result of a check."""

    check: Check
    status: Verdict = Verdict.NOT_CHECKED
    reason: str = ""
    """Why it was not checked."""
    cases: Sequence[Case] = ()
    """Cases that ran to an answer."""
    num_blocked: int = 0
    """Cases without an answer, because their baseline run failed."""
    findings: Sequence[Finding] = ()
    hints: Sequence[Hint] = ()
    seconds: float = 0.0
    """How long it took."""

    def with_case(self, subject: Subject, case: Case, faults: Iterable[Fault]) -> CheckResult:
        """Add a case of a subject that ran to an answer, and the faults that it found."""
        broken = partial(
            Finding, subject=subject.name, claims=self.check.claims, case=case, words=subject.words
        )
        findings = [*self.findings, *(broken(fault=fault) for fault in faults)]
        status = Verdict.FAILED if findings else Verdict.HELD
        cases = [*self.cases, case]
        return replace(self, status=status, reason="", cases=cases, findings=findings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """The results of a backend's checks."""

    subject: Subject
    device: str
    checks: Sequence[CheckResult]

    @property
    def exercised(self) -> frozenset[str]:
        """`role/phase` of each forward that ran."""
        scenarios = [case.scenario for result in self.checks for case in result.cases]
        forwards = {scenario.forward for scenario in scenarios if scenario is not None}
        return frozenset(f"{each.role.value}/{each.phase.value}" for each in forwards)

    @property
    def findings(self) -> Sequence[Finding]:
        """The findings of all checks."""
        return [finding for result in self.checks for finding in result.findings]

    @property
    def claims(self) -> Mapping[str, Verdict]:
        """The verdict of each capability that a check tests; the worst check's counts."""
        verdicts: dict[str, Verdict] = {}
        for result in self.checks:
            for claim in result.check.claims:
                verdicts[claim] = max(result.status, verdicts.get(claim, result.status))
        return verdicts


_LONG = 400
"""Tokens of a long context: more than the block that backends round short contexts up to."""


def rotated_cases(
    code: str,
    subject: Subject,
    effort: Effort,
    forwards: Iterable[Forward] = Forward,
    *,
    share: int = 1,
) -> Iterator[Case]:
    """Make a case of each forward and seed, at one page size; values of dimensions rotate.

    `share` spreads the forwards over so many seeds: at 2, each forward has every other seed.
    """
    for seed in effort.seeds:
        listed = list[Scenario]()
        for place, forward in enumerate(forwards):
            scenarios = list(scenarios_of(subject, [forward]))
            if scenarios and place % share == seed % share:
                # Mixes both page sizes among the forwards of one seed.
                listed.append(scenarios[(place // share + seed // share) % len(scenarios)])
        for scenario in rotated(listed, seed, subject):
            yield Case(check=code, scenario=scenario, seed=seed)


def long_cases(cases: Sequence[Case], effort: Effort) -> Iterator[Case]:
    """Repeat one case of each seed over long contexts."""
    for seed in effort.seeds:
        scenarios = [case.batch_scenario for case in cases if case.seed == seed]
        if scenarios:
            long = replace(scenarios[seed % len(scenarios)], min_context_len=_LONG)
            yield Case(check=cases[0].check, scenario=long, seed=seed)


def reordered(cases: Sequence[Case], schedules: Iterable[Schedule], seed: int) -> Iterator[Case]:
    """Run one case in each schedule; the next seed pairs them differently."""
    for place, schedule in enumerate(schedules):
        yield replace(cases[(seed + place) % len(cases)], schedule=schedule)


def replayed_forwards(subject: Subject) -> tuple[Forward, ...]:
    """List the forwards whose batches a backend claims to replay."""
    return tuple(
        forward
        for forward in forwards_of(subject)
        if forward.batch_kind in subject.claim_as(frozenset, "graph_replay", **forward.use)
    )


_NEAR = 0.6
"""Similarity from which a declared name is suggested for a mistyped one."""


def subject_named(registry: Registry, name: str) -> Subject:
    """Look up a backend by name, and import its implementation.

    Raises:
        KitError: nothing installed declares it.
        KitError: its declaration was not read, or it is a composite.
        ImplementationError: it names no implementation, or none that can be imported.
    """
    if name not in registry:
        declared = tuple(registry)
        similar = nearest(name, declared, cutoff=_NEAR)
        remedy = "Install its plugin." if similar is None else f"Did you mean {similar!r}?"
        raise KitError(
            "unknown-backend",
            f"no backend {name!r} is declared; declared: {', '.join(declared) or 'none'}. {remedy}",
        )
    subject = Subject.of(registry[name])
    subject.load()
    return subject


def require_device(device: str) -> None:
    """Check that torch has a device here; the simulated one always exists.

    Raises:
        StartupError: torch has no such device.
    """
    if device != DEVICE_NAME:
        check_device(device)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineAdapter:
    """An engine's subjects and checks: `kit.ADAPTER` of the plugin `backend_caps_<engine>`."""

    checks: Sequence[Check]
    """The kit's checks, and those for the engine's backends alone."""
    subject: Callable[[Registry, str], Subject]
    """Builds the subject of a backend class by its name, from the registry of the engine."""
    script: Callable[[Subject, Finding], IssueScript]
    """Writes a script that shows a finding with the engine alone; a KitError says why not."""
    prepare: Callable[[], object]
    """Stands in for what the engine imports, and has for GPUs alone."""


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
