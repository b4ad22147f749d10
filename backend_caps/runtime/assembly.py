"""From a configuration and folders to the parts of an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from backend_caps.capability.kind import Role
from backend_caps.relay.streams import StepStreams, StreamLike
from backend_caps.runtime.admission import WaitingLine
from backend_caps.runtime.attention import ForwardContext, PhaseBackends
from backend_caps.runtime.disaggregation import PromptCaches, PromptTransfer, fingerprint
from backend_caps.runtime.errors import EngineError
from backend_caps.runtime.graphs.capture import CapturedGraphs, HalvesModel, capture_graphs
from backend_caps.runtime.graphs.pieces import PieceModel
from backend_caps.runtime.graphs.runner import CaptureObserver
from backend_caps.runtime.memory import Pools, make_pools
from backend_caps.runtime.model.layers import LMHead
from backend_caps.runtime.model.llama import LlamaModel, load_llama
from backend_caps.runtime.options import (
    EngineOptions,
    check_fit,
    check_token_counts,
    graph_sizes_of,
)
from backend_caps.runtime.scheduler import Decoding, PlainDecoding
from backend_caps.runtime.speculation import SpecSettings
from backend_caps.runtime.speculative.drafting import Drafting, load_draft, make_drafting
from backend_caps.runtime.speculative.runner import SpeculativeDecoding, SpeculativeRunner
from backend_caps.runtime.staging import Staging
from backend_caps.runtime.step import PlainRunner, StepRunner, TargetRunner, Worker, states_of
from backend_caps.runtime.two_batch import TwoBatchRunner
from backend_caps.startup.configuration import Configuration, GraphSizes
from backend_caps.startup.graph_choice import halved_phases


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What an engine is made of, streams and scheduler aside."""

    model: LlamaModel
    """The target, where there is a draft."""
    backends: tuple[PhaseBackends, ...]
    """Every attention that a step runs: the target's first, once more for second halves of batches,
    then a draft model's, by role."""
    graphs: Mapping[Role, CapturedGraphs]
    """What was captured, by role."""
    worker: Worker
    """Runs plain forwards of the target."""
    waiting: WaitingLine
    """With the memory that requests have."""
    transfer: PromptTransfer | None
    """Hands prompts over or takes them over; None where they run and are gone on with here."""
    runner: StepRunner
    """Runs a step's forwards."""
    decoding: Decoding
    """Makes the next step of running requests."""


def assemble(
    configuration: Configuration,
    options: EngineOptions,
    *,
    model_path: str | Path,
    draft_model_path: str | Path | None,
    staging: Staging,
    step_streams: StepStreams,
    capture_observer: CaptureObserver | None = None,
) -> Parts:
    """Load the models, make their memory and attention, and capture their graphs.

    Raises:
        EngineError: `configuration`: it was made for other models or options.
        BackendCapsError: a folder, the plan or an option cannot be served.
    """
    plan, relay = configuration.plan, configuration.future_map
    settings = _settings(configuration, options, draft_model_path)
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
    check_token_counts(plan, options, settings, model.num_positions - lookahead)
    memory, pools = make_pools(plan, model, options, staging, lookahead)
    waiting = WaitingLine(
        memory,
        max_prefill_tokens=options.max_prefill_tokens,
        chunked_prefill_size=options.chunked_prefill_size,
        num_slots_behind=0 if settings is None else settings.prompt_slots,
    )
    stream = step_streams.forward
    target = _target(configuration, settings, model, pools, stream, capture_observer)
    drafting: Drafting | None = None
    runner: StepRunner = PlainRunner(worker=target.worker, relay=relay, staging=staging)
    decoding: Decoding = PlainDecoding()
    if settings is not None:
        drafting = make_drafting(
            configuration,
            settings,
            model,
            draft_model,
            pools,
            staging,
            forward_stream=stream,
            capture_observer=capture_observer,
        )
        runner = _speculative_runner(
            configuration, settings, target.runner, drafting, pools, staging
        )
        decoding = SpeculativeDecoding(settings, relay, overlapped=plan.relays_speculation)
    return Parts(
        model=model,
        backends=(*target.backends, *(() if drafting is None else drafting.backends.values())),
        graphs={Role.TARGET: target.graphs, **({} if drafting is None else drafting.graphs)},
        worker=target.worker,
        waiting=waiting,
        transfer=_transfer(configuration, model, waiting, pools, drafting, staging, step_streams),
        runner=runner,
        decoding=decoding,
    )


