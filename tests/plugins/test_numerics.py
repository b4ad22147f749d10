"""Every backend made of torch's operators, beside float64, over what models and servers bring.

The tolerance is 2e-5, absolute and relative, in float32.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import cast

import pytest
import torch

from backend_caps.kit.scenes import (
    Requests,
    Scene,
    Setting,
    layer_of,
    reference_attention,
    scene,
    sharing,
)
from tests.plugins.backends import BACKENDS, bounded, with_padding
from tests.runtime.speculative.pairwise import Row, pairwise_cover

pytestmark = pytest.mark.slow

AXES: dict[str, Sequence[object]] = {
    "heads": ((1, 1), (8, 8), (8, 2), (8, 1), (32, 8), (64, 64), (64, 16), (64, 8)),
    "head_size": (64, 80, 96, 128, 256),
    "page_size": (1, 16, 64),
    "longest": (1, 65, 1024, 4096),
    "kind": ("prefill", "decode", "verify", "mixed"),
    "shape": ("plain", "padded", "sharing"),
}
_SIZES = ("longest", "page_size", "head_size")
_MOST = 2**21
"""Numbers in the keys of the longest context: what the machine has time for."""


def is_legal(row: Row) -> bool:
    """Tell whether a combination can be, and whether there is time for it."""
    _, num_kv_heads = cast("tuple[int, int]", row["heads"])
    size = num_kv_heads * cast("int", row["head_size"]) * cast("int", row["longest"])
    is_first = row["longest"] == 1
    return size <= _MOST and not (is_first and row["shape"] == "sharing")


ROWS = [
    pytest.param(row, id=" ".join(map(str, row.values())).replace("'", ""))
    for row in pairwise_cover(AXES, is_legal)
]


@pytest.mark.parametrize("row", ROWS)
def test_backends_are_near_float64(row: Row) -> None:
    """Heads, sizes, pages, lengths, padding and shared prefixes change no backend's attention."""
    real = drawn(row)
    batch = bounded(with_padding(real) if row["shape"] == "padded" else real)
    expected = reference_attention(real)

    outputs = [batch.run(own)[: len(real.q)] for own in BACKENDS.values()]

    for output in outputs:
        torch.testing.assert_close(output.double(), expected, atol=2e-5, rtol=2e-5)


def test_cover_has_every_value() -> None:
    """Each value of each axis is in some combination that runs."""
    rows = pairwise_cover(AXES, is_legal)

    for name, values in AXES.items():
        assert {row[name] for row in rows} == set(values)


def drawn(row: Row) -> Scene:
    """Make a scene of a combination, padding aside."""
    dice = random.Random(str(row))  # noqa: S311 - a table of inputs, not a secret
    longest, page_size, size = cast("tuple[int, int, int]", tuple(row[own] for own in _SIZES))
    heads = cast("tuple[int, int]", row["heads"])
    requests = _requests(row["kind"], longest, dice)
    pages = sum(-(-sum(own) // page_size) for own in requests) + 2
    made = scene(
        requests,
        uniform=row["kind"] in {"decode", "verify"},
        setting=Setting(
            layer=layer_of(*heads, size, scaling=size**-0.5),
            page_size=page_size,
            max_context_len=longest + 8,
            num_slots=pages * page_size,
            seed=dice.randrange(2**16),
        ),
    )
    is_sharing = row["shape"] == "sharing"
    return sharing(made, min(old for old, _ in requests)) if is_sharing else made


def _requests(kind: object, longest: int, dice: random.Random) -> Requests:
    """Draw three requests, of which one is the longest; each has a cached token where it can."""
    lengths = [longest, dice.randint(1, longest), dice.randint(1, longest)]
    new = {"decode": [1] * 3, "verify": [min(4, *lengths)] * 3}.get(str(kind))
    if new is None:
        most = [max(1, min(9, length - 1)) for length in lengths]
        new = [dice.randint(1, own) for own in most]
    if kind == "mixed":
        new[-1] = 1
    return [(length - count, count) for length, count in zip(lengths, new, strict=True)]
