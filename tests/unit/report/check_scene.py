"""A backend that was checked, with everything that a document can hold."""

from __future__ import annotations

from backend_caps.report.check_documents import (
    CHECK_SCHEMA,
    CheckDocument,
    CheckedDocument,
    ClaimDocument,
    EffortDocument,
    ExercisedDocument,
    FileLinesDocument,
    FindingDocument,
    HintDocument,
    LinesDocument,
    SaidDocument,
)

_PLACE = "decode,float32,page-1,head-16x4:2"
FOUND = FindingDocument(
    check="mirror-absent",
    claims=["host_seq_lens"],
    what="raised TypeError: int() of None",
    case=f"mirror-absent/{_PLACE}@lazy#3",
    scenario=_PLACE,
    schedule="lazy",
    seed=3,
    file="my_flash/backend.py",
    line=40,
    replay=f"backend-caps check my_flash --case 'mirror-absent/{_PLACE}@lazy#3'",
)
AGAIN = FOUND.model_copy(update={"case": f"mirror-absent/{_PLACE}@lazy#5", "seed": 5})
OTHER = FOUND.model_copy(update={"case": f"mirror-absent/{_PLACE}@lazy#7", "line": 44})
LEAK = FOUND.model_copy(
    update={
        "check": "memory",
        "claims": [],
        "what": "grows by 3 blocks a step",
        "case": "memory/-@eager#0",
        "scenario": None,
        "schedule": "eager",
        "seed": 0,
        "replay": "backend-caps check my_flash --case 'memory/-@eager#0'",
        "file": None,
        "line": None,
    }
)
HINT = HintDocument(check="replay", claim="graph_replay", what="replayed right in 9 cases")


def checked(*, fails: bool = True) -> CheckDocument:
    """Make a document: one in which two checks fail, or one in which all hold."""
    checks = _failing() if fails else [_check("numerics", ["dtypes", "page_sizes"], 3)]
    return CheckDocument(
        schema_=CHECK_SCHEMA,
        backend="my_flash",
        distribution="my-flash" if fails else None,
        version="1.0" if fails else None,
        declared_at="my_flash_caps.py:7" if fails else None,
        kit_version="0.1.0",
        device="sim",
        effort=EffortDocument(seeds=[0, 1], num_steps=100),
        status="failed" if fails else "held",
        claims=_claims(),
        checks=checks,
        exercised=[_exercised("decode", 9), _exercised("verify", 0)],
        lines=_lines() if fails else None,
        said=[
            SaidDocument(text=f"slow {word}", count=4)
            for word in ("abcdefghijklmnopqrstuv" if fails else "a")
        ],
    )


def _claims() -> list[ClaimDocument]:
    return [
        ClaimDocument(
            capability="host_seq_lens",
            value="none",
            conditional=True,
            status="failed",
            checks=["mirror-absent"],
        ),
        ClaimDocument(
            capability="devices",
            value="any",
            status="not checked",
            checks=[],
            reason="no check is about it",
        ),
    ]


def _failing() -> list[CheckedDocument]:
    return [
        _check("mirror-absent", ["host_seq_lens"], 9, found=[FOUND, AGAIN, OTHER]),
        _check("memory", [], 1, found=[LEAK]),
        _check("numerics", ["dtypes", "page_sizes"], 3, num_blocked=1),
        _check("replay", ["graph_replay"], 0, reason="it claims no graph", hints=[HINT]),
    ]


def _check(
    code: str,
    claims: list[str],
    num_cases: int,
    *,
    found: list[FindingDocument] | None = None,
    hints: list[HintDocument] | None = None,
    reason: str | None = None,
    num_blocked: int = 0,
) -> CheckedDocument:
    listed = [f"{code}/{_PLACE}@eager#{seed}" for seed in range(num_cases)]
    cases = [finding.case for finding in found or []] + listed
    return CheckedDocument(
        code=code,
        title=f"The title of {code}.",
        claims=claims,
        proves="What a pass means.",
        cannot="What it cannot find.",
        applies=reason is None,
        status="failed" if found else "held" if num_cases else "not checked",
        reason=reason,
        cases=cases[:num_cases],
        num_blocked=num_blocked,
        findings=found or [],
        hints=hints or [],
        seconds=1.25,
    )


def _exercised(forward: str, num_cases: int) -> ExercisedDocument:
    return ExercisedDocument(
        forward=forward,
        role="target",
        phase=forward,
        batch_kind="uniform_batch",
        num_cases=num_cases,
    )


def _lines() -> LinesDocument:
    ranges = [f"{line}" for line in range(10, 38, 2)]
    files = [
        FileLinesDocument(file="my_flash/backend.py", num_lines=40, num_run=26, missing=ranges),
        FileLinesDocument(file="my_flash/kernels.py", num_lines=10, num_run=9, missing=["4-5"]),
        FileLinesDocument(file="my_flash/ops.py", num_lines=5, num_run=5, missing=[]),
    ]
    return LinesDocument(num_lines=55, num_run=40, files=files)
