"""`backend-caps generate`: prompts through the engine, under the plan of a server's flags."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from backend_caps.capability.backend import Status
from backend_caps.capability.kind import Phase
from backend_caps.cli.invocation import Invocation
from backend_caps.cli.options import ServerCommand, request_of, request_options
from backend_caps.discovery.registry import Registry
from backend_caps.errors import BackendCapsError
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.uses import ENGINE_DEFAULT


@dataclass(eq=False, kw_only=True)
class NoBackendNamedError(BackendCapsError):
    """No flag names the attention backend of a phase, and the engine has no default."""

    phases: tuple[str, ...]
    declared: tuple[str, ...]

    @property
    def message(self) -> str:
        """The phases, and how to name a backend that is there."""
        example = self.declared[0] if self.declared else "NAME"
        return (
            f"no flag names the attention backend of {' and '.join(self.phases)}; one of these was "
            f"expected: {', '.join(self.declared) or 'none is installed'}. Write it after --, as "
            f"in: backend-caps generate -- --attention-backend {example}"
        )


def _tokens(
    _ctx: click.Context, _option: click.Parameter, prompts: tuple[str, ...]
) -> tuple[tuple[int, ...], ...]:
    """Read each prompt's numbers, which commas divide."""
    try:
        return tuple(tuple(int(number) for number in prompt.split(",")) for prompt in prompts)
    except ValueError as error:
        given = " ".join(prompts)
        expected = "numbers with commas between them were expected, such as 1,2,3"
        raise click.BadParameter(f"{given!r} holds what is no number; {expected}.") from error


_SEEDS = click.IntRange(min=0, max=2**63 - 1)
_AT_LEAST_1 = click.IntRange(min=1)


@request_options
@click.command(cls=ServerCommand)
@click.option(
    "--model",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="A Hugging Face folder of a Llama; a small one with random weights unless given.",
)
@click.option(
    "--prompts", type=_AT_LEAST_1, help="How many made-up prompts to run; 4 unless given."
)
@click.option(
    "--token-ids",
    multiple=True,
    metavar="1,2,3",
    callback=_tokens,
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
    type=click.FloatRange(min=0),
    help="Of sampling; 0 takes the likeliest token.",
)
@click.option(
    "--seed", default=0, show_default=True, type=_SEEDS, help="Of made-up prompts and of sampling."
)
@click.option("--device", default="cpu", show_default=True, help="The torch device to run on.")
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
    "--steps",
    default=8,
    show_default=True,
    type=_AT_LEAST_1,
    help="Steps to show; all count in the sums.",
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
    random.
    """
    if ctx.params["prompts"] is not None and ctx.params["token_ids"]:
        raise click.UsageError("--prompts and --token-ids both say what to run; give one of them.")
    request = request_of(ctx)
    registry = request.registry(ctx.ensure_object(Invocation))
    _check(request.flags, registry)
    # Loads torch, which a wrong command line is not worth.
    from backend_caps.cli.generation import Asked, generate_document  # noqa: PLC0415
    from backend_caps.report.generate_views import generate_view  # noqa: PLC0415

    document = generate_document(Asked.from_context(ctx), request, registry)
    request.show(document, generate_view(document))


def _check(flags: ServerFlags, registry: Registry) -> None:
    """Refuse flags that name no backend, before torch is loaded."""
    unnamed = {use.phase for use in registry.uses(flags) if use.backend == ENGINE_DEFAULT}
    if unnamed:
        raise NoBackendNamedError(
            phases=tuple(phase.value for phase in Phase if phase in unnamed),
            declared=tuple(name for name, own in registry.items() if own.status is Status.OK),
        )
