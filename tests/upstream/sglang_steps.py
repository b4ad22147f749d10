"""SGLang's own scheduler, workers and FutureMap, with a few requests, on the simulated device.

    python -m tests.upstream.sglang_steps FOLDER '{"speculative_algorithm": "STANDALONE", ...}'

starts a scheduler with these arguments of SGLang's, serves the requests below, and prints as JSON
their tokens and what every step cost. FOLDER gets the models of `sglang_models`; paths among the
arguments are names in it. With `"graphs": true`, decode-shaped batches replay graphs. Nothing runs
on the device before the host waits for it, so that a missing wait is a wrong token.
"""

from __future__ import annotations

import json
import os
import sys
from array import array
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

_PROMPTS = (5, 3, 17, 9)
"""Tokens of each request's prompt."""
NUM_NEW_TOKENS = 20
_ARGUMENTS: dict[str, object] = {
    "model_path": "target",
    "device": "sim",
    "dtype": "float32",
    "skip_tokenizer_init": True,
    "max_total_tokens": 2048,
    "max_running_requests": 8,
    "mem_fraction_static": 0.5,
    "disable_radix_cache": True,
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    "random_seed": 0,
    "log_level": "error",
}
_NO_GRAPHS = {"disable_cuda_graph": True}
_GRAPHS = {"disable_prefill_cuda_graph": True, "cuda_graph_bs_decode": [1, 2, 4]}


@dataclass(slots=True)
class Step:
    """One decode-shaped step, without the copy of its tokens."""

    has_mirror: bool
    """Whether the batch had lengths on the host when its forward was launched."""
    num_copies: int
    """Copies to the host, numbers that the host read among them."""
    num_waits: int
    """Waits of the host."""


@dataclass(slots=True)
class Run:
    """What came of it."""

    tokens: dict[str, list[int]] = field(default_factory=dict)
    """By request."""
    num_verifies: dict[str, int] = field(default_factory=dict)
    """By request."""
    steps: list[Step] = field(default_factory=list)


def run(folder: Path, arguments: dict[str, object]) -> dict[str, object]:
    """Serve the requests, and describe the run."""
    import_module("sglang")  # activates the platform
    from backend_caps.simulator import simulate  # noqa: PLC0415
    from tests.upstream.sglang_models import write_models  # noqa: PLC0415
    from tests.upstream.sglang_platform import choose_kernels  # noqa: PLC0415

    write_models(folder)
    choose_kernels()
    found = Run()
    with simulate("lazy") as simulation:
        scheduler = _scheduler(folder, arguments)
        # Pools are made on another stream than they are used on; on a GPU seconds lie between.
        torch.get_device_module("sim").synchronize()
        _feed(scheduler, found)
        _watch(scheduler, simulation, found)
        scheduler.run_event_loop()
    return _document(scheduler, found)


def _scheduler(folder: Path, arguments: dict[str, object]) -> Any:
    """Start a scheduler as SGLang's own process of one does."""
    import_module("sglang.srt.plugins").load_plugins()
    own = {**_ARGUMENTS, **(_GRAPHS if arguments.pop("graphs", False) else _NO_GRAPHS), **arguments}
    for name in ("model_path", "speculative_draft_model_path"):
        if name in own:
            own[name] = str(folder / str(own[name]))
    flags = import_module("sglang.srt.server_args")
    server_args = flags.ServerArgs(**own)
    ports = flags.PortArgs.init_new(server_args)
    module = import_module("sglang.srt.managers.scheduler")
    ranks = module.SpawnRanks(world_rank=0, dp_rank=None, gpu_id=0)
    module.publish(server_args, role="scheduler", ranks=ranks)
    return module.Scheduler(server_args, ports)


