"""Batches over head layouts, page sizes and lengths: few for the CPU, many for a GPU."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from _pytest.mark import ParameterSet

from backend_caps.kit.scenes import Requests, Scene, Setting, layer_of, scene

HEADS = ((1, 1), (4, 1), (8, 8), (8, 2), (8, 1), (32, 8), (64, 8), (64, 64))
"""Query heads, and key and value heads."""
HEAD_SIZES = (64, 80, 96, 128, 256)
PAGE_SIZES = (1, 16, 64)
LONGEST = 4096
DECODES = ((0, 1), (62, 1), (63, 1), (64, 1), (200, 1), (511, 1))
"""One token over nothing, and around the sizes at which the kernels cut."""
EXTENDS = ((0, 64), (100, 3), (0, 1), (17, 30))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One batch, and where it runs."""

    device: str
    requests: Requests
    uniform: bool
    heads: tuple[int, int]
    head_size: int
    page_size: int
    value_size: int | None = None

    def scene(self) -> Scene:
        """Make it, in pools that have room for it."""
        longest = max(map(sum, self.requests))
        pages = sum(-(-sum(own) // self.page_size) for own in self.requests) + 2
        layer = layer_of(*self.heads, self.head_size, self.value_size, scaling=0.1)
        return scene(
            self.requests,
            uniform=self.uniform,
            setting=Setting(
                layer=layer,
                page_size=self.page_size,
                max_context_len=-(-longest // self.page_size) * self.page_size,
                num_slots=pages * self.page_size,
                num_rows=len(self.requests) + 1,
            ),
        )


def cases() -> Iterator[ParameterSet]:
    """List a few cases of every size for the CPU, and where there is a GPU every case for it."""
    yield from map(_named, _of_cpu())
    if torch.cuda.is_available():
        yield from map(_named, _of_cuda())
    else:
        number = len(list(_of_cuda()))
        reason = f"no CUDA device: all {number} cases are for one"
        yield pytest.param(next(_of_cuda()), id="cuda", marks=pytest.mark.skip(reason))


def _named(case: Case) -> ParameterSet:
    kind = "decode" if case.uniform else "extend"
    heads = "x".join(map(str, case.heads))
    name = f"{case.device}-{kind}-{heads}-{case.head_size}-page{case.page_size}"
    return pytest.param(case, id=name)


def _of_cpu() -> Iterator[Case]:
    small = [own for own in HEADS if own[0] <= 8]
    for place, head_size in enumerate(HEAD_SIZES):
        for requests, uniform in ((DECODES, True), (EXTENDS, False)):
            yield Case(
                device="cpu",
                requests=requests,
                uniform=uniform,
                heads=small[place % len(small)],
                head_size=head_size,
                page_size=PAGE_SIZES[place % len(PAGE_SIZES)],
            )
    yield Case(
        device="cpu",
        requests=((70, 4), (0, 4), (130, 4)),
        uniform=True,
        heads=(6, 2),
        head_size=40,
        page_size=16,
        value_size=24,
    )


def _of_cuda() -> Iterator[Case]:
    dice = random.Random(0)  # noqa: S311 - a table of inputs, not a secret
    for heads in HEADS:
        for head_size in HEAD_SIZES:
            for new in (1, 5, None):
                yield Case(
                    device="cuda",
                    requests=_drawn(dice, new),
                    uniform=new is not None,
                    heads=heads,
                    head_size=head_size,
                    page_size=dice.choice(PAGE_SIZES),
                )


def _drawn(dice: random.Random, new: int | None) -> Requests:
    """Draw some contexts up to the longest; the first one is, and the second is as short as can be.

    With `new`, all bring so many tokens.
    """
    counts = [dice.randint(1, 90) if new is None else new for _ in range(4)]
    totals = [LONGEST, counts[1], *(dice.randint(count, LONGEST) for count in counts[2:])]
    return [(total - count, count) for total, count in zip(totals, counts, strict=True)]
