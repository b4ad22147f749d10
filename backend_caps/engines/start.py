"""The plan of a server of an engine: its own backends beside the installed plugins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from backend_caps.capability.backend import Backend
from backend_caps.capability.facts import Facts
from backend_caps.capability.provenance import Problem, Status
from backend_caps.capability.vocabulary import Capabilities
from backend_caps.discovery.registry import Registry
from backend_caps.engines.read import read_engine
from backend_caps.engines.reading import EngineReading, LaunchQuery
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.launch import Launch
from backend_caps.resolution.plan import Plan, Policy
from backend_caps.resolution.resolver import resolve
from backend_caps.resolution.rules import RuleSet


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStart:
    """A server of an engine that was read, and what the engine makes of its command line."""

    reading: EngineReading
    launch: Launch | None = None
    """One of `EngineReading.launches`; None where the command line is not followed."""

    def plan(
        self,
        registry: Registry,
        flags: ServerFlags,
        *,
        rules: RuleSet,
        facts: Facts,
        policy: Policy | str,
        unsafe_override: Capabilities | None = None,
    ) -> Plan:
        """Resolve the flags, or the engine's final ones where its launch is known.

        Args:
            registry: the engine's backends and the plugins, as `beside` joins them.
            flags: the server's.
            rules: those that hold. What the engine leaves open is added as problems.
            facts: what is known of machine and model; a launch fills open ones.
            policy: how problems are treated.
            unsafe_override: values to put in place of the joined ones.

        Raises:
            BackendCapsError: as `resolve` does.
        """
        if self.launch is not None:
            flags, facts = self.launch.over(flags), self.launch.with_facts(facts)
        uses = registry.uses(flags, self.launch)
        open_ = (*self.reading.unread(facts, self.launch), *self.reading.known_faults(uses, facts))
        return resolve(  # an engine chooses classes for its names itself, auto included
            uses,
            flags,
            rules=rules.with_problems(open_),
            facts=facts,
            policy=policy,
            unsafe_override=unsafe_override,
            launch=self.launch,
        )


def read_start(
    query: LaunchQuery, *, source: Path | None = None, python: Path | None = None
) -> EngineStart:
    """Read SGLang, and follow the start of the first server of a query.

    Args:
        query: its command line, the machine and the model.
        source: a wheel, or a folder with the package in it, which is read.
        python: the Python of an environment that has SGLang, which is asked; without either, the
            SGLang of this Python is.

    Raises:
        EngineError: as `read_engine` does, or the engine does not answer.
    """
    reading = read_engine("sglang", source, python, query)
    assert reading.launches is not None, "SGLang's launches are followed"
    return EngineStart(reading=reading, launch=reading.launches(query)[0])


def beside(reading: EngineReading, plugins: Registry) -> Registry:
    """Join an engine's own backends with the installed plugins; the engine's win a shared name."""
    engines_own = reading.registry
    joined = Registry.of(
        (*engines_own.entries, *_others(reading, plugins)),
        rules=plugins.third_party_rules,
        problems=(*engines_own.problems, *plugins.problems),
    )
    return replace(joined, rule_problems=plugins.rule_problems, remarks=plugins.remarks)


def _others(reading: EngineReading, plugins: Registry) -> Iterator[Backend]:
    names = {backend.name for backend in reading.backends}
    for entry in plugins.entries:
        if entry.name not in names or entry.status is Status.SKIPPED:
            yield entry
            continue
        plugin = replace(entry.source, declared_at=None)
        problem = Problem(
            code="engines-own",
            message=f"backend {entry.name!r} of {plugin} has the name of one that "
            f"{reading.title} has itself, and the engine's goes before it.",
            remedy="Rename the plugin's, or leave --engine out.",
        )
        yield replace(entry, status=Status.SKIPPED, problems=(*entry.problems, problem))
