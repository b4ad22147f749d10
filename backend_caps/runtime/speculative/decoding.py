"""The scheduler's side of speculative decoding.

What a step adds to a context is known on the device between its verify and its draft-extend, and
on the host when its result is processed. In the overlapped loop the next step is built before that:
its lengths come from the relay, on the host as far as the plan says. Pages are given out by an
upper bound in every mode. In the plain loop the host has every result, and so the lengths.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.relay import FutureMap
from backend_caps.runtime.batch import ScheduleBatch
from backend_caps.runtime.request import Request
from backend_caps.runtime.speculation import Algorithm, SpecSettings
from backend_caps.runtime.speculative.drafter import DraftState
from backend_caps.runtime.stats import StepClock, now_s


class SpeculativeDecoding:
    """Several tokens a step, of which the host does not know how many.

    Args:
        settings: how large a step is.
        relay: has the lengths on the device, and brings them to the host where the plan says so.
        overlapped: whether steps are built before the last one's result is processed.
    """

    def __init__(self, settings: SpecSettings, relay: FutureMap, *, overlapped: bool) -> None:
        self._settings = settings
        self._relay = relay
        self._overlapped = overlapped

    @property
    def follows_results(self) -> bool:
        """Drafts that are looked up on the host continue the last step's tokens.

        Where the relay carries no lengths from step to step, the results do.
        """
        return self._settings.algorithm is Algorithm.NGRAM or not self._overlapped

    def reach(self, running: ScheduleBatch) -> Sequence[int]:
        """Return upper bounds: as if every step under way accepted all of its drafts."""
        accepts, slots = self._settings.accept_tokens, self._settings.num_slots
        return [
            request.committed_len + accepts * request.num_steps_under_way + slots
            for request in running.requests
        ]

    def enter(self, requests: Sequence[Request]) -> None:
        """Open the requests' generations with the lengths that decode starts from."""
        self._tell(requests, [len(request.prefill) for request in requests])

    def prepare(self, running: ScheduleBatch, clock: StepClock) -> None:
        """Make a batch's next step, from the lengths that the relay has.

        Sync: the relay's, which waits for lengths where the plan says so.
        """
        running.prepare_for_speculation(self.reach(running), DraftState())
        clock.built_s = now_s()
        self._relay.resolve_seq_lens_cpu(running)
        if not self._overlapped:
            running.seq_lens_cpu = torch.tensor([own.committed_len for own in running.requests])
        elif self._relay.host_seq_lens is HostSeqLens.EXACT:
            clock.num_lengths = len(running.requests)
        clock.lengths_s = now_s()

    def prepare_mixed(self, running: ScheduleBatch, clock: StepClock) -> None:
        """Make a batch's next step one of a token a request, which drafts nothing.

        Sync: as of `prepare`.
        """
        self.prepare(running, clock)
        running.make_plain()

    def commit(self, requests: Sequence[Request]) -> None:
        """Tell the relay what is committed now, so that its upper bounds stay tight."""
        self._tell(requests, [request.committed_len for request in requests])

    def _tell(self, requests: Sequence[Request], lengths: Sequence[int]) -> None:
        if self._relay.host_seq_lens is not HostSeqLens.UPPER_BOUND or not requests:
            return
        numbers = [(own.row, own.generation) for own in requests]
        rows_cpu, generations = torch.tensor(numbers).unbind(dim=1)
        self._relay.commit_lengths(rows_cpu, torch.tensor(lengths), generations)
