"""`backend-caps generate`: prompts through the engine, under the plan of a server's flags."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from backend_caps.capability.backend import Status
from backend_caps.capability.kind import Phase
from backend_caps.cli import options
from backend_caps.cli.output import CommandError, loading_torch
from backend_caps.cli.request import Request
from backend_caps.discovery.scan import PLUGINS
from backend_caps.resolution.engine import RUNTIME
from backend_caps.resolution.uses import UseKind

if TYPE_CHECKING:
    from backend_caps.insight.generation import Generation


DIFFERS = 1
"""The exit status where the plain loop gives other tokens."""
_SIM = "sim"
_DRAFTING = ("EAGLE", "EAGLE3", "STANDALONE")
"""Algorithms that draft with a model."""
_count = partial(click.option, type=click.IntRange(min=1), show_default=True)
_HOTTEST = 100.0
"""Where any model's next token is as good as drawn from all of them alike."""


def _token_ids(
    _ctx: click.Context, _option: click.Parameter, prompts: tuple[str, ...]
) -> tuple[tuple[int, ...], ...]:
    """Read each prompt's numbers, which commas divide."""
    try:
        return tuple(tuple(int(number) for number in prompt.split(",")) for prompt in prompts)
    except ValueError as error:
        given = " ".join(prompts)
        expected = "numbers with commas between them were expected, such as 1,2,3"
        raise click.BadParameter(f"{given!r} holds what is no number; {expected}.") from error


def _sizes(_ctx: click.Context, _option: click.Parameter, text: str) -> tuple[int, ...]:
    """Read sizes of graphs, which commas divide; no word is none."""
    try:
        read = tuple(int(number) for number in text.split(",")) if text else ()
    except ValueError:
        read = (0,)
    if any(size < 1 for size in read):
        expected = "numbers from 1 with commas between them were expected, such as 1,2,4"
        raise click.BadParameter(f"{text!r} is none; {expected}.")
    return tuple(sorted(set(read)))


def _temperature(_ctx: click.Context, _option: click.Parameter, value: float) -> float:
    """Refuse what no model samples by; nothing compares with `nan`, which a range lets pass."""
    if math.isnan(value) or not 0 <= value <= _HOTTEST:
        expected = f"0 to {_HOTTEST:g} was expected, where 0 takes the likeliest token"
        raise click.BadParameter(f"{value:g} is no temperature; {expected}.")
    return value


@options.server_command(
    "Run prompts under a server's plan, and show what steps cost.",
    "backend-caps generate -- --attention-backend torch_native",
    "backend-caps generate --device sim --prompts 2 -- \\\n  --attention-backend torch_padded",
    rules=RUNTIME,
)
@options.folder_option(
    "--model", "A Hugging Face folder of a Llama; a small one with random weights unless given."
)
@options.folder_option(
    "--draft-model",
    "With --model, the Hugging Face folder of what drafts for it, where the server flags name "
    "an algorithm that drafts with a model.",
)
@_count("--prompts", help="How many made-up prompts to run; 4 unless given.")
@click.option(
    "--token-ids",
    multiple=True,
    metavar="1,2,3",
    callback=_token_ids,
    help="Run this prompt. Repeatable.",
)
@_count("--max-new-tokens", default=16, help="The most tokens of each output.")
@click.option(
    "--temperature",
    default=0.0,
    show_default=True,
    callback=_temperature,
    help=f"Of sampling, up to {_HOTTEST:g}; 0 takes the likeliest token.",
)
@options.seed_option("Of made-up prompts and of sampling.")
@options.device_option(
    "cpu", f"The torch device to run on; {_SIM!r} simulates one on the CPU, and finds hidden syncs."
)
@click.option(
    "--schedule",
    metavar="ORDER",
    help=f"With --device {_SIM}, the order that its work runs in: eager, lazy, starve:<stream> or "
    "random:<seed>; eager unless given.",
)
@click.option(
    "--dtype",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", "float32", "bfloat16"]),
    help="What the model computes in; weights of another dtype are converted. auto is its own.",
)
@_count("--chunked-prefill-size", help="Cut prompts so that no step has more prompt tokens.")
@_count("--max-running-requests", default=64, help="The most requests that run at once.")
@_count(
    "--max-prefill-tokens",
    default=8192,
    help="The most prompt tokens of a step; a longer prompt has a step of its own.",
)
@_count(
    "--max-total-tokens",
    help="Tokens that the KV cache holds; as many as these requests can fill unless given.",
)
@click.option(
    "--graph-batch-sizes",
    default="1,2,4,8,16,32,64",
    show_default=True,
    metavar="1,2,4",
    callback=_sizes,
    help="Batch sizes of decode that graphs are captured for; '' captures none.",
)
@click.option(
    "--graph-token-counts",
    default="",
    metavar="16,32",
    callback=_sizes,
    help="Numbers of tokens that graphs are captured for: of prefill, and of what runs in pieces "
    "around attention; none unless given.",
)
@options.steps_option(8, "Steps to show; all count in the sums.")
@click.option(
    "--compare-plain",
    is_flag=True,
    help="Run the prompts again without drafts, overlap, graphs and halves, and compare the "
    "tokens: exit status 1 where they differ.",
)
@click.option("--metrics", is_flag=True, help="Show the engine's metrics at the end.")
@click.option(
    "--metrics-port",
    type=click.IntRange(min=0, max=65535),
    help="Serve the metrics to Prometheus on this port of this machine meanwhile; 0 takes any.",
)
@click.pass_context
def generate(ctx: click.Context, /, **_options: object) -> None:
    """Run prompts under the plan of a server, and show what each step did and what it cost.

    Plan, scheduler, attention and KV cache are the real ones; without --model, the weights are
    random. A backend's code is imported: from the folders of --path first, where any are named.
    Server flags of speculative decoding are served: without --model, a draft model is made too.
    """
    if ctx.params["prompts"] is not None and ctx.params["token_ids"]:
        raise click.UsageError("--prompts and --token-ids both say what to run; give one of them.")
    ctx.params["schedule"] = _schedule(ctx.params["device"], ctx.params["schedule"])
    request = options.request_of(ctx)
    _check_drafting(ctx, request.flags.speculative_algorithm)
    _check_named(request)
    # Loads torch, which a wrong command line is not worth.
    with loading_torch("generate"):
        from backend_caps.insight.generation import generate_document  # noqa: PLC0415
        from backend_caps.report.generate_views import generate_view  # noqa: PLC0415

    with options.importable(request.path):
        document = generate_document(_generation(ctx.params, request))
    request.show(document, generate_view(document))
    if document.differs_from_plain:
        ctx.exit(DIFFERS)


