"""Graphs of draft-extends of bridged backends.

SGLang captures them where the backend is of one of its own classes. A platform from outside of
SGLang is asked instead, and answers by itself.
"""

from __future__ import annotations

from sglang.srt.environ import envs
from sglang.srt.model_executor.cuda_graph_config import Backend, Phase, check_cuda_graph_backend
from sglang.srt.platforms import current_platform
from sglang.srt.speculative.eagle_draft_extend_cuda_graph_runner import (
    EAGLEDraftExtendCudaGraphRunner,
)
from sglang.srt.speculative.eagle_worker_v2 import EagleDraftWorker
from sglang.srt.utils import is_cuda

from backend_caps_sglang.bridge import Bridge


def capture(worker: EagleDraftWorker) -> None:
    """Capture a worker's draft-extends, where its bridged backend declares to replay them.

    Raises:
        Exception: SGLang's, where the capture fails.
    """
    backend = worker.draft_extend_attn_backend
    is_wanted = (
        is_cuda()
        and not current_platform.is_out_of_tree()
        and not check_cuda_graph_backend(Phase.DECODE, Backend.DISABLED)
        and not envs.SGLANG_DISABLE_DRAFT_EXTEND_CUDA_GRAPH.get()
    )
    if is_wanted and isinstance(backend, Bridge) and backend.replays_draft_extend:
        worker.cuda_graph_runner_for_draft_extend = EAGLEDraftExtendCudaGraphRunner(worker)
