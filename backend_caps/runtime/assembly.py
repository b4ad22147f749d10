"""From a configuration and folders to the parts of an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from backend_caps.capability.kind import Role
from backend_caps.relay import StepStreams
from backend_caps.runtime import memory, step
from backend_caps.runtime.admission import WaitingLine
from backend_caps.runtime.attention import ForwardContext, PhaseBackends
from backend_caps.runtime.configuration import draft_folder, shape_of
from backend_caps.runtime.disaggregation import PromptTransfer, fingerprint
from backend_caps.runtime.errors import EngineError, check_size
from backend_caps.runtime.graphs.capture import capture_graphs
from backend_caps.runtime.graphs.pieces import PieceModel
from backend_caps.runtime.graphs.runner import CaptureObserver
from backend_caps.runtime.model.draft import DraftModel
from backend_caps.runtime.model.draft_loading import load_eagle, load_eagle3, load_standalone
from backend_caps.runtime.model.eagle3 import Eagle3Head
from backend_caps.runtime.model.llama import LlamaModel, load_llama
from backend_caps.runtime.options import (
    EngineOptions,
    check_fit,
    check_token_counts,
    graph_sizes_of,
    page_size_of,
)
from backend_caps.runtime.scheduler import Decoding, PlainDecoding
from backend_caps.runtime.speculation import Algorithm, SpecSettings, misfit
from backend_caps.runtime.speculative.drafter import Drafter, ModelDrafter, capture_draft
from backend_caps.runtime.speculative.ngram import NgramDrafter
from backend_caps.runtime.speculative.runner import SpeculativeDecoding, SpeculativeRunner
from backend_caps.runtime.staging import Staging
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
        self._observer = capture_observer
        settings = self._settings = _settings(configuration, options, draft_model_path)
        lookahead = 0 if settings is None else settings.lookahead
        self.model = load_llama(
            model_path,
            configuration.streams.device,
            dtype=options.dtype,
            num_positions=plan.flags.context_length,
            lookahead=lookahead,
        )
        """The target, where there is a draft."""
        self._draft_model = (
            None if settings is None else load_draft(settings, self.model, draft_model_path)
        )
        check_fit(plan, self.model, configuration.streams)
        check_token_counts(plan, options, settings, self.model.num_positions - lookahead)
        self.resources = make_resources(configuration, self.model, options, lookahead)
        """What all steps share."""
        num_slots_behind = 0 if settings is None else settings.prompt_slots
        self.waiting = WaitingLine(self.resources.memory, options, num_slots_behind)
        """With the memory that requests have."""
        self._make_target()
        self._draft_cache: memory.TokenToKVPool | None = None
        if settings is not None:
            self._make_speculative(settings)
        self.transfer = self._make_transfer(plan.flags.disaggregation_mode)
        """Hands prompts over or takes them over; None where they run and are gone on with here."""

    def _make_target(self) -> None:
        """Build the target's attention and capture its forwards: under speculation, its states."""
        configuration, model, settings = self._configuration, self.model, self._settings
        pools = self.resources.pools
        backends = PhaseBackends(configuration.plan.uses, Role.TARGET, pools)
        two_batch = self._make_halves(backends)
        head = None if settings is not None else model.lm_head
        num_queries = 0 if settings is None or settings.is_chain else settings.num_draft_tokens
        forward = step.states_of if head is None else step.scores_of

        def compute(contexts: Sequence[ForwardContext]) -> Tensor:
            if two_batch is None or len(contexts) == 1:
                return forward(model, *contexts)
            hidden = two_batch.states(contexts)
            return hidden if head is None else head(hidden)

        captured = capture_graphs(
            compute,
            backends,
            configuration,
            stream=self.resources.step_streams.forward,
            mask_size=num_queries * pools.req_to_token_pool.req_to_token.shape[1],
            in_pieces=PieceModel(states=model.hidden_states, head=head),
            second=None if two_batch is None else two_batch.backends[1],
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
        self.worker = step.Worker(model, backends, {} if settings else graphs, two_batch)
        """Runs plain forwards of the target."""
        self._target = step.TargetRunner(model, backends, graphs, two_batch)
        self.runner: step.StepRunner = step.PlainRunner(self.worker, configuration.future_map)
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
        configuration, resources = self._configuration, self.resources
        model, shape = self._draft_model, None
        drafter: Drafter
        if model is None:
            drafter = NgramDrafter(settings, resources.staging)
        else:
            drafter = self._make_drafter(settings, model)
            hidden_size = model.config.hidden_size if model.reads_hidden else None
            shape = shape_of(settings, hidden_size, self.model.dtype)
        if shape != configuration.draft:
            raise _misfit("draft shape", str(configuration.draft), str(shape))
        self.runner = SpeculativeRunner(self._target, drafter, settings, resources)
        is_overlapped = configuration.plan.relays_speculation
        self.decoding = SpeculativeDecoding(settings, resources.relay, overlapped=is_overlapped)

    def _make_drafter(self, settings: SpecSettings, model: DraftModel) -> ModelDrafter:
        """Build a draft model's memory and attention, and capture its forwards."""
        configuration, pools = self._configuration, self.resources.pools
        plan, target, table = configuration.plan, self.model, pools.req_to_token_pool.req_to_token
        check_fit(plan, target, configuration.streams, model.config)
        num_slots = pools.token_to_kv_pool.num_slots
        self._draft_cache = memory.make_pool(plan, model.config, target, num_slots)
        site = replace(pools, token_to_kv_pool=self._draft_cache)
        masked = 0 if settings.is_chain else settings.topk * table.shape[1]
        forwards = {
            role: capture_draft(
                model,
                PhaseBackends(plan.uses, role, site),
                configuration,
                stream=self.resources.step_streams.forward,
                mask_size=mask_size,
                observer=self._observer,
            )
            for role, mask_size in ((Role.DRAFT, masked), (Role.DRAFT_EXTEND, 0))
        }
        self.backends = (*self.backends, *(own.backends for own in forwards.values()))
        self.graphs |= {role: own.captured for role, own in forwards.items()}
        return ModelDrafter(model, forwards, settings, table)

    def _make_transfer(self, mode: str) -> PromptTransfer | None:
        if mode == "null":
            return None
        model, draft = self.model, self._draft_model
        return PromptTransfer(
            sends=mode == "prefill",
            resources=self.resources,
            draft=self._draft_cache,
            num_slots_behind=self.waiting.num_slots_behind,
            model=fingerprint(model.config, model),
            draft_model=None if draft is None else fingerprint(draft.config, draft),
        )


def make_resources(
    configuration: Configuration, model: LlamaModel, options: EngineOptions, lookahead: int = 0
) -> memory.Resources:
    """Make the page table and the KV cache, what hands out their rows and pages, and streams.

    Args:
        configuration: its plan says how large pages are, and what they hold; has the relay.
        model: whose keys and values; it tells apart the positions of a context and `lookahead`.
        options: how much room there is.
        lookahead: slots behind the longest context that speculative steps write to.

    Raises:
        EngineError: `page-size`: no page size suits every backend; `pool-shape`: the KV cache
            would hold less than a page.
    """
    plan = configuration.plan
    page_size = page_size_of(plan)
    num_pages = memory.FULL_CONTEXTS * memory.num_pages_of(model.num_positions, page_size)
    if options.max_total_tokens is not None:
        num_pages = options.max_total_tokens // page_size
    check_size(f"max_total_tokens in pages of {page_size}", num_pages)
    rows = memory.ReqToTokenPool(
        max_requests=options.max_running_requests,
        max_context_len=model.num_positions - lookahead,
        page_size=page_size,
        device=model.device,
        lookahead=lookahead,
    )
    cache = memory.make_pool(plan, model.config, model, (num_pages + 1) * page_size)
    return memory.Resources(
        memory=memory.RequestMemory(
            rows, memory.PagePool(num_pages), Staging(configuration.streams)
        ),
        pools=memory.Pools(rows, cache),
        relay=configuration.future_map,
        step_streams=StepStreams.drawn_from(configuration.streams),
    )


def load_draft(
    settings: SpecSettings, target: LlamaModel, draft_model_path: str | Path | None
) -> DraftModel | None:
    """Load the draft model, and let its target return what it reads; None where none drafts.

    The target's `aux_layer_ids` are set, so call it before the target's forwards are captured.

    Raises:
        EngineError: `speculation`: trees have more branches than the draft has tokens;
            `draft-model`: the algorithm drafts with a model, and none is named.
        BackendCapsError: the model cannot be loaded.
    """
    _check_topk(settings, target.config.vocab_size, "model")
    if not settings.has_draft_model:
        return None
    folder = draft_folder(draft_model_path, settings.algorithm)
    model = _LOADERS[settings.algorithm](folder, target, num_positions=target.num_positions)
    _check_topk(settings, model.vocab_size, "draft")
    if isinstance(model, Eagle3Head):
        target.aux_layer_ids = model.config.layers_read(target.config.num_hidden_layers)
    return model


def _check_topk(settings: SpecSettings, vocab_size: int, whose: str) -> None:
    if settings.topk > vocab_size:
        expected = f"at most the {whose}'s {vocab_size} tokens"
        raise misfit("--speculative-eagle-topk", settings.topk, expected)


_LOADERS: Mapping[Algorithm, Callable[..., DraftModel]] = {
    Algorithm.EAGLE: load_eagle,
    Algorithm.EAGLE3: load_eagle3,
    Algorithm.STANDALONE: load_standalone,
}


def _misfit(field: str, configured: str, needed: str) -> EngineError:
    return EngineError(
        "configuration",
        f"the configuration's {field} is {configured}; {needed} was expected, for these models and "
        "options. Make the configuration by configure_engine, with the model_path, "
        "draft_model_path and options that the engine gets.",
    )


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
    needed = _sizes_by_name(options.max_running_requests + 1, graph_sizes_of(options, settings))
    configured = _sizes_by_name(configuration.future_map.pool_size, configuration.graph_sizes)
    for name, size in needed.items():
        if (found := configured.get(name, "none")) != size:
            raise _misfit(name, found, size)
    return settings
