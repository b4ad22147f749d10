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
from backend_caps.cli.launch import launch_of_layers, launch_options
from backend_caps.cli.output import Format, loading_torch, printer, working
from backend_caps.cli.request import STAND_INS, Request
from backend_caps.report import launches, plans
from backend_caps.report.launch_views import layers_view
from backend_caps.report.plan_views import (
    engine_selection_view,
    explain_view,
    plan_view,
    relay_view,
    selection_view,
)
from backend_caps.resolution.engine import without_options
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.flips import flips
from backend_caps.resolution.launch import Launch
from backend_caps.resolution.plan import Policy
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
    engine=launch_options,
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
    engine=launch_options,
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
    document = request.explained
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
    engine=launch_options,
)
@click.pass_context
def select_command(ctx: click.Context, /, **_options: object) -> None:
    """Show which installed backends fit a server, which of them auto is, and why not the others.

    Where no flag is auto, those that name a backend are taken as auto: the candidates could take
    its place. With --engine, they are the engine's own, for --model-config on a GPU; vLLM's are of
    each kind of layer. Exit status 1 where no backend fits.
    """
    if ctx.params["engine"] == "vllm":
        _select_of_layers(ctx)
        return
    request = options.request_of(ctx, follows_line=False)
    if request.reading is not None:
        _select_of_engine(ctx, request)
        return
    flags, rules = _with_auto(request.flags), request.registry.rules(request.rules)
    selection = selection_of(
        request.registry,
        flags,
        rules=rules,
        facts=request.facts,
        policy=request.policy,
        stand_ins=STAND_INS,
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


def _select_of_layers(ctx: click.Context) -> None:
    """Show which backend each kind of layer of a vLLM server takes, and the mode of graphs."""
    launch = launch_of_layers(ctx, options.facts_of(ctx))
    schema = "backend-caps/engine-layers@1"
    document = launches.EngineLayersDocument.of(launch, schema_=schema)
    printer(Format(ctx.params["format_"]))(document, layers_view(document))
    if not launch.starts:
        ctx.exit(NONE_FITS)


def _select_of_engine(ctx: click.Context, request: Request) -> None:
    """Show what the engine takes by itself, and each backend that its command line has."""
    if request.model is None:
        raise click.UsageError(
            "select --engine follows a server's start; add --model-config MODEL, a folder with a "
            "config.json or a stored one such as llama-3.1-8b."
        )
    assert request.reading is not None, "an engine is read"
    line = request.reading.command_line
    names = sorted(line.attention_backends) if line else []
    words = without_options(request.words, _NAMING)
    own, *tried = request.launches([words, *([*words, f"--{_SHARED}", name] for name in names)])
    default = own.flags.get("attention_backend") if own.starts else None
    found = [
        _engine_candidate(request, name, launch, is_default=name == default)
        for name, launch in zip(names, tried, strict=True)
    ]
    said = own.refusal or next(iter(own.unchecked), None)
    document = plans.EngineSelectionDocument(
        schema_="backend-caps/engine-selection@1",
        engine=own.engine,
        machine=own.machine,
        model=own.model,
        default=None if default is None else str(default),
        why_none=None if said is None else f"{said.message} ({said.at})",
        candidates=sorted(
            found, key=lambda each: (not each.is_default, _STARTS.index(each.starts))
        ),
    )
    request.show(document, engine_selection_view(document))
    if not any(each.starts for each in found):
        ctx.exit(NONE_FITS)


_STARTS = (True, None, False)
_FAULTS = frozenset({"engine-known-fault", "engine-other-hardware"})
"""Problems of a backend that fails although the engine's arguments take it."""
_SHARED = "attention-backend"
_NAMING = tuple(f"--{each}{_SHARED}" for each in ("", "prefill-", "decode-"))
"""The options that name a backend of the target."""


def _engine_candidate(
    request: Request, name: str, launch: Launch, *, is_default: bool
) -> plans.EngineCandidateDocument:
    said = launch.refusal or next(iter(launch.unchecked), None)
    plan = request.launched_plan(launch, Policy.QUIET) if launch.starts else None
    why = None if said is None else said.message
    if plan is not None and (faults := [each for each in plan.problems if each.code in _FAULTS]):
        plan, why = None, faults[0].message
    lengths = None if plan is None else plan["host_seq_lens"]
    page_size = launch.flags.get("page_size")
    return plans.EngineCandidateDocument(
        name=name,
        is_default=is_default,
        starts=None if launch.starts is None else plan is not None,
        why=why,
        at=None if said is None else said.at,
        host_seq_lens=text_of(lengths.value) if lengths is not None and lengths.is_known else None,
        costs=None if lengths is None else lengths.effect.text,
        has_overlap=None if plan is None else not launch.flags.get("disable_overlap_schedule"),
        has_graphs=None if plan is None else not launch.flags.get("disable_cuda_graph"),
        page_size=page_size if plan is not None and isinstance(page_size, int) else None,
    )


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
