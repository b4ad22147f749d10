"""A class of linear attention over blocks of states, and its forwards.

Blocks that no request has owned hold NaN, so a read of one shows. A new request gets blocks as the
last one left them: vLLM clears those of attention alone, and a layer has to know its new requests.

Shapes: B requests and T tokens in a batch, H heads, D a head's size, L layers with states, S slots
of states, N blocks of a slot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import prod
from types import SimpleNamespace
from unittest.mock import patch

import torch
from torch import Tensor

from backend_caps.kit import Forward, Rig
from backend_caps.kit.scenarios import MOST_REQUESTS
from backend_caps.kit.states.recurrences import LAYER_IDS, Tokens
from backend_caps.kit.states.stories import NUM_SLOTS, StateTurn
from backend_caps.kit.states.streams import TurnStreams
from backend_caps_vllm.kit.engine_modules import VLLM
from backend_caps_vllm.kit.linear_batches import (
    OrderedTurn,
    TurnTensors,
    blocks_of,
    buffers_of,
    columns_of,
    common_of,
    positions_of,
    prefills_of,
    tensors_of,
)
from backend_caps_vllm.kit.linear_layers import LinearLayers, without_operators
from backend_caps_vllm.kit.linear_servers import state_config

_MODEL_STATE = "v1.worker.gpu.model_states.mamba_hybrid"
"""Where vLLM's second runner says what it tells builders of states."""
_ONE_RANK = SimpleNamespace(world_size=1, rank_in_group=0)
"""The group of ranks that share a layer's heads."""


