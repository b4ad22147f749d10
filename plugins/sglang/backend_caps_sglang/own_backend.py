"""The backend that is bridged: built from its declaration, and held to what a start can see of it.

That is whether it has the methods that it promises, and what it reads on the host to prepare one
padded request. `backend-caps check` sees more, and compares numbers.

Shapes: B requests and T tokens in a batch, one of each in the probe, Hq query heads, Hk key and
value heads, D and Dv their sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from backend_caps import Declaration, HostSeqLens
from backend_caps.capability.declaration import declared
from backend_caps.capability.facts import text_of
from backend_caps.protocols import ForwardBatch, Layer
from backend_caps_sglang.errors import BridgeError, unbridged_backend
from backend_caps_sglang.views import Site

_ALWAYS = ("init_forward_metadata", "forward")
_REPLAYED = (
    "init_cuda_graph_state",
    "init_forward_metadata_out_graph",
    "init_forward_metadata_in_graph",
)
"""What SGLang calls around the capture and the replay of a graph."""


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
        BridgeError: it names nothing, cannot be imported, raises, or does otherwise than it
            declares.
    """
    place = declaration.implementation
    if place is None:
        raise unbridged_backend(name, ["it names no implementation"])
    try:
        make: Callable[[Site], OwnBackend] = resolve_name(place)
        made = make(site)
    except Exception as error:  # a plugin raises what it likes
        fault = f"{place} raised {type(error).__name__}: {error}"
        raise unbridged_backend(name, [fault]) from error
    device = site.req_to_token_pool.req_to_token.device
    if found := list(contradictions(made, declaration, device)):
        raise BridgeError(
            "declaration-contradicted",
            f"backend {name!r} does not serve, for its class {place} contradicts its declaration: "
            f"{'; '.join(found)}. Correct the declaration or the class; backend-caps check {name} "
            "finds what a start cannot see.",
        )
    return made


@runtime_checkable
class _Prepared(Protocol):
    def init_forward_metadata(self, batch: ForwardBatch) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedDecode:
    """A decode of one padded request, with which SGLang fills graphs up: row 0, slot 0, length 1.

    It has the lengths on the host that the backend declares to read, and remembers whether it was
    asked for others.
    """

    host_seq_lens: HostSeqLens
    """What the backend declares to read of lengths on the host."""
    req_pool_indices: Tensor
    """[B] int64, device."""
    seq_lens: Tensor
    """[B] int64, device."""
    out_cache_loc: Tensor
    """[T] int64, device."""
    extend_seq_lens: None = None
    extend_seq_lens_cpu: None = None
    tree_mask: None = None
    undeclared_reads: set[str] = field(default_factory=set)
    """The fields on the host that were asked for, and that are not declared."""

    @classmethod
    def on(cls, device: torch.device, host_seq_lens: HostSeqLens) -> PaddedDecode:
        """Make one whose tensors are on a device."""
        zero = torch.zeros(1, dtype=torch.int64, device=device)
        return cls(
            host_seq_lens=host_seq_lens,
            req_pool_indices=zero,
            seq_lens=zero + 1,
            out_cache_loc=zero.clone(),
        )

    @property
    def seq_lens_cpu(self) -> Tensor | None:
        """[B] int64, host; None where the backend does not declare to read it."""
        return self._on_host("seq_lens_cpu", {HostSeqLens.EXACT})

    @property
    def seq_lens_cpu_upper_bound(self) -> Tensor | None:
        """[B] int64, host; None where the backend does not declare to read it."""
        levels = {HostSeqLens.EXACT, HostSeqLens.UPPER_BOUND}
        return self._on_host("seq_lens_cpu_upper_bound", levels)

    def _on_host(self, name: str, levels: set[HostSeqLens]) -> Tensor | None:
        if self.host_seq_lens in levels:
            return torch.ones(1, dtype=torch.int64)
        self.undeclared_reads.add(name)
        return None


def contradictions(own: object, declaration: Declaration, device: torch.device) -> Iterator[str]:
    """List what a built backend does otherwise than it declares for every server.

    A claim that holds on a condition alone is not looked at.

    Args:
        own: the backend.
        declaration: its own.
        device: where its pools are.

    Stream: the current one, on which the backend prepares one request. Sync: what that does.
    """
    kind = type(own).__name__
    if missing := _missing(own, _ALWAYS):
        yield f"{kind} has no {missing}, which every backend has"
    replayed = declared(declaration, "graph_replay", {})[0]
    missing = _missing(own, _REPLAYED)
    if isinstance(replayed, frozenset) and replayed and missing:
        yield f"it declares graph_replay={text_of(replayed)}, and {kind} has no {missing}"
    level = declared(declaration, "host_seq_lens", {})[0]
    if isinstance(own, _Prepared) and isinstance(level, HostSeqLens):
        yield from _of_lengths(own, PaddedDecode.on(device, level))


def _missing(own: object, names: tuple[str, ...]) -> str:
    return ", ".join(name for name in names if not callable(getattr(own, name, None)))


def _of_lengths(own: _Prepared, batch: PaddedDecode) -> Iterator[str]:
    """Prepare a batch; to look at a field and do without it is no contradiction."""
    try:
        own.init_forward_metadata(batch)
    except Exception as error:  # noqa: BLE001 - a plugin raises what it likes
        if batch.undeclared_reads:
            fault = " ".join(str(error).split())
            yield (
                f"it declares host_seq_lens={batch.host_seq_lens.value}, and {type(own).__name__} "
                f"reads {', '.join(sorted(batch.undeclared_reads))} in init_forward_metadata, "
                f"which without it raised {type(error).__name__}: {fault.rstrip('.')}"
            )
