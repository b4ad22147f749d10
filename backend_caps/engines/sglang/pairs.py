"""SGLang's wrapper of a prefill and a decode backend, where it has no rule for their needs.

Versions that have one join the two by phase, which the resolver does by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from backend_caps.capability.backend import Backend, Status
from backend_caps.capability.declaration import Declaration, Part
from backend_caps.capability.provenance import Origin
from backend_caps.resolution.uses import PAIR

_WRAPPER = "sglang.srt.layers.attention.hybrid_attn_backend.HybridAttnBackend"


def pair_of(backends: Iterable[Backend]) -> Iterator[Backend]:
    """List a record for the wrapper that says nothing, so that a pair counts as undeclared."""
    for backend in backends:
        own = backend.engine_class
        if own is None or own.path != _WRAPPER:
            continue
        reading = own.readings.get("host_seq_lens")
        if reading is None or reading.origin is Origin.UNDECLARED:
            yield Backend(
                name=PAIR,
                status=Status.OK,
                source=backend.source,
                declaration=Declaration(parts=[Part(backend.name)]),
            )
