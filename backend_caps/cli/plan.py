"""Commands that show a plan: `resolve`, `explain`, `select` and `relay`."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import click

from backend_caps.capability.facts import text_of
from backend_caps.capability.kind import Phase, Scope
from backend_caps.capability.model import AUTO
from backend_caps.capability.vocabulary import CAPABILITIES, SPELLINGS
from backend_caps.cli import options
from backend_caps.cli.invocation import routed_engine_options
from backend_caps.cli.output import loading_torch, working
from backend_caps.report import plans
from backend_caps.report.plan_views import explain_view, plan_view, relay_view, selection_view
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.flips import flips
from backend_caps.resolution.selection import BACKEND_FLAGS
from backend_caps.resolution.selection import select as selection_of

_EXPLAINED = [name for name, kind in CAPABILITIES.items() if kind.scope is not Scope.USE]

NOT_MEASURED = 2
"""The exit status where what was to be measured cannot be run here."""
NONE_FITS = 1
"""The exit status where a flag finds no backend."""


@options.server_command(
    "Show what a server needs of its backends, and who decided it.",
    "backend-caps resolve -- --attention-backend triton",
    "backend-caps resolve --fact device=cuda -- --attention-backend auto \\\n"
    "  --speculative-algorithm EAGLE3",
    engine=routed_engine_options,
)
@click.pass_context
def resolve(ctx: click.Context, /, **_options: object) -> None:
    """Show what a server with these flags needs of its backends, and who decided it."""
    request = options.request_of(ctx)
    document = request.document
    request.show(document, plan_view(document))


@options.server_command(
    "Show every cause of a capability's value on a server.",
    "backend-caps explain -- --attention-backend torch_native",
    "backend-caps explain graph_replay --phase decode -- \\\n  --attention-backend triton",
    engine=routed_engine_options,
)
@click.argument(
    "capability", nargs=-1, metavar="[CAPABILITY...]", type=click.Choice([*_EXPLAINED, *SPELLINGS])
)
@click.option(
    "--phase", type=click.Choice([phase.value for phase in Phase]), help="Only this phase."
)
@click.option(
    "--measure",
    is_flag=True,
    help="Add what the mirror costs a step: a few steps are run on a simulated device and counted.",
)
@click.option(
    "--results",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="With --measure, where results of GPUs are stored; those of a checkout unless given.",
)
@click.pass_context
def explain(
    ctx: click.Context,
    /,
    capability: tuple[str, ...],
    phase: str | None,
    results: Path | None,
    *,
    measure: bool,
    **_options: object,
) -> None:
    """Show every cause of a capability's value on a server; of host_seq_lens unless named."""
    if results is not None and not measure:
        raise click.UsageError(f"--results {results} is shown with --measure; add it.")
    request = options.request_of(ctx)
    document = request.document
    names = [SPELLINGS.get(name, name) for name in capability or ["host_seq_lens"]]
    explained = explain_view(document, names, phase)
    if not measure:
        request.show(document, explained)
        return
    # Loads torch, which an explanation alone does not.
    with loading_torch("explain --measure"):
        from backend_caps.insight.measure import measure_document  # noqa: PLC0415
        from backend_caps.report.step_costs import measured_view  # noqa: PLC0415

    with working("counting steps on a simulated device"), options.importable(request.path):
        measured = measure_document(request.plan, document, results)
    costs = () if measured.measured is None else measured_view(measured.measured, document)
    request.show(measured, chain(explained, costs))
    if measured.problem is not None:
        click.echo(f"error: {measured.problem}", err=True)
        ctx.exit(NOT_MEASURED)


@options.server_command(
    "Show which installed backends fit a server, and why not others.",
    "backend-caps select -- --attention-backend auto",
    "backend-caps select --fact device=cuda -- --attention-backend auto",
    name="select",
)
@click.pass_context
def select_command(ctx: click.Context, /, **_options: object) -> None:
    """Show which installed backends fit a server, which of them auto is, and why not the others.

    Where no flag is auto, those that name a backend are taken as auto: the candidates could take
    its place. Exit status 1 where no backend fits.
    """
    request = options.request_of(ctx)
    flags, rules = _with_auto(request.flags), request.registry.rules(request.rules)
    selection = selection_of(
        request.registry,
        flags,
        rules=rules,
        facts=request.facts,
        policy=request.policy,
        stand_ins=options.STAND_INS,
    )
    known = flags.with_facts(request.facts).known()
    document = plans.SelectionDocument(
        schema_="backend-caps/selection@1",
        facts={name: text_of(value) for name, value in known.items()},
        policy=request.policy.value,
        rules=rules.name,
        choices=plans.choice_documents(selection.choices),
    )
    request.show(document, selection_view(document))
    if any(choice.chosen is None for choice in document.choices):
        ctx.exit(NONE_FITS)


def _with_auto(flags: ServerFlags) -> ServerFlags:
    """Set each flag that names a backend to auto; without any, the one of all phases."""
    named = {field: name for field in BACKEND_FLAGS if (name := dict(flags)[field]) is not None}
    if AUTO in named.values():
        return flags
    return flags.updated(dict.fromkeys(named or ["attention_backend"], AUTO))


@options.server_command(
    "Relay a few steps, and show what crosses to the host and why.",
    "backend-caps relay -- --attention-backend torch_padded",
    "backend-caps relay --steps 5 -- --attention-backend torch_native \\\n"
    "  --speculative-algorithm EAGLE3",
)
@options.device_option("cpu", "The torch device of the FutureMap.")
@options.steps_option(3, "Steps to relay.")
@click.option(
    "--pool-size",
    default=64,
    show_default=True,
    type=click.IntRange(min=4, max=1 << 24),
    help="Rows of the request pool, the padding row included.",
)
@click.pass_context
def relay(ctx: click.Context, /, device: str, steps: int, pool_size: int, **_: object) -> None:
    """Relay a few steps of three requests, and show what crosses to the host and why.

    Plan and FutureMap are the real ones; tokens and accepted lengths are made up. On a CPU nothing
    crosses, and what is shown is what would.
    """
    # Loads torch, which no other command does.
    with loading_torch("relay", extra="relay"):
        from backend_caps.relay import DraftShape  # noqa: PLC0415
        from backend_caps.startup import configure  # noqa: PLC0415
        from backend_caps.startup.configuration import Configuration  # noqa: PLC0415
        from backend_caps.startup.rehearsal import rehearse  # noqa: PLC0415

    request = options.request_of(ctx)
    flags, draft = request.flags, None
    if flags.speculative_algorithm is not None:
        topk = flags.speculative_eagle_topk or 1
        draft = DraftShape(topk=topk, accept_tokens=flags.accept_tokens or 4)
    configure.check_device(device)
    # No check of the named backends: a rehearsal runs none of them.
    facts = configure.with_device(request.facts, device)
    plan = request.routed_plan(facts, configure.stand_ins(device))
    plan = configure.with_bound(plan, draft)
    configure.log_plan(plan)
    configuration = Configuration.from_plan(plan, pool_size=pool_size, device=device, draft=draft)
    document = plans.RelayDocument(
        schema_="backend-caps/relay@1",
        device=device,
        has_streams=configuration.future_map.streams.traits.has_streams,
        plan=plans.plan_document(plan, flips(plan, request.registry, plan.flags)),
        steps=[*rehearse(configuration.future_map, num_steps=steps, draft=draft)],
    )
    request.show(document, relay_view(document))
