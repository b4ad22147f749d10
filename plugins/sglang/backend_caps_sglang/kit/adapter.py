"""One of SGLang's backends, as the kit's runtime calls one: its batches and its calls.

SGLang's lengths in a verify are those before it; the kit's have the verified tokens in them.

Shapes: P rows in the request pool, L the longest context, B requests and T tokens in a batch, S
slots in the KV cache, Hq query heads, Hk key and value heads, D and Dv their sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cache
from types import SimpleNamespace

import torch
from torch import Tensor

from backend_caps.kit.scenes import Pools
from backend_caps.runtime.batch import ForwardMode
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.model.layers import AttentionLayer
from backend_caps.runtime.two_batch import split
from backend_caps_sglang.kit.engine_modules import SGLang
from backend_caps_sglang.kit.runner import attention_of, runner_of
from backend_caps_sglang.kit.variants import PLAIN, ServedVariant

PADDING_ROW = 0


def num_verified_of(batch: ForwardBatch) -> int:
    """Count the tokens of each request in a verify; 0 where it is none."""
    is_uniform = batch.extend_seq_lens is None and batch.mode is not ForwardMode.DRAFT_EXTEND
    each = batch.num_tokens // batch.batch_size
    return each if is_uniform and each > 1 else 0


def mode_name_of(batch: ForwardBatch) -> str:
    """Name SGLang's mode of a batch. A graph's says which by its lengths alone."""
    if batch.mode is ForwardMode.DRAFT_EXTEND:
        return "DRAFT_EXTEND_V2"
    if batch.extend_seq_lens is not None:
        return "MIXED" if batch.mode is ForwardMode.MIXED else "EXTEND"
    return "TARGET_VERIFY" if num_verified_of(batch) else "DECODE"


def batch_of(
    sglang: SGLang, batch: ForwardBatch, translator: SimpleNamespace, *, fill: int | None
) -> SimpleNamespace:
    """Make SGLang's batch of one of the kit's.

    Args:
        sglang: its modules.
        batch: the kit's; its host lengths are read when SGLang reads them.
        translator: SGLang's, of the runner.
        fill: the length that SGLang gives a request of padding; None: there is none.
    """
    count, modes = num_verified_of(batch), sglang.batches.ForwardMode
    seq_lens = batch.seq_lens - count if count else batch.seq_lens
    if fill is not None:
        seq_lens = torch.where(batch.req_pool_indices == PADDING_ROW, fill, seq_lens)
    made = _class_with_lazy_lengths(sglang.batches.ForwardBatch)(
        forward_mode=modes[mode_name_of(batch)],
        batch_size=batch.batch_size,
        input_ids=batch.input_ids,
        req_pool_indices=batch.req_pool_indices,
        seq_lens=seq_lens,
        out_cache_loc=batch.out_cache_loc,
        seq_lens_sum=None,
    )
    made.kit_batch = batch
    made.positions = batch.positions
    if count:
        made.spec_info = verify_input(
            sglang, batch.input_ids, batch.positions, count, mask=batch.tree_mask
        )
    for name, lengths in _extends_of(batch).items():
        setattr(made, name, lengths)
    plan = translator.plan(
        req_pool_indices=made.req_pool_indices,
        seq_lens=seq_lens,
        seq_lens_cpu=None,
        write_virtual=batch.out_cache_loc,
        read_extent=count,
    )
    plan.bind(made, translator)
    return made


def _extends_of(batch: ForwardBatch) -> Mapping[str, Tensor]:
    """Return how many tokens each request brings, as SGLang names that: [B] int32, device."""
    news, olds = batch.extend_seq_lens, batch.extend_prefix_lens
    if batch.mode is ForwardMode.DRAFT_EXTEND:
        each = batch.num_tokens // batch.batch_size
        news = torch.full_like(batch.seq_lens, each)
        olds = batch.seq_lens - each
    if news is None or olds is None:
        return {}
    starts = news.cumsum(0) - news
    named = {"extend_seq_lens": news, "extend_prefix_lens": olds, "extend_start_loc": starts}
    return {name: own.int() for name, own in named.items()}


def verify_input(
    sglang: SGLang, tokens: Tensor, positions: Tensor, count: int, mask: Tensor | None = None
) -> SimpleNamespace:
    """Make what SGLang says of drafts that are verified; a chain has no mask.

    Args:
        sglang: its modules.
        tokens: [T] int64, device.
        positions: [T] int64, device.
        count: tokens of each request.
        mask: of a tree, as `ForwardBatch.tree_mask`.
    """
    made: SimpleNamespace = sglang.speculating.EagleVerifyInput(
        draft_token=tokens,
        custom_mask=mask,
        positions=positions,
        retrieve_index=None,
        retrieve_next_token=None,
        retrieve_next_sibling=None,
        retrieve_cum_len=None,
        spec_steps=count - 1,
        topk=1 if mask is None else 2,
        draft_token_num=count,
        capture_hidden_mode=sglang.batches.CaptureHiddenMode.NULL,
        seq_lens_sum=None,
        seq_lens_cpu=None,
    )
    return made


@cache
def _class_with_lazy_lengths(base: type) -> Callable[..., SimpleNamespace]:
    """Make SGLang's class one whose host lengths are asked of the kit's batch when they are read.

    So a read is seen where it happens, and a batch without a mirror has none here.
    """

    def host(read: Callable[[ForwardBatch], object]) -> property:
        def get(made: SimpleNamespace) -> object:
            return read(made.kit_batch)

        def leave(_made: SimpleNamespace, _value: object) -> None:
            """Take no value: the kit's batch has it."""

        return property(get, leave)

    attributes = {
        "seq_lens_cpu": host(lambda own: _less(own.seq_lens_cpu, num_verified_of(own))),
        "seq_lens_sum": host(
            lambda own: _less(own.seq_lens_sum, num_verified_of(own) * own.batch_size)
        ),
        "extend_seq_lens_cpu": host(_extend_counts),
        "extend_prefix_lens_cpu": host(lambda own: _listed(own.extend_prefix_lens_cpu)),
    }
    made: Callable[..., SimpleNamespace] = type(base.__name__, (base,), attributes)
    return made


