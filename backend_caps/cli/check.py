"""`backend-caps check`: whether what a backend declares is true."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click
from click.core import ParameterSource

from backend_caps.cli.invocation import Invocation, PluginSearch, format_option, search_options
from backend_caps.cli.output import (
    Format,
    Writers,
    also_option,
    examples,
    loading_torch,
    printer,
    require_writable,
    say,
    write_also,
)
from backend_caps.discovery.registry import Registry
from backend_caps.errors import BackendCapsError
from backend_caps.report import check_catalog
from backend_caps.report.check_documents import CheckDocument
from backend_caps.report.check_views import check_list_view, check_view, junit, sarif
from backend_caps.report.document import json_text
from backend_caps.report.sections import markdown

FAILED = 1
"""The exit status where a claim does not hold."""
NOT_RUN = 2
"""The exit status where nothing could be checked."""
_OF_CI = {"junit": junit, "sarif": sarif}
FORWARDS = ("prefill", "chunk", "mixed", "decode", "verify", "tree", "draft", "draft-extend")
"""Forwards of the engine that batches are drawn for."""
BESIDE = ""
"""The file of evidence where none is named: the one beside the implementation."""


@search_options
@click.command(
    short_help="Check whether what a backend declares is true, by running it.",
    epilog=examples(
        "backend-caps check torch_padded --quick --only mirror-absent",
        "backend-caps check --list --only numerics",
    ),
)
@click.argument("name", required=False)
@click.option(
    "--device",
    type=click.Choice(["sim", "cpu", "cuda"]),
    default="sim",
    show_default=True,
    help="Where it runs; sim simulates an accelerator on the CPU, and tries orders of its work.",
)
@click.option(
    "--engine",
    type=click.Choice(["sglang", "vllm"]),
    help="Check a class of this installed engine's own, by an adapter.",
)
@click.option(
    "--without",
    type=click.Choice(FORWARDS),
    multiple=True,
    help="Leave this forward out, once it is known to fail: other checks say nothing behind it. "
    "Repeatable.",
)
@click.option("--only", multiple=True, metavar="CHECK", help="Run this check. Repeatable.")
@click.option("--case", metavar="CASE", help="Run one case alone, as a finding names it.")
@click.option("--quick", is_flag=True, help="Try a little of everything.")
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    metavar="N",
    help="Draw the requests of each scenario N times; 4 unless given, 2 with --quick.",
)
@click.option(
    "--case-deadline",
    type=click.FloatRange(min=0, min_open=True),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="How long each case may take, and more where it has over 100 steps; one that does not end "
    "is a finding, and the rest goes on.",
)
@click.option("--list", "lists", is_flag=True, help="Show what checks there are, and run none.")
@click.option(
    "--lines/--no-lines",
    default=None,
    help="Count which lines of the backend's own files run; done unless --quick is given.",
)
@click.option(
    "--write-evidence",
    "evidence",
    is_flag=False,
    flag_value=BESIDE,
    metavar="[FILE]",
    help="Keep what was found as evidence, beside the implementation or in FILE: what reports show "
    "and --require-evidence asks for.",
)
@click.option(
    "--report-issue",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="With --engine: write what the engine's maintainers need of each finding to FILE, in "
    "Markdown, with a script of torch and the engine alone, which is run.",
)
@format_option(*_OF_CI)
@also_option("JSON, Markdown, JUnit or SARIF, by its ending in .json, .md, .xml or .sarif")
@click.pass_context
def check(ctx: click.Context, /, name: str | None, *, lists: bool, **_options: object) -> None:
    """Check whether what the backend NAME declares is true, by running it.

    It runs in the engine's own forwards, and is compared with itself under one changed condition
    at a time. Exit status 0 where every claim that was checked held, 1 where one did not, 2 where
    nothing could be checked.
    """
    if ctx.ensure_object(Invocation).server_flags:
        raise click.UsageError("A claim holds on every server or on none: nothing goes after --.")
    if name is None and not lists:
        raise click.UsageError("Name the backend to check; backend-caps report shows what is here.")
    is_partial = any(ctx.params[name] for name in ("only", "case", "without"))
    if ctx.params["evidence"] is not None and is_partial:
        raise click.UsageError("Evidence is of every check: leave --only, --case, --without out.")
    if ctx.params["engine"] is not None:
        _check_adapted(ctx)
    elif ctx.params["report_issue"] is not None:
        raise click.UsageError("--report-issue is for an engine's maintainers: name --engine too.")
    try:
        if name is None or lists:
            descriptions = _descriptions(ctx.params["engine"])
            _show_list(descriptions, ctx.params["only"], ctx.params["format_"])
        else:
            _check_one(ctx, name)
    except BackendCapsError as error:
        click.echo(f"error: {error}", err=True)
        ctx.exit(NOT_RUN)


def _descriptions(engine: str | None) -> Iterable[check_catalog.CheckDescription]:
    """Return what each check asks; those of an engine's adapter load torch."""
    if engine is None:
        return check_catalog.CATALOG.values()
    with loading_torch("check"):
        from backend_caps.kit.check import engine_adapter  # noqa: PLC0415

    return [own.about for own in engine_adapter(engine).checks]


