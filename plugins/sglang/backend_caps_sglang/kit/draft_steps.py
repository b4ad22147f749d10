"""SGLang's containers of draft steps: one backend for each step of a draft, over shared indices.

A draft of S steps with K beams writes K * S tokens behind each request's cached ones. At step i a
beam sees the cached tokens and its own of the steps up to i. The last step's tokens are verified
without a forward, so a container has S - 1 backends.

Shapes: B requests, K beams, S steps, N tokens that a request's beams take room for, T of all
requests, C tokens of a context, Hq query heads, Hk key and value heads, D and Dv their sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import cast

import torch
from torch import Tensor

from backend_caps.kit import Case, Check, Effort, Fault, Forward, Rig, Scenario, Subject
from backend_caps.kit.check import cases_of
from backend_caps.kit.checks.replay import no_graphs
from backend_caps.kit.rig import on_host
from backend_caps.kit.scenarios import MOST_REQUESTS, dice_for
from backend_caps.kit.scenes import Scene, scene
from backend_caps.report.check_catalog import CheckDescription
from backend_caps_sglang.kit.engine_modules import SGLang, load_sglang
from backend_caps_sglang.kit.runner import attention_of, runner_of
from backend_caps_sglang.kit.variants import PLAIN

NUM_STEPS = 3
"""S: two forwards."""
_WIDTHS = (1, 3)
"""K, by turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafts:
    """A batch whose requests draft."""

    scene: Scene
    """All tokens that the beams take room for, as new ones."""
    prefixes: Tensor
    """[B] int64: cached tokens of each request."""
    places: Tensor
    """[B, K, S] int64: each beam's tokens, among the scene's new ones."""

    def on(self, device: str) -> Drafts:
        """Copy it to a device."""
        return Drafts(
            scene=self.scene.on(device),
            prefixes=self.prefixes.to(device),
            places=self.places.to(device),
        )


def draw_drafts(scenario: Scenario, seed: int, count: int, num_beams: int) -> Drafts:
    """Draw requests that draft, of contexts up to the scenario's longest.

    Pools of one scenario and so many beams have one size, whatever was drawn.
    """
    dice, size = dice_for(scenario, seed), scenario.page_size
    longest = scenario.max_context_len // 2
    prefixes = [dice.choice((1, size, longest, dice.randint(1, longest))) for _ in range(count)]
    offsets = [_offsets(prefix, size, num_beams) for prefix in prefixes]
    requests = [(own, 1 + int(given.max())) for own, given in zip(prefixes, offsets, strict=True)]
    most = max(longest, size) + num_beams * _pages(size - 1 + NUM_STEPS, size) * size
    setting = replace(
        scenario.setting(seed),
        max_context_len=most,
        num_slots=(MOST_REQUESTS * _pages(most, size) + 1) * size,
    )
    drawn = scene(requests, uniform=True, setting=setting)
    starts = torch.tensor([0, *(new for _, new in requests)]).cumsum(0)[:-1]
    visible = [_visible(*pair) for pair in zip(requests, offsets, strict=True)]
    return Drafts(
        scene=replace(drawn, visible=visible),
        prefixes=torch.tensor(prefixes),
        places=torch.stack(offsets) + starts[:, None, None],
    )


