"""What a dry run shows: of one rank, and of several."""

from __future__ import annotations

from collections.abc import Sequence

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
    SizeDocument,
    StandInDocument,
    StepKindDocument,
    WorsenedDocument,
)
from backend_caps.report.dry_run_views import dry_run_view
from backend_caps.report.generate_documents import GraphsDocument
from backend_caps.report.html.page import page
from backend_caps.report.plans import PlanDocument, ValueDocument
from backend_caps.report.sections import Heading, Lines, Table

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


def _shown(document: DryRunDocument) -> str:
    lines: list[str] = []
    for section in dry_run_view(document):
        match section:
            case Heading(text):
                lines.append(text)
            case Lines(told):
                lines += told
            case Table(_, rows):
                lines += (" | ".join(row) for row in rows)
    return "\n".join(lines)


def test_view_of_ranks_has_the_least_and_the_most() -> None:
    """A figure in which ranks differ is shown by its ends; one that all have, once."""
    shown = _shown(_document([_rank(0), _rank(1)]))

    assert "decode | 4 to 5 | 3 | 0 to 1 | 0 to 8 | 0" in shown
    assert "graphs, their pool | 1.0 KiB to 2.0 KiB" in shown


def test_view_of_ranks_names_those_that_found_something() -> None:
    """What several ranks found alike is one row with all of them."""
    ranks = [
        _rank(0),
        _rank(1, found="lean in place of fa3"),
        _rank(2, found="lean in place of fa3"),
    ]

    shown = _shown(_document(ranks))

    assert "hidden-wait | decode | one (with lean in place of fa3) | ranks 1, 2" in shown


def test_view_of_one_rank_names_none() -> None:
    """With one rank nothing says on which rank it was found."""
    shown = _shown(_document([_rank(0, found="lean in place of fa3")]))

    assert shown.endswith("hidden-wait | decode | one (with lean in place of fa3)")


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


def test_view_says_why_forwards_were_eager() -> None:
    """What the table of graph modes does not tell is told below the forwards."""
    shown = _shown(_document([_rank()]))

    assert "eager in decode: no graph was captured that holds its batches" in shown
    assert "waited in decode: 1 time for item at my_flash.py:7" in shown


def test_view_of_a_gpu_has_times_and_what_is_planned() -> None:
    """Where there are times, the plan's own waits and bytes stand beside them."""
    shown = _shown(_document([_rank(0, counted=False), _rank(1, counted=False)]))

    assert "decode | 4 | 3 | 2.5 | 10 | 0 | 80 | 100 to 101 | 250" in shown
    assert "hidden: an operator at my_flash.py:7 made the host wait" in shown


def test_view_of_an_agreement_has_what_was_joined() -> None:
    """Hosts, rounds and every value that ranks had decided apart are shown."""
    agreement = AgreementDocument(
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
            JoinedDocument(
                capability="host_seq_lens", phase=None, joint="exact", own={"none": [0]}
            ),
        ],
    )

    shown = _shown(_document([_rank()], agreement=agreement))

    assert (
        "ranks 0, 1 on node-a\nrank 2 on node-b\nin 5 rounds; 0.25 s on the slowest rank" in shown
    )
    assert "graph_metadata in decode | host | host on ranks 0, 1\ndevice on rank 2" in shown


def test_view_of_an_agreement_says_that_nothing_was_joined() -> None:
    """Ranks that had decided the same are said to have."""
    agreement = AgreementDocument(
        hosts=["node-a"], rounds=2, seconds=0.25, equal=["rules"], joined=[]
    )

    shown = _shown(_document([_rank()], agreement=agreement))

    assert "joined: nothing, all had decided the same" in shown


def test_view_has_what_a_stand_in_changes() -> None:
    """A value that is worse because of a stand-in is shown beside what was decided."""
    changes = [
        WorsenedDocument(
            capability="shared_reads_end", phase="verify", decided="pre_replay", here="post_replay"
        ),
        WorsenedDocument(capability="two", phase=None, decided="yes", here="no"),
    ]
    lent = StandInDocument(role="target", phase="verify", backend="fa3", stand_in="lean")

    shown = _shown(_document([_rank()], changes=changes, stand_ins=[lent], model="/llama"))

    assert "stand-in: lean in place of fa3, as target verify" in shown
    assert "shared_reads_end in verify is post_replay, and was decided to be pre_replay" in shown


def test_view_has_the_figures_of_another_code_in_a_table_of_its_own() -> None:
    """Forwards of a backend itself and of a stand-in are under titles that tell them apart."""
    rank = _rank()
    (decode,) = rank.phases
    lent = decode.model_copy(update={"phase": "draft", "stand_in": "lean in place of fa3"})

    shown = _shown(_document([rank.model_copy(update={"phases": [decode, lent]})]))

    own, _, others = shown.partition("What forwards did, with lean in place of fa3\n")
    assert own.endswith("What forwards did\ndecode | 4 | 3 | 0 | 0 | 0\n")
    assert others.startswith("draft | 4 | 3 | 0 | 0 | 0\n")


def test_view_names_a_stand_in_that_nobody_needs() -> None:
    """A stand-in that was named for nothing is said to be one."""
    shown = _shown(_document([_rank()], idle_stand_ins=["lean"]))

    assert "no need of lean: where it would stand in, each backend runs itself" in shown


def test_view_names_sizes_that_are_not_the_servers() -> None:
    """Below the sizes stand those that the run has smaller."""
    sizes = [
        SizeDocument(flag="--one", server="64", here="8", is_servers=False),
        SizeDocument(flag="--two", server="not given", here="1", is_servers=True),
    ]

    shown = _shown(_document([_rank()], sizes=sizes))

    assert "not as on the server, for a run here is small: --one\n" in shown


def test_view_says_why_there_are_more_forwards_than_steps() -> None:
    """The forward of the step behind the last is told, by rank where ranks differ."""
    shown = [_shown(_document([_rank(rank) for rank in ranks])) for ranks in ([0], [0, 1], [2])]

    told = "more of the target's forwards than steps"
    assert [told in own for own in shown] == [False, True, True]
    assert f"0 to 1 {told}" in shown[1]
