"""From a Hugging Face folder to a draft model beside its target."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path

import torch

from backend_caps.resolution.errors import raise_all
from backend_caps.runtime.model import llama
from backend_caps.runtime.model.config import LlamaConfig
from backend_caps.runtime.model.draft import EagleConfig, EagleHead, StandaloneDraft
from backend_caps.runtime.model.eagle3 import Eagle3Config, Eagle3Head
from backend_caps.runtime.model.errors import ModelError, config_value, unfit_weights
from backend_caps.runtime.model.layers import Embedding, LMHead

_PREFIX = "model."
_SHARED = _EMBEDDING, _LM_HEAD = "embed_tokens.weight", "lm_head.weight"
"""The target's own."""
_FC = "fc.weight"
_BIAS = "fc.bias"
_MIDLAYER = "midlayer."
_HIDDEN_NORM = "layers.0.hidden_norm.weight"
_RENAMED = (
    (_MIDLAYER, "layers.0."),
    ("aux_norm_low.", "fc_norm.0."),
    ("aux_norm_mid.", "fc_norm.1."),
    ("aux_norm_high.", "fc_norm.2."),
)
"""Older names of an EAGLE3 head's parts."""
_D2T = "d2t"
_UNREAD = ("t2d", "verifier_lm_head.weight", "verifier_norm.weight")
"""Weights of published EAGLE3 heads that follow from others, or that training alone needs."""


def load_standalone(
    folder: str | Path, target: llama.LlamaModel, *, num_positions: int | None = None
) -> StandaloneDraft:
    """Load a small model that drafts for a target; dtype and device are the target's.

    Sync: copies every weight to the device, and may wait for it. Allocates: the model.

    Args:
        folder: as `load_llama` takes it.
        target: knows as many tokens.
        num_positions: longest context that is computed; by default what the config says.

    Raises:
        ModelError: `draft-mismatch`: its vocabulary has another size than the target's.
        BackendCapsError: the folder cannot be loaded; see `load_llama`.
    """
    config = LlamaConfig.from_folder(folder)
    _check_sizes(folder, target.config, vocab_size=config.vocab_size)
    model = llama.load_llama(folder, target.device, dtype=target.dtype, num_positions=num_positions)
    return StandaloneDraft(model)


def load_eagle(
    folder: str | Path, target: llama.LlamaModel, *, num_positions: int | None = None
) -> EagleHead:
    """Load a head of EAGLE 1 or 2, which shares the target's embedding and LM head.

    Dtype and device are the target's. Weights are named with or without a leading `model.`; an
    embedding and an LM head that are stored too are left out.

    Sync: copies every weight to the device, and may wait for it. Allocates: the head.

    Args:
        folder: has config.json and safetensors, in one file or in several with an index.
        target: the head was made for it.
        num_positions: longest context that is computed; by default what the config says.

    Raises:
        ModelError: the folder holds no such head, or one that was made for another target.
        ExceptionGroup: there are several faults.
    """
    with llama.open_checkpoint(Path(folder)) as checkpoint:
        stored = _unprefixed(checkpoint)
        own = ("d2t", "t2d", _HIDDEN_NORM, _MIDLAYER)
        for name in sorted(stored):
            if name.startswith(own):
                raise _other_kind(folder, "EAGLE3", f"{name} is among them", "EAGLE")
        _require_fc(folder, stored)
        config = EagleConfig.from_folder(folder)
        width, vocab_size = config.hidden_size, config.vocab_size
        _check_sizes(folder, target.config, hidden_size=width, vocab_size=vocab_size)
        has_bias = _BIAS in stored if config.bias is None else config.bias
        head = partial(EagleHead, config, target.embedding, target.lm_head, has_bias=has_bias)
        hollow = head(target.options.hollow, num_positions=1)
        llama.check_weights(folder, hollow, stored, _SHARED)
        return llama.fill_weights(head(target.options, num_positions=num_positions), stored)


def load_eagle3(
    folder: str | Path, target: llama.LlamaModel, *, num_positions: int | None = None
) -> Eagle3Head:
    """Load a head of EAGLE3; dtype and device are the target's.

    Its layer's weights are named `midlayer` or `layers.0`, all with or without a leading `model.`.
    An embedding that is not stored is the target's, and so is an LM head of a whole vocabulary.

    Sync: copies every weight to the device, and may wait for it. Allocates: the head.

    Args:
        folder: has config.json and safetensors, in one file or in several with an index.
        target: the head was made for it.
        num_positions: longest context that is computed; by default what the config says.

    Raises:
        ModelError: the folder holds no such head, or one that was made for another target.
        ExceptionGroup: there are several faults.
    """
    with llama.open_checkpoint(Path(folder)) as checkpoint:
        stored = _renamed(_unprefixed(checkpoint))
        _require_fc(folder, stored)
        if _HIDDEN_NORM not in stored:
            raise _other_kind(folder, "EAGLE", f"{_HIDDEN_NORM} is not among them", "EAGLE3")
        config = Eagle3Config.from_folder(folder)
        width, vocab_size = config.target_hidden_size, config.vocab_size
        _check_sizes(folder, target.config, target_hidden_size=width, vocab_size=vocab_size)
        _check_layers(folder, config, target.config)
        embedding, lm_head = _shared(config, target, stored)
        head = partial(Eagle3Head, config, embedding=embedding, lm_head=lm_head)
        hollow = head(target.options.hollow, num_positions=1)
        # Of a whole vocabulary a table of tokens is the identity.
        llama.check_weights(folder, hollow, stored, {*_UNREAD, _D2T, *_SHARED})
        if config.draft_vocab_size != config.vocab_size:
            _check_tokens(folder, stored[_D2T], config.vocab_size)
        return llama.fill_weights(head(target.options, num_positions=num_positions), stored)


