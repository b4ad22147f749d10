"""Backends, uses and flags in few words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import pytest
from _pytest.mark.structures import ParameterSet
from pydantic import ValidationError

from backend_caps.capability.backend import Backend, Problem, Status
from backend_caps.capability.declaration import Declaration, Part, When
from backend_caps.capability.kind import Phase, Role
from backend_caps.capability.provenance import Source
from backend_caps.capability.vocabulary import Capabilities
from backend_caps.errors import BackendCapsError
from backend_caps.resolution.engine import ENGINES
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.plan import Plan
from backend_caps.resolution.rules import RuleSet
from backend_caps.resolution.uses import Use

RULES_13, RULES_23 = map(RuleSet.builtin, ENGINES)
"""The rules of SGLang 0.5.13 and of 0.5.23."""
UNDECLARING = Capabilities()
OPTS_OUT = Capabilities(needs_cpu_seq_lens=False, max_context_len_known=True, roles=set(Role))
READS = Capabilities(needs_cpu_seq_lens=True, max_context_len_known=True, roles=set(Role))
SPECULATING = "--speculative-algorithm EAGLE --disable-piecewise-cuda-graph"
"""Flags under which the mirror has an effect and no built-in rule forces it."""


def rows(table: str) -> list[ParameterSet]:
    """Read cases from a table of texts: one a line, its name first, bars between the cells."""
    lines = [[cell.strip() for cell in line.split("|")] for line in table.strip().splitlines()]
    return [pytest.param(*cells, id=name) for name, *cells in lines]


def flags(line: str = "") -> ServerFlags:
    """Read a command line, as the newest engine does."""
    return ServerFlags.from_argv(line.split(), engine_name=ENGINES[-1])


def install_sglang(version: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put metadata of a version of SGLang on the path."""
    metadata = folder / f"sglang-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Name: sglang\nVersion: {version}\n")
    monkeypatch.syspath_prepend(folder)


def shipped(name: str) -> Source:
    """Name the place where an installed backend was declared."""
    return Source(distribution=f"{name}-caps", version="1.0", declared_at=f"{name}_caps.py:3")


def use(
    backend: str = "fa3",
    capabilities: Capabilities = UNDECLARING,
    *,
    role: Role = Role.TARGET,
    phase: Phase = Phase.DECODE,
    conditions: Sequence[When] = (),
) -> Use:
    """Put a backend in one role and phase, by hand."""
    declaration = Declaration(capabilities=capabilities, conditions=conditions)
    return Use(backend=backend, role=role, phase=phase, declaration=declaration)


def missing_use(backend: str = "fa3", *, phase: Phase = Phase.DECODE) -> Use:
    """Put a backend in use that could not be read."""
    problem = Problem(code="backend-missing", message=f"no {backend}.", remedy="Install it.")
    return Use(backend=backend, role=Role.TARGET, phase=phase, declaration=None, problem=problem)


def installed(
    name: str,
    capabilities: Capabilities = UNDECLARING,
    *,
    conditions: Sequence[When] = (),
    parts: Sequence[Part] = (),
    adapters: Mapping[Literal["sglang", "vllm"], str] = MappingProxyType({}),
) -> Backend:
    """Describe a backend as discovery finds it."""
    declaration = Declaration(
        capabilities=capabilities, conditions=conditions, parts=parts, adapters=adapters
    )
    return Backend(name=name, status=Status.OK, source=shipped(name), declaration=declaration)


def broken(name: str, status: Status, problems: Iterable[Problem] = ()) -> Backend:
    """Describe a backend whose declaration was not read."""
    return Backend(name=name, status=status, source=shipped(name), problems=tuple(problems))


def named(*backends: Backend) -> Mapping[str, Backend]:
    """Look backends up as a registry does."""
    return {backend.name: backend for backend in backends}


def faults_of(build: Callable[[], object]) -> list[tuple[str, str]]:
    """Return where a model refuses its data, and in which words."""
    with pytest.raises(ValidationError) as refused:
        build()
    return [(".".join(map(str, each["loc"])), each["msg"]) for each in refused.value.errors()]


def error_of(build: Callable[[], object]) -> str:
    """Return the whole text of the one error that is raised."""
    with pytest.raises(BackendCapsError) as raised:
        build()
    return str(raised.value)


def errors_of(build: Callable[[], object]) -> tuple[str, list[str]]:
    """Return the text of a group of errors, and of each of them."""
    with pytest.raises(ExceptionGroup) as raised:
        build()
    return raised.value.message, [str(error) for error in raised.value.exceptions]


def at_rank(plan: Plan, rank: int) -> Plan:
    """Mark a plan's causes as one rank's."""
    return plan.with_values(
        lambda _, own: replace(own, causes=tuple(replace(cause, rank=rank) for cause in own.causes))
    )
