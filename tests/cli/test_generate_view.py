"""A run of prompts as people read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from backend_caps.report.generate_documents import (
    GenerateDocument,
    GenerateStepDocument,
    GraphModeDocument,
    GraphsDocument,
    OutputDocument,
    PhaseGraphsDocument,
    RunDocument,
    SimulationDocument,
    SpeculationDocument,
)
from backend_caps.report.generate_views import generate_view
from backend_caps.report.plans import plan_document
from backend_caps.report.sections import Lines, Table, markdown
from backend_caps.report.step_costs import DraftsDocument
from backend_caps.resolution.resolver import resolve
from backend_caps.resolution.rules import RuleSet
from tests.unit.building import READS, flags, use

STEP = GenerateStepDocument(
    number=1,
    mode="decode",
    graph_mode="eager",
    num_requests=2,
    num_tokens=2,
    num_made=2,
    total_seq_lens=30,
    waits_for_lengths=False,
    bytes_to_host=16,
    bytes_to_device=48,
    host_us=150.4,
    model_us=1000.6,
    wait_us=0.2,
)
RUN = RunDocument(
    num_prompts=2,
    num_prompt_tokens=28,
    num_made=50,
    seconds=0.5,
    num_steps={"extend": 1, "mixed": 2, "decode": 22},
    num_eager={"extend": 1, "mixed": 2, "decode": 4},
    num_in_pieces={"extend": 1, "mixed": 0},
    num_in_halves={"decode": 18},
    eager_because={"extend": "large", "decode": "large"},
    page_size=16,
    max_total_tokens=1024,
    num_retracted=3,
    planned_waits=25,
    bytes_to_host=400,
    bytes_to_device=1200,
    host_us=160.4,
    overlap=True,
    overlap_ratio=0.914,
)
OUTPUT = OutputDocument(prompt=[1, 2], output=[*range(13)], finish_reason="stop")
_CAN = GraphModeDocument(supported=True, because=["declared"])
_CANNOT = GraphModeDocument(supported=False, because=["not declared"])
GRAPHS = GraphsDocument(
    phases=[
        PhaseGraphsDocument(
            role="target",
            phase="prefill",
            kind="mixed_batch",
            supported={"full": _CANNOT, "piecewise": _CAN, "eager": _CAN},
            requested="full or piecewise",
            requested_because="said",
            effective="piecewise",
            refused={"full": ["not declared"]},
            in_halves=None,
            in_halves_because="no flag",
        ),
        PhaseGraphsDocument(
            role="target",
            phase="decode",
            kind="single_token_decode",
            supported={"full": _CAN, "piecewise": _CANNOT, "eager": _CAN},
            requested="full or piecewise",
            requested_because="said",
            effective="full",
            refused={},
            in_halves=None,
            in_halves_because="no flag",
        ),
    ],
    num_graphs=24,
    pool_bytes=3 * 2**20,
    static_bytes=512,
)
GENERATED = GenerateDocument(
    schema_="backend-caps/generate@1",
    model="/models/llama",
    device="cuda:0",
    backends={"prefill": "fa3", "decode": "triton"},
    plan=plan_document(
        resolve(
            [use("fa3", READS)],
            flags("--disable-piecewise-cuda-graph"),
            rules=RuleSet.builtin("sglang-0.5.13"),
        ),
        (),
    ),
    graphs=GRAPHS,
    steps=[STEP],
    run=RUN,
    outputs=[OUTPUT],
)

DRAFTS = DraftsDocument(algorithm="EAGLE", topk=2, num_steps=3, num_draft_tokens=6)
DRAFTED = SpeculationDocument(
    drafts=DRAFTS,
    draft_backends={"draft decode": "triton", "draft_extend verify": "fa3"},
    num_verified=44,
    num_drafts=220,
    num_accepted=55,
    accept_length=2.25,
    planned_waits_for_lengths=22,
    counted_waits=48,
)

EXPECTED = r"""## Plan {fingerprint} runs 2 prompts on cuda:0

