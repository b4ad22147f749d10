"""Errors of a FutureMap, and of ranks that start together."""

from __future__ import annotations

from backend_caps.relay import RelayError
from backend_caps.startup.errors import (
    Difference,
    MissingRanksError,
    RankFailedError,
    RanksDifferError,
    StartupError,
)
from docs.tools.error_examples.occasion import Occasion

RELAY = Occasion(
    title="FutureMap",
    told="Raised when a FutureMap is configured or made, and by its calls.",
    coded=(RelayError,),
)
RANKS = Occasion(
    title="Starting, and ranks",
    told="Raised by `configure(group=...)`, on every rank, and where a server starts.",
    examples=(
        RanksDifferError(
            differences=(
                Difference(
                    field="backend my_flash",
                    values=(("my-flash 0.1.0", (0, 1, 3)), ("my-flash 0.2.0", (2,))),
                ),
            ),
            hosts={0: "node-a", 2: "node-b"},
        ),
        RankFailedError(
            failures=(("LockError: lock file 'backends.lock.json' cannot be read", (2,)),),
            hosts={2: "node-b"},
        ),
        MissingRanksError(
            round="the comparison of fingerprints",
            seconds=60.0,
            deadline_s=60.0,
            absent=(2,),
            silent=(),
            gave_up=(),
            hosts={},
            cause="Timed out waiting 60000ms for recv operation to complete",
        ),
    ),
    coded=(StartupError,),
)