def _check_layers(folder: str | Path, config: Eagle3Config, target: LlamaConfig) -> None:
    """Refuse layers to read that the target does not have."""
    num_layers = target.num_hidden_layers
    read = config.layers_read(num_layers)
    if len({*read}) < len(read) or read[0] < 0 or read[-1] > num_layers:
        raise config_value(
            Path(folder) / "config.json",
            "eagle_aux_hidden_state_layer_ids",
            [*read],
            f"different layers from 0 to {num_layers}, as the target has,",
        )


def _shared(
    config: Eagle3Config, target: llama.LlamaModel, stored: Collection[str]
) -> tuple[Embedding | None, LMHead | None]:
    """Choose what a head shares with its target: what it does not store, and what fits."""
    is_as_wide = config.hidden_size == target.config.hidden_size
    has_all_tokens = config.draft_vocab_size == config.vocab_size
    embedding = None if _EMBEDDING in stored or not is_as_wide else target.embedding
    is_alone = _LM_HEAD in stored or config.tie_word_embeddings
    lm_head = None if is_alone or not (is_as_wide and has_all_tokens) else target.lm_head
    return embedding, lm_head


def _renamed(stored: Mapping[str, llama.StoredWeight]) -> dict[str, llama.StoredWeight]:
    """Give the parts of older EAGLE3 heads their names of today."""
    named: dict[str, llama.StoredWeight] = {}
    for name, weight in stored.items():
        old, new = next((own for own in _RENAMED if name.startswith(own[0])), ("", ""))
        named[new + name.removeprefix(old)] = weight
    return named


def _check_tokens(folder: str | Path, d2t: llama.StoredWeight, vocab_size: int) -> None:
    """Refuse a table that maps two tokens to one, or one to none of the target's."""
    offsets = d2t.read().to(torch.int64)
    ids = offsets + torch.arange(offsets.shape[0])
    outside = ids[(ids < 0) | (ids >= vocab_size)]
    fault = None
    if outside.numel():
        fault = f"d2t that maps a token to {int(outside[0])} instead of 0 to {vocab_size - 1}"
    elif len({*ids.tolist()}) < ids.shape[0]:
        fault = "d2t that maps several tokens to one instead of each to another"
    if fault is not None:
        raise unfit_weights(folder, unfit=(fault,))


def _unprefixed(stored: Mapping[str, llama.StoredWeight]) -> dict[str, llama.StoredWeight]:
    """Name weights without their leading `model.`, except where another one has that name."""
    return {
        name if (short := name.removeprefix(_PREFIX)) in stored else short: weight
        for name, weight in stored.items()
    }


def _other_kind(folder: str | Path, found: str, evidence: str, expected: str) -> ModelError:
    return ModelError(
        "head-kind",
        f"the weights in {str(folder)!r} are those of an {found} head: {evidence}; "
        f"an {expected} head was expected. Run it with --speculative-algorithm "
        f"{found}, or name another head.",
    )


def _require_fc(folder: str | Path, stored: Collection[str]) -> None:
    if _FC not in stored:
        raise ModelError(
            "no-head",
            f"the weights in {str(folder)!r} are those of no draft head: {_FC} is not among them; "
            f"an EAGLE or EAGLE3 head, made for the target, was expected. Name such a head, or "
            f"draft with this model by --speculative-algorithm STANDALONE.",
        )


def _check_sizes(folder: str | Path, target: LlamaConfig, **sizes: int) -> None:
    """Compare each of the draft's sizes with the target's."""
    expected = {key: getattr(target, key.removeprefix("target_")) for key in sizes}
    faults = [
        ModelError(
            "draft-mismatch",
            f"{key} is {value} in the draft model {str(folder)!r}; the target's {expected[key]} "
            f"was expected. Name a draft that was made for this target.",
        )
        for key, value in sizes.items()
        if value != expected[key]
    ]
    raise_all(f"draft model {str(folder)!r}", faults)
