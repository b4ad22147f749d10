"""The plan of a server that starts: in its log, beside its lock, at its metrics, or refused."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from dataclasses import dataclass

from backend_caps import BackendCapsError, Settings
from backend_caps.capability.backend import Backend, adapters_for
from backend_caps.capability.provenance import Status
from backend_caps.discovery.evidence import read_standings
from backend_caps.discovery.registry import Registry
from backend_caps.report.launch_views import launch_view
from backend_caps.report.launches import LaunchDocument
from backend_caps.report.terminal import show
from backend_caps.resolution.plan import Policy
from backend_caps_vllm.engine import ENGINE, Registered
from backend_caps_vllm.graph_statements import compared, stated
from backend_caps_vllm.live import LiveServer, TakenBackend
from backend_caps_vllm.lock import lock_differences
from backend_caps_vllm.metrics import publish

_LOG = logging.getLogger("vllm.backend_caps_vllm")


@dataclass(eq=False, kw_only=True)
class RefusedStartError(BackendCapsError):
    """Under the policy strict, a server is not what was declared, locked or asked for."""

    problems: tuple[str, ...]

    @property
    def message(self) -> str:
        """Every problem, and what to do."""
        return (
            f"this server does not start under the policy strict: {' '.join(self.problems)} "
            "Mend it, or set BACKEND_CAPS_POLICY=warn to start with a warning."
        )


def announce(server: LiveServer, settings: Settings) -> None:
    """Log a server's plan and what is wrong with it, and publish both.

    Raises:
        RefusedStartError: something is wrong, and the policy is strict.
    """
    launch = LaunchDocument.of(server.launch)
    _LOG.info("the plan of this server:\n%s", plan_text(launch))
    problems = (*dict.fromkeys(problems_of(server, launch, settings)),)
    publish(launch, server.launch.values, problems)
    if problems and settings.policy is Policy.STRICT:
        raise RefusedStartError(problems=problems)
    if settings.policy is not Policy.QUIET:
        for problem in problems:
            _LOG.warning("%s", problem)


def plan_text(launch: LaunchDocument) -> str:
    """Write a plan as `backend-caps resolve --engine vllm` shows what the engine makes of it."""
    out = io.StringIO()
    show(launch_view(launch), out)
    return "\n".join(line.rstrip() for line in out.getvalue().strip("\n").splitlines())


def problems_of(server: LiveServer, launch: LaunchDocument, settings: Settings) -> Iterator[str]:
    """Say what is not as declared, as asked, or as locked; a sentence each, and what to do."""
    yield from _not_asked(server)
    for backend in server.backends:
        yield from _sizes(backend)
    others = [own for own in server.backends if not own.is_own]
    if not others and settings.lock is None:
        return
    registry = settings.discover()
    yield from _faults(registry)
    declared = adapters_for(ENGINE, registry.values())
    for other in others:
        yield from _of_declaration(other, declared.get(other.path), settings)
    if settings.lock is not None and server.is_first:
        try:
            yield from lock_differences(settings.lock, launch, registry)
        except BackendCapsError as error:
            yield str(error)


def _faults(registry: Registry) -> Iterator[str]:
    """List declarations that cannot be read: what runs may be theirs."""
    for entry in registry.entries:
        if entry.status in {Status.BROKEN, Status.CONFLICT}:
            yield from (f"{each.message} {each.remedy}" for each in entry.problems)


def _not_asked(server: LiveServer) -> Iterator[str]:
    asked = server.asked
    if asked is not None and not any(asked.kind in own.kind.__mro__ for own in server.backends):
        taken = ", ".join(own.path for own in server.backends) or "none"
        yield (
            f"The attention backend {asked.name} ({asked.path}) was asked for, and vLLM's platform "
            f"took {taken}. Name one that the platform takes, or none."
        )


def _sizes(backend: TakenBackend) -> Iterator[str]:
    """Ask the class itself; a platform may take it without that, and fail at the first request."""
    head = backend.facts.head_size
    supports = getattr(backend.kind, "supports_head_size", None)
    if head is not None and supports is not None and not supports(head):
        yield (
            f"{backend.path} states that it does not support the head size {head} of these "
            "layers, and vLLM's platform took it. Name another backend, or serve another model."
        )


def _of_declaration(
    backend: TakenBackend, declared: Backend | None, settings: Settings
) -> Iterator[str]:
    name = str(backend.kind.get_name())  # type: ignore[attr-defined] # vLLM's contract
    seen = compared(stated(Registered(name, backend.path), backend.builder), declared)
    if seen.fault is not None:
        yield str(seen)
    if declared is None or declared.declaration is None:
        return
    source = f"{declared.source.distribution} {declared.source.version}"
    named = f"backend {declared.name!r} of {source} runs as {backend.path}"
    _LOG.info("%s", named)
    for reason in declared.declaration.unsupported_reasons(backend.facts):
        if reason.needed is not None:
            yield (
                f"{named}: it declares {reason.fact} {reason.needed}, and here it is "
                f"{reason.actual}. Correct the declaration, or serve what it declares."
            )
    standing = read_standings([declared], path=settings.path, device=settings.facts.device)
    for own in standing.values():
        failed = ", ".join(check.code for check in own.failed_checks)
        if failed and not own.changes:
            yield (
                f"{named}: its own evidence says that it failed {failed}. Correct the declaration "
                f"or the class, and renew the evidence: backend-caps check {declared.name} "
                "--write-evidence."
            )
