"""A class of linear attention over SGLang's own pool of states, and its forwards.

Slots that no request has owned hold NaN, so a read of one shows.

Shapes: B requests and T tokens in a batch, H heads, Dv the values' size, L layers with states, S
slots of states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import SimpleNamespace

import torch
from torch import Tensor

from backend_caps.kit import Forward, Rig
from backend_caps.kit.scenarios import MOST_REQUESTS, VERIFIED
from backend_caps.kit.states.recurrences import LAYER_IDS, Tokens
from backend_caps.kit.states.stories import NUM_ROWS, NUM_SLOTS, StateTurn
from backend_caps.kit.states.streams import TurnStreams
from backend_caps_sglang.kit.adapter import verify_input
from backend_caps_sglang.kit.engine_modules import SGLang
from backend_caps_sglang.kit.linear_layers import LinearLayers

_LONGEST = 512
"""Tokens of the longest context, which no state depends on."""


def state_pool(
    sglang: SGLang, layers: LinearLayers, device: str, dtype: torch.dtype
) -> SimpleNamespace:
    """Make SGLang's pool of requests with states, of NaN; convolutions keep tokens' own dtype."""
    sizes, states = layers.sizes, sglang.states
    heads, _, head_size = sizes.temporal
    shape = states.Mamba2StateShape(
        conv=[sizes.conv],
        temporal=sizes.temporal,
        intermediate_size=heads * head_size,
        conv_dim=sizes.conv[0],
        ssm_state_size=head_size,
        num_heads=heads,
        head_dim=head_size,
        state_size=head_size,
        conv_kernel=sizes.conv[1] + 1,
    )
    dtypes = states.Mamba2StateDType(conv=dtype, temporal=torch.float32)
    made: SimpleNamespace = sglang.memory.HybridReqToTokenPool(
        size=NUM_ROWS,
        mamba_size=NUM_SLOTS,
        mamba_spec_state_size=MOST_REQUESTS,
        max_context_len=_LONGEST,
        device=device,
        enable_memory_saver=False,
        cache_params=states.Mamba2CacheParams(shape=shape, layers=[*LAYER_IDS], dtype=dtypes),
        mamba_layer_ids=[*LAYER_IDS],
        enable_mamba_extra_buffer=False,
        speculative_num_draft_tokens=VERIFIED,
    )
    cache = made.mamba_pool.mamba_cache
    for own in (cache.temporal, cache.intermediate_ssm, *cache.conv):
        own.fill_(torch.nan)
    return made


class StateRunner:
    """Runs turns in one backend, within `Rig.running`.

    Args:
        rig: the backend's device.
        sglang: its modules.
        build: makes the backend over a stand-in for SGLang's model runner.
        layers: the class's layers.
        dtype: of what tokens bring.
        overlapped: whether schedule and forward have separate streams, without host waits.
    """

    def __init__(
        self,
        rig: Rig,
        sglang: SGLang,
        build: Callable[[SimpleNamespace], SimpleNamespace],
        layers: LinearLayers,
        dtype: torch.dtype,
        *,
        overlapped: bool = False,
    ) -> None:
        self.dtype, self.layers = dtype, layers
        self._sglang = sglang
        self._streams = TurnStreams(rig, overlapped=overlapped)
        self.device = self._streams.device
        self.pool = state_pool(sglang, layers, self.device, dtype)
        with self.configured():
            self.backend = build(self._runner())
        self.modules = [layers.layer(sglang, each, self.device, dtype) for each in LAYER_IDS]
        self._graphs: dict[Forward, StateGraph] = {}
        self.watch: Callable[[str], AbstractContextManager[object]] = lambda _: nullcontext()
        """Is entered around each call of the class, by the method's name."""
        self._streams.synchronize()

    def _runner(self) -> SimpleNamespace:
        config = SimpleNamespace(**self.layers.config)
        return SimpleNamespace(
            device=self.device,
            gpu_id=0,
            req_to_token_pool=self.pool,
            token_to_kv_pool=None,
            sliding_window_size=None,
            is_draft_worker=False,
            kv_cache_dtype=torch.float32,
            kv_cache_dtype_str="auto",
            linear_attn_backends=None,
            server_args=self._sglang.context.get_context().server_args,
            model_config=SimpleNamespace(
                hf_config=config,
                hf_text_config=config,
                context_len=_LONGEST,
                is_encoder_decoder=False,
            ),
        )

    @contextmanager
    def configured(self) -> Iterator[None]:
        """Publish the configuration of a server that verifies chains, within a `with` block."""
        spec = {"speculative_num_draft_tokens": VERIFIED, "speculative_eagle_topk": 1}
        with self._sglang.context.get_spec().override(**spec):
            yield

    def capture(self, forward: Forward) -> None:
        """Capture a graph of a forward of the most requests."""
        self._graphs[forward] = StateGraph(self, forward)

    def run(self, turn: StateTurn) -> Sequence[Tensor]:
        """Run a turn, in its graph where one was captured.

        returns  [T, H, Dv], device, of each layer
        """
        rows, lengths, tokens = self.bring(turn)
        with self._streams.forwarding(), self.configured():
            graph = self._graphs.get(turn.forward)
            if graph is None:
                outputs = self._eager(turn, rows, lengths, tokens)
            else:
                outputs = graph.replay(turn, rows, lengths, tokens)
            if not turn.drafts:
                self._streams.settle()
        return outputs

    def bring(self, turn: StateTurn) -> tuple[Tensor, Tensor, Sequence[Tokens]]:
        """Copy a turn to the device, with the slots of its rows; clear those of new requests.

        returns  rows [B] int64, cached tokens [B] int64, and what tokens bring to each layer

        Stream: the schedule stream, then the forward stream.
        """
        with self._streams.scheduling():
            numbers = [turn.rows, turn.slots, turn.prefixes]
            rows, slots, lengths = self._streams.upload(numbers).unbind()
            mapping = self.pool.req_index_to_mamba_index_mapping
            mapping[rows] = slots.to(mapping.dtype)
            cleared = self._streams.upload([turn.cleared])[0] if turn.cleared else None
            tokens = self._streams.carry(turn)
        self._streams.hand_over()
        with self._streams.forwarding():
            self._streams.keep_alive(rows, slots, lengths)
            self._streams.keep_alive(*(own for each in tokens for own in each.values()))
            if cleared is not None:
                self._streams.keep_alive(cleared)
                self.pool.mamba_pool.clear_slots(cleared)
        return rows, lengths, tokens

    def commit(self, turn: StateTurn) -> None:
        """Keep the states behind what was accepted of a verify, as its engine does.

        `HybridLinearAttnBackend` copies them by a kernel that asks for CUDA's tensors.
        """
        with self._streams.forwarding():
            cache, count = self.pool.mamba_pool.mamba_cache, len(turn.slots)
            steps = self._streams.upload([turn.slots, [own - 1 for own in turn.accepted]])
            slots, last = steps.unbind()
            places = torch.arange(count, device=slots.device)
            cache.temporal[:, slots] = cache.intermediate_ssm[:, places, last]
            for conv, windows in zip(cache.conv, cache.intermediate_conv_window, strict=True):
                conv[:, slots] = windows[:, places, last]
            self._streams.settle()

    def _eager(
        self, turn: StateTurn, rows: Tensor, lengths: Tensor, tokens: Sequence[Tokens]
    ) -> Sequence[Tensor]:
        seq_lens = lengths + 1 if turn.forward is Forward.DECODE else lengths
        batch = self.batch(turn.forward, rows, seq_lens, turn=turn)
        with self.watch("init_forward_metadata"):
            self.backend.init_forward_metadata(batch)
        return self.attend(batch, tokens)

    def attend(self, batch: SimpleNamespace, tokens: Sequence[Tokens]) -> list[Tensor]:
        """Run each layer's forward: [T, H, Dv], device."""
        outputs = []
        for module, own in zip(self.modules, tokens, strict=True):
            with self.watch("forward"):
                outputs.append(self.layers.forward(self.backend, module, batch, own))
        return outputs

    def batch(
        self, forward: Forward, rows: Tensor, seq_lens: Tensor, *, turn: StateTurn | None = None
    ) -> SimpleNamespace:
        """Make SGLang's batch.

        Args:
            forward: the kind of forward.
            rows: [B] int64, device.
            seq_lens: [B] int64, device; cached tokens, and of a decode its new one.
            turn: says how many tokens each request of a prefill brings.
        """
        batches = self._sglang.batches
        modes = {
            Forward.DECODE: batches.ForwardMode.DECODE,
            Forward.VERIFY: batches.ForwardMode.TARGET_VERIFY,
            Forward.MIXED: batches.ForwardMode.MIXED,
        }
        each = VERIFIED if forward is Forward.VERIFY else 1
        is_prefill = turn is not None and not turn.is_uniform
        num_tokens = sum(turn.counts) if turn is not None and is_prefill else each * len(rows)
        made: SimpleNamespace = batches.ForwardBatch(
            forward_mode=modes.get(forward, batches.ForwardMode.EXTEND),
            batch_size=len(rows),
            input_ids=rows.new_zeros(num_tokens),
            req_pool_indices=rows,
            seq_lens=seq_lens,
            out_cache_loc=rows.new_zeros(num_tokens),
            seq_lens_sum=None,
        )
        if turn is not None and is_prefill:
            self._extend(made, seq_lens, turn)
        if forward is Forward.VERIFY:
            places = seq_lens[:, None] + torch.arange(each, device=rows.device)
            ids = made.input_ids
            made.spec_info = verify_input(self._sglang, ids, places.flatten(), each)
        return made

    def _extend(self, made: SimpleNamespace, lengths: Tensor, turn: StateTurn) -> None:
        """Say how many tokens each request of a prefill brings."""
        starts = [sum(turn.counts[:place]) for place in range(len(turn.counts))]
        news, firsts = self._streams.upload([turn.counts, starts]).unbind()
        made.seq_lens = lengths + news
        made.extend_num_tokens = sum(turn.counts)
        made.extend_seq_lens, made.extend_start_loc = news.int(), firsts.int()
        made.extend_prefix_lens = lengths.int()
        made.extend_seq_lens_cpu, made.extend_prefix_lens_cpu = [*turn.counts], [*turn.prefixes]
        together = [*zip(turn.prefixes, turn.counts, strict=True)]
        made.seq_lens_cpu = torch.tensor([*map(sum, together)], dtype=torch.int64)

    def states(self) -> Mapping[str, Tensor]:
        """Copy all states to the host: [L, S, ...] by name."""
        cache = self.pool.mamba_pool.mamba_cache
        return {"temporal": cache.temporal.cpu(), "conv": cache.conv[0].cpu()}

    def drafts(self) -> Mapping[str, Tensor]:
        """Copy the states behind verified tokens to the host: [L, B, VERIFIED, ...] by name."""
        cache = self.pool.mamba_pool.mamba_cache
        windows = cache.intermediate_conv_window[0]
        return {"temporal": cache.intermediate_ssm.cpu(), "conv": windows.cpu()}