def _extend_counts(batch: ForwardBatch) -> list[int] | None:
    """Return how many tokens each request brings, which of a draft's extend the worker knows."""
    if batch.mode is ForwardMode.DRAFT_EXTEND:
        return [batch.num_tokens // batch.batch_size] * batch.batch_size
    return _listed(batch.extend_seq_lens_cpu)


def _less(lengths: Tensor | int | None, verified: int) -> Tensor | int | None:
    """Take off the verified tokens."""
    return None if lengths is None else lengths - verified


def _listed(lengths: tuple[int, ...] | None) -> list[int] | None:
    return None if lengths is None else list(lengths)


class Adapted:
    """A backend of SGLang on pools of the kit.

    What a graph of SGLang's holds is what the class made at the capture: so each replay gets the
    metadata of its capture back, whose tensors were filled anew.

    Args:
        sglang: its modules.
        implementation: the class.
        pools: the kit's.
        variant: what the layers have beside plain attention, and how the server is configured.
    """

    def __init__(
        self,
        sglang: SGLang,
        implementation: Callable[[SimpleNamespace], SimpleNamespace],
        pools: Pools,
        variant: ServedVariant = PLAIN,
    ) -> None:
        self._sglang, self._implementation = sglang, implementation
        self._pools, self._variant = pools, variant
        self._build(num_verified=0)

    def _build(self, *, num_verified: int) -> None:
        drafts = num_verified or None
        spec = self._sglang.context.get_spec()
        self._runner = runner_of(
            self._sglang, self._pools, variant=self._variant, num_verified=num_verified
        )
        # Where a hybrid pair sends a verify: Triton's, of the two that have one.
        routing = {"speculative_attention_mode": "decode"}
        with spec.override(speculative_num_draft_tokens=drafts, **routing), self._configured():
            self._backend = self._implementation(self._runner)
        layer = self._pools.layer
        sinks = None if layer is None else self._variant.sinks(layer.tp_q_head_num)
        self._sinks = None if sinks is None else sinks.to(self._runner.device)
        self._captured: dict[tuple[str, int], object] = {}
        self._batch: SimpleNamespace | None = None
        self._mode: Callable[[], AbstractContextManager[None]] = nullcontext

    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        """Prepare an eager forward."""
        self._batch, self._mode = self._engine_batch(batch), nullcontext
        with self._configured():
            self._backend.init_forward_metadata(self._batch)

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Make the buffers of graphs, of a server that verifies so many tokens of each request."""
        each = max_num_tokens // max_bs
        self._build(num_verified=each if each > 1 else 0)
        with self._configured():
            self._backend.init_cuda_graph_state(max_bs, max_num_tokens)

    def init_forward_metadata_out_graph(self, batch: ForwardBatch) -> None:
        """Prepare a capture, or a replay of a graph that was captured."""
        self._batch = self._engine_batch(
            batch, fill=self._backend.get_cuda_graph_seq_len_fill_value()
        )
        self._mode = self._sglang.capturing.model_capture_mode
        key = mode_name_of(batch), batch.batch_size
        is_replay = key in self._captured
        with self._configured():
            self._backend.init_forward_metadata_out_graph(self._batch, in_capture=not is_replay)
        if is_replay:
            self._backend.forward_metadata = self._captured[key]
        else:
            self._captured[key] = self._backend.forward_metadata

    def init_forward_metadata_in_graph(self, batch: ForwardBatch) -> None:
        """Do what a capture records."""
        self._backend.init_forward_metadata_in_graph(self._prepared(batch))

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layer: AttentionLayer,
        batch: ForwardBatch,
        *,
        save_kv_cache: bool = True,
    ) -> Tensor:
        """Attend in one layer, as SGLang's own layer calls its backend.

        q        [T, Hq * D], device
        k        [T, Hk * D], device
        v        [T, Hk * Dv], device
        returns  [T, Hq * Dv], device
        """
        named = {} if self._sinks is None else {"sinks": self._sinks}
        keys = k.view(-1, layer.tp_k_head_num, layer.qk_head_dim)
        values = v.view(-1, layer.tp_k_head_num, layer.v_head_dim)
        own = attention_of(self._sglang, layer, self._variant, self._runner.device)
        outputs = []
        with self._mode(), self._configured():
            for backend, made, tokens in self._parts(self._prepared(batch)):
                output: Tensor = backend.forward(
                    q[tokens],
                    keys[tokens],
                    values[tokens],
                    own,
                    made,
                    save_kv_cache=save_kv_cache,
                    **named,
                )
                outputs.append(output)
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _parts(
        self, made: SimpleNamespace
    ) -> Iterator[tuple[SimpleNamespace, SimpleNamespace, slice]]:
        """Yield each backend that attends, with its batch, and its tokens of the whole one."""
        yield self._backend, made, slice(None)

    @contextmanager
    def _configured(self) -> Iterator[None]:
        """Publish the configuration of the variant's server within a `with` block."""
        bag = self._sglang.context.get_exec()
        with ExitStack() as stack:
            for part, values in self._variant.configuration.items():
                stack.enter_context(getattr(bag, part).override(**values))
            yield

    def _prepared(self, batch: ForwardBatch) -> SimpleNamespace:
        assert self._batch is not None, "a batch is prepared before its layers run"
        assert self._batch.kit_batch is batch, "the batch that was prepared is the one that runs"
        return self._batch

    def _engine_batch(self, batch: ForwardBatch, fill: int | None = None) -> SimpleNamespace:
        translator = self._runner.kv_index_translator
        return batch_of(self._sglang, batch, translator, fill=fill)


class AdaptedHalves(Adapted):
    """The wrapper of two-batch overlap, whose children each run half of a batch's requests.

    A batch of one request, or with a tree, runs whole, in its primary backend.
    """

    def _engine_batch(self, batch: ForwardBatch, fill: int | None = None) -> SimpleNamespace:
        made = super()._engine_batch(batch, fill)
        made.tbo_children = None
        is_replay = fill is not None and (mode_name_of(batch), batch.batch_size) in self._captured
        if batch.batch_size > 1 and batch.tree_mask is None and not is_replay:
            made.tbo_children = [
                super(AdaptedHalves, self)._engine_batch(own, fill) for own in split(batch)
            ]
            for child in made.tbo_children:
                child.tbo_children = None
        return made

    def _parts(
        self, made: SimpleNamespace
    ) -> Iterator[tuple[SimpleNamespace, SimpleNamespace, slice]]:
        if made.tbo_children is None:
            yield from super()._parts(made)
            return
        start = 0
        for child, own in zip(self._backend.children, made.tbo_children, strict=True):
            end = start + own.kit_batch.num_tokens
            yield child, own, slice(start, end)
            start = end
