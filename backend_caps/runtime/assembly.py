"""From a configuration and folders to the parts of an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from backend_caps.capability.kind import Role
from backend_caps.relay import FutureMap
from backend_caps.relay.streams import StepStreams, StreamLike
from backend_caps.resolution.plan import Plan
from backend_caps.runtime.admission import WaitingLine
from backend_caps.runtime.attention import ForwardContext, PhaseBackends
from backend_caps.runtime.disaggregation import PromptCaches, PromptTransfer, fingerprint
from backend_caps.runtime.errors import ConfigurationMisfitError, UnusedDraftModelError
from backend_caps.runtime.graphs.capture import CapturedGraphs, HalvesModel, capture_graphs
from backend_caps.runtime.graphs.pieces import PieceModel
from backend_caps.runtime.graphs.runner import CaptureObserver, Model
from backend_caps.runtime.memory import Pools, RequestMemory, make_pools
from backend_caps.runtime.model.llama import LlamaModel, load_llama
from backend_caps.runtime.options import (
    EngineOptions,
    check_fit,
    check_token_counts,
    graph_sizes_of,
    largest_step,
)
from backend_caps.runtime.scheduler import Decoding, PlainDecoding, Scheduler
from backend_caps.runtime.speculation import SpecSettings
from backend_caps.runtime.speculative.contexts import mask_size
from backend_caps.runtime.speculative.decoding import SpeculativeDecoding
from backend_caps.runtime.speculative.drafting import Drafting, load_draft, make_drafting
from backend_caps.runtime.speculative.runner import SpeculativeRunner
from backend_caps.runtime.staging import Staging
from backend_caps.runtime.stats import StepObserver
from backend_caps.runtime.step import PlainRunner, StepLauncher, StepRunner
from backend_caps.runtime.two_batch import TwoBatchRunner
from backend_caps.runtime.worker import TargetRunner, Worker, states_of
from backend_caps.startup.configuration import Configuration, GraphSizes
from backend_caps.startup.graph_choice import halved_phases


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What an engine is made of, streams and scheduler aside."""

    model: LlamaModel
    """The target, where there is a draft."""
    memory: RequestMemory
    backends: tuple[PhaseBackends, ...]
    """Every attention that a step runs: the target's first, once more for second halves of batches,
    then a draft model's, by role."""
    graphs: Mapping[Role, CapturedGraphs]
    """What was captured, by role."""
    worker: Worker
    """Runs plain forwards of the target."""
    waiting: WaitingLine
    runner: StepRunner
    """Runs a step's forwards."""
    decoding: Decoding
    """Makes the next step of running requests."""
    drafting: Drafting | None
    """What drafts; None without speculation."""
    caches: PromptCaches | None
    """What is handed over or taken over; None where prompts run and are gone on with here."""


