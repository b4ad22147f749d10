"""Odd backends about what comes out, and about how it is declared."""

from __future__ import annotations

from dataclasses import replace

from backend_caps_torch_native import TorchPadded
from torch import Tensor

from backend_caps.protocols import ModelRunner
from backend_caps.runtime.attention import AttentionBackend
from tests.kit.honest.odd import Odd, odd
from tests.kit.liars.shown import Turned


class StatedHalfSums(TorchPadded):
    """Claims float32, adds up in float16, and states a tolerance that this keeps."""

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        return super()._attend(q.half(), keys.half(), values.half(), scaling).to(q.dtype)


class OtherEndFirst(Turned):
    """Claims batch invariance, and adds contexts up from their last token to their first."""


class MethodsOfPart:
    """Has another's methods for its own, which its class does not name."""

    def __init__(self, site: ModelRunner) -> None:
        part: AttentionBackend = TorchPadded(site)
        self.init_forward_metadata = part.init_forward_metadata
        self.init_cuda_graph_state = part.init_cuda_graph_state
        self.init_forward_metadata_out_graph = part.init_forward_metadata_out_graph
        self.init_forward_metadata_in_graph = part.init_forward_metadata_in_graph
        self.forward = part.forward


def _stated() -> Odd:
    """State a tolerance beside the capabilities."""
    own = odd(StatedHalfSums, check="numerics")
    declaration = own.subject.declaration.model_copy(update={"tolerances": {"float32": 5e-3}})
    return replace(own, subject=replace(own.subject, declaration=declaration))


ODD: tuple[Odd, ...] = (
    _stated(),
    odd(OtherEndFirst, check="batch-invariance", batch_invariant=True),
    odd(MethodsOfPart, check="declaration-hygiene"),
)