def _speculative_runner(
    configuration: Configuration,
    settings: SpecSettings,
    target: TargetRunner,
    drafting: Drafting,
    pools: Pools,
    staging: Staging,
) -> SpeculativeRunner:
    if drafting.shape != configuration.draft:
        raise _misfit("draft shape", str(configuration.draft), str(drafting.shape))
    return SpeculativeRunner(
        target=target,
        drafter=drafting.drafter,
        settings=settings,
        relay=configuration.future_map,
        pools=pools,
        staging=staging,
    )


def _misfit(field: str, configured: str, needed: str) -> EngineError:
    return EngineError(
        "configuration",
        f"the configuration's {field} is {configured}; {needed} was expected, for these models and "
        "options. Make the configuration by configure_engine, with the model_path, "
        "draft_model_path and options that the engine gets.",
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
            raise _misfit(name, found, needed)


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


def _settings(
    configuration: Configuration, options: EngineOptions, draft_model_path: str | Path | None
) -> SpecSettings | None:
    """Read how the engine speculates; refuse other options, and a draft model that nothing runs."""
    flags = configuration.plan.flags
    settings, algorithm = SpecSettings.from_flags(flags), flags.speculative_algorithm
    if draft_model_path is not None and (settings is None or not settings.has_draft_model):
        asked = f"--speculative-algorithm {algorithm}" if algorithm else "no speculation"
        raise EngineError(
            "draft-model",
            f"a draft model was given, {str(draft_model_path)!r}, and the plan has {asked}; EAGLE, "
            f"EAGLE3 or STANDALONE was expected. Name one of these, or leave the model out.",
        )
    _check_options(configuration, options, settings)
    return settings


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """What runs the forwards of the target."""

    backends: tuple[PhaseBackends, ...]
    """Its attention; a second time for second halves of batches."""
    graphs: CapturedGraphs
    worker: Worker
    runner: TargetRunner
    """Runs forwards whose states are scored apart, as speculation does."""


def _target(
    configuration: Configuration,
    settings: SpecSettings | None,
    model: LlamaModel,
    pools: Pools,
    stream: StreamLike,
    observer: CaptureObserver | None,
) -> _Target:
    """Build the target's attention and capture its forwards: under speculation, its states."""
    backends = PhaseBackends(configuration.plan.uses, Role.TARGET, pools)
    two_batch = _two_batch_runner(configuration, model, backends)
    states, head = states_of(model), None if settings is not None else model.lm_head
    is_masked = settings is not None and not settings.is_chain
    num_queries = settings.num_draft_tokens if settings is not None and is_masked else 0
    graphs = capture_graphs(
        states if head is None else model,
        backends,
        configuration,
        stream=stream,
        mask_size=num_queries * pools.req_to_token_pool.req_to_token.shape[1],
        in_pieces=PieceModel(states=states, head=head),
        halves=None if two_batch is None else _halves_model(two_batch, head),
        observer=observer,
    )
    return _Target(
        backends=(backends,) if two_batch is None else two_batch.backends,
        graphs=graphs,
        worker=Worker(model, backends, {} if settings is not None else graphs.phases, two_batch),
        runner=TargetRunner(model, backends, graphs.phases, two_batch),
    )


def _two_batch_runner(
    configuration: Configuration, model: LlamaModel, backends: PhaseBackends
) -> TwoBatchRunner | None:
    """Make what runs batches in halves, with attention of its own for the second half."""
    phases = halved_phases(configuration.graph_choices[Role.TARGET])
    if not phases:
        return None
    second = PhaseBackends(configuration.plan.uses, Role.TARGET, backends.site)
    return TwoBatchRunner(model, (backends, second), configuration.streams, phases)


def _halves_model(two_batch: TwoBatchRunner, head: LMHead | None) -> HalvesModel:
    def compute(contexts: Sequence[ForwardContext]) -> Tensor:
        hidden = two_batch.states(contexts)
        return hidden if head is None else head(hidden)

    return HalvesModel(compute=compute, backends=two_batch.backends[1])


def _transfer(
    configuration: Configuration,
    model: LlamaModel,
    waiting: WaitingLine,
    pools: Pools,
    drafting: Drafting | None,
    staging: Staging,
    step_streams: StepStreams,
) -> PromptTransfer | None:
    """Make what hands prompts over or takes them over; None where neither is done."""
    mode = configuration.plan.flags.disaggregation_mode
    if mode == "null":
        return None
    draft = None if drafting is None else drafting.model
    caches = PromptCaches(
        memory=waiting.memory,
        target=pools.token_to_kv_pool,
        draft=None if drafting is None else drafting.cache,
        num_slots_behind=waiting.num_slots_behind,
        model=fingerprint(model.config, model),
        draft_model=None if draft is None else fingerprint(draft.config, draft),
    )
    return PromptTransfer(
        mode=mode,
        caches=caches,
        relay=configuration.future_map,
        staging=staging,
        step_streams=step_streams,
    )
