"""FlashInfer's own wrappers, read out of its wheel and run without FlashInfer.

Their Python is what an adapter calls: it checks shapes and dtypes, packs masks, copies to the
buffers of graphs and hands all of it to compiled kernels. Here the Python is the wheel's, and the
kernels are loops that read what they were handed.
"""

from __future__ import annotations

import ast
import enum
import functools
import inspect
import math
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import torch
from torch import Tensor

WHEELS = Path(__file__).resolve().parents[2] / ".cache" / "wheels"
VERSION = "0.7.2.post1"
DECODE = ("flashinfer/decode.py", "BatchDecodeWithPagedKVCacheWrapper")
PREFILL = ("flashinfer/prefill.py", "BatchPrefillWithPagedKVCacheWrapper")
_HELPERS = {
    "flashinfer/page.py": ("get_seq_lens",),
    "flashinfer/prefill.py": (
        "_compute_page_mask_indptr",
        "_host_uniform_q_len",
        "_resolve_uniform_q_len",
    ),
    "flashinfer/quantization/packbits.py": ("segment_packbits",),
    "flashinfer/utils.py": (
        "MaskMode",
        "PosEncodingMode",
        "TensorLayout",
        "_check_cached_qkv_data_type",
        "_check_kv_layout",
        "_check_pos_encoding_mode",
        "_expand_4d",
        "_unpack_paged_kv_cache",
        "canonicalize_torch_dtype",
        "check_shape_dtype_device",
        "is_float8",
    ),
}
_FUTURE = ast.parse("from __future__ import annotations").body
_MASK_MODE, _CUSTOM_MASK, _MASK_INDPTR, _PREFILL_SCALE = 12, 16, 17, 23
_DECODE_SCALE = 16
_CAUSAL, _CUSTOM = 1, 2


def read(path: str) -> str:
    """Return a file of the fetched wheel.

    Raises:
        FileNotFoundError: the wheel is not there; the message has the command that fetches it.
    """
    found = sorted(WHEELS.glob(f"flashinfer_python-{VERSION}-*.whl"))
    if not found:
        raise FileNotFoundError(
            f"no wheel of flashinfer-python {VERSION} in .cache/wheels. Fetch it: "
            f"python -m pip download --no-deps flashinfer-python=={VERSION} -d .cache/wheels"
        )
    with zipfile.ZipFile(found[0]) as wheel:
        return wheel.read(path).decode("utf-8")


def signature(where: tuple[str, str], method: str) -> inspect.Signature:
    """Read a method's parameters; what their defaults are is left out."""
    methods = (
        node
        for node in _node(*where).body
        if isinstance(node, ast.FunctionDef) and node.name == method
    )
    *_, found = methods  # the last of overloads is the one that runs
    found.decorator_list, found.returns = [], None
    for own in (*found.args.args, *found.args.kwonlyargs):
        own.annotation = None
    found.body = [ast.Pass()]
    found.name = "read"
    return inspect.signature(cast("Callable[..., object]", _executed([found], {})["read"]))


@functools.cache
def wrappers() -> SimpleNamespace:
    """Make the wheel's two classes, over kernels that are loops."""
    names: dict[str, object] = {
        **{name: object() for name in ("Any", "List", "Literal", "Optional", "Tuple", "Union")},
        "Enum": enum.Enum,
        "functools": functools,
        "math": math,
        "torch": torch,
        "_check_workspace_buffer_alignment": _accept,
        "_eagle_verify_fp8kv_sm90_prepare": _accept,
        "_get_cache_alibi_slopes_buf": _accept,
        "_nvfp4_kv_requires_disabled_split_kv": _refuse,
        "_get_range_buf": lambda size, device: torch.arange(size, dtype=torch.int32, device=device),
        "_stage_lse": lambda lse, _layout, _is_returned, _q: (lse, None),
        "check_lse_base": _accept,
        "check_lse_layout": _accept,
        "check_trtllm_gen_sm107_only_feature": _accept,
        "device_support_pdl": _refuse,
        "get_batch_decode_module": lambda *_: _DecodeKernels(),
        "get_batch_prefill_module": lambda *_: _PrefillKernels(),
        "get_quantization_module": lambda: SimpleNamespace(segment_packbits=_segment_packbits),
    }
    helpers = [_node(path, name) for path, wanted in _HELPERS.items() for name in wanted]
    classes = [_methods_alone(_node(*where)) for where in (DECODE, PREFILL)]
    made = _executed([*map(_undecorated, helpers), *classes], names)
    return SimpleNamespace(**{name: made[name] for _, name in (DECODE, PREFILL)})


@functools.cache
def _module(path: str) -> ast.Module:
    return ast.parse(read(path))


def _node(path: str, name: str) -> ast.ClassDef | ast.FunctionDef:
    """Copy a class or function out of a file."""
    found = next(
        node
        for node in _module(path).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name
    )
    return deepcopy(found)


def _undecorated(node: ast.ClassDef | ast.FunctionDef) -> ast.ClassDef | ast.FunctionDef:
    """Take off the log of calls."""
    node.decorator_list = [own for own in node.decorator_list if ast.unparse(own) == "property"]
    return node


def _methods_alone(node: ast.ClassDef | ast.FunctionDef) -> ast.ClassDef | ast.FunctionDef:
    """Leave out aliases, which name decorators; of overloads the last one stays."""
    methods = [own for own in node.body if isinstance(own, ast.FunctionDef)]
    node.body = [_undecorated(own) for own in methods]
    return node


