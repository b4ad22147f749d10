"""How running requests go on: the scheduler's side of a decode step.

A plain step adds one token to each context, so the scheduler knows every length by itself. What a
speculative step adds is known on the device alone until its result is processed
(`runtime.speculative.decoding`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from backend_caps.runtime.batch import ScheduleBatch
from backend_caps.runtime.request import Request
from backend_caps.runtime.stats import StepClock


class Decoding(Protocol):
    """What the scheduler asks of the way in which requests go on."""

    @property
    def follows_results(self) -> bool:
        """Whether a step can be built only behind the result of the one before."""

    def reach(self, running: ScheduleBatch) -> Sequence[int]:
        """Return the tokens that each context may have behind its next step, drafts included."""

    def enter(self, requests: Sequence[Request]) -> None:
        """Take note of requests of which a stretch of the prompt is launched."""

    def prepare(self, running: ScheduleBatch, clock: StepClock) -> None:
        """Make a batch's next step."""

    def prepare_mixed(self, running: ScheduleBatch, clock: StepClock) -> None:
        """Make a batch's next step one of a token a request, to be mixed into one of prompts."""

    def commit(self, requests: Sequence[Request]) -> None:
        """Take note of requests of which a step's result was processed."""


class PlainDecoding:
    """A token a step."""

    @property
    def follows_results(self) -> bool:
        """No step needs another one's result on the host."""
        return False

    def reach(self, running: ScheduleBatch) -> Sequence[int]:
        """Return each length and one."""
        return [length + 1 for length in running.mirror.tolist()]

    def enter(self, requests: Sequence[Request]) -> None:
        """Need nothing of it."""

    def prepare(self, running: ScheduleBatch, clock: StepClock) -> None:  # noqa: ARG002
        """Add a token to each context."""
        running.prepare_for_decode()

    def prepare_mixed(self, running: ScheduleBatch, clock: StepClock) -> None:  # noqa: ARG002
        """Add a token to each context."""
        running.prepare_for_decode()

    def commit(self, requests: Sequence[Request]) -> None:
        """Need nothing of it."""
