"""The mutants of `backend_caps/runtime/disaggregation.py`."""

from __future__ import annotations

from tests.races.mutation import Kind, Mutant

_FILE = "backend_caps/runtime/disaggregation.py"
_ENTER, _TELL_RELAY = "PromptTransfer.enter", "PromptTransfer._tell_relay"
_SEND, _RECEIVED = "PromptTransfer.send", "PromptTransfer.received"

HANDOVER_MUTANTS = (
    Mutant(
        name="prompt taken over waits for schedule",
        kind=Kind.WAIT,
        file=_FILE,
        function=_ENTER,
        source="self._transfer.wait_stream(self._on.schedule)",
        protects="rows and slots, from being read before they are written",
    ),
    Mutant(
        name="prompt taken over waits for forward",
        kind=Kind.WAIT,
        file=_FILE,
        function=_ENTER,
        source="self._transfer.wait_stream(self._on.forward)",
        protects="rows and slots of a request that has left, while a forward uses them",
    ),
    Mutant(
        name="rows and slots outlive the prompt's copy",
        kind=Kind.KEEP_ALIVE,
        file=_FILE,
        function=_ENTER,
        source="self._streams.keep_alive(lent)",
        protects="where a prompt goes, from the next batch's numbers",
    ),
    Mutant(
        name="forward waits for the prompt taken over",
        kind=Kind.WAIT,
        file=_FILE,
        function=_TELL_RELAY,
        source="forward.wait_stream(self._transfer)",
        protects="a plain step, from a prompt that is not there yet",
    ),
    Mutant(
        name="reading a prompt waits for its slots",
        kind=Kind.WAIT,
        file=_FILE,
        function=_SEND,
        source="self._on.forward.wait_stream(self._on.schedule)",
        protects="a prompt that is handed over, from slots that are not there yet",
    ),
    Mutant(
        name="rows and slots outlive the prompt's reading",
        kind=Kind.KEEP_ALIVE,
        file=_FILE,
        function=_SEND,
        source="self._streams.keep_alive(lent)",
        protects="where a prompt is read, from the next batch's numbers",
    ),
    Mutant(
        name="copy of a prompt waits for its reading",
        kind=Kind.WAIT,
        file=_FILE,
        function=_SEND,
        source="self._transfer.wait_stream(self._on.forward)",
        protects="the host's copy, from a prompt that has not run",
    ),
    Mutant(
        name="a prompt's states outlive their copy",
        kind=Kind.KEEP_ALIVE,
        file=_FILE,
        function=_SEND,
        source="self._streams.keep_alive(own)",
        protects="the host's copy, from what a next forward puts into the same memory",
    ),
    Mutant(
        name="copy of a prompt is recorded",
        kind=Kind.RECORD,
        file=_FILE,
        function=_SEND,
        source="copied.record(self._transfer)",
        protects="the host, from pinned memory that nothing was copied to",
    ),
    Mutant(
        name="host waits for a prompt's states",
        kind=Kind.WAIT,
        file=_FILE,
        function=_RECEIVED,
        source="crossing.copied.synchronize()",
        protects="whoever takes a prompt over, from pinned memory that nothing was copied to",
    ),
)
"""The table."""
