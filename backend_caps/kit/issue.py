"""What an engine's maintainers need of each finding in their classes, with a script that shows it.

A script is at most 60 lines of torch and the engine alone. It fails with the engine's own error, or
by an `AssertionError`, for as long as the engine has the fault.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from backend_caps.kit.check import CheckResult, EngineAdapter, Fault, Finding, Results
from backend_caps.kit.costs import costs_of
from backend_caps.kit.errors import KitError
from backend_caps.report.check_documents import CostDocument
from backend_caps.report.issue import IssueEntry, ScriptRun

MOST_LINES = 60
"""Lines of a script."""
_SECONDS = 300.0
_MOST_PRINTED = 12
"""Lines of what a script printed that are shown: the last ones."""
_RUNNER = """\
import runpy, sys
from backend_caps.kit.check import engine_adapter
engine_adapter(sys.argv[1]).prepare()
runpy.run_path(sys.argv[2], run_name="__main__")
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class IssueScript:
    """A script that shows a fault."""

    text: str
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables of the environment that it needs where there is no GPU."""


def script_templates(folder: Path) -> Environment:
    """Make the environment of a folder's templates, which write Python."""
    return Environment(
        loader=FileSystemLoader(folder),
        autoescape=False,  # noqa: S701 - Python has no markup
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def issue_entries(results: Results, engine: str, adapter: EngineAdapter) -> Iterator[IssueEntry]:
    """Describe the findings of a class, and run their scripts; one cause stands once.

    Findings of one check have one cause, and so have checks that fail first at one line.
    """
    causes: dict[object, list[CheckResult]] = {}
    for own in results.checks:
        if own.findings:
            causes.setdefault(own.findings[0].fault.site or own.check.code, []).append(own)
    for failed in causes.values():
        about, first = failed[0].check.about, failed[0].findings[0]
        places = (_place(each.fault, engine) for own in failed for each in own.findings)
        yield IssueEntry(
            check=about.code,
            title=about.title,
            what=first.fault.what,
            places=[*dict.fromkeys(filter(None, places))],
            case=first.case.name,
            replay=first.replay,
            also=[own.check.code for own in failed[1:]],
            cost=_cost(results, first),
            script=_written(results, first, engine, adapter),
        )


def _written(
    results: Results, finding: Finding, engine: str, adapter: EngineAdapter
) -> ScriptRun | str:
    """Write a finding's script, and run it; or return why there is none."""
    try:
        script = adapter.script(results.subject, finding)
        return run_script(engine, script, finding.fault)
    except KitError as error:
        return error.message


def _cost(results: Results, finding: Finding) -> CostDocument | None:
    """Return what an eager batch of the finding's forward costs; None where none was counted."""
    scenario = finding.case.scenario
    if scenario is None:
        return None
    costs = costs_of(results.subject, [scenario.forward])
    return next((own.document() for own in costs), None)


def run_script(engine: str, script: IssueScript, fault: Fault) -> ScriptRun:
    """Run a script in a process of its own, with stand-ins for what the engine lacks without a GPU.

    Raises:
        KitError: it does not end within five minutes.
    """
    has_gpu = torch.cuda.is_available()
    with TemporaryDirectory() as folder:
        file = Path(folder, "script.py")
        file.write_text(script.text, "utf-8")
        words = [str(file)] if has_gpu else ["-c", _RUNNER, engine, str(file)]
        variables = {} if has_gpu else script.variables
        try:
            done = subprocess.run(  # noqa: S603 - a script that was written here
                [sys.executable, *words],
                capture_output=True,
                text=True,
                check=False,
                timeout=_SECONDS,
                env={**os.environ, **variables},
            )
        except subprocess.TimeoutExpired as error:
            problem = f"it ran for {_SECONDS:.0f} s without an end"
            raise KitError.no_script(engine, problem) from error
    return ScriptRun(
        text=script.text,
        command=" ".join(
            [*(f"{name}={own}" for name, own in variables.items()), "python script.py"]
        ),
        printed=_shown(done.stderr, engine),
        shows=_shows(done.returncode, done.stderr, fault),
    )


def _shows(status: int, printed: str, fault: Fault) -> bool:
    """Return whether a script failed at the fault's line, or else by its own comparison."""
    if status == 0:
        return False
    if fault.site is not None:
        return f'{Path(fault.site.file).name}", line {fault.site.line}' in printed
    return "\nAssertionError: " in printed


def _shown(printed: str, engine: str) -> str:
    """Return the end of what a script printed, without the folders of this machine."""
    lines = printed.strip().splitlines()[-_MOST_PRINTED:]
    named = [re.sub(rf'"[^"]*?/((?:{engine}|torch)/[^"]*)"', r'"\1"', line) for line in lines]
    return "\n".join(re.sub(r'"[^"]*/script\.py"', '"script.py"', line) for line in named)


def _place(fault: Fault, engine: str) -> str | None:
    """Name the line of a fault as the engine's wheel does."""
    if fault.site is None:
        return None
    return re.sub(rf"^.*?(?={engine}/)", "", f"{fault.site.file}:{fault.site.line}")
