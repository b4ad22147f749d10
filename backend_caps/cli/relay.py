"""`backend-caps relay`: a FutureMap configured by the plan, and a few steps through it."""

from __future__ import annotations

from dataclasses import asdict

import click

from backend_caps.cli.examples import examples
from backend_caps.cli.invocation import Invocation
from backend_caps.cli.options import ServerCommand, request_of, request_options
from backend_caps.cli.settings import SettingOption
from backend_caps.cli.working import TORCH, working
from backend_caps.report.documents import RelayDocument, StepDocument, plan_document
from backend_caps.report.views import relay_view
from backend_caps.resolution.flips import flips


@request_options
@click.command(
    cls=ServerCommand,
    epilog=examples(
        "backend-caps relay -- --attention-backend torch_padded",
        "backend-caps relay --steps 5 -- --attention-backend torch_native \\\n"
        "  --speculative-algorithm EAGLE3",
    ),
)
@click.option(
    "--device",
    cls=SettingOption,
    default="cpu",
    show_default=True,
    help="The torch device of the FutureMap.",
)
@click.option(
    "--steps", default=3, show_default=True, type=click.IntRange(min=1), help="Steps to relay."
)
@click.option(
    "--pool-size",
    default=64,
    show_default=True,
    type=click.IntRange(min=4, max=1 << 24),
    help="Rows of the request pool, the padding row included.",
)
@click.pass_context
def relay(
    ctx: click.Context, /, device: str, steps: int, pool_size: int, **_options: object
) -> None:
    """Relay a few steps of three requests, and show what crosses to the host and why.

    Plan and FutureMap are the real ones; tokens and accepted lengths are made up. On a CPU nothing
    crosses, and what is shown is what would.
    """
    # Loads torch, which no other command does.
    with working(TORCH):
        from backend_caps.relay import DraftShape  # noqa: PLC0415
        from backend_caps.startup.configuration import Configuration  # noqa: PLC0415
        from backend_caps.startup.configure import check_device, planned  # noqa: PLC0415
        from backend_caps.startup.rehearsal import rehearse  # noqa: PLC0415

    request = request_of(ctx)
    flags = request.flags
    registry = request.believed(request.registry(ctx.ensure_object(Invocation)))
    draft = None
    if flags.speculative_algorithm is not None:
        topk = flags.speculative_eagle_topk or 1
        draft = DraftShape(topk=topk, accept_tokens=flags.accept_tokens or 4)
    check_device(device)
    plan = planned(
        flags,
        registry,
        device=device,
        facts=request.facts,
        draft=draft,
        rules=request.rules,
        policy=request.policy,
        unsafe_override=request.override,
    )
    configuration = Configuration.from_plan(plan, pool_size=pool_size, device=device, draft=draft)
    steps_taken = rehearse(configuration.future_map, num_steps=steps, draft=draft)
    document = RelayDocument(
        schema_="backend-caps/relay@1",
        device=device,
        has_streams=configuration.future_map.streams.traits.has_streams,
        plan=plan_document(plan, flips(plan, registry, plan.flags)),
        steps=[StepDocument.model_validate(asdict(step)) for step in steps_taken],
    )
    request.show(document, relay_view(document))
