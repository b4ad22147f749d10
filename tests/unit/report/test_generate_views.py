"""A run of prompts as people read it."""

from __future__ import annotations

from collections.abc import Mapping

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
from backend_caps.report.sections import markdown
from backend_caps.report.step_costs import DraftsDocument
from backend_caps.resolution.resolver import resolve
from backend_caps.resolution.rules import RuleSet
from tests.unit.building import READS, flags, use
from tests.unit.report.conftest import Golden

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

_REPLAYED = {"graph_mode": "full", "waits_for_lengths": True}
_IN_PIECES = {"graph_mode": "piecewise", "accept_lens": [1, 3], "waits_for_lengths": True}
_NO_STREAMS = {"bytes_to_host": None, "bytes_to_device": None}
_NO_VERIFY: dict[str, object] = {"accept_length": None, "counted_waits": None, "draft_backends": {}}
_SYNCS = ["item at a.py:3", "item at a.py:3", "nonzero at b.py:4"]
_IN_HALVES = {"in_halves": False, "in_halves_because": "switched off: 'fa3' does not support it"}


def _with(**changes: object) -> GenerateDocument:
    return GenerateDocument.model_validate({**dict(GENERATED), **changes})


_VIEWS: Mapping[str, GenerateDocument] = {
    "generate": GENERATED,
    "generate-drafted": _with(
        speculation=DRAFTED,
        draft_model="/models/head",
        steps=[STEP.model_copy(update=_IN_PIECES), STEP],
    ),
    "generate-simulated": _with(
        model=None,
        backends={"prefill": "fa3", "decode": "fa3"},
        simulation=SimulationDocument(schedule="starve:2", hidden_syncs=_SYNCS),
        differs_from_plain=[0, 2],
        speculation=DRAFTED.model_copy(update={"draft_backends": {}}),
        graphs=GRAPHS.model_copy(
            update={
                "num_graphs": 1,
                "pool_bytes": 5 * 2**30,
                "static_bytes": 1536,
                "phases": [own.model_copy(update=_IN_HALVES) for own in GRAPHS.phases],
            }
        ),
    ),
    "generate-without-streams": _with(
        steps=[STEP.model_copy(update={**_NO_STREAMS, "wait_us": None})],
        run=RUN.model_copy(
            update={**_NO_STREAMS, "planned_waits": None, "overlap_ratio": None, "seconds": 0.0}
        ),
        speculation=DRAFTED.model_copy(
            update={**_NO_VERIFY, "drafts": DRAFTS.model_copy(update={"algorithm": "NGRAM"})}
        ),
        graphs=GRAPHS.model_copy(update={"num_graphs": 0}),
        outputs=[OUTPUT] * 6,
        metrics={"backend_caps_retractions_total": 3.0},
    ),
    "generate-one-of-each": _with(
        steps=[STEP.model_copy(update=_REPLAYED)],
        run=RUN.model_copy(
            update={
                "num_prompts": 1,
                "num_retracted": 1,
                "max_total_tokens": 1,
                "page_size": 1,
                "num_eager": {},
                "num_in_pieces": {},
                "eager_because": {},
                "overlap": False,
                "num_steps": {"decode": 1},
            }
        ),
        simulation=SimulationDocument(schedule="eager", hidden_syncs=[]),
        differs_from_plain=[],
    ),
}


@pytest.mark.parametrize("name", _VIEWS)
def test_generate_view_is_known_to_the_last_letter(name: str, golden: Golden) -> None:
    """Plan, steps, sums, graphs and outputs are shown; what there is nothing of is left out."""
    golden(f"{name}.md", markdown(generate_view(_VIEWS[name])))
