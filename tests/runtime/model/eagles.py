"""Folders of EAGLE heads, and layers of transformers in float64 as their oracle."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaModel

from tests.runtime.model.folders import SMALL, edit

HEAD = {**SMALL, "num_hidden_layers": 1, "intermediate_size": 40}


@dataclass(frozen=True)
class HeadOracle:
    """A head as EAGLE's authors describe it, made of parts of transformers."""

    fc: torch.nn.Linear
    layers: LlamaModel

    def __call__(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        """Continue one request's states: [T, H] and [T, H] to [T, H], in float64."""
        joined = self.fc(torch.cat([embedded, hidden], dim=-1).double())
        with torch.no_grad():
            states: Tensor = self.layers(inputs_embeds=joined[None]).last_hidden_state[0]
        return states


def save_head(
    folder: Path, *, prefix: str = "", bias: bool = False, **changes: object
) -> HeadOracle:
    """Save a head with random weights, norms and biases random too, and return its oracle."""
    torch.manual_seed(1)
    config = LlamaConfig.from_dict({**HEAD, **changes})
    layers, fc = LlamaModel(config), torch.nn.Linear(64, 32, bias=bias)
    with torch.no_grad():
        for name, parameter in layers.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.uniform_(0.5, 1.5)
    layers.layers[0].set_submodule("input_layernorm", torch.nn.Identity())
    layers.set_submodule("norm", torch.nn.Identity())
    layers.train(mode=False)
    config.save_pretrained(folder)
    edit(folder / "config.json", lambda document: document.update(bias=bias))
    own = {f"fc.{name}": weight for name, weight in fc.state_dict().items()}
    own |= {k: weight for k, weight in layers.state_dict().items() if k.startswith("layers.")}
    save_file(
        {prefix + name: weight.clone() for name, weight in own.items()},
        folder / "model.safetensors",
    )
    return HeadOracle(
        fc.double().requires_grad_(requires_grad=False), torch.nn.Module.double(layers)
    )
