"""The drop-in against SGLang's own `decide_needs_cpu_seq_lens`, of 0.5.13 and of 0.5.23.

Both sides get the same live objects. Where SGLang says True, so do we; where we say True and it
says False, the case is in a named place, and a warning says why.
"""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from types import SimpleNamespace

import pytest
from backend_caps_sglang import decide_needs_cpu_seq_lens

from tests.upstream import live_backends
from tests.upstream.sglang_wheel import RuntimeContext, load_overlap_utils

# Run by other tests too, and three times as fast untraced.
pytestmark = [pytest.mark.upstream, pytest.mark.no_cover]

Slots = tuple[object, ...]
Decide = Callable[..., bool]
_CONTEXT = "sglang.srt.runtime_context"


class _PlainOptsOut:
    """A multi-step container: no subclass of the base, and without a bound."""

    needs_cpu_seq_lens = False


class _Property(live_backends.Base):
    @property
    def needs_cpu_seq_lens(self) -> bool:  # type: ignore[override]
        """Return an opt-out."""
        return False


class _ReadingProperty(live_backends.Base):
    @property
    def needs_cpu_seq_lens(self) -> bool:  # type: ignore[override]
        """Return a need."""
        return True


def _with(value: object, bound: object = 8192) -> live_backends.InheritsNeed:
    backend = live_backends.InheritsNeed()
    vars(backend).update(needs_cpu_seq_lens=value, max_context_len=bound)
    return backend


_EMPTY = "an empty slot in which something runs"
_NOT_BOOL = "a flag that is no bool"
_INHERITED = "an opt-out that the class does not state"
_UNBOUNDED = "an opt-out of the target without max_context_len"
_NO_BACKEND = "no backend at all"


@dataclass(frozen=True)
class _Kind:
    """A live object, and why an opt-out of it does not count: anywhere, or as the target."""

    backend: object
    doubt: str | None = None
    of_target: str | None = None


_KINDS = {
    "opts out by class": _Kind(live_backends.OptsOut()),
    "opts out by class, bound is None": _Kind(live_backends.OptsOut(None), of_target=_UNBOUNDED),
    "opts out by class, no bound": _Kind(_PlainOptsOut(), of_target=_UNBOUNDED),
    "inherits an opt-out": _Kind(live_backends.Inherits(), doubt=_INHERITED),
    "empty": _Kind(None, doubt=_EMPTY),
    "undeclared": _Kind(SimpleNamespace(max_context_len=8192)),
    "None": _Kind(_with(None), doubt=_NOT_BOOL),
    "opts out by object": _Kind(_with(value=False)),
    "reads by class": _Kind(live_backends.Reads()),
    "reads by inheritance": _Kind(live_backends.InheritsNeed()),
    "opts out by object, no bound": _Kind(_with(value=False, bound=None), of_target=_UNBOUNDED),
    "reads by object": _Kind(_with(value=True)),
    "zero": _Kind(_with(0), doubt=_NOT_BOOL),
    "one": _Kind(_with(1), doubt=_NOT_BOOL),
    "a word": _Kind(_with("no"), doubt=_NOT_BOOL),
    "opts out by property": _Kind(_Property()),
    "reads by property": _Kind(_ReadingProperty()),
    "delegates to an opt-out": _Kind(
        live_backends.Wraps(live_backends.OptsOut()), doubt=_INHERITED
    ),
    "delegates to a need": _Kind(live_backends.Wraps(live_backends.Reads())),
    "opts out by its constructor": _Kind(live_backends.Sets()),
    "opts out by its base's constructor": _Kind(live_backends.InheritsSetter(), doubt=_INHERITED),
    "shadows an opt-out": _Kind(live_backends.Shadows(live_backends.OptsOut())),
}
_MANY = tuple(_KINDS)
_FEW = _MANY[:8]


def _all_slots() -> Iterator[tuple[str, ...]]:
    yield ()
    for kinds in (product(_MANY), product(_MANY, _FEW), product(_FEW[:6], repeat=3)):
        yield from kinds
    yield from product(_FEW[:2], repeat=4)


