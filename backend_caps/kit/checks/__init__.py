"""The checks, a file each, in the order in which they run."""

from backend_caps.kit.check import Check
from backend_caps.kit.checks import (
    addresses,
    batches_apart,
    context_bound,
    determinism,
    hygiene,
    inputs,
    invariance,
    memory,
    metadata,
    mirror_absent,
    mirror_bound,
    mirror_read,
    numerics,
    padding,
    prepare,
    races,
    reads_end,
    replay,
    roles,
    serving,
    two_batch,
)

CHECKS: tuple[Check, ...] = (
    hygiene.CHECK,
    numerics.CHECK,
    roles.CHECK,
    mirror_absent.CHECK,
    mirror_bound.CHECK,
    mirror_read.CHECK,
    context_bound.CHECK,
    prepare.CHECK,
    inputs.CHECK,
    padding.CHECK,
    batches_apart.CHECK,
    replay.CHECK,
    metadata.CHECK,
    addresses.CHECK,
    reads_end.CHECK,
    races.CHECK,
    two_batch.CHECK,
    memory.CHECK,
    determinism.CHECK,
    invariance.CHECK,
    serving.CHECK,
)
"""Every check, in the order in which they run."""

__all__ = ["CHECKS"]