def _pages(num_tokens: int, page_size: int) -> int:
    return -(-num_tokens // page_size)


def _offsets(prefix: int, page_size: int, num_beams: int) -> Tensor:
    """Return where each beam's tokens are behind the cached ones: [K, S] int64.

    Beams follow each other; with pages, each begins in a copy of the last page of the prefix.
    """
    beams, steps = torch.arange(num_beams)[:, None], torch.arange(NUM_STEPS)
    if page_size == 1 or num_beams == 1:
        return beams * NUM_STEPS + steps
    last = prefix % page_size
    each = _pages(last + NUM_STEPS, page_size) * page_size
    return beams * each + steps


def _visible(request: tuple[int, int], offsets: Tensor) -> Tensor:
    """Return what each new token sees: [N, C] bool; nothing where no beam has a token."""
    prefix, count = request
    seen = torch.zeros(count, prefix + count, dtype=torch.bool)
    for beam in offsets.tolist():
        for step, place in enumerate(beam):
            seen[place, :prefix] = True
            seen[place, [prefix + earlier for earlier in beam[: step + 1]]] = True
    return seen


class StepRunner:
    """A container over a draft batch's pools, and the forwards of its steps.

    Args:
        sglang: its modules.
        implementation: the container's class.
        drafts: a batch on the device, whose pools are the container's.
    """

    def __init__(
        self, sglang: SGLang, implementation: Callable[..., object], drafts: Drafts
    ) -> None:
        self._sglang, self._drafts = sglang, drafts
        _, self._num_beams, _ = drafts.places.shape
        pools = drafts.scene.pools
        with self.configured():
            runner = runner_of(sglang, pools, variant=PLAIN, num_verified=NUM_STEPS + 1)
            made = implementation(runner, self._num_beams, NUM_STEPS)
            self.container = cast("SimpleNamespace", made)
        self._translator = runner.kv_index_translator
        self._layer = attention_of(sglang, drafts.scene.layer, PLAIN, runner.device)

    @contextmanager
    def configured(self) -> Iterator[None]:
        """Publish the configuration of a server that drafts so, within a `with` block."""
        context = self._sglang.context
        spec = {
            "speculative_num_steps": NUM_STEPS,
            "speculative_eagle_topk": self._num_beams,
            "speculative_num_draft_tokens": NUM_STEPS + 1,
        }
        with ExitStack() as stack:
            stack.enter_context(context.get_spec().override(**spec))
            page_size = self._drafts.scene.pools.page_size
            stack.enter_context(context.get_schedule().override(page_size=page_size))
            yield

    def batch(self, rows: Tensor, lengths: Tensor, slots: Tensor) -> SimpleNamespace:
        """Make SGLang's batch.

        rows     [B] int64, device  of the request pool
        lengths  [B] int64, device  cached tokens
        slots    [B, K, S] int64, device  of the beams' tokens
        """
        batches, speculating = self._sglang.batches, self._sglang.speculating
        made: SimpleNamespace = batches.ForwardBatch(
            forward_mode=batches.ForwardMode.DECODE,
            batch_size=len(rows),
            input_ids=rows.new_zeros(len(rows) * self._num_beams),
            req_pool_indices=rows,
            seq_lens=lengths,
            out_cache_loc=slots.flatten(),
            seq_lens_sum=None,
        )
        made.positions = lengths[:, None].expand(-1, self._num_beams).flatten()
        made.spec_info = speculating.EagleDraftInput()
        plan = self._translator.plan(
            req_pool_indices=rows,
            seq_lens=lengths,
            seq_lens_cpu=None,
            write_virtual=made.out_cache_loc,
            read_extent=0,
        )
        plan.bind(made, self._translator)
        return made

    def attend(
        self, step: int, batch: SimpleNamespace, q: Tensor, k: Tensor, v: Tensor, slots: Tensor
    ) -> Tensor:
        """Run one step's forward.

        q        [B * K, Hq, D], device
        k        [B * K, Hk, D], device
        v        [B * K, Hk, Dv], device
        slots    [B * K] int64, device  of the step's tokens
        returns  [B * K, Hq, Dv], device
        """
        whole, batch.out_cache_loc = batch.out_cache_loc, slots
        backend = self.container.attn_backends[step]
        output: Tensor = backend.forward(q.flatten(1), k, v, self._layer, batch)
        batch.out_cache_loc = whole
        return output.view(len(q), q.shape[1], -1)


def _step_slots(drafts: Drafts) -> Tensor:
    """Return the slots of the beams' tokens: [B, K, S] int64."""
    return drafts.scene.batch.out_cache_loc[drafts.places]


def _run_eager(rig: Rig, case: Case) -> Iterator[Fault]:
    drafts = _drawn(case)
    with rig.running():
        there = drafts.on(rig.device)
        runner = StepRunner(load_sglang(), rig.subject.load(), there)
        slots = _step_slots(there)
        batch = runner.batch(there.scene.batch.req_pool_indices, there.prefixes, slots)
        with runner.configured():
            runner.container.init_forward_metadata(batch)
            outputs = []
            for step in range(NUM_STEPS - 1):
                own = there.places[:, :, step].flatten()
                q, k, v = (each[own] for each in (there.scene.q, there.scene.k, there.scene.v))
                outputs.append(runner.attend(step, batch, q, k, v, slots[:, :, step].flatten()))
        found = [on_host(output) for output in outputs]
    yield from _differences(rig, case, drafts, found)


def _drawn(case: Case, count: int | None = None) -> Drafts:
    number = (1, 3, MOST_REQUESTS, 2)[case.seed % 4] if count is None else count
    return draw_drafts(case.batch_scenario, case.seed, number, _beams_of(case))


def _beams_of(case: Case) -> int:
    return _WIDTHS[case.seed % len(_WIDTHS)]


def _differences(
    rig: Rig, case: Case, drafts: Drafts, found: Sequence[Tensor], what: str = ""
) -> Iterator[Fault]:
    """Compare the steps' outputs, [B * K, Hq, Dv] on the host, with the definition."""
    expected = PLAIN.expected(drafts.scene)
    for step, output in enumerate(found):
        own = expected[drafts.places[:, :, step].flatten()]
        differs = rig.difference(output, own, case.batch_scenario)
        if differs is not None:
            cached = drafts.prefixes.tolist()
            beams = drafts.places.shape[1]
            yield Fault(
                what=f"{what}step {step} of {beams} beams: {differs}; {cached} cached tokens"
            )
            return


class _Captured:
    """A graph of all steps, over static tensors of the largest batch.

    Args:
        rig: where.
        static: a drawn batch on the device, whose tensors are overwritten.
    """

    def __init__(self, rig: Rig, static: Drafts) -> None:
        self._static, self._module = static, torch.get_device_module(rig.device)
        self._slots = _step_slots(static)
        self._lengths = static.prefixes.clone()
        self._rows = static.scene.batch.req_pool_indices.clone()
        count, beams, _ = static.places.shape
        steps = range(NUM_STEPS - 1)
        poison = (
            own.new_full((count * beams, *own.shape[1:]), torch.nan) for own in self._qkv(static)
        )
        q, k, v = poison
        self._tokens = [(q.clone(), k.clone(), v.clone()) for _ in steps]
        self.runner = StepRunner(load_sglang(), rig.subject.load(), static)
        with self.runner.configured(), self._capturing():
            self.runner.container.init_cuda_graph_state(count, count * beams)
            self._fill = self.runner.container.attn_backends[0].get_cuda_graph_seq_len_fill_value()
            batch = self._batch()
            self.runner.container.init_forward_metadata_out_graph(batch, in_capture=True)
            self._graph = self._module.CUDAGraph()
            with self._module.graph(self._graph):
                self.runner.container.init_forward_metadata_in_graph(batch)
                self._outputs = [
                    self.runner.attend(
                        step, batch, *self._tokens[step], self._slots[:, :, step].flatten()
                    )
                    for step in steps
                ]

    @staticmethod
    def _qkv(drafts: Drafts) -> tuple[Tensor, Tensor, Tensor]:
        return drafts.scene.q, drafts.scene.k, drafts.scene.v

    def _capturing(self) -> AbstractContextManager[None]:
        made: AbstractContextManager[None] = load_sglang().capturing.model_capture_mode()
        return made

    def _batch(self) -> SimpleNamespace:
        return self.runner.batch(self._rows, self._lengths, self._slots)

    def replay(self, drafts: Drafts) -> list[Tensor]:
        """Load a batch of at most as many requests, and replay: [B * K, Hq, Dv] each, host."""
        count, beams, _ = drafts.places.shape
        held, new = self._static.scene.pools, drafts.scene.pools
        held.req_to_token.copy_(new.req_to_token)
        held.keys.copy_(new.keys)
        held.values.copy_(new.values)
        self._rows.zero_()[:count].copy_(drafts.scene.batch.req_pool_indices)
        self._lengths.fill_(self._fill)[:count].copy_(drafts.prefixes)
        self._slots.zero_()[:count].copy_(_step_slots(drafts))
        for step, tokens in enumerate(self._tokens):
            own = drafts.places[:, :, step].flatten()
            for static, each in zip(tokens, self._qkv(drafts), strict=True):
                static.fill_(torch.nan)[: len(own)].copy_(each[own])
        with self.runner.configured():
            self.runner.container.init_forward_metadata_out_graph(self._batch())
            self._graph.replay()
        return [on_host(output[: count * beams]) for output in self._outputs]


def _run_graphs(rig: Rig, case: Case) -> Iterator[Fault]:
    beams, scenario = _beams_of(case), case.batch_scenario
    static = draw_drafts(scenario, case.seed, MOST_REQUESTS, beams)
    padded = 1 + case.seed % (MOST_REQUESTS - 1)
    with rig.running(case.schedule):
        captured = _Captured(rig, static.on(rig.device))
        for number, count in enumerate((MOST_REQUESTS, padded, MOST_REQUESTS), 1):
            drafts = draw_drafts(scenario, case.seed + number, count, beams)
            found = captured.replay(drafts.on(rig.device))
            yield from _differences(rig, case, drafts, found, f"replay {number}, ")


def _cases(code: str, subject: Subject, effort: Effort) -> Iterator[Case]:
    del subject
    scenarios = [Scenario(forward=Forward.DRAFT, page_size=size) for size in (1, 16)]
    yield from cases_of(code, scenarios, effort)


def is_container(subject: Subject) -> bool:
    """Return whether a class of SGLang's is a container of draft steps."""
    return "MultiStep" in subject.name


def _excuse(subject: Subject) -> str | None:
    return None if is_container(subject) else "it is no container of draft steps"


def _check(code: str, title: str, run: Callable[[Rig, Case], Iterator[Fault]]) -> Check:
    return Check(
        about=CheckDescription(
            code=code,
            claims=[],
            title=title,
            proves="Each beam of each step attends to the cached tokens and to its own earlier "
            "ones, for one beam and for three, with pages and without: within the tolerance of "
            "float64.",
            cannot="More steps and wider beams.",
        ),
        excuse=_excuse,
        cases=partial(_cases, code),
        run=run,
    )


DRAFT_CHECKS: tuple[Check, ...] = (
    _check("draft-steps", "The steps of a draft attend as their beams do.", _run_eager),
    replace(
        _check("draft-steps-graphs", "A graph of all steps of a draft does so too.", _run_graphs),
        unfit=no_graphs,
    ),
)
"""What is asked of containers."""
