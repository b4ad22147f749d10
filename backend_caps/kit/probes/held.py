"""What a forward may not change: kept as it was, and compared bit by bit.

Shapes: S slots in the KV cache.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from backend_caps.kit.rig import on_host
from backend_caps.kit.scenes import Scene
from backend_caps.kit.subject import Subject
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.simulator import Site

_MOST_SHOWN = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A batch and its pools, as they were."""

    scene: Scene
    """Where they are now."""
    batch: Mapping[str, object]
    """What the batch had, by name; tensors are copies, on the host."""
    table: Tensor
    """The page table, host."""
    keys: Tensor
    """[S, Hk, D], host."""
    values: Tensor
    """[S, Hk, Dv], host."""

    @classmethod
    def of(cls, scene: Scene) -> Self:
        """Keep a scene as it is now. Sync: the host waits."""
        pools = scene.pools
        return cls(
            scene=scene,
            batch=_fields(scene.batch),
            table=on_host(pools.req_to_token),
            keys=on_host(pools.keys),
            values=on_host(pools.values),
        )

    def changes(self, writable: Collection[int]) -> Iterator[str]:
        """Say what changed, but for these slots of the KV cache. Sync: the host waits."""
        for name, now in _fields(self.scene.batch).items():
            before = self.batch[name]
            if not _is_same(before, now):
                yield f"{name} of the batch was {_shown(before)}, and is {_shown(now)} now"
        pools = self.scene.pools
        rows = changed_rows(self.table, on_host(pools.req_to_token))
        if rows:
            yield f"rows {some(rows)} of the page table changed"
        slots = self.slots_changed() - {*writable}
        if slots:
            yield f"KV of slots {some(sorted(slots))} changed, which {self._owners(slots)}"

    def slots_changed(self) -> set[int]:
        """List the slots whose keys or values are not as they were. Sync: the host waits."""
        pools = self.scene.pools
        pairs = (self.keys, pools.keys), (self.values, pools.values)
        return {slot for before, now in pairs for slot in changed_rows(before, on_host(now))}

    def _owners(self, slots: Collection[int]) -> str:
        """Say whose slots they are."""
        rows = on_host(self.scene.batch.req_pool_indices).tolist()
        lengths = on_host(self.scene.batch.seq_lens).tolist()
        owners = [
            str(place)
            for place, (row, length) in enumerate(zip(rows, lengths, strict=True))
            if row and not {*slots}.isdisjoint(self.table[row, :length].tolist())
        ]
        return f"hold the context of request {', '.join(owners)}" if owners else "are nobody's"


def line_that_changes(
    subject: Subject, has_changed: Callable[[], bool], run: Callable[[], object]
) -> Site | None:
    """Run once more, and find the backend's first line behind which something has changed.

    Sync: the host waits behind each operator.
    """
    watch = _Watch(subject, has_changed)
    with watch:
        run()
    return watch.site


class _Watch(TorchDispatchMode):
    """Look behind each operator, until something has changed."""

    def __init__(self, subject: Subject, has_changed: Callable[[], bool]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.site: Site | None = None
        self._subject = subject
        self._has_changed = has_changed

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Run an operator, and look."""
        del types
        result = func(*args, **(kwargs or {}))
        if self.site is None and self._has_changed():
            self.site = line_now(self._subject)
        return result


def line_now(subject: Subject) -> Site | None:
    """Find the innermost line of the backend that is running; None where none is."""
    frame = sys._getframe(1)  # noqa: SLF001 - the traceback module takes the whole stack down
    while frame.f_back is not None and not subject.owns(frame.f_code.co_filename):
        frame = frame.f_back
    file = frame.f_code.co_filename
    return Site(file, frame.f_lineno) if subject.owns(file) else None


def some(numbers: Sequence[int]) -> str:
    """List the first of some numbers, and count the others."""
    listed = ", ".join(map(str, numbers[:_MOST_SHOWN]))
    more = len(numbers) - _MOST_SHOWN
    return listed if more <= 0 else f"{listed} and {more} more"


def _fields(batch: ForwardBatch) -> Mapping[str, object]:
    """Copy what a batch has, by name."""
    found = {own.name: getattr(batch, own.name) for own in fields(batch)}
    return {
        name: on_host(value) if isinstance(value, Tensor) else value
        for name, value in found.items()
    }


def _is_same(one: object, other: object) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return (
            one.shape == other.shape and one.dtype == other.dtype and not changed_rows(one, other)
        )
    return type(one) is type(other) and one == other


def changed_rows(before: Tensor, now: Tensor) -> list[int]:
    """List the rows of which a bit changed; both [N, ...], host."""
    one, other = (own.contiguous().view(torch.uint8).reshape(len(own), -1) for own in (before, now))
    changed: list[int] = (one != other).any(1).nonzero().flatten().tolist()
    return changed


def _shown(value: object) -> str:
    if not isinstance(value, Tensor):
        return str(value)
    return f"[{some(value.flatten().tolist())}]"