class StateRunner:
    """Runs turns in one backend, within `Rig.running`.

    Args:
        rig: the backend's device.
        vllm: its modules.
        backend: the class.
        layers: the class's layers.
        dtype: of what tokens bring.
        overlapped: whether schedule and forward have separate streams, without host waits.
    """

    def __init__(
        self,
        rig: Rig,
        vllm: VLLM,
        backend: SimpleNamespace,
        layers: LinearLayers,
        dtype: torch.dtype,
        *,
        overlapped: bool = False,
    ) -> None:
        self.vllm, self.layers, self.dtype = vllm, layers, dtype
        self.num_each = 1 + layers.num_drafts
        """N: as many as tokens of a verify."""
        self._streams = TurnStreams(rig, overlapped=overlapped)
        self.device = self._streams.device
        self._config = state_config(vllm, dtype, layers)
        self.modules = self._made_layers()
        names = [*self._config.compilation_config.static_forward_context]
        with vllm.config.set_current_vllm_config(self._config), _one_rank(vllm):
            spec = self.modules[0].get_kv_cache_spec(self._config)
            self.builder: SimpleNamespace = backend.get_builder_cls()(
                spec, names, self._config, torch.device(self.device)
            )
        self._accepted = dict.fromkeys(range(1, NUM_SLOTS + 1), 1)
        self._verified: Sequence[int] = ()
        self._graphs: dict[Forward, StateGraph] = {}
        self.watch: Callable[[str], AbstractContextManager[object]] = lambda _: nullcontext()
        """Is entered around each call of the class, by the method's name."""
        self._streams.synchronize()

    def _made_layers(self) -> list[SimpleNamespace]:
        """Make the layers as vLLM's loader does, with blocks of NaN bound to each."""
        vllm, made = self.vllm, list[SimpleNamespace]()
        usual = vllm.module("utils.torch_utils").set_default_torch_dtype(self.dtype)
        configured = vllm.config.set_current_vllm_config(self._config)
        on_device = torch.device(self.device)
        with configured, usual, _one_rank(vllm), without_operators(vllm), on_device:
            for own in LAYER_IDS:
                layer = self.layers.make(vllm, f"model.layers.{own}.linear_attn", self._config)
                _move(layer, self.device)
                shapes = zip(layer.get_state_shape(), layer.get_state_dtype(), strict=True)
                num_bytes = sum(prod(shape) * kept.itemsize for shape, kept in shapes)
                num_blocks = 1 + NUM_SLOTS * self.num_each
                layer.bind_kv_cache(torch.zeros(num_blocks, 1, 1, num_bytes, dtype=torch.int8))
                for state in layer.kv_cache:
                    state.fill_(torch.nan)
                made.append(layer)
        return made

    def capture(self, forward: Forward) -> None:
        """Capture a graph of a forward of the most requests."""
        self._graphs[forward] = StateGraph(self, forward)

    def run(self, turn: StateTurn) -> Sequence[Tensor]:
        """Run a turn, in its graph where one was captured.

        returns  [T, H, D], device, of each layer
        """
        graph = self._graphs.get(turn.forward)
        ordered = OrderedTurn.of(turn, self.num_each)
        own, tokens, returns = self._bring(ordered)
        with self._streams.forwarding():
            if graph is None:
                with self.watch("build"):
                    metadata = self.build(own, ordered.turn)
                outputs = self.attend(metadata, tokens, own.positions)
            else:
                outputs = graph.replay(ordered.turn, own, tokens)
            found = [output.index_select(0, returns) for output in outputs]
            self._settle_slots(turn)
            if not turn.drafts:
                self._streams.settle()
        return found

    def _bring(self, ordered: OrderedTurn) -> tuple[TurnTensors, Sequence[Tokens], Tensor]:
        """Copy a turn to the device.

        returns  its tensors, what tokens bring to each layer, and the place [T] int64 there of each
                 token of the story's order

        Stream: the schedule stream, for the forward stream. Sync: none.
        """
        turn = ordered.turn
        accepted = [self._accepted[slot] for slot in turn.slots]
        with self._streams.scheduling():
            columns = self._streams.upload(columns_of(turn, self.num_each, accepted))
            places = self._streams.upload([positions_of(turn), ordered.returns])
            tokens = self._streams.carry(turn)
        self._streams.hand_over()
        with self._streams.forwarding():
            brought = (own for each in tokens for own in each.values())
            self._streams.keep_alive(columns, places, *brought)
            positions, returns = places.unbind()
            return tensors_of(columns, positions), tokens, returns

    def build(self, own: TurnTensors, turn: StateTurn, num_padding: int = 0) -> SimpleNamespace:
        """Let the builder make the metadata of a batch.

        Args:
            own: its tensors, with those of padding.
            turn: in vLLM's order.
            num_padding: requests of padding behind its own, which have no tokens.
        """
        none = [0] * num_padding
        common = common_of(
            self.vllm,
            own,
            [*turn.counts, *none],
            [*turn.prefixes, *none],
            [*prefills_of(turn), *map(bool, none)],
        )
        made: SimpleNamespace = self.builder.build(0, common, **self._drafted(own, turn, none))
        return made

    def _drafted(
        self, own: TurnTensors, turn: StateTurn, none: Sequence[int]
    ) -> Mapping[str, Tensor]:
        """Return what vLLM's runner says of drafts to this builder; without drafts, nothing."""
        if not self.layers.num_drafts:
            return {}
        together = zip(turn.counts, turn.verifies, strict=True)
        drafts = [count - 1 if is_verified else -1 for count, is_verified in together]
        counts = torch.tensor([*drafts, *(-1 for _ in none)], dtype=torch.int32)
        said = {"num_accepted_tokens": own.num_accepted, "num_decode_draft_tokens_cpu": counts}
        if self.vllm.module("envs").VLLM_USE_V2_MODEL_RUNNER is False:
            return said
        prefills = torch.tensor([*prefills_of(turn), *map(bool, none)])
        batch = self.vllm.module(_MODEL_STATE).MambaHybridAttnMetadata(prefills, **said)
        extra: Mapping[str, Tensor] = batch.get_extra_attn_kwargs(self.builder, len(counts))
        return extra

    def attend(
        self, metadata: SimpleNamespace, tokens: Sequence[Tokens], positions: Tensor
    ) -> list[Tensor]:
        """Run each layer's forward: [T, H, D], device."""
        outputs = []
        with self._in_forward(metadata):
            for module, own in zip(self.modules, tokens, strict=True):
                with self.watch("forward"):
                    outputs.append(self.layers.forward(self.vllm, module, own, positions))
        return outputs

    @contextmanager
    def _in_forward(self, metadata: SimpleNamespace) -> Iterator[None]:
        """Let layers find their metadata, as vLLM's runner does, within a `with` block."""
        context = self.vllm.module("forward_context")
        layers = self._config.compilation_config.static_forward_context
        own = context.ForwardContext(
            no_compile_layers=layers, attn_metadata=dict.fromkeys(layers, metadata), slot_mapping={}
        )
        with context.override_forward_context(own), torch.no_grad():
            yield

    def _settle_slots(self, turn: StateTurn) -> None:
        """Remember which block of each slot has its state: that of the last kept token."""
        self._verified = turn.slots if turn.drafts else ()
        self._accepted.update(dict.fromkeys(turn.slots, 1))
        if turn.drafts:
            together = zip(turn.slots, turn.accepted, turn.verifies, strict=True)
            kept = {slot: count for slot, count, is_verified in together if is_verified}
            self._accepted.update(kept)

    def commit(self, turn: StateTurn) -> None:
        """Do nothing but let the next turn begin: it says how many tokens were kept."""
        del turn
        self._streams.settle()

    def states(self) -> Mapping[str, Tensor]:
        """Copy all states to the host: [L, S, ...] by name; and all blocks, [L, S, N, ...]."""
        made = dict[str, Tensor]()
        for name, blocks in self._blocks().items():
            shape = len(blocks), NUM_SLOTS, self.num_each, *blocks.shape[2:]
            by_slot = blocks[:, 1:].reshape(shape)
            last = torch.tensor([self._accepted[slot] - 1 for slot in range(1, NUM_SLOTS + 1)])
            own = by_slot[:, torch.arange(NUM_SLOTS), last]
            made[name] = torch.cat([blocks[:, :1], own], dim=1)
            null = blocks[:, :1, None].expand(-1, -1, self.num_each, *blocks.shape[2:])
            made[f"blocks of {name}"] = torch.cat([null, by_slot], dim=1)
        return made

    def drafts(self) -> Mapping[str, Tensor]:
        """Copy the states behind verified tokens to the host: [L, B, N, ...] by name."""
        rows = torch.tensor([[*blocks_of(slot, self.num_each)] for slot in self._verified])
        return {name: blocks[:, rows] for name, blocks in self._blocks().items()}

    def _blocks(self) -> Mapping[str, Tensor]:
        """Copy all blocks to the host: [L, 1 + S * N, ...] by name."""
        each = [self.layers.states_of(module) for module in self.modules]
        return {name: torch.stack([own[name].cpu() for own in each]) for name in each[0]}


