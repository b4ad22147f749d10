"""What a prompt leaves behind: all that its next step reads, in memory of its own.

Shapes: T tokens of the prompt, Td of them in a draft model's cache, N layers and M of the draft,
Hk key and value heads, D and Dv their sizes, K candidates, H hidden features.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Self

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PromptStates:
    """Keys and values of a prompt, and where its drafts go on from.

    Nothing of it says in which slots or pages it stood.
    """

    keys: Tensor
    """[N, T, Hk, D]."""
    values: Tensor
    """[N, T, Hk, Dv]."""
    draft_keys: Tensor | None = None
    """[M, Td, Hk, D]; Td is T, or T + 1 where the draft has read the first token of the output.
    None where no model drafts."""
    draft_values: Tensor | None = None
    """[M, Td, Hk, Dv]."""
    topk_p: Tensor | None = None
    """[K] float32: probabilities of the first drafts."""
    topk_index: Tensor | None = None
    """[K] int64: the first drafts."""
    hidden_states: Tensor | None = None
    """[H]: where a draft head goes on from; None where the draft reads none."""

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """The tensors that there are, by name."""
        every = {
            "keys": self.keys,
            "values": self.values,
            "draft_keys": self.draft_keys,
            "draft_values": self.draft_values,
            "topk_p": self.topk_p,
            "topk_index": self.topk_index,
            "hidden_states": self.hidden_states,
        }
        return {name: tensor for name, tensor in every.items() if tensor is not None}

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Self:
        """Make states of what `tensors` names, keys and values among them."""
        return cls(
            keys=tensors["keys"],
            values=tensors["values"],
            draft_keys=tensors.get("draft_keys"),
            draft_values=tensors.get("draft_values"),
            topk_p=tensors.get("topk_p"),
            topk_index=tensors.get("topk_index"),
            hidden_states=tensors.get("hidden_states"),
        )

    def only(self, names: Container[str]) -> PromptStates:
        """Leave out every tensor that is not named."""
        return self.of({name: own for name, own in self.tensors.items() if name in names})

    def mapped(self, function: Callable[[Tensor], Tensor]) -> PromptStates:
        """Do the same to every tensor."""
        return self.of({name: function(own) for name, own in self.tensors.items()})