def _generation(given: Mapping[str, Any], request: Request) -> Generation:
    """Read what to run from the options; torch is loaded by now."""
    import torch  # noqa: PLC0415

    from backend_caps.insight.generation import Generation  # noqa: PLC0415
    from backend_caps.runtime.configuration import configure_engine  # noqa: PLC0415
    from backend_caps.runtime.options import EngineOptions  # noqa: PLC0415
    from backend_caps.runtime.request import Sampling  # noqa: PLC0415

    def named(kind: type) -> dict[str, Any]:
        """Return the options that a class has fields for."""
        return {own.name: given[own.name] for own in fields(kind) if own.name in given}

    dtype = None if given["dtype"] == "auto" else getattr(torch, given["dtype"])
    return Generation(
        **named(Generation),
        configure=partial(
            configure_engine,
            device=given["device"],
            facts=request.facts,
            registry=request.registry,
            rules=request.rules,
            policy=request.policy,
            unsafe_override=request.override,
        ),
        written=request.written,
        flags=request.flags,
        sampling=Sampling(**named(Sampling)),
        options=EngineOptions(**{**named(EngineOptions), "dtype": dtype}),
    )


def _schedule(device: str, schedule: str | None) -> str | None:
    """Say in which order the simulated device runs; only that one has an order to choose."""
    if device.partition(":")[0] == _SIM:
        return "eager" if schedule is None else schedule
    if schedule is not None:
        raise click.UsageError(
            f"--schedule {schedule} orders the work of a simulated device, and --device is "
            f"{device}; --device {_SIM} was expected with it."
        )
    return None


def _check_drafting(ctx: click.Context, algorithm: str | None) -> None:
    """Require a draft model where the algorithm drafts with one for a named model, and only there.

    Raises:
        UsageError: the two do not go together.
    """
    model, draft_model = ctx.params["model"], ctx.params["draft_model"]
    is_drafting = algorithm in _DRAFTING
    if draft_model is not None and not is_drafting:
        named = "name none" if algorithm is None else f"name {algorithm}"
        raise click.UsageError(
            f"--draft-model {draft_model} drafts for {', '.join(_DRAFTING)}, and the server "
            f"flags {named}. Add --speculative-algorithm with one of these after --, or leave "
            "--draft-model out."
        )
    options.check_draft_model(ctx)
    if model is not None and is_drafting and draft_model is None:
        raise click.UsageError(
            f"--speculative-algorithm {algorithm} drafts with a model, and none is named for "
            f"{model}. Add --draft-model FOLDER, or leave --model out: both are then made, small."
        )


def _check_named(request: Request) -> None:
    """Refuse flags that name no backend, before torch is loaded."""
    registry, allow = request.registry, request.search.allow
    uses = registry.uses(request.flags)
    unnamed = {use.phase for use in uses if use.kind is UseKind.ENGINE_DEFAULT}
    if not unnamed:
        return
    declared = [name for name, own in registry.items() if own.status is Status.OK]
    none = "none is installed"
    if registry.left_out:
        kept_by = PLUGINS if allow is None else allow.name
        none = f"none, {kept_by} leaves out {', '.join(sorted(registry.left_out))}"
    phases = [phase.value for phase in Phase if phase in unnamed]
    raise CommandError(
        "no-backend-named",
        f"no flag names the attention backend of {' and '.join(phases)}; auto or one of these was "
        f"expected: {', '.join(declared) or none}. Write it after --, as in: backend-caps generate "
        f"-- --attention-backend {'auto' if declared else 'NAME'}",
    )
