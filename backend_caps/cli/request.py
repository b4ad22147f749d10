"""A request: where backends are found, a server's flags, and the plan of both."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import click

from backend_caps.capability.facts import Facts
from backend_caps.capability.gpu import gpus
from backend_caps.capability.vocabulary import Capabilities
from backend_caps.cli import invocation
from backend_caps.cli.output import Show, working
from backend_caps.discovery.evidence import require_evidence
from backend_caps.discovery.registry import Registry
from backend_caps.report.plans import PlanDocument, plan_document
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.flips import Flip, flips
from backend_caps.resolution.launch import Launch
from backend_caps.resolution.plan import Plan, Policy
from backend_caps.resolution.rules import RuleSet
from backend_caps.resolution.selection import plan_for

if TYPE_CHECKING:
    from backend_caps.engines.reading import EngineReading, LaunchQuery

_NUM_GPUS = 8
"""The GPUs of a machine of which that is not known."""
STAND_INS = frozenset({"sim"})
"""The devices that stand in for others."""


def query_of(lines: Sequence[Sequence[str]], model: str, facts: Facts) -> LaunchQuery | None:
    """Return what an engine is asked about command lines; None where no GPU is known.

    Raises:
        EngineError: the model's configuration cannot be read.
    """
    if facts.gpu is None:
        return None
    # For a launch alone.
    from backend_caps.engines.model import model_of  # noqa: PLC0415
    from backend_caps.engines.reading import LaunchQuery  # noqa: PLC0415

    return LaunchQuery(
        lines=[tuple(line) for line in lines],
        gpu=facts.gpu,
        num_gpus=facts.num_gpus or _NUM_GPUS,
        model=model_of(model),
    )


def without_launch(what: str) -> click.UsageError:
    """Return the error of a command that follows a start whose model or machine is not known."""
    return click.UsageError(
        f"{what}; add --fact device_name=H100, or another of: {', '.join(gpus())}; and "
        "--model-config MODEL, a folder with a config.json or a stored one such as llama-3.1-8b."
    )


@dataclass(frozen=True, kw_only=True)
class Request:
    """A command's request, read from its options; backends and plan are found once."""

    search: invocation.PluginSearch
    rules: str | RuleSet
    """The rule set that was named, or that of the engine that was read."""
    policy: Policy
    facts: Facts
    override: Capabilities | None
    flags: ServerFlags
    show: Show
    reading: EngineReading | None = None
    """The engine that was read; None without --engine."""
    requires_evidence: bool = False
    """Whether what is not verified counts as undeclared."""
    words: tuple[str, ...] = ()
    """The command line that the engine is started with, where its own functions read it."""
    model: str | None = None
    """The model that the server is started with, where its launch is followed."""

    @property
    def path(self) -> tuple[Path, ...]:
        """The folders that plugins are looked for in; none is the environment."""
        return self.search.path

    @cached_property
    def plugins(self) -> Registry:
        """The installed plugins, or those in the folders of `--path`; their code can run here."""
        return self.search.registry()

    @cached_property
    def found(self) -> Registry:
        """The plugins, joined with an engine's own backends."""
        if self.reading is None:
            return self.plugins
        from backend_caps.engines.start import beside  # noqa: PLC0415 - only for --engine

        return beside(self.reading, self.plugins)

    @cached_property
    def registry(self) -> Registry:
        """The found backends, without unverified claims where evidence is required."""
        if not self.requires_evidence:
            return self.found
        device = self.flags.with_facts(self.facts).device
        return require_evidence(self.found, path=self.path, device=device)

    @cached_property
    def launch(self) -> Launch | None:
        """What the engine makes of the command line; None where no model is named."""
        return None if self.model is None else self.launches([self.words])[0]

    def launches(self, lines: Sequence[Sequence[str]]) -> Sequence[Launch]:
        """Return what the engine makes of command lines, for the model that is named.

        Raises:
            UsageError: no engine is read whose arguments are followed, or no GPU is known.
            EngineError: the model's configuration cannot be read.
        """
        assert self.model is not None, "no model is named"
        if self.reading is None or self.reading.launches is None:
            raise click.UsageError("--model-config is for an engine's start; add --engine.")
        query = query_of(lines, self.model, self.facts)
        if query is None:
            raise without_launch("--model-config is for a server's start on a machine")
        with working(f"following the command line through {self.reading.title}"):
            return self.reading.launches(query)

    @property
    def is_about_server(self) -> bool:
        """Whether a server is described, so that there is a plan."""
        return bool(self.flags.given() or self.words) or self.model is not None

    @cached_property
    def plan(self) -> Plan:
        """The flags, resolved against the registry; unread parts of an engine are problems."""
        if self.reading is None and self.model is None:
            return self.routed_plan(self.facts, STAND_INS)
        return self.launched_plan(self.launch, self.policy)

    def launched_plan(self, launch: Launch | None, policy: Policy) -> Plan:
        """Resolve the flags, or the engine's final ones, with the engine's own backends."""
        assert self.reading is not None, "an engine is read"
        from backend_caps.engines.start import EngineStart  # noqa: PLC0415 - only for --engine

        return EngineStart(reading=self.reading, launch=launch).plan(
            self.registry,
            self.flags,
            rules=self.registry.rules(self.rules),
            facts=self.facts,
            policy=policy,
            unsafe_override=self.override,
        )

    def routed_plan(self, facts: Facts, stand_ins: Collection[str]) -> Plan:
        """Resolve the flags under other facts and stand-ins; `auto` chooses among plugins."""
        return plan_for(
            self.registry,
            self.flags,
            rules=self.registry.rules(self.rules),
            facts=facts,
            policy=self.policy,
            unsafe_override=self.override,
            stand_ins=stand_ins,
        )

    @property
    def document(self) -> PlanDocument:
        """The document of the plan."""
        return self.written(self.plan)

    def written(self, plan: Plan, found: Sequence[Flip] = ()) -> PlanDocument:
        """Make the document of a plan of these flags, with the flips that would change it.

        Args:
            plan: the plan.
            found: flips of a launch, which are found by following others.
        """
        engine = None if self.reading is None else self.reading.title
        flipped = (*flips(plan, self.registry, plan.flags), *found)
        return plan_document(plan, flipped, engine=engine)

    @cached_property
    def explained(self) -> PlanDocument:
        """The document of the plan, with the flips of a launch, each of them followed."""
        launch = self.launch
        if launch is None or self.reading is None:
            return self.document
        from backend_caps.engines.launch_flips import launch_flips  # noqa: PLC0415 - for this alone

        line = self.reading.command_line
        names = [name for each in launch.choices for name, why in each.against.items() if not why]
        names += sorted(line.attention_backends) if line else []
        found = launch_flips(self.plan, self.words, dict.fromkeys(names), self._plans)
        return self.written(self.plan, found)

    def _plans(self, lines: Sequence[Sequence[str]]) -> Iterator[Plan]:
        """Follow other command lines, and resolve each."""
        launches = self.launches(lines) if lines else ()
        return (self.launched_plan(each, Policy.QUIET) for each in launches)
