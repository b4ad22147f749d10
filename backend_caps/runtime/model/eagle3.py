"""A draft head as EAGLE3 has it (Li et al., 2025), in the two layouts that are published.

It reads hidden states of several of the target's layers, which `fc` joins, and has one decoder
layer whose attention takes the normed embedding and the normed hidden state side by side. It scores
a vocabulary of its own, whose tokens `d2t` maps to the target's.

Shapes: B rows to score and T tokens in the batch, H features of the head's tokens, Ht of the
target's, A layers of the target that it reads, V tokens in the vocabulary, Vd in the head's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar

import torch
from pydantic import Field, JsonValue, StrictBool
from torch import Tensor

from backend_caps.runtime.model import layers
from backend_caps.runtime.model.config import MAX_VOCAB_SIZE, Difference, LlamaConfig
from backend_caps.runtime.model.draft import DraftModel
from backend_caps.runtime.model.errors import unsupported_value

_NESTED = "transformer_layer_config"
_EAGLE_CONFIG = "eagle_config"
_LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
_OWN = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
_NUM_AUX = 3
_EMBEDDED_NORM, _HIDDEN_NORM = "input_layernorm", "hidden_norm"
"""Of the embedding and of the hidden state, which the attention reads side by side."""


class Eagle3Config(LlamaConfig):
    """What an EAGLE3 head is made of: the shape of its layer, and keys of its own.

    SGLang's layout has all keys at the top of config.json, some in `eagle_config`. The layout of
    the `speculators` package has the layer's shape in `transformer_layer_config`.
    """

    architectures: ClassVar[tuple[str, ...]] = (
        "LlamaForCausalLMEagle3",
        "Eagle3Speculator",
        "Eagle3DraftModel",
        "LlamaForCausalLM",
    )
    """What a config.json may call a head; the EAGLE authors' own are named as their targets."""

    draft_vocab_size: Annotated[
        int, Field(gt=0, le=MAX_VOCAB_SIZE, default_factory=lambda data: data["vocab_size"])
    ]
    """Vd; as many as the target's where it is not stated."""
    target_hidden_size: Annotated[
        int, Field(gt=0, le=2**18, default_factory=lambda data: data["hidden_size"])
    ]
    """Ht; H where it is not stated."""
    eagle_aux_hidden_state_layer_ids: Annotated[tuple[int, ...], Field(min_length=1)] | None = None
    """Layers of the target whose inputs are read, ascending; None: the default ones of a target."""
    norm_before_residual: StrictBool = False
    """What the attention's result is added to is the normed hidden state."""
    norm_before_fc: StrictBool = False
    """One norm over all that is read of the target."""
    fc_norm: StrictBool = False
    """A norm for each state that is read of the target."""
    norm_output: StrictBool = False
    """The next draft continues from the state behind the last norm."""
    bias: StrictBool = False
    """`fc` has a bias."""

    @property
    def num_aux(self) -> int:
        """A."""
        layer_ids = self.eagle_aux_hidden_state_layer_ids
        return _NUM_AUX if layer_ids is None else len(layer_ids)

    def layers_read(self, num_layers: int) -> tuple[int, ...]:
        """Return the layers of a target of `num_layers` whose inputs are read, ascending.

        The default is that of SGLang and vLLM: layers 2, n // 2 and n - 3 of n. The number n stands
        for the output of the last layer. A target may have none of them: `load_eagle3` checks that.
        """
        default = (2, num_layers // 2, num_layers - 3)
        return tuple(sorted(self.eagle_aux_hidden_state_layer_ids or default))

    @classmethod
    def _flat(cls, path: str, raw: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
        layer, own = raw.get(_NESTED), raw.get(_EAGLE_CONFIG)
        flat: dict[str, JsonValue] = {**raw}
        if isinstance(layer, dict):
            flat |= {key: value for key, value in layer.items() if key != "architectures"}
        layer_ids = raw.get(_LAYER_IDS)
        if isinstance(own, dict):
            # SGLang names layers here by their outputs; at the top they are named by their inputs.
            layer_ids = own.get(_LAYER_IDS, layer_ids)
            if _LAYER_IDS in own and isinstance(layer_ids, list):
                layer_ids = [one + 1 if type(one) is int else one for one in layer_ids]
            flat |= {key: own[key] for key in _OWN if key in own}
        flat["fc_norm"] = flat.get("fc_norm") or flat.get("use_aux_norm")
        for different in _unsupported(flat, own):
            raise unsupported_value(path, *different)
        # A strict tuple: JSON has lists. Other values are the model's to refuse.
        return {**flat, _LAYER_IDS: tuple(layer_ids) if isinstance(layer_ids, list) else layer_ids}  # type: ignore[dict-item]


def _unsupported(flat: Mapping[str, JsonValue], own: JsonValue) -> Iterator[Difference]:
    """List what a head's config asks for that no layer here computes."""
    if (num_layers := flat.get("num_hidden_layers")) not in (1, None):
        yield "num_hidden_layers", num_layers, "1"
    if flat.get("norm_before_fc") and flat["fc_norm"]:
        yield "fc_norm", True, "one of norm_before_fc and fc_norm"
    if isinstance(own, dict) and own.get("use_aux_hidden_state") is False:
        yield f"{_EAGLE_CONFIG}.use_aux_hidden_state", False, "true"
    types = flat.get("layer_types")
    if isinstance(types, list) and "sliding_attention" in types:
        yield "layer_types", types, "attention over the whole context"


class Eagle3Head(layers.Decoder, DraftModel):
    """A draft head with the weights that `load_eagle3` gives it; it has arbitrary ones before.

    Args:
        config: its shape.
        options: where it is, and what it computes in: as the target's.
        embedding: the target's, if the head shares it; None: it has its own.
        lm_head: the target's, if the head shares it; None: it has its own.
        num_positions: the positions that it can tell apart; by default those of the config.
    """

    config: Eagle3Config

    def __init__(
        self,
        config: Eagle3Config,
        options: layers.TensorOptions,
        *,
        embedding: layers.Embedding | None = None,
        lm_head: layers.LMHead | None = None,
        num_positions: int | None = None,
    ) -> None:
        super().__init__(config, options, num_positions)
        size, eps = config.hidden_size, config.rms_norm_eps
        owned: dict[str, layers.WeightTree] = {}
        if embedding is None:
            embedding = layers.Embedding(config.vocab_size, size, options)
            owned["embed_tokens"] = embedding.weights
        self.embedding = embedding
        has_own = config.draft_vocab_size != config.vocab_size
        if lm_head is None and config.tie_word_embeddings and not has_own:
            lm_head = layers.LMHead(embedding.weight)
        elif lm_head is None:
            lm_head = layers.LMHead(options.empty(config.draft_vocab_size, size))
            owned["lm_head"] = lm_head.weights
        self.lm_head = lm_head
        self._fc = layers.Linear(self.num_features, {"fc": size}, options, has_bias=config.bias)
        self._norms = _norms(config, options)
        norms = (_EMBEDDED_NORM, _HIDDEN_NORM)
        self.layer = layers.DecoderLayer(config, 0, options, norms=norms, in_features=2 * size)
        self._norm = layers.RMSNorm(size, eps, options)
        self._d2t: Tensor | None = None
        """[Vd] int64, device: how far each of its tokens is from the target's id of it."""
        if has_own:
            num_tokens, device = config.draft_vocab_size, options.device
            self._d2t = torch.zeros(num_tokens, dtype=torch.int64, device=device)
        self.weights = {
            **owned,
            **self._fc.weights,
            **{name: norm.weights for name, norm in self._norms.items()},
            "layers": {"0": self.layer.weights},
            "norm": self._norm.weights,
            **({} if self._d2t is None else {"d2t": self._d2t}),
        }

    @property
    def num_features(self) -> int:
        """A * Ht: the states that it reads of the target, side by side."""
        return self.config.num_aux * self.config.target_hidden_size

    @property
    def vocab_size(self) -> int:
        """Vd."""
        return self.config.draft_vocab_size

    def fuse(self, features: Tensor) -> Tensor:
        """Join what the target's layers read into one state of the head's.

        features  [T, A * Ht] device  the layers in ascending order
        returns   [T, H] device

        Stream: the current one. Sync: none. Allocates: the result and what lies between.
        Keeps: nothing. Capture: yes.
        """
        if norms := self._norms.values():
            parts = features.chunk(len(norms), dim=-1)
            features = torch.cat([norm(own) for norm, own in zip(norms, parts, strict=True)], -1)
        return self._fc(features)

    def hidden_states(
        self,
        input_ids: Tensor,
        positions: Tensor,
        hidden: Tensor | None,
        context: layers.AttentionContext,
    ) -> Tensor:
        """Compute what `logits` scores, and what the next draft continues from.

        input_ids  [T] int64, device  0 <= id < V
        positions  [T] int64, device  0 <= position < num_positions
        hidden     [T, H] device      of the token before each: what `fuse` made of the target's
                                      states, or what this function returned
        returns    [T, H] device

        Stream: the current one. Sync: the backend's. Allocates: the result and what lies between.
        Keeps: nothing, but keys and values in the KV cache. Capture: the backend's.
        """
        assert hidden is not None, "an EAGLE3 head continues from hidden states, and got none"
        rotation = self.rotary.look_up(positions)
        norms, is_normed = self.layer.norms, self.config.norm_before_residual
        normed = norms[_HIDDEN_NORM](hidden)
        joined = torch.cat([norms[_EMBEDDED_NORM](self.embedding(input_ids)), normed], dim=-1)
        states = self.layer.added(normed if is_normed else hidden, joined, rotation, context)
        return self._norm(states) if self.config.norm_output else states

    def logits(self, hidden: Tensor) -> Tensor:
        """Score the head's own vocabulary.

        hidden   [B, H] device
        returns  [B, Vd] float32, device

        Stream: the current one. Sync: none. Allocates: the result, in both dtypes.
        Keeps: nothing. Capture: yes.
        """
        return self.lm_head(hidden if self.config.norm_output else self._norm(hidden))

    def target_ids(self, draft_ids: Tensor) -> Tensor:
        """Map the head's tokens to the target's.

        draft_ids  [...] int64, device  0 <= id < Vd
        returns    [...] int64, device  0 <= id < V

        Stream: the current one. Sync: none. Allocates: the result. Keeps: nothing. Capture: yes.
        """
        return draft_ids if self._d2t is None else draft_ids + self._d2t[draft_ids]


def _norms(config: Eagle3Config, options: layers.TensorOptions) -> Mapping[str, layers.RMSNorm]:
    """Make the norms before `fc`, by their names in a checkpoint."""
    size, num_aux = config.target_hidden_size, config.num_aux
    sizes = {"input_norm": num_aux * size} if config.norm_before_fc else {}
    if config.fc_norm:
        sizes = {f"fc_norm.{number}": size for number in range(num_aux)}
    return {name: layers.RMSNorm(own, config.rms_norm_eps, options) for name, own in sizes.items()}