def assemble(
    configuration: Configuration,
    options: EngineOptions,
    *,
    model_path: str | Path,
    draft_model_path: str | Path | None,
    staging: Staging,
    forward_stream: StreamLike,
    capture_observer: CaptureObserver | None = None,
) -> Parts:
    """Load the models, make their memory and attention, and capture their graphs.

    Raises:
        ConfigurationMisfitError: the configuration was made for other models or options.
        BackendCapsError: a folder, the plan or an option cannot be served.
    """
    plan = configuration.plan
    settings = _settings(plan, draft_model_path)
    _check_options(configuration, options, settings)
    lookahead = 0 if settings is None else settings.lookahead
    model = load_llama(
        model_path,
        staging.streams.device,
        dtype=options.dtype,
        num_positions=plan.flags.context_length,
        lookahead=lookahead,
    )
    draft_model = None if settings is None else load_draft(settings, model, draft_model_path)
    check_fit(plan, model, staging.streams)
    _check_token_counts(plan, options, settings, model.num_positions - lookahead)
    memory, pools = make_pools(plan, model, options, staging, lookahead)
    backends = PhaseBackends(plan.uses, Role.TARGET, pools)
    two_batch = _two_batch_runner(configuration, model, backends)
    whole, in_pieces, halves = _captured_parts(model, settings, two_batch)
    graphs = capture_graphs(
        whole,
        backends,
        configuration,
        stream=forward_stream,
        mask_size=_mask_size(settings, memory),
        in_pieces=in_pieces,
        halves=halves,
        observer=capture_observer,
    )
    worker = Worker(model, backends, {} if settings is not None else graphs.phases, two_batch)
    drafting: Drafting | None = None
    runner: StepRunner = PlainRunner(worker=worker, relay=configuration.future_map, staging=staging)
    decoding: Decoding = PlainDecoding()
    if settings is not None:
        drafting = make_drafting(
            configuration,
            settings,
            model,
            draft_model,
            pools,
            staging,
            forward_stream=forward_stream,
            capture_observer=capture_observer,
        )
        target = TargetRunner(model, backends, graphs.phases, two_batch)
        runner, decoding = _speculative(configuration, settings, drafting, target, pools, staging)
    return Parts(
        model=model,
        memory=memory,
        backends=(
            *((backends,) if two_batch is None else two_batch.backends),
            *(() if drafting is None else drafting.backends.values()),
        ),
        graphs={Role.TARGET: graphs, **({} if drafting is None else drafting.graphs)},
        worker=worker,
        waiting=_waiting_line(options, settings, memory),
        runner=runner,
        decoding=decoding,
        drafting=drafting,
        caches=_caches(plan, settings, model, memory, pools, drafting),
    )


def _speculative(
    configuration: Configuration,
    settings: SpecSettings,
    drafting: Drafting,
    target: TargetRunner,
    pools: Pools,
    staging: Staging,
) -> tuple[StepRunner, Decoding]:
    """Make steps that draft and verify.

    Raises:
        ConfigurationMisfitError: the relay was made for another draft.
    """
    if drafting.shape != configuration.draft:
        raise ConfigurationMisfitError(
            field="draft shape", configured=str(configuration.draft), needed=str(drafting.shape)
        )
    relay = configuration.future_map
    runner = SpeculativeRunner(
        target=target,
        drafter=drafting.drafter,
        settings=settings,
        relay=relay,
        pools=pools,
        staging=staging,
    )
    overlapped = configuration.plan.relays_speculation
    return runner, SpeculativeDecoding(settings, relay, overlapped=overlapped)


def make_scheduler(
    parts: Parts,
    transfer: PromptTransfer | None,
    *,
    relay: FutureMap,
    staging: Staging,
    step_streams: StepStreams,
    mixed: bool,
    observer: StepObserver,
) -> Scheduler:
    """Make the scheduler of an engine's parts."""
    launcher = StepLauncher(
        runner=parts.runner,
        relay=relay,
        staging=staging,
        step_streams=step_streams,
    )
    return Scheduler(
        launcher=launcher,
        memory=parts.memory,
        staging=staging,
        step_streams=step_streams,
        waiting=parts.waiting,
        decoding=parts.decoding,
        mixed=mixed,
        observer=observer,
        transfer=transfer,
    )


def _check_options(
    configuration: Configuration, options: EngineOptions, settings: SpecSettings | None
) -> None:
    """Refuse options other than those the configuration was made with."""
    pool_size, sizes = options.max_running_requests + 1, graph_sizes_of(options, settings)
    configured = _sizes_by_name(configuration.future_map.pool_size, configuration.graph_sizes)
    for name, needed in _sizes_by_name(pool_size, sizes).items():
        found = configured.get(name, "none")
        if found != needed:
            raise ConfigurationMisfitError(field=name, configured=found, needed=needed)


def _check_token_counts(
    plan: Plan, options: EngineOptions, settings: SpecSettings | None, context_len: int
) -> None:
    """Refuse graphs of more tokens than any step has."""
    mixed = plan.flags.enable_mixed_chunk
    check_token_counts(options, largest_step(options, context_len, settings, mixed=mixed))


