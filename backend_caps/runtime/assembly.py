"""From a configuration and folders to the parts of an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from torch import Tensor

from backend_caps.capability.kind import Role
from backend_caps.relay.streams import StepStreams
from backend_caps.runtime.admission import WaitingLine
from backend_caps.runtime.attention import ForwardContext, PhaseBackends
from backend_caps.runtime.disaggregation import PromptTransfer, fingerprint
from backend_caps.runtime.errors import EngineError
from backend_caps.runtime.graphs.capture import HalvesModel, capture_graphs
from backend_caps.runtime.graphs.pieces import PieceModel
from backend_caps.runtime.graphs.runner import CaptureObserver
from backend_caps.runtime.memory import make_pools
from backend_caps.runtime.model.draft import DraftModel
from backend_caps.runtime.model.layers import LMHead
from backend_caps.runtime.model.llama import load_llama
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
from backend_caps.runtime.step import (
    PlainRunner,
    StepRunner,
    TargetRunner,
    Worker,
    scores_of,
    states_of,
)
from backend_caps.runtime.two_batch import TwoBatchRunner
from backend_caps.startup.configuration import Configuration
from backend_caps.startup.graph_choice import GraphSizes, halved_phases


class Parts:
    """What an engine is made of, its scheduler aside.

    Models are loaded, their memory and attention made, and their graphs captured.

    Args:
        configuration: says what runs how.
        options: room and cutting.
        model_path: the target's folder.
        draft_model_path: the folder of what drafts.
        capture_observer: is called on the progress of captures.

    Raises:
        EngineError: `configuration`: it was made for other models or options.
        BackendCapsError: a folder, the plan or an option cannot be served.
    """

    def __init__(
        self,
        configuration: Configuration,
        options: EngineOptions,
        model_path: str | Path,
        draft_model_path: str | Path | None,
        capture_observer: CaptureObserver | None,
    ) -> None:
        plan, self._configuration = configuration.plan, configuration
        self.step_streams = StepStreams.drawn_from(configuration.streams)
        """The streams of steps."""
        self.staging = staging = Staging(configuration.streams)
        """Carries host numbers to the device."""
        self._observer = capture_observer
        settings = self._settings = _settings(configuration, options, draft_model_path)
        lookahead = 0 if settings is None else settings.lookahead
        self.model = load_llama(
            model_path,
            staging.streams.device,
            dtype=options.dtype,
            num_positions=plan.flags.context_length,
            lookahead=lookahead,
        )
        """The target, where there is a draft."""
        self._draft_model: DraftModel | None = None
        if settings is not None:
            self._draft_model = load_draft(settings, self.model, draft_model_path)
        check_fit(plan, self.model, staging.streams)
        check_token_counts(plan, options, settings, self.model.num_positions - lookahead)
        memory, self._pools = make_pools(plan, self.model, options, staging, lookahead)
        self.waiting = WaitingLine(
            memory,
            max_prefill_tokens=options.max_prefill_tokens,
            chunked_prefill_size=options.chunked_prefill_size,
            num_slots_behind=0 if settings is None else settings.prompt_slots,
        )
        """With the memory that requests have."""
        self._make_target()
        self._drafting: Drafting | None = None
        if settings is not None:
            self._make_speculative(settings)
        self.transfer = self._make_transfer(plan.flags.disaggregation_mode)
        """Hands prompts over or takes them over; None where they run and are gone on with here."""

    def _make_target(self) -> None:
        """Build the target's attention and capture its forwards: under speculation, its states."""
        configuration, model, settings = self._configuration, self.model, self._settings
        backends = PhaseBackends(configuration.plan.uses, Role.TARGET, self._pools)
        two_batch = self._make_halves(backends)
        head = None if settings is not None else model.lm_head
        is_masked = settings is not None and not settings.is_chain
        num_queries = settings.num_draft_tokens if settings is not None and is_masked else 0
        captured = capture_graphs(
            partial(states_of if head is None else scores_of, model),
            backends,
            configuration,
            stream=self.step_streams.forward,
            mask_size=num_queries * self._pools.req_to_token_pool.req_to_token.shape[1],
            in_pieces=PieceModel(states=model.hidden_states, head=head),
            halves=None if two_batch is None else _halves_model(two_batch, head),
            observer=self._observer,
        )
        self.backends: tuple[PhaseBackends, ...] = (
            (backends,) if two_batch is None else two_batch.backends
        )
        """Every attention that a step runs: the target's first, once more for second halves of
        batches, then a draft model's, by role."""
        self.graphs = {Role.TARGET: captured}
        """What was captured, by role."""
        graphs = captured.phases
        self.worker = Worker(model, backends, {} if settings is not None else graphs, two_batch)
        """Runs plain forwards of the target."""
        self._target = TargetRunner(model, backends, graphs, two_batch)
        self.runner: StepRunner = PlainRunner(self.worker, configuration.future_map, self.staging)
        """Runs a step's forwards."""
        self.decoding: Decoding = PlainDecoding()
        """Makes the next step of running requests."""

    def _make_halves(self, backends: PhaseBackends) -> TwoBatchRunner | None:
        """Make what runs batches in halves, with attention of its own for the second half."""
        configuration = self._configuration
        phases = halved_phases(configuration.graph_choices[Role.TARGET])
        if not phases:
            return None
        second = PhaseBackends(configuration.plan.uses, Role.TARGET, backends.site)
        return TwoBatchRunner(self.model, (backends, second), configuration.streams, phases)

    def _make_speculative(self, settings: SpecSettings) -> None:
        """Make what drafts, and what runs steps with it."""
        configuration, relay = self._configuration, self._configuration.future_map
        drafting = self._drafting = make_drafting(
            configuration,
            settings,
            self.model,
            self._draft_model,
            self._pools,
            self.staging,
            forward_stream=self.step_streams.forward,
            capture_observer=self._observer,
        )
        if drafting.shape != configuration.draft:
            raise _misfit("draft shape", str(configuration.draft), str(drafting.shape))
        self.backends = (*self.backends, *(own.backends for own in drafting.forwards.values()))
        self.graphs |= {role: own.captured for role, own in drafting.forwards.items()}
        self.runner = SpeculativeRunner(
            target=self._target,
            drafter=drafting.drafter,
            settings=settings,
            relay=relay,
            pools=self._pools,
            staging=self.staging,
        )
        is_overlapped = configuration.plan.relays_speculation
        self.decoding = SpeculativeDecoding(settings, relay, overlapped=is_overlapped)

    def _make_transfer(self, mode: str) -> PromptTransfer | None:
        if mode == "null":
            return None
        drafting, model, draft = self._drafting, self.model, self._draft_model
        return PromptTransfer(
            sends=mode == "prefill",
            memory=self.waiting.memory,
            target=self._pools.token_to_kv_pool,
            draft=None if drafting is None else drafting.cache,
            num_slots_behind=self.waiting.num_slots_behind,
            model=fingerprint(model.config, model),
            draft_model=None if draft is None else fingerprint(draft.config, draft),
            relay=self._configuration.future_map,
            staging=self.staging,
            step_streams=self.step_streams,
        )


def _halves_model(two_batch: TwoBatchRunner, head: LMHead | None) -> HalvesModel:
    def compute(contexts: Sequence[ForwardContext]) -> Tensor:
        hidden = two_batch.states(contexts)
        return hidden if head is None else head(hidden)

    return HalvesModel(compute=compute, backends=two_batch.backends[1])


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
