"""What was read from an engine's source: its backends, its rules and its command line."""

from __future__ import annotations

from dataclasses import dataclass

from backend_caps.capability.backend import Backend
from backend_caps.capability.facts import Facts
from backend_caps.capability.status import Problem
from backend_caps.capability.vocabulary import AttentionArch
from backend_caps.discovery.registry import Registry
from backend_caps.engines.problems import wrapper_unknown
from backend_caps.resolution.engine import Engine
from backend_caps.resolution.rules import RuleSet


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
        told = wrapper_unknown(self.engine, "HybridLinearAttnBackend", "attention_arch is ssm")
        return (*self.problems, told)

    @property
    def registry(self) -> Registry:
        """The backends, to look up by name and to resolve a server's flags with."""
        return Registry.of(self.backends, problems=self.problems)
