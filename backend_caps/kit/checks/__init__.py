"""The checks, in the order in which they run."""

from backend_caps.kit.check import Check
from backend_caps.kit.checks.batches import BATCHES_APART, TWO_BATCH
from backend_caps.kit.checks.growth import MEMORY
from backend_caps.kit.checks.hygiene import HYGIENE
from backend_caps.kit.checks.mirror import CONTEXT_BOUND, MIRROR_ABSENT, MIRROR_BOUND, MIRROR_READ
from backend_caps.kit.checks.numerics import BATCH_INVARIANCE, DETERMINISM, NUMERICS, ROLES
from backend_caps.kit.checks.overlap import RACES, SERVING
from backend_caps.kit.checks.preparation import METADATA, SYNC_FREE_PREPARE
from backend_caps.kit.checks.replay import ADDRESSES, READS_END, REPLAY
from backend_caps.kit.checks.writes import INPUTS_UNTOUCHED, PADDING_HARMLESS

CHECKS: tuple[Check, ...] = (
    HYGIENE,
    NUMERICS,
    ROLES,
    MIRROR_ABSENT,
    MIRROR_BOUND,
    MIRROR_READ,
    CONTEXT_BOUND,
    SYNC_FREE_PREPARE,
    INPUTS_UNTOUCHED,
    PADDING_HARMLESS,
    BATCHES_APART,
    REPLAY,
    METADATA,
    ADDRESSES,
    READS_END,
    RACES,
    TWO_BATCH,
    MEMORY,
    DETERMINISM,
    BATCH_INVARIANCE,
    SERVING,
)
"""Every check, in the order in which they run."""

__all__ = ["CHECKS"]
