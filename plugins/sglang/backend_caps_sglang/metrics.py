"""The plan at the server's `/metrics`: each value with its causes, and the joint decision.

SGLang's schedulers are processes, and Prometheus' client joins what they write: `--enable-metrics`
gives them a folder for it in `PROMETHEUS_MULTIPROC_DIR`. Without that, nothing is published.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from backend_caps import Plan
from backend_caps.capability.facts import text_of
from backend_caps.resolution.plan import Resolved

if TYPE_CHECKING:
    from prometheus_client import Gauge

_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
_DECIDED = "host_seq_lens"
"""What is decided over all backends of a server: its series are the decision's alone."""
LABELS = ("capability", "phase", "value", "cause", "role", "states", "reason")
"""Of a series of `backend_caps_plan_info`; `phase` is `server` for what holds in all of them."""


@runtime_checkable
class Planned(Protocol):
    """A backend that says what it was planned with, as the bridge's do."""

    @property
    def plan(self) -> object:
        """Its `Plan` in this server."""


def publish(decided: Plan, needs_cpu_seq_lens: bool, attn_backends: Iterable[object]) -> None:
    """Write the decision and the plans of bridged backends to the server's metrics.

    Args:
        decided: what the decision rests on, which answers for `host_seq_lens`.
        needs_cpu_seq_lens: what all schedulers came to.
        attn_backends: the backends that were decided on.
    """
    if _FOLDER not in os.environ:
        return
    needs, info = _gauges()
    needs.set(needs_cpu_seq_lens)
    for labels in series(decided, attn_backends):
        info.labels(*labels).set(1)


def series(decided: Plan, attn_backends: Iterable[object]) -> list[tuple[str, ...]]:
    """List the labels of each series, by `LABELS`: a value with one of its causes.

    What no backend and no rule says anything about has none, such as a verify's graphs where
    nothing is verified.
    """
    stated = (backend.plan for backend in attn_backends if isinstance(backend, Planned))
    plans = [own for own in stated if isinstance(own, Plan)]  # an engine's class may have others
    found = [*_causes("server", decided[_DECIDED])]
    for phase, resolved in (own for plan in plans for own in plan.values()):
        if resolved.capability != _DECIDED:
            found += _causes("server" if phase is None else phase.value, resolved)
    return [*dict.fromkeys(found)]


def _causes(phase: str, resolved: Resolved) -> Iterator[tuple[str, ...]]:
    value = (resolved.capability, phase, text_of(resolved.value))
    for cause in resolved.causes:
        role = "" if cause.role is None else cause.role.value
        yield (*value, cause.name, role, text_of(cause.value), cause.reason)


@cache
def _gauges() -> tuple[Gauge, Gauge]:
    """Register the two metrics, once in a process."""
    # When it is imported it looks whether several processes write, which SGLang's launch sets.
    from prometheus_client import Gauge  # noqa: PLC0415

    # Schedulers that agree write one series; where they do not, the one that needs more counts.
    needs = Gauge(
        "backend_caps_needs_cpu_seq_lens",
        "1 where the lengths cross to the host in each step.",
        multiprocess_mode="max",
    )
    info = Gauge(
        "backend_caps_plan_info",
        "1 for each value of the plan and each cause of it.",
        LABELS,
        multiprocess_mode="max",
    )
    return needs, info