def _one_rank(vllm: VLLM) -> AbstractContextManager[object]:
    """Let vLLM find the group of one rank within a `with` block."""
    return patch.object(vllm.module("distributed.parallel_state"), "_TP", _ONE_RANK)


def _move(layer: SimpleNamespace, device: str) -> None:
    """Move a layer's constants to a device: in a simulation, `torch.tensor` makes them elsewhere.

    The default device is passed over by the simulation's modes of torch.
    """
    for name, own in [*vars(layer).items()]:
        if isinstance(own, Tensor):
            setattr(layer, name, own.to(device))


class StateGraph:
    """A graph of all layers, over static tensors of the most requests.

    Args:
        runner: whose backend it captures.
        forward: the kind of forward.
    """

    def __init__(self, runner: StateRunner, forward: Forward) -> None:
        self._runner = runner
        device, module = runner.device, torch.get_device_module(runner.device)
        self._each = runner.num_each if forward is Forward.VERIFY else 1
        count = MOST_REQUESTS * self._each
        self._tensors = buffers_of(MOST_REQUESTS, count, runner.num_each, device)
        generator = torch.Generator().manual_seed(0)
        drawn = [runner.layers.draw(count, runner.dtype, generator) for _ in LAYER_IDS]
        self._tokens = [{name: own.to(device) for name, own in each.items()} for each in drawn]
        counts = [self._each] * MOST_REQUESTS
        none = [0] * MOST_REQUESTS
        common = common_of(runner.vllm, self._tensors, counts, none, [False] * MOST_REQUESTS)
        metadata = runner.builder.build_for_cudagraph_capture(common)
        self._graph = module.CUDAGraph()
        with module.graph(self._graph):
            self._outputs = runner.attend(metadata, self._tokens, self._tensors.positions)

    def replay(self, turn: StateTurn, own: TurnTensors, tokens: Sequence[Tokens]) -> list[Tensor]:
        """Load a batch of at most as many requests, and replay: [T, H, D] each, device."""
        count = len(own.positions)
        self._tensors.load(own)
        for static, brought in zip(self._tokens, tokens, strict=True):
            for name, tensor in static.items():
                tensor.fill_(torch.nan)[:count].copy_(brought[name])
        with self._runner.watch("build"):
            self._runner.build(self._tensors, turn, MOST_REQUESTS - len(turn.counts))
        self._graph.replay()
        return [output[:count].clone() for output in self._outputs]
