"""A Llama-architecture decoder, and its weights in a Hugging Face folder.

Weights lie in one file of safetensors, or in several with an index. They are compared with what a
model needs before any number is read, then copied into it.

Shapes: B requests and T tokens in the batch, H features of a token, V tokens in the vocabulary, A
layers whose inputs an EAGLE3 head reads.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self, TypeVar, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from backend_caps.runtime.model import errors, layers
from backend_caps.runtime.model.config import LlamaConfig


class AuxStates:
    """Collect the inputs of some layers during one forward, for an EAGLE3 head.

    Args:
        layer_ids: the layers, [A]; the number of layers stands for the output of the last one.
    """

    def __init__(self, layer_ids: Collection[int]) -> None:
        self._layer_ids = layer_ids
        self.kept: list[Tensor] = []
        """[T, H] device each."""

    @classmethod
    def of_parts(cls, parts: Sequence[Self]) -> Self:
        """Join what was collected of parts of a batch, in the order of their tokens.

        Stream: the current one. Sync: none. Allocates: the result. Keeps: nothing. Capture: yes.
        """
        joined = cls(())
        joined.kept = [torch.cat(kept) for kept in zip(*(own.kept for own in parts), strict=True)]
        return joined

    def before(self, layer_id: int, hidden: Tensor) -> None:
        """Keep the input [T, H] of a layer if it is one of those to collect.

        Layers come in ascending order, so states are joined in that order, as in SGLang and vLLM.
        """
        if layer_id in self._layer_ids:
            self.kept.append(hidden)

    def beside(self, states: Tensor) -> Tensor:
        """Join what was collected to the right of [T, H] states: [T, (1 + A) * H], or as it is.

        Stream: the current one. Sync: none. Allocates: the result. Keeps: nothing. Capture: yes.
        """
        return torch.cat([states, *self.kept], dim=-1) if self.kept else states


class LlamaModel(layers.Decoder):
    """A decoder with the weights that `load_llama` gives it; it has arbitrary ones before.

    Args:
        config: its shape.
        options: where it is, and what it computes in.
        num_positions: the positions that it can tell apart; by default those of the config.
    """

    def __init__(
        self, config: LlamaConfig, options: layers.TensorOptions, num_positions: int | None = None
    ) -> None:
        super().__init__(config, options, num_positions)
        self.aux_layer_ids: tuple[int, ...] = ()
        """Layers whose inputs `hidden_states` returns beside its states, [A]. Set it before a
        forward is captured: a graph keeps what it was captured with."""
        size = config.hidden_size
        self.embedding = layers.Embedding(config.vocab_size, size, options)
        self.layers = tuple(
            layers.DecoderLayer(config, layer_id, options)
            for layer_id in range(config.num_hidden_layers)
        )
        self.norm = layers.RMSNorm(size, config.rms_norm_eps, options)
        is_tied = config.tie_word_embeddings
        self.lm_head = layers.LMHead(
            self.embedding.weight if is_tied else options.empty(config.vocab_size, size)
        )
        model: layers.WeightTree = {
            "embed_tokens": self.embedding.weights,
            "layers": {f"{number}": layer.weights for number, layer in enumerate(self.layers)},
            "norm": self.norm.weights,
        }
        # A tied LM head has no weight of its own in a checkpoint.
        self.weights = {"model": model, **({} if is_tied else {"lm_head": self.lm_head.weights})}

    def __call__(
        self,
        input_ids: Tensor,
        positions: Tensor,
        context: layers.AttentionContext,
        last_token_indices: Tensor | None = None,
    ) -> Tensor:
        """Score what may come after each request's last token, or after every token.

        input_ids           [T] int64, device  0 <= id < V
        positions           [T] int64, device  0 <= position < num_positions
        last_token_indices  [B] int64, device  places among the T; None: all of them, B = T
        returns             [B, V] float32, device

        Stream: the current one. Sync: the backend's. Allocates: the result and what lies between.
        Keeps: nothing, but keys and values in the KV cache. Capture: the backend's.
        """
        hidden = self.hidden_states(input_ids, positions, context)
        if last_token_indices is not None:
            hidden = hidden.index_select(0, last_token_indices)
        return self.logits(hidden)

    def hidden_states(
        self, input_ids: Tensor, positions: Tensor, context: layers.AttentionContext
    ) -> Tensor:
        """Compute all but the LM head: what it scores, and what a draft head continues from.

        input_ids  [T] int64, device  0 <= id < V
        positions  [T] int64, device  0 <= position < num_positions
        returns    [T, (1 + A) * H] device  the normed states, then the inputs of `aux_layer_ids`

        Stream: the current one. Sync: the backend's. Allocates: the result and what lies between.
        Keeps: nothing, but keys and values in the KV cache. Capture: the backend's.
        """
        rotation = self.rotary.look_up(positions)
        hidden, aux = self.embedding(input_ids), AuxStates(self.aux_layer_ids)
        for layer_id, layer in enumerate(self.layers):
            aux.before(layer_id, hidden)
            hidden = layer(hidden, rotation, context)
        aux.before(len(self.layers), hidden)
        return aux.beside(self.norm(hidden))

    def logits(self, states: Tensor) -> Tensor:
        """Score the vocabulary.

        states   [B, (1 + A) * H] device  rows of `hidden_states`; only the first H are read
        returns  [B, V] float32, device

        Stream: the current one. Sync: none. Allocates: the result, in both dtypes.
        Keeps: nothing. Capture: yes.
        """
        return self.lm_head(states[:, : self.config.hidden_size])


_Model = TypeVar("_Model", bound=layers.Weighted)
_WHOLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


class _Slice(Protocol):
    def get_shape(self) -> list[int]: ...
    def get_dtype(self) -> str: ...


class _File(Protocol):
    def keys(self) -> list[str]: ...
    def get_slice(self, name: str, /) -> _Slice: ...
    def get_tensor(self, name: str, /) -> Tensor: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWeight:
    """One weight of a checkpoint; its numbers are read when they are asked for."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """The file's word for it: F32, BF16."""
    file: _File

    def read(self) -> Tensor:
        """Read its numbers: a host tensor, whose memory may be the file's."""
        return self.file.get_tensor(self.name)


