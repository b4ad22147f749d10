"""A server's configuration: its plan, FutureMap, graph choices and backend classes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from traceback import extract_tb
from types import MappingProxyType
from typing import Self, cast

import torch

from backend_caps.capability.kind import Phase, Role
from backend_caps.capability.vocabulary import SharedReadsEnd
from backend_caps.discovery.pointer import misnamed
from backend_caps.errors import BackendCapsError
from backend_caps.relay import DraftShape, FutureMap
from backend_caps.relay.streams import DeviceStreams, DeviceTraits
from backend_caps.resolution.plan import Plan
from backend_caps.resolution.uses import Use
from backend_caps.startup.graph_choice import GraphChoice, GraphSizes, choose_graphs

NO_SIZES: Mapping[Role, GraphSizes] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """A server's configuration. `configure` makes one from flags, `from_plan` from a plan."""

    plan: Plan
    """The resolved values with their causes; with several ranks, the joined values."""
    future_map: FutureMap
    """The relay between steps, made for the plan."""
    draft: DraftShape | None
    """The draft state that the relay carries; None where it carries none."""
    graph_sizes: Mapping[Role, GraphSizes]
    """The sizes that the engine captures graphs for."""
    graph_choices: Mapping[Role, tuple[GraphChoice, ...]]
    """How each kind of batch runs in each phase of a role: whole graphs, pieces or eagerly."""
    barriers: Mapping[Phase, SharedReadsEnd]
    """By phase, for all roles: the point of a replayed graph after which the scheduler may write
    shared buffers again. The barrier of an eager forward is its end."""

    @classmethod
    def from_plan(
        cls,
        plan: Plan,
        *,
        pool_size: int,
        device: torch.device | str,
        draft: DraftShape | None = None,
        graph_sizes: Mapping[Role, GraphSizes] = NO_SIZES,
        debug: bool = False,
        streams: DeviceStreams | None = None,
    ) -> Self:
        """Make the configuration of a plan that is already resolved.

        Args:
            plan: the resolved plan.
            pool_size: P, the rows of `req_to_token`, with the padding row 0.
            device: where the FutureMap's buffers live.
            draft: the draft state that a speculative step relays; None without a draft model.
            graph_sizes: the sizes of graphs, by role; a role without any captures nothing.
            debug: check every row of the map that is written and read; slow.
            streams: the device's streams, where the declared traits are not the ones to use.

        Raises:
            BackendCapsError: the FutureMap cannot be made; see its class.

        Sync: the whole device, once.
        """
        future_map = FutureMap.from_plan(
            plan, pool_size=pool_size, device=device, draft=draft, debug=debug, streams=streams
        )
        traits = future_map.streams.traits
        return cls(
            plan=plan,
            future_map=future_map,
            draft=draft,
            graph_sizes=graph_sizes,
            graph_choices=_graph_choices(plan, traits, graph_sizes),
            barriers={phase: _barrier(plan, phase, traits) for phase in Phase},
        )

    @property
    def streams(self) -> DeviceStreams:
        """The device's streams, those of the FutureMap."""
        return self.future_map.streams

    def implementation(self, role: Role, phase: Phase) -> Callable[..., object]:
        """Import the class of the backend that runs a role and phase.

        Raises:
            KeyError: the plan has no such use.
            ImplementationError: the declaration names no class, or it cannot be imported.
        """
        for use in self.plan.uses:
            if (use.role, use.phase) == (role, phase) and not use.adds_only:
                return load_implementation(use)
        names = ", ".join(sorted({f"{use.role.value} {use.phase.value}" for use in self.plan.uses}))
        raise KeyError(f"the plan has no use of {role.value} {phase.value}; it has: {names}")


def marked_reads_end(declared: SharedReadsEnd, traits: DeviceTraits) -> SharedReadsEnd:
    """Return the point that a replay can mark as the end of its reads, not before the declared.

    A point within a graph needs an event that every replay records; without such events it is the
    end of the replay.
    """
    if declared is SharedReadsEnd.IN_REPLAY and not traits.has_external_events:
        return SharedReadsEnd.POST_REPLAY
    return declared


def _barrier(plan: Plan, phase: Phase, traits: DeviceTraits) -> SharedReadsEnd:
    declared = plan["shared_reads_end", phase].value
    assert isinstance(declared, SharedReadsEnd), "a plan's point is one of the scale"
    return marked_reads_end(declared, traits)


def _graph_choices(
    plan: Plan, traits: DeviceTraits, sizes: Mapping[Role, GraphSizes]
) -> Mapping[Role, tuple[GraphChoice, ...]]:
    served = {use.role for use in plan.uses}
    return {
        role: choose_graphs(plan, traits, sizes.get(role, GraphSizes()), role)
        for role in Role
        if role in served
    }


@dataclass(eq=False, kw_only=True)
class ImplementationError(BackendCapsError):
    """A backend's code cannot be imported or built."""

    backend: str
    implementation: str | None
    problem: str
    declared_at: str | None = None
    """The file and line of its declaration."""

    @property
    def message(self) -> str:
        """The backend, the name of its implementation, where that is declared, and the error."""
        named = [self.implementation, self.declared_at and f"declared at {self.declared_at}"]
        where = f" ({', '.join(filter(None, named))})" if any(named) else ""
        return (
            f"backend {self.backend!r}{where} cannot be built: {self.problem.removesuffix('.')}; "
            "a declaration with implementation='package.module:Class' was expected. Install what "
            "it needs, or name another backend."
        )


def load_implementation(use: Use) -> Callable[..., object]:
    """Import the class that the declaration of a use names.

    Raises:
        ImplementationError: the declaration names none, or importing it fails.
    """
    declaration = use.declaration
    if declaration is None:
        why = "its declaration was not read" if use.problem is None else use.problem.message
        raise implementation_error(use, why.removesuffix("."))
    if declaration.implementation is None:
        raise implementation_error(use, "its declaration names no implementation")
    module, _, name = declaration.implementation.partition(":")
    try:
        implementation: object = import_module(module)
        for part in name.split("."):
            implementation = getattr(implementation, part)
    except Exception as error:  # importing a plugin may raise any error
        absent = misnamed(declaration.implementation, sys.path)
        raise implementation_error(use, absent or import_fault(error, module)) from error
    return cast("Callable[..., object]", implementation)


def implementation_error(use: Use, problem: str) -> ImplementationError:
    """Return the error of a use whose code cannot be imported or built."""
    implementation = None if use.declaration is None else use.declaration.implementation
    return ImplementationError(
        backend=use.backend,
        implementation=implementation,
        problem=problem,
        declared_at=use.source.declared_at,
    )


def import_fault(error: Exception, module: str) -> str:
    """Describe an error that an import raised, with the line of the module's package."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.msg}, at {error.filename}:{error.lineno}"
    frames = [own for own in extract_tb(error.__traceback__) if not own.filename.startswith("<")]
    package = f"{module.partition('.')[0]}"
    own = [frame for frame in frames if package in Path(frame.filename).with_suffix("").parts]
    place = f", at {own[-1].filename}:{own[-1].lineno}" if own else ""
    return f"{str(error).removesuffix('.') or type(error).__name__}{place}"
