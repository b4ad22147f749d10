"""Which end of a handover an engine is: the one that runs prompts, the one that goes on, or none.

An engine of mode `prefill` makes one token a request, and no decode step. One of mode `decode` runs
no prompt that comes to it, so that its steps stay short; only what it has retracted it runs anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from backend_caps.relay import FutureMap
from backend_caps.relay.streams import StepStreams
from backend_caps.runtime.disaggregation.caches import PromptCaches
from backend_caps.runtime.disaggregation.errors import DisaggregationModeError
from backend_caps.runtime.disaggregation.incoming import Incoming
from backend_caps.runtime.disaggregation.outgoing import Outgoing
from backend_caps.runtime.staging import Staging


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """What an engine has for its part; where it does the whole work, nothing."""

    mode: str
    """The flags' `--disaggregation-mode`."""
    outgoing: Outgoing | None = None
    incoming: Incoming | None = None

    @classmethod
    def of(
        cls,
        mode: str,
        caches: PromptCaches | None,
        relay: FutureMap,
        staging: Staging,
        step_streams: StepStreams,
    ) -> Self:
        """Make what a mode asks for, and draw the stream that it copies on.

        Args:
            mode: the flags'.
            caches: where prompts stand; None where none crosses.
            relay: what goes from a step to the next one.
            staging: carries host numbers to the device.
            step_streams: the streams of steps.
        """
        if caches is None:
            return cls(mode=mode)
        transfer = staging.streams.private_stream()
        if mode == "prefill":
            outgoing = Outgoing(
                caches=caches,
                relay=relay,
                staging=staging,
                step_streams=step_streams,
                transfer=transfer,
            )
            return cls(mode=mode, outgoing=outgoing)
        incoming = Incoming(
            caches=caches,
            relay=relay,
            staging=staging,
            step_streams=step_streams,
            transfer=transfer,
        )
        return cls(mode=mode, incoming=incoming)

    def require_whole(self, asked: str) -> None:
        """Refuse what is asked of engines that run prompts and go on with them.

        Raises:
            DisaggregationModeError: this one does half of it.
        """
        if self.mode != "null":
            raise DisaggregationModeError(asked=asked, mode=self.mode, expected="null")

    def require_outgoing(self, asked: str) -> Outgoing:
        """Return the way out.

        Raises:
            DisaggregationModeError: this engine has none.
        """
        if self.outgoing is None:
            raise DisaggregationModeError(asked=asked, mode=self.mode, expected="prefill")
        return self.outgoing

    def require_incoming(self, asked: str) -> Incoming:
        """Return the way in.

        Raises:
            DisaggregationModeError: this engine has none.
        """
        if self.incoming is None:
            raise DisaggregationModeError(asked=asked, mode=self.mode, expected="decode")
        return self.incoming