def _executed(nodes: Sequence[ast.stmt], names: dict[str, object]) -> Mapping[str, object]:
    module = ast.fix_missing_locations(ast.Module([*_FUTURE, *nodes], []))
    exec(compile(module, f"flashinfer {VERSION}", "exec"), names)  # noqa: S102 - read from its wheel
    return names


def _accept(*_arguments: object, **_options: object) -> None:
    """Check nothing."""


def _refuse(*_arguments: object) -> bool:
    return False


def _segment_packbits(
    bits: Tensor, starts: Tensor, byte_starts: Tensor, order: str, out: Tensor
) -> None:
    """Pack each segment into bytes, from a byte of its own on."""
    assert order == "little", "the kernels of attention read bits in this order"
    for start, stop, at in zip(*_host(starts[:-1], starts[1:], byte_starts), strict=False):
        for place, bit in enumerate(bits[start:stop].tolist()):
            byte = at + place // 8
            fresh = 0 if place % 8 == 0 else int(out[byte])
            out[byte] = fresh | (bit << place % 8)


class _Kernels:
    """What both families do: follow a schedule that was copied from pinned memory."""

    def _upload(self, buffers: Sequence[object], lengths: Tensor) -> tuple[str]:
        _, device_ints, pinned = cast("Sequence[Tensor]", buffers)
        pinned.view(torch.int32)[: len(lengths)] = lengths
        device_ints.copy_(pinned, non_blocking=True)
        return ("planned",)


class _PrefillKernels(_Kernels):
    """Tiles of tokens and contexts."""

    def plan(self, *arguments: object) -> tuple[str]:
        """Plan by host lengths."""
        qo_indptr, kv_indptr = cast("Sequence[Tensor]", arguments[3:5])
        assert {qo_indptr.device.type, kv_indptr.device.type} == {"cpu"}
        return self._upload(arguments[:3], kv_indptr.diff())

    def paged_run(self, *arguments: object) -> None:
        """Attend for every request."""
        given = cast("Sequence[Tensor]", arguments)
        mode, scale = cast("int", arguments[_MASK_MODE]), cast("float", arguments[_PREFILL_SCALE])
        masks = (given[_CUSTOM_MASK], given[_MASK_INDPTR]) if mode == _CUSTOM else None
        batch = _Batch(given[3], given[4], given[5], given[6], given[7], given[8], scale)
        batch.attend(given[1], given[10], is_causal=mode == _CAUSAL, masks=masks)


class _DecodeKernels(_Kernels):
    """One token a request, on plain cores."""

    def plan(self, *arguments: object) -> tuple[str]:
        """Plan by host lengths."""
        indptr = cast("Tensor", arguments[3])
        assert indptr.device.type == "cpu"
        return self._upload(arguments[:3], indptr.diff())

    def run(self, *arguments: object) -> None:
        """Attend for every request."""
        given, scale = cast("Sequence[Tensor]", arguments), cast("float", arguments[_DECODE_SCALE])
        every = torch.arange(len(given[6]))
        batch = _Batch(given[3], given[4], given[5], every, given[6], given[7], scale)
        batch.attend(given[1], given[9], is_causal=False, masks=None)


@dataclass(frozen=True, slots=True)
class _Batch:
    """What kernels are handed of a batch, by FlashInfer's names."""

    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    qo_indptr: Tensor
    kv_indptr: Tensor
    kv_indices: Tensor
    sm_scale: float

    def attend(
        self, schedule: Tensor, out: Tensor, *, is_causal: bool, masks: tuple[Tensor, Tensor] | None
    ) -> None:
        """Write what each request's tokens see, as far as was planned."""
        planned = schedule.cpu().view(torch.int32).tolist()
        for request, (rows, slots) in enumerate(self._requests()):
            if not slots or not len(rows):
                continue
            assert planned[request] == len(slots), "kernels follow the last plan"
            visible = torch.ones(len(rows), len(slots), dtype=torch.bool)
            if masks is not None:
                visible = _unpacked(masks, request, visible)
            elif is_causal:
                visible = visible.tril(len(slots) - len(rows))
            attended = self._one(self.q[rows.start : rows.stop], slots, visible)
            out[rows.start : rows.stop] = attended.to(out.dtype).to(out.device)

    def _requests(self) -> Iterator[tuple[range, list[int]]]:
        tokens, entries, slots = _host(self.qo_indptr, self.kv_indptr, self.kv_indices)
        for request in range(len(entries) - 1):
            rows = range(tokens[request], tokens[request + 1])
            yield rows, slots[entries[request] : entries[request + 1]]

    def _one(self, q: Tensor, slots: list[int], visible: Tensor) -> Tensor:
        group = q.shape[1] // self.k_cache.shape[2]
        keys, values = (
            cache.cpu()[slots, 0].double().repeat_interleave(group, dim=1)
            for cache in (self.k_cache, self.v_cache)
        )
        scores = torch.einsum("nhd,chd->hnc", q.cpu().double(), keys) * self.sm_scale
        weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
        return torch.einsum("hnc,chd->nhd", weights, values)


def _unpacked(masks: tuple[Tensor, Tensor], request: int, like: Tensor) -> Tensor:
    packed, starts = _host(*masks)
    bits = [
        bool(packed[starts[request] + place // 8] >> place % 8 & 1) for place in range(like.numel())
    ]
    return torch.tensor(bits).view(like.shape)


def _host(*tensors: Tensor) -> list[list[int]]:
    return [own.cpu().tolist() for own in tensors]