def _feed(scheduler: Any, found: Run) -> None:
    """Hand the requests over where the scheduler would receive them, and end behind the last."""
    waiting = [_request(number, length) for number, length in enumerate(_PROMPTS)]

    def receive(local_reqs: object = None) -> list[object]:
        del local_reqs
        # One, and the others while it is decoded.
        some = waiting[:1] if len(waiting) == len(_PROMPTS) else waiting[:]
        del waiting[: len(some)]
        scheduler.gracefully_exit = len(found.tokens) == len(_PROMPTS)
        return some

    scheduler.request_receiver = _Receiver(receive)
    process = scheduler.process_batch_result

    def process_and_keep(batch: Any, result: object) -> None:
        process(batch, result)
        for request in batch.reqs:
            if request.finished():
                found.tokens[request.rid] = list(request.output_ids)[:NUM_NEW_TOKENS]
                found.num_verifies[request.rid] = request.spec_verify_ct

    scheduler.process_batch_result = process_and_keep


@dataclass(frozen=True)
class _Receiver:
    recv_requests: Callable[..., list[object]]


def _request(number: int, length: int) -> object:
    io = import_module("sglang.srt.managers.io_struct")
    sampling = import_module("sglang.srt.sampling.sampling_params").SamplingParams(
        max_new_tokens=NUM_NEW_TOKENS, temperature=0.0, ignore_eos=True
    )
    sampling.normalize(None)
    return io.TokenizedGenerateReqInput(
        rid=str(number),
        input_text="",
        input_ids=array("q", [(7 * number + 3 * place) % 120 + 3 for place in range(length)]),
        input_embeds=None,
        mm_inputs=None,
        token_type_ids=None,
        sampling_params=sampling,
        return_logprob=False,
        logprob_start_len=-1,
        top_logprobs_num=0,
        token_ids_logprob=None,
        stream=False,
    )


def _watch(scheduler: Any, simulation: Any, found: Run) -> None:
    """Count what each decode-shaped step costs, from its batch's making to its forward's launch."""
    schedule, launch = scheduler.get_next_batch_to_run, scheduler.run_batch
    forward = scheduler.model_worker.forward_batch_generation
    copy = scheduler._copy_result_to_cpu  # noqa: SLF001 - the only place between forward and copy
    marks: dict[str, Any] = {}

    def scheduled(*args: object, **kwargs: object) -> object:
        marks["before"] = simulation.counts
        return schedule(*args, **kwargs)

    def forwarded(batch: Any, *args: object, **kwargs: object) -> object:
        marks["mirror"] = batch.seq_lens_cpu is not None
        return forward(batch, *args, **kwargs)

    def copied(*args: object) -> None:
        marks["forwarded"] = simulation.counts
        copy(*args)

    def launched(batch: Any, *args: object, **kwargs: object) -> object:
        is_decode = batch.forward_mode.is_decode()
        result = launch(batch, *args, **kwargs)
        cost = marks["forwarded"] - marks["before"]
        if is_decode:
            found.steps.append(Step(marks["mirror"], cost.num_copies_to_host, cost.num_host_waits))
        return result

    scheduler.get_next_batch_to_run, scheduler.run_batch = scheduled, launched
    scheduler.model_worker.forward_batch_generation = forwarded
    scheduler._copy_result_to_cpu = copied  # noqa: SLF001


def _document(scheduler: Any, found: Run) -> dict[str, object]:
    from tests.upstream.sglang_platform import kernels, replays  # noqa: PLC0415

    relay, worker = scheduler.future_map, scheduler.model_worker
    backends = getattr(worker, "spec_v2_attn_backends", ())
    return {
        **asdict(found),
        "worker": type(worker).__name__,
        "overlap": scheduler.enable_overlap,
        "backends": [type(own).__name__ for own in backends],
        "needs_cpu_seq_lens": relay.needs_cpu_seq_lens,
        "pinned_buffer": relay.new_seq_lens_cpu_pinned is not None,
        "copy_stream": relay.fwd_prepare_d2h_stream is not None,
        "kernels": dict(kernels),
        "replays": dict(replays),
    }


if __name__ == "__main__":
    # What SGLang logs and captures with is not to come between.
    printed, sys.stdout = sys.stdout, sys.stderr
    json.dump(run(Path(sys.argv[1]), json.loads(sys.argv[2])), printed)
    printed.flush()
    os._exit(0)  # SGLang's threads wait for a launcher that is not there