@dataclass(frozen=True)
class _Case:
    slots: tuple[str, ...]
    tbo: bool
    piecewise: bool
    mixed: bool
    steps: int | None
    algorithm: str | None

    @property
    def is_forced(self) -> bool:
        """Whether a flag decides alone, before any backend is asked."""
        return self.tbo or self.piecewise or self.algorithm == "ngram"

    @property
    def backends(self) -> Slots:
        return tuple(_KINDS[name].backend for name in self.slots)

    @property
    def place(self) -> str | None:
        """Name the place in which we are more careful than SGLang where it says False."""
        if not self.slots:
            return _NO_BACKEND
        for index, kind in enumerate(map(_KINDS.__getitem__, self.slots)):
            is_unused = index == 1 and len(self.slots) == 3 and self.steps == 1
            if kind.backend is None and is_unused:
                continue
            doubt = kind.doubt or (kind.of_target if index == 0 else None)
            if doubt is not None:
                return doubt
        return None


def _cases(piecewise: tuple[bool, ...], algorithms: tuple[str | None, ...]) -> Iterator[_Case]:
    """List cases; of those that a flag decides alone a seventh, in which each value comes up."""
    yes_no, steps = (False, True), (None, 1, 3)
    values = product(_all_slots(), yes_no, piecewise, yes_no, steps, algorithms)
    cases = [_Case(*own) for own in values]
    yield from (own for own in cases if not own.is_forced)
    yield from [own for own in cases if own.is_forced][::7]


class _Records(logging.Handler):
    """Keeps what is logged; ten thousand cases are too many for pytest's own log."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record."""
        self.records.append(record)


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[logging.LogRecord]]:
    """Collect the drop-in's warnings."""
    logger, handler = logging.getLogger("backend_caps_sglang"), _Records()
    monkeypatch.setattr(logger, "propagate", False)
    logger.addHandler(handler)
    yield handler.records
    logger.removeHandler(handler)


def _count(
    cases: Iterator[_Case],
    answers: Callable[[_Case], tuple[bool, bool]],
    warnings: list[logging.LogRecord],
) -> Counter[str]:
    """Count the cases by SGLang's answer, or the place in which ours differs; check each."""
    places: Counter[str] = Counter()
    wrong = []
    for case in cases:
        warnings.clear()
        ours, theirs = answers(case)
        place = None if theirs else case.place
        places[place or f"both {theirs}"] += 1
        is_as_named = ours is (theirs or place is not None)
        is_told = bool(warnings) if place else ours or not warnings
        if not (is_as_named and is_told):
            wrong.append((case, ours, theirs, place))
    assert wrong == []
    return places


_PLACES = {
    "both True": 2_219,
    "both False": 228,
    _EMPTY: 262,
    _NOT_BOOL: 120,
    _INHERITED: 368,
    _UNBOUNDED: 492,
    _NO_BACKEND: 6,
}
"""Of 3,695 cases: where both sides agree, and where ours alone is True. 0.5.13's piecewise CUDA
graph forces as many of them as 0.5.23's ngram."""


def test_drop_in_is_0_5_13s_or_more_careful_in_named_places(
    warnings: list[logging.LogRecord],
) -> None:
    """Over every mix of objects and flags ours is 0.5.13's answer, or True where it is named."""
    decide = load_overlap_utils("0.5.13").decide_needs_cpu_seq_lens

    def answers(case: _Case) -> tuple[bool, bool]:
        args = SimpleNamespace(
            enable_two_batch_overlap=case.tbo,
            disable_piecewise_cuda_graph=not case.piecewise,
            enable_mixed_chunk=case.mixed,
            speculative_num_steps=case.steps,
            speculative_algorithm=case.algorithm,
        )
        return decide_needs_cpu_seq_lens(args, case.backends), decide(args, case.backends)

    assert _count(_cases((False, True), ("EAGLE",)), answers, warnings) == _PLACES


def test_drop_in_is_0_5_23s_or_more_careful_in_named_places(
    monkeypatch: pytest.MonkeyPatch, warnings: list[logging.LogRecord]
) -> None:
    """The same with 0.5.23's signature, the flags in its runtime context."""
    context = RuntimeContext()
    monkeypatch.setitem(sys.modules, _CONTEXT, context)
    decide = load_overlap_utils("0.5.23", context=context).decide_needs_cpu_seq_lens

    def answers(case: _Case) -> tuple[bool, bool]:
        context.enable_two_batch_overlap = case.tbo
        context.enable_mixed_chunk = case.mixed
        context.speculative_num_steps = case.steps
        context.speculative_algorithm = case.algorithm
        return decide_needs_cpu_seq_lens(case.backends), decide(case.backends)

    assert _count(_cases((False,), ("EAGLE", "ngram")), answers, warnings) == _PLACES