- model: /models/llama
- backends: fa3 in prefill, triton in decode
- host\_seq\_lens is exact (no effect: without speculative decoding the scheduler knows the lengths)
- because backend fa3: declares host\_seq\_lens=exact

## The first steps

| step | mode | requests | tokens | lengths | to the host | host µs | model µs | waited µs |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
| 1 | decode | 2 | 2 | 30 | 16 bytes (tokens) | 150 | 1001 | 0 |

- and 24 more

## All steps

| of the run |  |
| --- | --- |
| tokens | 50 made of 28 in 2 prompts |
| speed | 100 tokens/s; 160 µs of host time a step around the model |
| steps | 1 extend, 2 mixed, 22 decode |
| graphs | 18 of 25 steps replayed, 1 of them in pieces eager extend and decode: large |
| graph memory | 3.0 MiB in the pool of 24 graphs, 512 bytes beside it |
| KV cache | 1024 tokens in pages of 16; 3 requests retracted |
| planned waits | 25 in 25 steps |
| bytes | 400 to the host, 1200 to the device |
| overlap | on; in 91% of the time in flight the host did not wait |
| plan | {fingerprint} under the rules of sglang-0.5.13 |

## How batches run

| phase | supported | requested | effective | because |
| --- | --- | --- | --- | --- |
| prefill | piecewise, eager | full or piecewise: said | piecewise | not full: not declared |
| decode | full, eager | full or piecewise: said | full | declared |

## Outputs

| prompt | output | ended by |
| --- | --- | --- |
| 1, 2 | 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 … (13) | stop |
""".replace("{fingerprint}", GENERATED.plan.fingerprint)


def _with(**changes: object) -> GenerateDocument:
    return GenerateDocument.model_validate({**dict(GENERATED), **changes})


def _run_rows(**changes: object) -> Mapping[str, str]:
    run = RunDocument.model_validate({**dict(RUN), **changes})
    tables = [each for each in generate_view(_with(run=run)) if isinstance(each, Table)]
    rows: list[tuple[str, str]] = [(name, value) for name, value in tables[1].rows]
    return dict(rows)


def _tables(document: GenerateDocument) -> list[Table]:
    return [each for each in generate_view(document) if isinstance(each, Table)]


def _lines(document: GenerateDocument) -> list[str]:
    sections = [each for each in generate_view(document) if isinstance(each, Lines)]
    return [line for section in sections for line in section.lines]


def test_generate_view_is_known_to_the_last_letter() -> None:
    """Plan, steps, sums and outputs are shown in this order."""
    text = markdown(generate_view(GENERATED))

    assert text == EXPECTED


@pytest.mark.parametrize(
    ("graph_mode", "words"),
    [
        pytest.param("full", "decode, replayed", id="one graph"),
        pytest.param("piecewise", "decode, in pieces", id="several"),
    ],
)
def test_replayed_step_is_shown_as_such(graph_mode: str, words: str) -> None:
    """A step that graphs ran, and that waited for lengths, says both."""
    step = STEP.model_copy(update={"graph_mode": graph_mode, "waits_for_lengths": True})

    tables = [each for each in generate_view(_with(steps=[step])) if isinstance(each, Table)]

    assert tables[0].rows[0][1] == words
    assert tables[0].rows[0][5] == "16 bytes (tokens, lengths)"


def test_step_on_a_device_without_streams_has_nothing_to_tell_of_waits() -> None:
    """What neither crossed nor waited is a dash, and no 0."""
    step = STEP.model_copy(update={"bytes_to_host": None, "wait_us": None})

    tables = [each for each in generate_view(_with(steps=[step])) if isinstance(each, Table)]

    assert (tables[0].rows[0][5], tables[0].rows[0][8]) == ("—", "—")


def test_simulated_run_is_told_as_what_it_is() -> None:
    """The schedule is a line, so that nobody takes the times for a device's."""
    simulation = SimulationDocument(schedule="starve:2", hidden_syncs=[])

    lines = _lines(_with(simulation=simulation))

    assert lines[1] == (
        "device: simulated on the CPU, its work in the order 'starve:2'; times are the simulator's "
        "own"
    )


