"""Changes of a command line that lead to better values, each followed through the engine.

An engine may take other flags for a change, or refuse it; so each changed line is followed and
resolved as the first one was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from backend_caps.capability.kind import Phase
from backend_caps.capability.vocabulary import CAPABILITIES
from backend_caps.engines.model import MODEL_OPTIONS
from backend_caps.resolution.flips import GRAPHS, STARTS, Flip, Remedy
from backend_caps.resolution.launch import GRAPH_MODES, Launch
from backend_caps.resolution.plan import Plan

_BACKEND = "--attention-backend"
_OF_PHASES = ("--prefill-attention-backend", "--decode-attention-backend")
_NAMING = frozenset({_BACKEND, *_OF_PHASES, "--attention-config.backend", "-ac.backend"})
"""The options that name the target's backend; the last two are vLLM's dotted forms."""
_Line = tuple[str, ...]
_Key = tuple[str, Phase | None, object]
"""A capability and its phase, and the better value."""


@dataclass(frozen=True, slots=True)
class _Change:
    """One changed command line."""

    text: str
    """What was changed, to be read behind `Either`."""
    line: _Line


def launch_flips(
    plan: Plan,
    line: Sequence[str],
    backends: Iterable[str],
    plans_of: Callable[[Sequence[Sequence[str]]], Iterable[Plan]],
) -> tuple[Flip, ...]:
    """List the better values that one change of a command line leads to.

    Of a server that is refused, it is whether it starts.

    Args:
        plan: of a launch.
        line: the command line.
        backends: names that `--attention-backend` takes; each is tried in place of the one taken.
        plans_of: follows and resolves other lines, in order.
    """
    if plan.launch is None:
        return ()
    changes = [*_without_options(line), *_with_backends(plan.launch, line, backends)]
    was_refused = plan.launch.starts is False  # a refusal is then the one problem of the plan
    known = {found.code for found in plan.problems}
    before = dict(_values(plan))
    found: dict[_Key, list[str]] = {}
    for change, other in zip(changes, plans_of([each.line for each in changes]), strict=True):
        is_refused = other.launch is not None and other.launch.starts is False
        is_worse = any(each.code not in known for each in other.problems)
        if is_refused or (is_worse and not was_refused):
            continue
        for key, value in _values(other):
            if key in before and _is_better(key[0], before[key], value):
                found.setdefault((*key, value), []).append(change.text)
    return tuple(
        Flip(
            capability=name,
            phase=phase,
            value=before[name, phase],
            becomes=becomes,
            remedies=(Remedy(text=_sentence(texts)),),
        )
        for (name, phase, becomes), texts in found.items()
    )


def _without_options(line: Sequence[str]) -> Iterator[_Change]:
    """Leave out one option at a time, with its values; but the model's."""
    starts = [at for at, word in enumerate(line) if word.startswith("--")]
    for at, end in pairwise([*starts, len(line)]):
        option = line[at].partition("=")[0]
        if option not in MODEL_OPTIONS:
            text = f"leave out {' '.join(line[at:end])}"
            yield _Change(text, (*line[:at], *line[end:]))


def _with_backends(
    launch: Launch, line: Sequence[str], backends: Iterable[str]
) -> Iterator[_Change]:
    taken = {each.backend for each in launch.layers if each.role == "target"}
    taken |= {str(launch.flags.get("attention_backend"))}
    kept = [*line]
    for at in reversed([at for at, word in enumerate(line) if word.partition("=")[0] in _NAMING]):
        del kept[at : at + (1 if "=" in line[at] else 2)]
    for name in backends:
        if name not in taken:
            yield _Change(f"set {_BACKEND} {name}", (*kept, _BACKEND, name))


def _values(plan: Plan) -> Iterator[tuple[tuple[str, Phase | None], object]]:
    """List the known values that have an effect, and the mode of graphs."""
    if plan.launch is not None and plan.launch.starts is not None:
        yield (STARTS, None), plan.launch.starts
        if not plan.launch.starts:
            return
    for phase, own in plan.values():
        if own.is_known:
            yield (own.capability, phase), own.value if own.effect.active else None
    graphs = None if plan.launch is None else plan.launch.graphs
    if graphs is not None:
        yield (GRAPHS, None), graphs.mode


def _is_better(name: str, before: object, after: object) -> bool:
    """Return whether a value is a better one; None has no effect, and costs nothing."""
    if before == after or before is None or after is None:
        return False
    if name == STARTS:
        return bool(after)
    if name == GRAPHS:
        ranks = [GRAPH_MODES.index(str(each)) for each in (before, after) if each in GRAPH_MODES]
        return len(ranks) == len((before, after)) and ranks[0] < ranks[1]
    return CAPABILITIES[name].join(before, after) == before


def _sentence(texts: Sequence[str]) -> str:
    """Join changes of which each alone leads to a value."""
    by_start: dict[str, list[str]] = {}
    for text in texts:
        start, _, name = text.rpartition(" ") if text.startswith("set ") else ("", "", text)
        by_start.setdefault(start, []).append(name)
    parts = [f"{start} {', '.join(names)}".strip() for start, names in by_start.items() if start]
    words = ", or ".join([*parts, *by_start.get("", ())])
    return f"{words[:1].upper()}{words[1:]}."
