"""Our answer against SGLang 0.5.13's own `decide_needs_cpu_seq_lens`, read from its wheel.

Every combination of flags and declared backends is asked on both sides; of those that a flag
decides alone, whatever else is given, a seventh. Where the answers differ, the combination must be
in a named place, and there the difference goes the named way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from backend_caps import Capabilities, Phase, Plan, Role, RuleSet, ServerFlags, Use, resolve
from backend_caps.resolution.routing import uses_of
from tests.unit.building import installed, named
from tests.upstream.sglang_wheel import load_overlap_utils

# Run by other tests too, and three times as fast untraced.
pytestmark = [pytest.mark.upstream, pytest.mark.no_cover]

_DECLARED = {
    "opts_out": Capabilities(needs_cpu_seq_lens=False, max_context_len_known=True),
    "opts_out_blindly": Capabilities(needs_cpu_seq_lens=False),
    "reads": Capabilities(needs_cpu_seq_lens=True, max_context_len_known=True),
    "undeclared": Capabilities(),
}
_FALSE, _TRUE = (SimpleNamespace(needs_cpu_seq_lens=needs) for needs in (False, True))
_ATTRIBUTES = {
    "opts_out": _FALSE,
    "opts_out_blindly": _FALSE,
    "reads": _TRUE,
    "undeclared": SimpleNamespace(),
}
_BACKENDS = named(*(installed(name, own) for name, own in _DECLARED.items()))
_PAIR = _TRUE
"""0.5.13's prefill/decode pair has no rule of its own, and inherits the base class's True."""
_NAMES = tuple(_DECLARED)


@dataclass(frozen=True)
class _Server:
    prefill: str
    decode: str
    draft: str | None
    algorithm: str | None
    mode: str
    num_steps: int
    tbo: bool
    no_piecewise: bool
    mixed: bool

    @property
    def is_forced(self) -> bool:
        """Whether a flag decides alone, before any backend is asked."""
        return self.tbo or not self.no_piecewise

    @property
    def flags(self) -> ServerFlags:
        return ServerFlags.from_mapping(
            {
                "prefill_attention_backend": self.prefill,
                "decode_attention_backend": self.decode,
                "speculative_draft_attention_backend": self.draft,
                "speculative_algorithm": self.algorithm,
                "speculative_attention_mode": self.mode,
                "speculative_num_steps": self.num_steps,
                "enable_two_batch_overlap": self.tbo,
                "disable_piecewise_cuda_graph": self.no_piecewise,
                "enable_mixed_chunk": self.mixed,
            }
        )

    @property
    def verify(self) -> str:
        return self.prefill if self.mode == "prefill" else self.decode

    @property
    def runs(self) -> frozenset[str]:
        """The backends whose forwards take their lengths from the relay."""
        if self.algorithm is None:
            return frozenset({self.decode})
        names = {self.decode, self.verify}
        if self.algorithm != "NGRAM":
            names.add(self.draft or self.verify)
            if self.num_steps > 1:
                names.add(self.draft or self.decode)
        return frozenset(names)

    @property
    def slots(self) -> tuple[object, ...]:
        """What 0.5.13's workers hand over (`spec_v2_attn_backends`)."""
        same = self.prefill == self.decode
        target = _ATTRIBUTES[self.decode] if same else _PAIR
        if self.algorithm not in {"EAGLE", "EAGLE3", "STANDALONE"}:
            return (target,)
        draft = _ATTRIBUTES[self.draft or self.decode] if self.num_steps > 1 else None
        return (target, draft, _ATTRIBUTES[self.draft or self.verify])


def _servers() -> Iterator[_Server]:
    """List servers; seven shares no factor with any number of values, so each value comes up."""
    algorithms = (None, "EAGLE", "EAGLE3", "STANDALONE", "NGRAM", "FROZEN_KV_MTP")
    drafts, modes, both = (None, *_NAMES), ("prefill", "decode"), (True, False)
    values = product(_NAMES, _NAMES, drafts, algorithms, modes, (1, 3), both, both, both)
    servers = [_Server(*own) for own in values]
    yield from (own for own in servers if not own.is_forced)
    yield from [own for own in servers if own.is_forced][::7]