@pytest.mark.parametrize(
    ("hidden_syncs", "text"),
    [
        pytest.param([], "none: no operator of a step made the host wait", id="none"),
        pytest.param(
            ["item at a.py:3", "item at a.py:3", "nonzero at b.py:4"],
            "3\n2 of item at a.py:3\n1 of nonzero at b.py:4",
            id="by place",
        ),
    ],
)
def test_hidden_syncs_are_counted_by_place(hidden_syncs: list[str], text: str) -> None:
    """Each line that made the host wait is named once, with how often it did."""
    simulation = SimulationDocument(schedule="eager", hidden_syncs=hidden_syncs)

    sections = list(generate_view(_with(simulation=simulation)))

    tables = [each for each in sections if isinstance(each, Table)]
    assert ("hidden syncs", text) in tables[1].rows


def test_halves_are_shown_where_a_flag_asks_for_them() -> None:
    """Each phase says whether its batches run in halves, and why, and the steps are counted."""
    because = "switched off: two_batch_overlap is not supported by 'fa3'"
    asked = [
        own.model_copy(update={"in_halves": False, "in_halves_because": because})
        for own in GRAPHS.phases
    ]
    graphs = GRAPHS.model_copy(update={"phases": asked})

    sections = list(generate_view(_with(graphs=graphs)))

    rows = [row for each in sections if isinstance(each, Table) for row in each.rows]
    assert ("halves", "18 in 25 steps") in rows
    assert (GRAPHS.phases[1].name, "no", because) in rows


@pytest.mark.parametrize(
    ("differing", "text"), [([], "the same tokens"), ([0, 2], "other tokens of prompts 1, 3")]
)
def test_tokens_beside_the_plain_loop_s_are_compared(differing: Sequence[int], text: str) -> None:
    """The prompts that got other tokens are counted from 1."""
    sections = list(generate_view(_with(differs_from_plain=differing)))

    rows = [row for each in sections if isinstance(each, Table) for row in each.rows]
    assert ("beside the plain loop", text) in rows


@pytest.mark.parametrize(
    ("changes", "name", "text"),
    [
        pytest.param(
            {"num_eager": {}, "num_in_pieces": {}, "eager_because": {}},
            "graphs",
            "25 of 25 steps replayed",
            id="all replayed",
        ),
        pytest.param(
            {"overlap": False}, "overlap", "off: --disable-overlap-schedule", id="no overlap"
        ),
        pytest.param(
            {"overlap_ratio": None},
            "overlap",
            "on; cuda:0 has no streams, so a step is done when its launch returns",
            id="no streams",
        ),
        pytest.param({"planned_waits": None}, "planned waits", "—", id="nothing waits"),
        pytest.param(
            {"bytes_to_host": None, "bytes_to_device": None}, "bytes", "—", id="nothing crosses"
        ),
        pytest.param({"num_prompts": 1}, "tokens", "50 made of 28 in 1 prompt", id="a prompt"),
        pytest.param(
            {"num_retracted": 1, "max_total_tokens": 1, "page_size": 1},
            "KV cache",
            "1 token in pages of 1; 1 request retracted",
            id="one of each",
        ),
        pytest.param(
            {"seconds": 0.0},
            "speed",
            "0 tokens/s; 160 µs of host time a step around the model",
            id="no time",
        ),
    ],
)
def test_sums_are_said_in_words(changes: dict[str, object], name: str, text: str) -> None:
    """Each sum says what it means for this run."""
    rows = _run_rows(**changes)

    assert rows[name] == text


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        pytest.param(
            {"model": None},
            "model: a small Llama with random weights, made for this run; its tokens mean nothing",
            id="no model",
        ),
        pytest.param(
            {"backends": {"prefill": "fa3", "decode": "fa3"}},
            "backends: fa3 in prefill and decode",
            id="one backend",
        ),
        pytest.param(
            {"outputs": [OUTPUT] * 6}, "and 2 more; --format json has all of them", id="outputs"
        ),
    ],
)
def test_lines_say_what_ran(changes: dict[str, object], line: str) -> None:
    """What a newcomer has to know of the run is a line."""
    lines = _lines(_with(**changes))

    assert line in lines


