"""How an engine's steps go: what runs them, what relays them, and what the scheduler does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from backend_caps.capability.kind import Role
from backend_caps.relay import FutureMap
from backend_caps.relay.streams import StreamLike
from backend_caps.runtime.attention import PhaseBackends
from backend_caps.runtime.decoding import Decoding, PlainDecoding
from backend_caps.runtime.errors import ConfigurationMisfitError
from backend_caps.runtime.graphs import CapturedGraphs, CaptureObserver
from backend_caps.runtime.memory import RequestMemory, TokenToKVPool
from backend_caps.runtime.model.draft import DraftModel
from backend_caps.runtime.pools import Pools
from backend_caps.runtime.speculative.building import make_drafting
from backend_caps.runtime.speculative.decoding import SpeculativeDecoding
from backend_caps.runtime.speculative.runner import SpeculativeRunner
from backend_caps.runtime.speculative.settings import SpecSettings
from backend_caps.runtime.speculative.target import TargetRunner
from backend_caps.runtime.staging import Staging
from backend_caps.runtime.step import PlainRunner, StepRunner
from backend_caps.runtime.worker import Worker
from backend_caps.startup.configuration import Configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepping:
    """The three sides of a step."""

    runner: StepRunner
    """Its forwards, on the device."""
    relay: FutureMap
    """What goes from it to the next one."""
    decoding: Decoding
    """What the scheduler makes of running requests."""
    draft_backends: tuple[PhaseBackends, ...] = ()
    """The attention of a draft model, by role; none where there is no model."""
    draft_graphs: Mapping[Role, CapturedGraphs] = field(default_factory=dict)
    """What was captured of a draft model, by role."""
    draft_model: DraftModel | None = None
    """None where no model drafts."""
    draft_cache: TokenToKVPool | None = None
    """The draft model's keys and values, in the target's slots."""


def plain_stepping(relay: FutureMap, worker: Worker, staging: Staging) -> Stepping:
    """Make steps of one forward, which adds one token to each context."""
    return Stepping(
        runner=PlainRunner(worker=worker, relay=relay, staging=staging),
        relay=relay,
        decoding=PlainDecoding(),
    )


def speculative_stepping(
    configuration: Configuration,
    settings: SpecSettings,
    *,
    target: TargetRunner,
    memory: RequestMemory,
    pools: Pools,
    staging: Staging,
    draft_model: DraftModel | None,
    forward_stream: StreamLike,
    capture_observer: CaptureObserver | None,
) -> Stepping:
    """Make steps that draft and verify.

    Raises:
        ConfigurationMisfitError: the relay was made for another draft.
        BackendCapsError: the draft's attention cannot be had.
    """
    plan, relay = configuration.plan, configuration.future_map
    drafting = make_drafting(
        configuration,
        settings,
        target.model,
        draft_model,
        pools,
        staging,
        forward_stream=forward_stream,
        capture_observer=capture_observer,
    )
    if drafting.shape != configuration.draft:
        raise ConfigurationMisfitError(
            field="draft shape", configured=str(configuration.draft), needed=str(drafting.shape)
        )
    runner = SpeculativeRunner(
        target=target,
        drafter=drafting.drafter,
        settings=settings,
        relay=relay,
        rows=memory.rows,
        cache=pools.token_to_kv_pool,
        staging=staging,
    )
    overlapped = plan.relays_speculation
    decoding = SpeculativeDecoding(settings, relay, overlapped=overlapped)
    return Stepping(
        runner=runner,
        relay=relay,
        decoding=decoding,
        draft_backends=tuple(drafting.backends.values()),
        draft_graphs=drafting.graphs,
        draft_model=drafting.model,
        draft_cache=drafting.cache,
    )