def _check_one(ctx: click.Context, name: str) -> None:
    """Check a backend, print what was found, and exit with its status."""
    format_, files = ctx.params["format_"], ctx.params["also"]
    require_writable(files, _WRITERS)
    # Loads torch, which a wrong command line is not worth.
    with loading_torch("check"):
        from backend_caps.cli.check_run import CheckOptions, check_backend  # noqa: PLC0415

    options, log = CheckOptions.from_context(ctx), ctx.ensure_object(Invocation).log
    document = check_backend(name, options, _registry(ctx), log)
    _show_check(document, format_, files)
    ctx.exit(NOT_RUN if document.is_stopped else FAILED if document.findings else 0)


def _check_adapted(ctx: click.Context) -> None:
    """Refuse what an engine's own backend cannot be asked."""
    is_given = ctx.get_parameter_source("path") is ParameterSource.COMMANDLINE
    if is_given or ctx.params["evidence"] is not None:
        raise click.UsageError("--path and --write-evidence are for plugins; leave --engine out.")
    ctx.params["path"] = ()
    file = ctx.params["report_issue"]
    if file is not None and not file.absolute().parent.is_dir():
        raise click.UsageError(f"--report-issue {file} lies in a folder that is not there.")


def _registry(ctx: click.Context) -> Registry:
    if ctx.params["engine"] is not None:
        from backend_caps.engines.read import read_engine  # noqa: PLC0415 - where one is asked for

        return read_engine(ctx.params["engine"]).registry
    return PluginSearch.from_context(ctx).registry()


_WRITERS: Writers[CheckDocument] = {
    ".json": lambda document: f"{json_text(document, indent=2)}\n",
    ".md": lambda document: markdown(check_view(document)),
    ".sarif": sarif,
    ".xml": junit,
}
"""What is written to a file of an ending."""


def _show_check(document: CheckDocument, format_: str, files: Iterable[Path]) -> None:
    """Print a check, and write it to files.

    Raises:
        UsageError: a file cannot be written.
    """
    writer = _OF_CI.get(format_)
    if writer is None:
        printer(Format(format_))(document, check_view(document))
    else:
        say(writer(document))
    write_also(document, files, _WRITERS)


def _show_list(
    checks: Iterable[check_catalog.CheckDescription], codes: tuple[str, ...], format_: str
) -> None:
    """Print what the checks of some codes ask; all where none is named.

    Raises:
        UsageError: the format is one of what was found.
        UnknownCheckError: there is none of a code.
    """
    if format_ in _OF_CI:
        raise click.UsageError(f"--format {format_} is of what was found; --list finds nothing.")
    chosen = [*check_catalog.checks_named([*checks], codes)]
    document = check_catalog.CheckListDocument(schema_="backend-caps/check-list@1", checks=chosen)
    printer(Format(format_))(document, check_list_view(document))