def test_steps_that_are_all_shown_have_no_more() -> None:
    """Nothing is said of further steps where there are none."""
    run = RUN.model_copy(update={"num_steps": {"decode": 1}})

    lines = _lines(_with(run=run))

    assert [line for line in lines if "more" in line] == []


def test_drafts_are_said_in_lines_and_sums() -> None:
    """How steps speculate is above them; how it went, and what was waited for, is in the sums."""
    drafted = _with(speculation=DRAFTED, draft_model="/models/head")

    told = {row[0]: row[1] for row in _tables(drafted)[1].rows}
    assert _lines(drafted)[1:5] == [
        "drafts: EAGLE, top-k 2, 3 steps: trees of 6 tokens, the last token included",
        "draft model: /models/head",
        "backends: fa3 in prefill, triton in decode",
        "draft backends: triton in draft decode, fa3 in draft_extend verify",
    ]
    assert told["accepted"] == (
        "2.25 tokens a verify, its own one included: 55 of 220 drafts in 44 verifies"
    )
    assert told["planned waits"] == "25 in 25 steps, of which 22 for lengths"
    assert told["counted waits"] == "48 in 25 steps"


def test_drafting_steps_show_what_was_accepted() -> None:
    """A step that verified says how many drafts of all it took; another has a dash."""
    verified = STEP.model_copy(update={"accept_lens": [1, 3], "waits_for_lengths": True})

    table = _tables(_with(speculation=DRAFTED, steps=[verified, STEP]))[0]

    assert [row[3:5] for row in table.rows] == [("2 of 10", "16 with lengths"), ("—", "16")]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        pytest.param(
            {},
            "draft model: made for this run, of the small Llama's first layer",
            id="a made one",
        ),
        pytest.param({"algorithm": "NGRAM"}, None, id="none"),
    ],
)
def test_draft_model_is_named_where_there_is_one(changes: dict[str, str], line: str | None) -> None:
    """Drafts of n-grams come of no model."""
    drafts = DRAFTS.model_copy(update=changes)
    speculation = DRAFTED.model_copy(update={"drafts": drafts})

    told = [own for own in _lines(_with(speculation=speculation)) if own.startswith("draft model")]

    assert told == ([] if line is None else [line])


def test_drafting_without_a_verify_or_a_device_of_streams_has_nothing_to_tell() -> None:
    """Where every request ended with its prompt, and nothing was counted, rows are left out."""
    nothing: dict[str, object] = {
        "accept_length": None,
        "counted_waits": None,
        "draft_backends": {},
    }
    speculation = DRAFTED.model_copy(update=nothing)

    names = {row[0] for row in _tables(_with(speculation=speculation))[1].rows}

    assert names.isdisjoint({"accepted", "counted waits"})


def test_metrics_are_a_table_at_the_end() -> None:
    """Metrics that were asked for are the last section."""
    sections = list(generate_view(_with(metrics={"backend_caps_retractions_total": 3.0})))

    assert sections[-1] == Table(
        ("metric", "value"), (("backend_caps_retractions_total", "3"),), cells="names"
    )


@pytest.mark.parametrize(
    ("graphs", "text"),
    [
        pytest.param({"num_graphs": 0}, "none: nothing was captured", id="no graphs"),
        pytest.param(
            {"num_graphs": 1, "pool_bytes": 5 * 2**30, "static_bytes": 1536},
            "5.0 GiB in the pool of 1 graph, 1.5 KiB beside it",
            id="much and little",
        ),
    ],
)
def test_memory_of_graphs_is_shown(graphs: dict[str, int], text: str) -> None:
    """Bytes have the largest unit that there is one of, and no graphs are said to be none."""
    document = _with(graphs=GRAPHS.model_copy(update=graphs))

    rows: list[tuple[str, str]] = [(name, value) for name, value in _tables(document)[1].rows]

    assert dict(rows)["graph memory"] == text