class StateGraph:
    """A graph of all layers, over static tensors of the most requests.

    Args:
        runner: whose backend it captures.
        forward: the kind of forward.
    """

    def __init__(self, runner: StateRunner, forward: Forward) -> None:
        self._runner, self._forward = runner, forward
        device, module = runner.device, torch.get_device_module(runner.device)
        self._each = VERIFIED if forward is Forward.VERIFY else 1
        self._rows = torch.zeros(MOST_REQUESTS, dtype=torch.int64, device=device)
        self._seq_lens = torch.zeros(MOST_REQUESTS, dtype=torch.int64, device=device)
        generator, count = torch.Generator().manual_seed(0), MOST_REQUESTS * self._each
        drawn = [runner.layers.draw(count, runner.dtype, generator) for _ in LAYER_IDS]
        self._tokens = [{name: own.to(device) for name, own in each.items()} for each in drawn]
        with runner.configured():
            runner.backend.init_cuda_graph_state(MOST_REQUESTS, count)
            self._fill = runner.backend.get_cuda_graph_seq_len_fill_value()
            self._seq_lens.fill_(self._fill)
            batch = runner.batch(forward, self._rows, self._seq_lens)
            runner.backend.init_forward_metadata_out_graph(batch, in_capture=True)
            self._graph = module.CUDAGraph()
            with module.graph(self._graph):
                runner.backend.init_forward_metadata_in_graph(batch)
                self._outputs = runner.attend(batch, self._tokens)

    def replay(
        self, turn: StateTurn, rows: Tensor, lengths: Tensor, tokens: Sequence[Tokens]
    ) -> Sequence[Tensor]:
        """Load a batch of at most as many requests, and replay: [T, H, Dv] each, device."""
        count = len(turn.rows)
        self._rows.zero_()[:count].copy_(rows)
        added = 1 if self._forward is Forward.DECODE else 0
        self._seq_lens.fill_(self._fill)[:count].copy_(lengths + added)
        for static, own in zip(self._tokens, tokens, strict=True):
            for name, tensor in static.items():
                tensor.fill_(torch.nan)[: len(own[name])].copy_(own[name])
        batch = self._runner.batch(self._forward, self._rows, self._seq_lens)
        batch.num_padding = MOST_REQUESTS - count
        with self._runner.watch("init_forward_metadata_out_graph"):
            self._runner.backend.init_forward_metadata_out_graph(batch)
        self._graph.replay()
        return [output[: count * self._each].clone() for output in self._outputs]
