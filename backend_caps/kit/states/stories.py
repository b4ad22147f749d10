"""Stories of requests whose layers keep states: their turns, and what each has to give.

A request gets a row of the request pool and a slot of the states, and keeps them to its end. The
next request gets them at once, with what the slot then holds.

Shapes: B requests and T tokens in a batch, H heads, Dv the values' size.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from backend_caps.capability.kind import Phase
from backend_caps.kit.scenarios import MOST_REQUESTS, VERIFIED, Forward, Scenario, dice_for
from backend_caps.kit.states.recurrences import LAYER_IDS, Recurrence, State, Tokens

NUM_ROWS = MOST_REQUESTS + 2
"""Rows of the request pool, without the padding's."""
NUM_SLOTS = MOST_REQUESTS + 3
"""Slots of states, without the padding's."""
_NUM_STEPS = 2
"""Steps of a story; each ends some requests, prefills others, and runs two forwards."""
_FORWARDS_EACH = 2
_ALL_SHORT = 0.25
"""How often every request of a prefill brings one token."""


@dataclass(slots=True, eq=False)
class StateRequest:
    """A request with a row, and a slot of the states."""

    row: int
    """Its row of the request pool."""
    slot: int
    """Its slot of the states."""
    states: list[State]
    """Its state in each layer, float64, host."""
    length: int = 0
    """Its tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTurn:
    """One forward of a story, with what it has to give."""

    forward: Forward
    rows: Sequence[int]
    """[B] rows of the requests."""
    slots: Sequence[int]
    """[B] their slots."""
    prefixes: Sequence[int]
    """[B] tokens before the forward."""
    counts: Sequence[int]
    """[B] tokens that each brings."""
    cleared: Sequence[int]
    """Slots of new requests, whose states are still those of other requests."""
    tokens: Sequence[Tokens]
    """What the tokens bring to each layer."""
    outputs: Sequence[Tensor]
    """[T, H, Dv] float64, host, of each layer."""
    verifies: Sequence[bool]
    """[B] whether each verifies its tokens, and may keep fewer of them."""
    drafts: Sequence[Sequence[Sequence[State]]]
    """States behind each verified token, by layer and request; empty where none are verified."""
    accepted: Sequence[int]
    """[B] verified tokens that each keeps; empty where none are verified."""
    states: Sequence[Sequence[State]]
    """States behind the forward and what is accepted of it, by layer and request."""

    @property
    def is_uniform(self) -> bool:
        """Whether a graph may run it."""
        return self.forward.phase is not Phase.PREFILL

    @property
    def name(self) -> str:
        """What a finding calls it."""
        sizes = [*zip(self.prefixes, self.counts, strict=True)]
        return f"{self.forward.value} of (cached, new) tokens {sizes}"


@dataclass(slots=True)
class _Writer:
    """Draws a story turn by turn."""

    recurrence: Recurrence
    scenario: Scenario
    dice: random.Random
    generator: torch.Generator
    free_rows: list[int]
    free_slots: list[int]
    requests: list[StateRequest] = field(default_factory=list)

    def step(self) -> Iterator[StateTurn]:
        """End some requests and admit others, then run forwards of all."""
        for request in [own for own in self.requests if self.dice.random() < 0.5]:  # noqa: PLR2004
            self.requests.remove(request)
            self.free_rows.append(request.row)
            self.free_slots.append(request.slot)
        missing = MOST_REQUESTS - len(self.requests)
        fresh = [self._admitted() for _ in range(self.dice.randint(min(1, missing), missing))]
        if self.requests and self._is_mixed:
            is_verify = self.scenario.forward is Forward.VERIFY
            each = VERIFIED if is_verify else 1
            counts = [*self._prompts(fresh), *[each] * len(self.requests)]
            verified = self.requests if is_verify else ()
            yield self._turn(Forward.MIXED, [*fresh, *self.requests], counts, fresh, verified)
        elif fresh:
            yield self._turn(Forward.PREFILL, fresh, self._prompts(fresh), fresh)
        self.requests += fresh
        for _ in range(_FORWARDS_EACH):
            self.dice.shuffle(self.requests)
            yield from self._forward()

    @property
    def _is_mixed(self) -> bool:
        """Whether new requests have others beside them."""
        mixes_verifies = self.recurrence.mixes_verifies
        own = self.scenario.forward
        return own is Forward.MIXED or (own is Forward.VERIFY and mixes_verifies)

    def _forward(self) -> Iterator[StateTurn]:
        own, count = self.scenario.forward, len(self.requests)
        if own is Forward.PREFILL:
            return
        if own is Forward.VERIFY:
            yield self._turn(own, self.requests, [VERIFIED] * count, verified=self.requests)
        elif own is Forward.DECODE:
            yield self._turn(own, self.requests, [1] * count)
        else:
            counts = self._drawn(count)
            if own is Forward.MIXED:
                counts[count // 2 :] = [1] * (count - count // 2)
            yield self._turn(own, self.requests, counts)

    def _admitted(self) -> StateRequest:
        sizes = self.recurrence.sizes
        shapes = {"temporal": sizes.temporal, "conv": sizes.conv}
        state = {name: torch.zeros(shape).double() for name, shape in shapes.items()}
        slot = self.free_slots.pop()
        return StateRequest(self.free_rows.pop(), slot, [state for _ in LAYER_IDS])

    def _prompts(self, fresh: Sequence[StateRequest]) -> list[int]:
        """Draw the tokens of new requests."""
        shortest = self.recurrence.shortest_prompt
        return [max(count, shortest) for count in self._drawn(len(fresh))]

    def _drawn(self, count: int) -> list[int]:
        if self.dice.random() < _ALL_SHORT:
            return [1] * count
        return [self.dice.choice(self.recurrence.lengths) for _ in range(count)]

    def _turn(
        self,
        forward: Forward,
        requests: Sequence[StateRequest],
        counts: Sequence[int],
        fresh: Sequence[StateRequest] = (),
        verified: Sequence[StateRequest] = (),
    ) -> StateTurn:
        """Bring `counts` tokens of each request into its states."""
        dtype = getattr(torch, self.scenario.dtype)
        drawn = [self.recurrence.draw(sum(counts), dtype, self.generator) for _ in LAYER_IDS]
        results = [
            self._layer(place, tokens, requests, counts) for place, tokens in enumerate(drawn)
        ]
        verifies = [request in verified for request in requests]
        accepted = [
            self.dice.randint(1, count) if is_verified else count
            for count, is_verified in zip(counts, verifies, strict=True)
        ]
        prefixes = [request.length for request in requests]
        for place, request in enumerate(requests):
            request.length += accepted[place]
            request.states = [passed[place][accepted[place] - 1] for _, passed in results]
        drafts = [
            [states if own else [] for own, states in zip(verifies, passed, strict=True)]
            for _, passed in results
        ]
        return StateTurn(
            forward=forward,
            rows=[request.row for request in requests],
            slots=[request.slot for request in requests],
            prefixes=prefixes,
            counts=[*counts],
            cleared=[request.slot for request in fresh],
            tokens=drawn,
            outputs=[outputs for outputs, _ in results],
            verifies=verifies,
            drafts=drafts if verified else (),
            accepted=accepted if verified else (),
            states=[[request.states[place] for request in requests] for place in range(2)],
        )

    def _layer(
        self, place: int, tokens: Tokens, requests: Sequence[StateRequest], counts: Sequence[int]
    ) -> tuple[Tensor, list[list[State]]]:
        """Run a layer's recurrence: [T, H, Dv], and each request's states behind its tokens."""
        wide = {name: own.double() for name, own in tokens.items()}
        outputs, passed, start = [], [], 0
        for request, count in zip(requests, counts, strict=True):
            states, state = [], request.states[place]
            for row in range(start, start + count):
                token = {name: own[row] for name, own in wide.items()}
                state, output = self.recurrence.step(LAYER_IDS[place], state, token)
                outputs.append(output)
                states.append(state)
            passed.append(states)
            start += count
        return torch.stack(outputs), passed


def state_story(recurrence: Recurrence, scenario: Scenario, seed: int) -> Sequence[StateTurn]:
    """Draw a story whose steps run a scenario's forward."""
    dice = dice_for(scenario, seed)
    writer = _Writer(
        recurrence=recurrence,
        scenario=scenario,
        dice=dice,
        generator=torch.Generator().manual_seed(seed),
        free_rows=dice.sample(range(1, NUM_ROWS + 1), NUM_ROWS),
        free_slots=dice.sample(range(1, NUM_SLOTS + 1), NUM_SLOTS),
    )
    return [turn for _ in range(_NUM_STEPS) for turn in writer.step()]