def _sizes_by_name(pool_size: int, graphs: Mapping[Role, GraphSizes]) -> Mapping[str, str]:
    sizes = {"pool_size": str(pool_size)}
    for role, own in graphs.items():
        sizes[f"{role.value} graph token counts"] = _listed(own.token_counts)
        for phase, buckets in own.buckets.items():
            counts = _listed([bucket.num_tokens for bucket in buckets])
            padded = "padded" if all(bucket.pads for bucket in buckets) else "exact"
            sizes[f"{role.value} {phase.value} graph sizes"] = f"{counts} ({padded})"
    return sizes


def _listed(counts: Sequence[int]) -> str:
    return ", ".join(map(str, counts)) or "none"


def _settings(plan: Plan, draft_model_path: str | Path | None) -> SpecSettings | None:
    """Read how the engine speculates; refuse a draft model that nothing runs."""
    settings = SpecSettings.from_flags(plan.flags)
    if draft_model_path is not None and (settings is None or not settings.has_draft_model):
        raise UnusedDraftModelError(
            path=str(draft_model_path), algorithm=plan.flags.speculative_algorithm
        )
    return settings


def _two_batch_runner(
    configuration: Configuration, model: LlamaModel, backends: PhaseBackends
) -> TwoBatchRunner | None:
    """Make what runs batches in halves, with attention of its own for the second half."""
    phases = halved_phases(configuration.graph_choices[Role.TARGET])
    if not phases:
        return None
    second = PhaseBackends(configuration.plan.uses, Role.TARGET, backends.site)
    return TwoBatchRunner(model, (backends, second), configuration.streams, phases)


def _captured_parts(
    model: LlamaModel, settings: SpecSettings | None, two_batch: TwoBatchRunner | None
) -> tuple[Model, PieceModel, HalvesModel | None]:
    """Say what is captured of a model, whole, in pieces and in halves: for drafts, its states."""
    states, head = states_of(model), None if settings is not None else model.lm_head
    in_pieces = PieceModel(states=states, head=head)
    whole: Model = states if head is None else model
    if two_batch is None:
        return whole, in_pieces, None
    runner = two_batch

    def compute(contexts: Sequence[ForwardContext]) -> Tensor:
        hidden = runner.states(contexts)
        return hidden if head is None else head(hidden)

    return whole, in_pieces, HalvesModel(compute=compute, backends=runner.backends[1])


def _waiting_line(
    options: EngineOptions, settings: SpecSettings | None, memory: RequestMemory
) -> WaitingLine:
    return WaitingLine(
        memory,
        max_prefill_tokens=options.max_prefill_tokens,
        chunked_prefill_size=options.chunked_prefill_size,
        num_slots_behind=0 if settings is None else settings.prompt_slots,
    )


def _caches(
    plan: Plan,
    settings: SpecSettings | None,
    model: LlamaModel,
    memory: RequestMemory,
    pools: Pools,
    drafting: Drafting | None,
) -> PromptCaches | None:
    """Say where prompts leave what they leave, and of which models it is, where it crosses."""
    if plan.flags.disaggregation_mode == "null":
        return None
    draft = None if drafting is None else drafting.model
    return PromptCaches(
        memory=memory,
        target=pools.token_to_kv_pool,
        draft=None if drafting is None else drafting.cache,
        num_slots_behind=0 if settings is None else settings.prompt_slots,
        model=fingerprint(model.config, model),
        draft_model=None if draft is None else fingerprint(draft.config, draft),
    )


def _mask_size(settings: SpecSettings | None, memory: RequestMemory) -> int:
    """Count the most entries that a request has in a tree mask that a graph reads."""
    if settings is None or settings.is_chain:
        return 0
    return mask_size(
        1,
        settings.num_draft_tokens,
        seq_lens_sum=None,
        max_context_len=memory.rows.req_to_token.shape[1],
    )
