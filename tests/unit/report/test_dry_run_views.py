"""What a dry run shows: of one rank, and of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from backend_caps.report.dry_run_documents import (
    AgreementDocument,
    DryRunDocument,
    JoinedDocument,
    NotAsDecidedDocument,
    PhaseRunDocument,
    RankRunDocument,
    ReadsEndDocument,
    RunMemoryDocument,
    StandInDocument,
    StepKindDocument,
    WorsenedDocument,
)
from backend_caps.report.dry_run_views import dry_run_view
from backend_caps.report.generate_documents import GraphsDocument
from backend_caps.report.html.page import page
from backend_caps.report.plans import PlanDocument, ValueDocument
from backend_caps.report.sections import markdown
from tests.unit.report.conftest import Golden

PLAN = PlanDocument(
    schema_="backend-caps/plan@1",
    needs_cpu_seq_lens=False,
    server={"host_seq_lens": ValueDocument(value="none", effect="no copy, no wait", causes=[])},
    phases={},
    flips=[],
    problems=[],
    policy="warn",
    rules="sglang-0.5.13",
    fingerprint="0123456789abcdef",
)


def _rank(rank: int = 0, *, found: str | None = None, counted: bool = True) -> RankRunDocument:
    return RankRunDocument(
        rank=rank,
        host=f"node-{rank}",
        num_steps=4,
        num_retracted=0,
        phases=[
            PhaseRunDocument(
                phase="decode",
                stand_in=None,
                num_forwards=4 + rank,
                num_full=3,
                num_piecewise=0,
                num_eager=1 + rank,
                eager_because=["no graph was captured that holds its batches"],
                host_waits=rank if counted else None,
                waits={"item at my_flash.py:7": 1} if counted else None,
                bytes_to_host=8 * rank if counted else None,
                bytes_of_lengths=0 if counted else None,
                bytes_to_device=0 if counted else None,
            )
        ],
        steps=[
            StepKindDocument(
                kind="decode",
                stand_in=None,
                num_steps=4,
                num_replayed=3,
                mean_requests=2.5,
                num_tokens=10,
                num_made=10,
                waits_for_lengths=0,
                planned_bytes_to_host=80,
                planned_bytes_to_device=160,
                median_us=None if counted else 100.0 + rank,
                p95_us=None if counted else 250.0,
            )
        ],
        hidden_syncs=None if counted else {"an operator at my_flash.py:7": 2},
        memory=RunMemoryDocument(
            stand_in=None,
            kv_cache_bytes=2048,
            draft_kv_cache_bytes=0,
            page_table_bytes=100,
            graph_pool_bytes=1024 * (1 + rank),
            graph_static_bytes=0,
            num_graphs=3,
        ),
        findings=[]
        if found is None
        else [
            NotAsDecidedDocument(code="hidden-wait", phase="decode", stand_in=found, message="one")
        ],
    )


def _document(ranks: Sequence[RankRunDocument], **more: object) -> DryRunDocument:
    document = DryRunDocument(
        schema_="backend-caps/dry-run@1",
        plan=PLAN,
        future_map="none",
        shared_reads_end={"decode": ReadsEndDocument(value="unknown", effect="")},
        graphs=GraphsDocument(phases=[], num_graphs=3, pool_bytes=1, static_bytes=1),
        device="sim",
        model=None,
        num_steps=4,
        sizes=[],
        left_out=[],
        stand_ins=[],
        idle_stand_ins=[],
        changes=[],
        ranks=[*ranks],
        status=0,
    )
    return document.model_copy(update=more)


_LENT = "lean in place of fa3"
_AGREEMENT = AgreementDocument(
    hosts=["node-a", "node-a", "node-b"],
    rounds=5,
    seconds=0.25,
    equal=["rules"],
    joined=[
        JoinedDocument(
            capability="graph_metadata",
            phase="decode",
            joint="host",
            own={"host": [0, 1], "device": [2]},
        ),
        JoinedDocument(capability="host_seq_lens", phase=None, joint="exact", own={"none": [0]}),
    ],
)
_CHANGES = [
    WorsenedDocument(
        capability="shared_reads_end", phase="verify", decided="pre_replay", here="post_replay"
    ),
    WorsenedDocument(capability="two", phase=None, decided="yes", here="no"),
]


def _lent() -> RankRunDocument:
    """A rank of which one phase ran another backend's code."""
    rank = _rank(found=_LENT)
    (decode,) = rank.phases
    draft = decode.model_copy(update={"phase": "draft", "stand_in": _LENT})
    return rank.model_copy(update={"phases": [decode, draft]})


_VIEWS: Mapping[str, DryRunDocument] = {
    "dry-run": _document([_rank()]),
    "dry-run-of-ranks": _document(
        [_rank(0), _rank(1, found=_LENT), _rank(2, found=_LENT)], agreement=_AGREEMENT
    ),
    "dry-run-on-a-gpu": _document(
        [_rank(0, counted=False), _rank(1, counted=False)],
        agreement=_AGREEMENT.model_copy(update={"joined": []}),
    ),
    "dry-run-with-a-stand-in": _document(
        [_lent()],
        changes=_CHANGES,
        stand_ins=[StandInDocument(role="target", phase="verify", backend="fa3", stand_in="lean")],
        idle_stand_ins=["padded", "native"],
        model="/llama",
    ),
}


@pytest.mark.parametrize("name", _VIEWS)
def test_dry_run_view_is_known_to_the_last_letter(name: str, golden: Golden) -> None:
    """What was decided, what ran, and what was found stand in this order, rank by rank."""
    golden(f"{name}.md", markdown(dry_run_view(_VIEWS[name])))


@pytest.mark.parametrize(
    ("found", "title"),
    [
        pytest.param((), "Dry run: it ran as it was decided", id="as decided"),
        pytest.param(("fa3",), "Dry run: not as it was decided in 1 way", id="one way"),
        pytest.param(("fa3", "fa3"), "Dry run: not as it was decided in 1 way", id="of two ranks"),
    ],
)
def test_page_is_titled_by_whether_it_ran_as_decided(found: Sequence[str], title: str) -> None:
    """What a dry run is asked stands first on its page; what ranks found alike counts once."""
    ranks = [_rank(rank, found=stand_in) for rank, stand_in in enumerate(found)]
    document = _document(ranks or [_rank()])

    text = page(document, dry_run_view(document))

    assert f"<h1>{title}</h1>" in text
