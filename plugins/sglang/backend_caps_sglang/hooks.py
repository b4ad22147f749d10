"""What is hooked in SGLang for drafts, and for a relay that copies nothing to the host.

SGLang's own lists of backends that draft are in its functions: a registered backend is put beside
them where they are read. Nothing of SGLang is imported with this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from backend_caps_sglang.adapters import Adapter

DRAFT_BACKENDS = "sglang.srt.speculative.draft_utils.DraftBackendFactory._create_backend"
"""Looks a draft's backend up by its name: the container of its steps, or its draft-extend's."""
FUTURE_MAP = "sglang.srt.managers.overlap_utils.FutureMap.__init__"
DRAFT_GRAPHS = "sglang.srt.speculative.eagle_worker_v2.EagleDraftWorker._capture_cuda_graphs"
"""Captures graphs of draft-extend for classes of SGLang's alone."""

_Made = tuple[str, object]
"""What SGLang's makers return: the backend's name, and the backend."""
_Makers = Mapping[str, Callable[[], _Made]]


class DraftFactory(Protocol):
    """What is read of SGLang's `DraftBackendFactory`."""

    draft_model_runner: object
    topk: int
    speculative_num_steps: int


class FutureMap(Protocol):
    """What is read and changed of SGLang's `FutureMap`."""

    needs_cpu_seq_lens: bool
    needs_confidence_relay: bool
    new_seq_lens_cpu_pinned: object | None
    fwd_prepare_d2h_stream: object | None


@dataclass(frozen=True, slots=True)
class DraftBackends:
    """Lets SGLang's factory of draft backends find those that are registered."""

    backends: Mapping[str, object]
    """`ATTENTION_BACKENDS`."""
    hook_graphs: Callable[[], None] = field(compare=False)
    """Hooks `DRAFT_GRAPHS`, whose module is heavy, now that a draft worker has loaded it."""

    def __call__(
        self,
        original: Callable[..., object],
        factory: DraftFactory,
        backend_name: str,
        backend_map: _Makers,
        error_template: str,
        stamps_children: bool = False,
    ) -> object:
        """Look a draft's backend up in SGLang's list, and in ours behind it.

        `stamps_children` tells the container of the steps from a single backend.
        """
        own = {
            name: partial(self._made, factory, adapter, is_container=stamps_children)
            for name, adapter in self.backends.items()
            if isinstance(adapter, Adapter)
        }
        makers = {**own, **backend_map}
        return original(factory, backend_name, makers, error_template, stamps_children)

    def _made(self, factory: DraftFactory, adapter: Adapter, *, is_container: bool) -> _Made:
        runner = factory.draft_model_runner
        if is_container:
            steps = adapter.draft_steps(runner, factory.topk, factory.speculative_num_steps)
            return adapter.backend, steps
        self.hook_graphs()
        return adapter.backend, adapter(runner)


def drop_unused_copy(_result: None, future_map: FutureMap, *_: object, **__: object) -> None:
    """Let go of the pinned buffer and the copy stream of a map that copies nothing.

    SGLang makes both on every CUDA device. Without the mirror it reads neither, unless it relays
    confidences on the same stream.
    """
    if not future_map.needs_cpu_seq_lens and not future_map.needs_confidence_relay:
        future_map.new_seq_lens_cpu_pinned = future_map.fwd_prepare_d2h_stream = None


def capture_draft_extend(_result: None, worker: object) -> None:
    """Capture what SGLang leaves to its own classes: draft-extends of a bridged backend.

    Raises:
        Exception: SGLang's, where the capture fails.
    """
    # Imports SGLang, whose draft worker is there where this is called.
    from backend_caps_sglang.draft_graphs import capture  # noqa: PLC0415

    capture(worker)
