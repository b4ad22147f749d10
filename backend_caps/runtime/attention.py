"""The interface of an attention backend: the methods that SGLang's contract has.

Shapes: B requests and T tokens in a batch, Hq query heads, Hk key and value heads, D and Dv their
sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, cast

from torch import Tensor

from backend_caps.capability.kind import Phase, Role
from backend_caps.resolution.uses import Use
from backend_caps.runtime.errors import EngineError
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.memory import ReqToTokenPool, TokenToKVPool
from backend_caps.runtime.model.layers import AttentionLayer
from backend_caps.startup.configuration import implementation_error, load_implementation
from backend_caps.startup.graph_modes import GraphMode


class ForwardObserver(Protocol):
    """Called on the host around each forward; the work it enqueued may still run."""

    def began(self, role: Role, phase: Phase) -> None:
        """Called when a forward starts; nested forwards are not reported."""

    def ended(self, graph_mode: GraphMode) -> None:
        """Called when the forward has been enqueued, with how it ran."""


class NoForwardObserver:
    """No-op observer."""

    def began(self, role: Role, phase: Phase) -> None:
        """Do nothing."""

    def ended(self, graph_mode: GraphMode) -> None:
        """Do nothing."""


class AttentionBackend(Protocol):
    """Attention over a paged KV cache.

    An eager forward calls `init_forward_metadata`, then `forward` once a layer. A captured one
    calls `init_cuda_graph_state` once, the two parts of the metadata at the capture, and before
    each replay the out-of-graph part alone: the other was captured with the layers.
    """

    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        """Prepare an eager forward of `batch`."""

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Make the buffers whose addresses captures keep, for batches of up to this size."""

    def init_forward_metadata_out_graph(self, batch: ForwardBatch) -> None:
        """Do the host's share of a batch's metadata, before a capture and before each replay."""

    def init_forward_metadata_in_graph(self, batch: ForwardBatch) -> None:
        """Do the device's share, which a capture records and a replay repeats."""

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layer: AttentionLayer,
        batch: ForwardBatch,
        *,
        save_kv_cache: bool = True,
    ) -> Tensor:
        """Attend from this forward's tokens to their requests' contexts, for one layer.

        q        [T, Hq * D], device
        k        [T, Hk * D], device
        v        [T, Hk * Dv], device
        returns  [T, Hq * Dv], device

        Stream: the current one. Sync: none.
        """


@dataclass(frozen=True, slots=True)
class ForwardContext:
    """What one forward hands down to every layer of a model."""

    backend: AttentionBackend
    batch: ForwardBatch

    def attend(self, layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend in one layer: [T, Hq * D], [T, Hk * D], [T, Hk * Dv] to [T, Hq * Dv].

        Raises:
            EngineError: `attention-shape`: the backend returned another shape.
        """
        attended = self.backend.forward(q, k, v, layer, self.batch)
        expected = (q.shape[0], layer.tp_q_head_num * layer.v_head_dim)
        if attended.shape != expected:
            raise EngineError(
                "attention-shape",
                f"{type(self.backend).__name__}.forward returned shape {tuple(attended.shape)} in "
                f"layer {layer.layer_id}; {expected}, tokens by heads times value features, was "
                f"expected. Flatten the heads there.",
            )
        return attended


class BackendSite(Protocol):
    """What a backend is built from: the pools that it reads, by SGLang's names."""

    @property
    def req_to_token_pool(self) -> ReqToTokenPool:
        """The page table's pool."""

    @property
    def token_to_kv_pool(self) -> TokenToKVPool:
        """The KV cache's pool."""


class PhaseBackends:
    """The backends of one role, by phase: a pair where the flags name one for each.

    A backend that serves several phases is built once.

    Args:
        uses: a plan's.
        role: whose uses of them.
        site: what each backend is built from.

    Raises:
        EngineError: `shared-phase`: a composite's parts share one phase: which of them serves
            which layer, no model here says.
        ImplementationError: a backend names no implementation, or none that can be imported.
    """

    def __init__(self, uses: Iterable[Use], role: Role, site: BackendSite) -> None:
        self.role = role
        self.site = site
        """What they are built from."""
        self.observer: ForwardObserver = NoForwardObserver()
        """Called around each forward with one of them."""
        self.uses = _by_phase(uses, role)
        """By phase."""
        own = {use.backend: use for use in self.uses.values()}
        built = {name: _built(use, site) for name, use in own.items()}
        self._backends = {phase: built[use.backend] for phase, use in self.uses.items()}

    def of(self, phase: Phase) -> AttentionBackend:
        """Return the backend of a phase.

        Raises:
            EngineError: `phase`: the plan has no use of this role and phase.
        """
        backend = self._backends.get(phase)
        if backend is None:
            served = ", ".join(sorted(own.value for own in self.uses)) or "none"
            raise EngineError(
                "phase",
                f"the plan has no use of phase {phase.value!r}; it has: {served}. Resolve the plan "
                f"from the uses of the server's flags: registry.uses(flags).",
            )
        return backend

    def prepared(self, phase: Phase, batch: ForwardBatch) -> ForwardContext:
        """Prepare an eager forward's metadata, and return what its layers get.

        Raises:
            EngineError: `phase`: as of `of`.
        """
        backend = self.of(phase)
        backend.init_forward_metadata(batch)
        return ForwardContext(backend, batch)


def _built(use: Use, site: BackendSite) -> AttentionBackend:
    implementation = load_implementation(use)
    try:
        return cast("AttentionBackend", implementation(site))
    except Exception as error:  # a plugin raises what it likes
        problem = f"its constructor raised {type(error).__name__}: {error}"
        raise implementation_error(use, problem) from error


def _by_phase(uses: Iterable[Use], role: Role) -> Mapping[Phase, Use]:
    found: dict[Phase, Use] = {}
    for use in uses:
        if use.role is not role or use.adds_only:
            continue
        other = found.setdefault(use.phase, use)
        if other.backend != use.backend:
            names = ", ".join(map(repr, sorted((other.backend, use.backend))))
            raise EngineError(
                "shared-phase",
                f"phase {use.phase.value!r} is shared by {names}; one backend a phase was "
                f"expected. Name one of them in --attention-backend.",
            )
    return found