@contextmanager
def open_checkpoint(folder: Path) -> Iterator[Mapping[str, StoredWeight]]:
    """Open a folder's files, and list the weights in them by name.

    Raises:
        ModelError: the folder has no safetensors, not all that its index names, or a file that is
            not what it should be.
    """
    with ExitStack() as stack:
        weights: dict[str, StoredWeight] = {}
        for path in _paths(folder):
            file = stack.enter_context(_opened(path))
            for name in file.keys():  # noqa: SIM118 - the file is no mapping
                stored = file.get_slice(name)
                shape, dtype = tuple(stored.get_shape()), stored.get_dtype()
                weights[name] = StoredWeight(name=name, shape=shape, dtype=dtype, file=file)
        yield weights


def _paths(folder: Path) -> list[Path]:
    if (folder / _WHOLE).is_file():
        return [folder / _WHOLE]
    if not (folder / _INDEX).is_file():
        raise errors.missing_file(folder, f"{_WHOLE} or {_INDEX}")
    names = _shards(folder / _INDEX)
    for name in names:
        if not (folder / name).is_file():
            raise errors.missing_file(folder, f"{name}, which {_INDEX} names,")
    return [folder / name for name in names]


def _shards(index: Path) -> list[str]:
    """List the files that an index names, which stand beside it and nowhere else."""
    try:
        document = json.loads(index.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable(index, str(error)) from error
    weight_map = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise _unreadable(index, "it has no weight_map")
    for name in weight_map.values():
        if not isinstance(name, str) or Path(name).name != name:
            raise _unreadable(index, f"its weight_map names {name!r}, which is no file beside it")
    return sorted(set(weight_map.values()))


def _unreadable(index: Path, reason: str) -> errors.ModelError:
    expected = "a JSON object whose weight_map names a file for each weight"
    return errors.unreadable_file(index, expected, reason)


def _opened(path: Path) -> AbstractContextManager[_File]:
    try:
        return cast("AbstractContextManager[_File]", safe_open(path, framework="pt", device="cpu"))
    except (SafetensorError, OSError) as error:
        raise errors.unreadable_file(path, "a file of safetensors", error) from error


_CONVERTED = ("F32", "BF16", "F16", "F64")
"""Dtypes of weights that are the numbers themselves, and are converted."""
_INTEGERS = ("I64", "I32")
"""Dtypes of tables of token ids."""


def check_weights(
    folder: str | Path,
    model: layers.Weighted,
    stored: Mapping[str, StoredWeight],
    redundant: Collection[str] = (),
) -> None:
    """Compare a checkpoint with what a model needs of it; no number is read.

    Tables of old checkpoints that the config determines (`rotary_emb.inv_freq`) are left out.

    Args:
        folder: where the checkpoint is, for the error.
        model: may be on the meta device, where it takes no memory.
        stored: the checkpoint.
        redundant: weights that may be there, and say nothing new.

    Raises:
        ModelError: `model-weights`: weights are missing, unexpected, or of another shape or dtype.
    """
    expected = dict(model.named_weights())
    missing = [name for name in expected if name not in stored]
    others = sorted(stored.keys() - expected.keys() - {*redundant})
    unexpected = [name for name in others if not name.endswith(".rotary_emb.inv_freq")]
    unfit = [*_unfit(expected, stored)]
    if missing or unexpected or unfit:
        raise errors.unfit_weights(folder, missing=missing, unexpected=unexpected, unfit=unfit)


def fill_weights(model: _Model, stored: Mapping[str, StoredWeight]) -> _Model:
    """Copy a checkpoint that was checked into a model, converted to its dtype, and return that.

    Sync: may wait for the device. Keeps: nothing; all are copied from.
    """
    for name, weight in model.named_weights():
        weight.copy_(stored[name].read())
    return model


def _unfit(expected: Mapping[str, Tensor], stored: Mapping[str, StoredWeight]) -> Iterator[str]:
    for name, weight in expected.items():
        shape, taken = tuple(weight.shape), _CONVERTED if weight.is_floating_point() else _INTEGERS
        if (found := stored.get(name)) is None:
            continue
        if found.shape != shape:
            yield f"{name} of shape {found.shape} instead of {shape}"
        elif found.dtype not in taken:
            yield f"{name} of dtype {found.dtype} instead of {' or '.join(taken)}"


_DTYPES: Mapping[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_LM_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def load_llama(
    folder: str | Path,
    device: torch.device | str,
    *,
    dtype: torch.dtype | None = None,
    num_positions: int | None = None,
    lookahead: int = 0,
) -> LlamaModel:
    """Load a decoder from a folder that `save_pretrained` of transformers wrote.

    Weights of any floating-point dtype are converted to the model's; `check_weights` says which are
    left out.

    Sync: copies every weight to the device, and may wait for it. Allocates: the model.

    Args:
        folder: has config.json and safetensors, in one file or in several with an index; and
            generation_config.json where other tokens end a text than config.json says.
        device: where the model is.
        dtype: float32 or bfloat16; by default what the config says, and float32 if it says nothing.
        num_positions: longest context that is computed; by default what the config says.
        lookahead: positions behind it that speculative steps compute, and drop.

    Raises:
        ModelError: the folder is not one of a model that is computed here.
        ExceptionGroup: its config has several faults.
    """
    config = LlamaConfig.from_folder(folder)
    chosen = dtype_of(dtype, config)
    options = layers.TensorOptions(torch.device(device), chosen)
    with open_checkpoint(Path(folder)) as stored:
        hollow = LlamaModel(config, options.hollow, num_positions=1)
        check_weights(folder, hollow, stored, _repeated(config, stored))
        context = config.max_position_embeddings if num_positions is None else num_positions
        return fill_weights(LlamaModel(config, options, context + lookahead), stored)


def dtype_of(dtype: torch.dtype | None, config: LlamaConfig) -> torch.dtype:
    """Return what a model computes in: the dtype that is named, else its config's, else float32.

    Raises:
        ModelError: `unsupported-dtype`: the model does not compute in this dtype.
    """
    name = config.dtype or "float32" if dtype is None else str(dtype).removeprefix("torch.")
    if name not in _DTYPES:
        supported = [f"torch.{each}" for each in _DTYPES]
        raise errors.ModelError(
            "unsupported-dtype",
            f"dtype is torch.{name}; {' or '.join(supported)} was expected. "
            f"Pass dtype={supported[0]} to load_llama: other weights are converted.",
        )
    return _DTYPES[name]


def _repeated(config: LlamaConfig, stored: Mapping[str, StoredWeight]) -> Collection[str]:
    """Name the LM head where it is tied to the embedding, and stored all the same."""
    if not config.tie_word_embeddings or not {_LM_HEAD, _EMBEDDING} <= stored.keys():
        return ()
    is_same = torch.equal(stored[_LM_HEAD].read(), stored[_EMBEDDING].read())
    return (_LM_HEAD,) if is_same else ()