def _named_place(server: _Server) -> str | None:
    """Name the place in which our answer differs on purpose; None where it must be equal."""
    if server.is_forced:
        return None
    needs = {name for name in server.runs if name in {"reads", "undeclared"}}
    theirs = any(getattr(slot, "needs_cpu_seq_lens", True) for slot in server.slots if slot)
    if theirs:
        safe = not needs and "opts_out_blindly" not in server.runs
        return "phase scope: the pair's parts that run opt out" if safe else None
    if needs:
        return "a slot that nobody counts: the draft model of a worker without the property"
    if "opts_out_blindly" in server.runs:
        return "an opt-out without max_context_len"
    return None


def _answers() -> Iterator[tuple[_Server, bool, Plan]]:
    decide = load_overlap_utils("0.5.13").decide_needs_cpu_seq_lens
    for server in _servers():
        arguments = SimpleNamespace(
            enable_two_batch_overlap=server.tbo, disable_piecewise_cuda_graph=server.no_piecewise
        )
        ours = resolve(
            uses_of(server.flags, _BACKENDS), server.flags, rules=RuleSet.builtin("sglang-0.5.13")
        )
        yield server, decide(arguments, server.slots), ours


@pytest.mark.slow
def test_decision_equals_sglangs_except_in_named_places() -> None:
    """Over 5,486 servers our answer is SGLang's, or differs where and how it is named."""
    places: Counter[str] = Counter()
    wrong = []

    for server, theirs, ours in _answers():
        place = _named_place(server)
        places[place or "equal"] += 1
        differs = ours.needs_cpu_seq_lens is not theirs
        if differs is not (place is not None) or not ours["host_seq_lens"].causes:
            wrong.append((server, theirs, ours.needs_cpu_seq_lens, place))

    assert wrong == []
    assert places == {
        "equal": 4_970,
        "phase scope: the pair's parts that run opt out": 276,
        "an opt-out without max_context_len": 208,
        "a slot that nobody counts: the draft model of a worker without the property": 32,
    }


@pytest.mark.parametrize(
    "slots",
    [
        pytest.param((), id="no slot at all"),
        pytest.param((None, None), id="empty slots only"),
        pytest.param((SimpleNamespace(needs_cpu_seq_lens=None),), id="declared None"),
    ],
)
def test_decision_of_sglang_is_open_where_nothing_is_known(slots: tuple[object, ...]) -> None:
    """SGLang 0.5.13 takes missing information for an opt-out: the holes that ours closes."""
    decide = load_overlap_utils("0.5.13").decide_needs_cpu_seq_lens
    off = SimpleNamespace(enable_two_batch_overlap=False, disable_piecewise_cuda_graph=True)

    assert decide(off, slots) is False


def test_empty_slots_are_an_undeclared_backend() -> None:
    """Where SGLang skips an empty slot, ours counts the engine's own choice as undeclared."""
    flags = ServerFlags(disable_piecewise_cuda_graph=True)

    plan = resolve(uses_of(flags, {}), flags, rules=RuleSet.builtin("sglang-0.5.13"))

    assert plan.needs_cpu_seq_lens
    assert {cause.name for cause in plan["host_seq_lens"].causes} == {"engine default"}


def test_a_declared_none_is_refused() -> None:
    """Where SGLang takes a declared None for an opt-out, ours is an error."""
    with pytest.raises(ValidationError, match="Input should be a valid boolean"):
        Capabilities.model_validate({"needs_cpu_seq_lens": None})


def test_an_empty_draft_extend_slot_counts_what_runs_there() -> None:
    """0.5.13 skips a draft-extend slot that is empty; ours counts the backend that runs there."""
    flags = ServerFlags(
        attention_backend="opts_out",
        speculative_draft_attention_backend="reads",
        speculative_algorithm="EAGLE",
        speculative_num_steps=1,
        disable_piecewise_cuda_graph=True,
    )

    uses = uses_of(flags, _BACKENDS)

    assert [use.backend for use in uses if use.role is Role.DRAFT_EXTEND] == ["reads"]
    assert resolve(uses, flags, rules=RuleSet.builtin("sglang-0.5.13")).needs_cpu_seq_lens


def test_uses_by_hand_give_the_same_answer() -> None:
    """A use written by hand counts as one from the flags does."""
    declaration = _BACKENDS["opts_out"].declaration
    use = Use(backend="b", role=Role.TARGET, phase=Phase.DECODE, declaration=declaration)

    plan = resolve(
        (use,),
        ServerFlags(disable_piecewise_cuda_graph=True),
        rules=RuleSet.builtin("sglang-0.5.13"),
    )

    assert not plan.needs_cpu_seq_lens
