"""Errors of a FutureMap, and of ranks that start together."""

from __future__ import annotations

from backend_caps.relay import (
    AcceptTokensError,
    BoundBelowTruthError,
    DraftShapeError,
    HostSeqLensError,
    IndexMismatchError,
    PageableStagingError,
    PendingInputIdsError,
    PoolSizeError,
    RepeatedRowsError,
    RowCountError,
    RowsOutOfRangeError,
    StaleRowsError,
    StreamPoolError,
    UndeclaredDeviceError,
)
from backend_caps.startup.agreement import (
    AgreementDeadlineError,
    ControlGroupError,
    Difference,
    MissingRanksError,
    RankFailedError,
    RanksDifferError,
    UnknownPerRankFlagError,
)
from backend_caps.startup.configure import UnavailableDeviceError
from docs.tools.error_examples.occasion import Occasion

RELAY = Occasion(
    title="FutureMap",
    told="Raised when a FutureMap is configured or made.",
    examples=(
        UnavailableDeviceError(device="xpu"),
        UndeclaredDeviceError(device="my_npu", declared=("cpu", "cuda")),
        StreamPoolError(device="cuda", drawn=64),
        PoolSizeError(pool_size=1),
        HostSeqLensError(value=True),
        DraftShapeError(field="topk", value=0, expected="at least 1"),
        AcceptTokensError(),
    ),
)
DEBUG = Occasion(
    title="FutureMap, at each call",
    told="Raised with `debug=True`; the ids are checked always.",
    examples=(
        RowsOutOfRangeError(operation="publish", rows=(64, 65), pool_size=64),
        RepeatedRowsError(operation="publish", rows=(3, 5)),
        RowCountError(operation="publish", field="seq_lens", shape=(2,), expected=(3,)),
        StaleRowsError(field="bonus_tokens", rows=(3, 5), writer="stash"),
        IndexMismatchError(req_pool_indices=(3, 1), req_pool_indices_cpu=(1, 3)),
        PendingInputIdsError(pending="3 decode rows hold sentinels"),
        PageableStagingError(device="cuda"),
        BoundBelowTruthError(rows=(3, 5), bounds=(12, 40), seq_lens=(13, 42)),
    ),
)
RANKS = Occasion(
    title="Ranks",
    told="Raised by `configure(group=...)`, on every rank.",
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
        ControlGroupError(problem="it talks over cuda:nccl"),
        AgreementDeadlineError(deadline_s=0),
        UnknownPerRankFlagError(names=("tp",), known=("tp_size", "pool_size", "draft")),
    ),
)
