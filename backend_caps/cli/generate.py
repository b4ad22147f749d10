"""`backend-caps generate`: prompts through the engine, under the plan of a server's flags."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from backend_caps.capability.backend import Status
from backend_caps.capability.kind import Phase
from backend_caps.cli import generate_words as words
from backend_caps.cli.examples import examples
from backend_caps.cli.invocation import Invocation
from backend_caps.cli.options import Request, ServerCommand, request_of, request_options
from backend_caps.cli.settings import SettingOption
from backend_caps.cli.working import TORCH, working
from backend_caps.discovery.admission import PLUGINS
from backend_caps.discovery.registry import Registry
from backend_caps.errors import BackendCapsError
from backend_caps.resolution.engine import RUNTIME
from backend_caps.resolution.uses import ENGINE_DEFAULT


@dataclass(eq=False, kw_only=True)
class NoBackendNamedError(BackendCapsError):
    """No flag names the attention backend of a phase, and the engine has no default."""

    phases: tuple[str, ...]
    declared: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    """What the allow-list keeps from use."""
    allow_list: str = PLUGINS
    """What that is called where it was written."""

    @property
    def message(self) -> str:
        """The phases, and how to name a backend that is there."""
        example = "auto" if self.declared else "NAME"
        kept = f"none, {self.allow_list} leaves out {', '.join(self.left_out)}"
        none = kept if self.left_out else "none is installed"
        return (
            f"no flag names the attention backend of {' and '.join(self.phases)}; auto or one of "
            f"these was expected: {', '.join(self.declared) or none}. Write it "
            f"after --, as in: backend-caps generate -- --attention-backend {example}"
        )


DIFFERS = 1
"""The exit status where the plain loop gives other tokens."""
_SIM = "sim"
_DRAFTING = ("EAGLE", "EAGLE3", "STANDALONE")
"""Algorithms that draft with a model."""
_SEEDS = click.IntRange(min=0, max=2**63 - 1)
_AT_LEAST_1 = click.IntRange(min=1)


@partial(request_options, rules=RUNTIME)
@click.command(
    cls=ServerCommand,
    epilog=examples(
        "backend-caps generate -- --attention-backend torch_native",
        "backend-caps generate --device sim --prompts 2 -- \\\n  --attention-backend torch_padded",
    ),
)
@click.option(
    "--model",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="A Hugging Face folder of a Llama; a small one with random weights unless given.",
)
@click.option(
    "--draft-model",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="With --model, the Hugging Face folder of what drafts for it, where the server flags name "
    "an algorithm that drafts with a model.",
)
@click.option(
    "--prompts", type=_AT_LEAST_1, help="How many made-up prompts to run; 4 unless given."
)
@click.option(
    "--token-ids",
    multiple=True,
    metavar="1,2,3",
    callback=words.token_ids,
    help="Run this prompt. Repeatable.",
)
@click.option(
    "--max-new-tokens",
    default=16,
    show_default=True,
    type=_AT_LEAST_1,
    help="The most tokens of each output.",
)
@click.option(
    "--temperature",
    default=0.0,
    show_default=True,
    callback=words.temperature,
    help=f"Of sampling, up to {words.HOTTEST:g}; 0 takes the likeliest token.",
)
@click.option(
    "--seed", default=0, show_default=True, type=_SEEDS, help="Of made-up prompts and of sampling."
)
@click.option(
    "--device",
    cls=SettingOption,
    default="cpu",
    show_default=True,
    help=f"The torch device to run on; {_SIM!r} simulates one on the CPU, and finds hidden syncs.",
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
@click.option(
    "--chunked-prefill-size",
    type=_AT_LEAST_1,
    help="Cut prompts so that no step has more prompt tokens.",
)
@click.option(
    "--max-running-requests",
    default=64,
    show_default=True,
    type=_AT_LEAST_1,
    help="The most requests that run at once.",
)
@click.option(
    "--max-prefill-tokens",
    default=8192,
    show_default=True,
    type=_AT_LEAST_1,
    help="The most prompt tokens of a step; a longer prompt has a step of its own.",
)
@click.option(
    "--max-total-tokens",
    type=_AT_LEAST_1,
    help="Tokens that the KV cache holds; as many as these requests can fill unless given.",
)
@click.option(
    "--graph-batch-sizes",
    default="1,2,4,8,16,32,64",
    show_default=True,
    metavar="1,2,4",
    callback=words.sizes,
    help="Batch sizes of decode that graphs are captured for; '' captures none.",
)
@click.option(
    "--graph-token-counts",
    default="",
    metavar="16,32",
    callback=words.sizes,
    help="Numbers of tokens that graphs are captured for: of prefill, and of what runs in pieces "
    "around attention; none unless given.",
)
@click.option(
    "--steps",
    default=8,
    show_default=True,
    type=_AT_LEAST_1,
    help="Steps to show; all count in the sums.",
)
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
    request = request_of(ctx)
    registry = request.believed(request.registry(ctx.ensure_object(Invocation)))
    _check_drafting(ctx, request.flags.speculative_algorithm)
    _check(request, registry)
    # Loads torch, which a wrong command line is not worth.
    with working(TORCH):
        from backend_caps.cli.asked import Asked  # noqa: PLC0415
        from backend_caps.cli.generation import generate_document  # noqa: PLC0415
        from backend_caps.report.generate_views import generate_view  # noqa: PLC0415

    document = generate_document(Asked.from_context(ctx), request, registry)
    request.show(document, generate_view(document))
    if document.differs_from_plain:
        ctx.exit(DIFFERS)


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
    if draft_model is not None and model is None:
        raise click.UsageError(
            f"--draft-model {draft_model} drafts for a model of its own, and none is named. Add "
            "--model, or leave --draft-model out: a small one is then made with the small model."
        )
    if model is not None and is_drafting and draft_model is None:
        raise click.UsageError(
            f"--speculative-algorithm {algorithm} drafts with a model, and none is named for "
            f"{model}. Add --draft-model FOLDER, or leave --model out: both are then made, small."
        )


def _check(request: Request, registry: Registry) -> None:
    """Refuse flags that name no backend, before torch is loaded."""
    uses, allow = registry.uses(request.flags), request.search.allow
    unnamed = {use.phase for use in uses if use.backend == ENGINE_DEFAULT}
    if unnamed:
        raise NoBackendNamedError(
            phases=tuple(phase.value for phase in Phase if phase in unnamed),
            declared=tuple(name for name, own in registry.items() if own.status is Status.OK),
            left_out=tuple(sorted(registry.left_out)),
            allow_list=PLUGINS if allow is None else allow.name,
        )
