"""The backend that is bridged: built from its declaration, called by the plugins' protocols.

Shapes: T tokens in a batch, Hq query heads, Hk key and value heads, D and Dv their sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from pkgutil import resolve_name
from typing import Protocol

from torch import Tensor

from backend_caps import Declaration
from backend_caps.protocols import ForwardBatch, Layer
from backend_caps_sglang.bridging.errors import ContradictedDeclarationError, UnbridgedBackendError
from backend_caps_sglang.bridging.probe import contradictions
from backend_caps_sglang.bridging.views import Site


class OwnBackend(Protocol):
    """What the runtime of backend-caps asks of a backend too."""

    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        """Prepare an eager forward."""

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Make the buffers whose addresses captures keep."""

    def init_forward_metadata_out_graph(self, batch: ForwardBatch) -> None:
        """Do the host's share."""

    def init_forward_metadata_in_graph(self, batch: ForwardBatch) -> None:
        """Do the device's share."""

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layer: Layer,
        batch: ForwardBatch,
        *,
        save_kv_cache: bool = True,
    ) -> Tensor:
        """Attend in one layer.

        q        [T, Hq * D], device
        k        [T, Hk * D], device
        v        [T, Hk * Dv], device
        returns  [T, Hq * Dv], device
        """


def built(name: str, declaration: Declaration, site: Site) -> OwnBackend:
    """Import what a declaration names, build it on SGLang's pools, and hold it to what it declares.

    Raises:
        UnbridgedBackendError: it names nothing, cannot be imported, or raises.
        ContradictedDeclarationError: it does otherwise than it declares.
    """
    place = declaration.implementation
    if place is None:
        raise UnbridgedBackendError(backend=name, reasons=("it names no implementation",))
    try:
        make: Callable[[Site], OwnBackend] = resolve_name(place)
        made = make(site)
    except Exception as error:  # a plugin raises what it likes
        told = f"{place} raised {type(error).__name__}: {error}"
        raise UnbridgedBackendError(backend=name, reasons=(told,)) from error
    device = site.req_to_token_pool.req_to_token.device
    if found := tuple(contradictions(made, declaration, device)):
        raise ContradictedDeclarationError(backend=name, place=place, contradictions=found)
    return made
