"""Graphs by themselves: a model is loaded, captured at once, and replayed.

Nobody synchronizes: between the stream on which everything is made and the one on which graphs
run stands what `capture_graphs` waits for. A replay of first tokens has the scores of an eager
forward on the CPU.

Shapes: B requests in the batch.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from backend_caps import Configuration, GraphSizes, Phase, Plan, Role
from backend_caps.relay import DeviceStreams
from backend_caps.runtime import ForwardBatch, ForwardContext
from backend_caps.runtime.attention import PhaseBackends
from backend_caps.runtime.batch import ForwardMode
from backend_caps.runtime.graphs.capture import capture_graphs
from backend_caps.runtime.memory import Pools, ReqToTokenPool, make_cache
from backend_caps.runtime.model import load_llama
from backend_caps.runtime.model.llama import LlamaModel
from backend_caps.runtime.step import scores_of
from backend_caps.simulator import simulate
from backend_caps.startup.graph_modes import uniform_buckets
from tests.races.cases import Case, Fault, Finding, findings_after
from tests.races.engine_setup import plan_of
from tests.races.traces import MAX_LENGTH, VOCAB_SIZE, Trace

_ROWS = (2, 1)


def _pools(plan: Plan, model: LlamaModel) -> Pools:
    """Make pools in which row r has slot r for its first token."""
    size = len(_ROWS)
    rows = ReqToTokenPool(
        max_requests=size, max_context_len=MAX_LENGTH, page_size=1, device=model.device
    )
    rows.req_to_token[:, 0] = torch.arange(size + 1, device=model.device)
    return Pools(rows, make_cache(plan, model.config, model, size + 1))


@torch.inference_mode()
def run_captures(case: Case, folder: Path) -> tuple[Finding, ...]:
    """Capture and replay under a case's schedule, and list what is wrong."""
    trace = Trace.drawn(case.seed, replays=True)
    tokens = [case.seed % VOCAB_SIZE, (7 * case.seed + 3) % VOCAB_SIZE]
    expected = _eager(folder, trace, tokens)
    with simulate(case.schedule, check_races=case.checks_races) as simulation:
        logits = _replayed(folder, trace, tokens)
    difference = (logits - expected).abs().max().item()
    found = []
    if not difference < 1e-3:
        what = f"scores of a replay differ by {difference} from those of an eager forward"
        found.append(Finding(fault=Fault.VALUE, what=what))
    return (*found, *findings_after(simulation))


def _replayed(folder: Path, trace: Trace, tokens: list[int]) -> Tensor:
    streams = DeviceStreams("sim")
    stream = streams.private_stream()
    plan = plan_of(trace)
    sizes = {Role.TARGET: GraphSizes(buckets={Phase.DECODE: uniform_buckets((4,))})}
    configuration = Configuration.from_plan(
        plan, pool_size=max(_ROWS) + 1, device="sim", graph_sizes=sizes, streams=streams
    )
    # The FutureMap waits for the device once, so it is made before what a capture has to wait for.
    model = load_llama(folder, streams.device)
    backends = PhaseBackends(plan.uses, Role.TARGET, _pools(plan, model))
    graphs = capture_graphs(
        lambda contexts: scores_of(model, *contexts), backends, configuration, stream=stream
    ).phases
    with streams.using(stream):
        return graphs[Phase.DECODE].replay(_first_tokens(tokens, streams.device)).output.cpu()


def _eager(folder: Path, trace: Trace, tokens: list[int]) -> Tensor:
    cpu = torch.device("cpu")
    model = load_llama(folder, cpu)
    plan = plan_of(trace)
    backends = PhaseBackends(plan.uses, Role.TARGET, _pools(plan, model))
    backend, batch = backends.of(Phase.DECODE), _first_tokens(tokens, cpu)
    backend.init_forward_metadata(batch)
    return scores_of(model, ForwardContext(backend, batch))


def _first_tokens(tokens: list[int], device: torch.device) -> ForwardBatch:
    rows = torch.tensor(_ROWS, device=device)
    ones = torch.ones(len(_ROWS), dtype=torch.int64, device=device)
    return ForwardBatch(
        mode=ForwardMode.DECODE,
        input_ids=torch.tensor(tokens, device=device),
        positions=ones - 1,
        req_pool_indices=rows,
        seq_lens=ones,
        out_cache_loc=rows,
        seq_lens_cpu=torch.ones(len(_ROWS), dtype=torch.int64),
        seq_lens_sum=len(_ROWS),
    )
