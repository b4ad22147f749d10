"""A server and what is installed around it, as one report has to show it."""

from __future__ import annotations

from backend_caps.capability.backend import Backend, Problem, Status
from backend_caps.capability.declaration import Part, When
from backend_caps.capability.evidence import Change, Standing
from backend_caps.capability.facts import Facts, Given
from backend_caps.capability.kind import Phase, Role
from backend_caps.capability.provenance import Source
from backend_caps.capability.sets import ComputeRange, Exact, MultipleOf, OneOf
from backend_caps.capability.vocabulary import (
    AttentionArch,
    BatchKind,
    Capabilities,
    GraphMetadata,
    HostSeqLens,
    SharedReadsEnd,
)
from backend_caps.report.backends import ReportDocument, report_document
from backend_caps.report.plans import PlanDocument, RelayDocument, StepDocument, plan_document
from backend_caps.resolution.flips import flips
from backend_caps.resolution.plan import Plan
from backend_caps.resolution.resolver import resolve
from backend_caps.resolution.routing import uses_of
from tests.unit.building import RULES_13, broken, flags, installed, named
from tests.unit.evidence import FAILED, HELD, NOT_CHECKED, evidence

HOSTILE = (
    "<script>alert(1)</script> | a\nb \x1b[31mred\x07 [bold]x[/bold] *b* _i_ `c` # ~~s~~ "
    "&lt; $m$ ![l](u) \\ \u202edlrow"
)
"""Words that are text everywhere, whatever a terminal or a browser would make of them."""

_DECODES = Capabilities(
    needs_cpu_seq_lens=False,
    max_context_len_known=True,
    graph_replay={BatchKind.SINGLE_TOKEN_DECODE, BatchKind.UNIFORM_BATCH},
    graph_metadata=GraphMetadata.DEVICE,
    sync_free_prepare=True,
    shared_reads_end=SharedReadsEnd.IN_REPLAY,
    two_batch_overlap=True,
    roles=set(Role),
    max_speculative_topk=8,
    page_sizes=MultipleOf(16),
    devices={"cuda"},
    dtypes="any",
    kv_cache_dtypes={"bfloat16", "fp8_e5m2"},
    head_sizes=OneOf({64, 128}),
    compute_capability=[ComputeRange((8, 0), (9, 0)), ComputeRange((10, 0))],
    attention_arch={AttentionArch.MHA},
)
_FP8 = When(
    given=Given(kv_cache_dtype={"fp8_e5m2"}, phase={Phase.DECODE}),
    capabilities=Capabilities(needs_cpu_seq_lens=True),
    reason="the fp8 path sizes its workspace on the host",
)
_READS = Capabilities(
    host_seq_lens=HostSeqLens.UPPER_BOUND, max_context_len_known=True, page_sizes=Exact(64)
)
_PARTS = [Part("triton", phases={Phase.PREFILL}), Part("fa3")]
_RAISES = Problem(
    code="raises", message="torn_caps raises KeyError while it is imported.", remedy="Repair it."
)
_NOT_INSTALLED = Problem(
    code="not-installed",
    message="BACKEND_CAPS_PLUGINS names 'fa5-caps', which declares nothing.",
    remedy="Install it, or take it out.",
)

BACKENDS: tuple[Backend, ...] = (
    installed("fa3", _DECODES, conditions=[_FP8]),
    installed("hybrid", Capabilities(two_batch_overlap=False), parts=_PARTS),
    broken("torn", Status.BROKEN, [_RAISES]),
    installed("triton", _READS, adapters={"vllm": "acme_vllm:Acme", "sglang": "acme_sglang:make"}),
    installed("unsaid"),
    Backend(name="old", status=Status.SKIPPED, source=Source()),
)


def plan(line: str, facts: Facts | None = None) -> tuple[Plan, PlanDocument]:
    """Resolve a command line over what is installed."""
    backends, read = named(*BACKENDS), flags(line)
    resolved = resolve(uses_of(read, backends), read, facts=facts, rules=RULES_13)
    return resolved, plan_document(resolved, flips(resolved, backends, read))


FORCED = (
    "--attention-backend fa3 --prefill-attention-backend triton --speculative-algorithm EAGLE3 "
    "--speculative-eagle-topk 4 --enable-two-batch-overlap --device cuda --kv-cache-dtype fp8_e5m2"
)
"""A command line with rules, conditions, problems and flips."""
FREE = "--attention-backend fa3 --disable-piecewise-cuda-graph --speculative-algorithm EAGLE"
"""A command line under which hardly anything stands in the way."""


def report(line: str | None) -> ReportDocument:
    """Report what is installed, and the plan of a command line."""
    resolved = None if line is None else plan(line)[1]
    return report_document(BACKENDS, [_NOT_INSTALLED], resolved)


STANDINGS = {
    "fa3": Standing(
        evidence=evidence(
            {
                "host_seq_lens": HELD,
                "graph_replay": HELD,
                "page_sizes": FAILED,
                "head_sizes": NOT_CHECKED,
            }
        )
    ),
    "triton": Standing(
        evidence=evidence({"host_seq_lens": HELD}, owed=FAILED),
        changes=(
            Change(what="torch", was="2.13.0", now="2.14.0"),
            Change(what="source", was="sha256:5", now="sha256:6"),
        ),
    ),
    "unsaid": Standing(problem="unsaid.json is of 'fa3'"),
}
"""How the claims of some of them stand, in each way that there is."""


def verified() -> ReportDocument:
    """Report what is installed, and how its claims stand."""
    return report_document(BACKENDS, (), None, STANDINGS)


def relayed() -> RelayDocument:
    """Relay one step in each way that a host can know lengths."""
    step = StepDocument(
        number=1,
        seq_lens=[5, 7],
        seq_lens_cpu=None,
        seq_lens_cpu_upper_bound=None,
        input_ids=[11, 12],
        bytes_to_host=0,
    )
    bound = {"number": 2, "seq_lens_cpu_upper_bound": [9, 11]}
    exact = {"number": 3, "seq_lens_cpu": [7, 9], "bytes_to_host": 16}
    steps = [step, step.model_copy(update=bound), step.model_copy(update=exact)]
    return RelayDocument(
        schema_="backend-caps/relay@1",
        device="cuda",
        has_streams=True,
        plan=plan(FORCED)[1],
        steps=steps,
    )
