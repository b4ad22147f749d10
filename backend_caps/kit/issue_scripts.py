"""Scripts that show a finding with torch and an engine alone, and their runs.

A script is for the engine's maintainers: at most 60 lines, without this package. It fails with the
engine's own error, or by an `AssertionError`, for as long as the engine has the fault.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from backend_caps.kit.check import Fault
from backend_caps.kit.errors import KitError

MOST_LINES = 60
_SECONDS = 300.0
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptRun:
    """What a script printed, and whether that is the fault."""

    output: str
    """The end of what it printed, without folders of this machine."""
    shows: bool
    """Whether it failed as the finding says."""


def run_script(engine: str, script: IssueScript, fault: Fault) -> ScriptRun:
    """Run a script in a process of its own, with stand-ins for what the engine lacks without a GPU.

    Raises:
        KitError: it does not end.
    """
    has_gpu = torch.cuda.is_available()
    with TemporaryDirectory() as folder:
        file = Path(folder, "script.py")
        file.write_text(script.text, "utf-8")
        words = [str(file)] if has_gpu else ["-c", _RUNNER, engine, str(file)]
        variables = {} if has_gpu else script.variables
        try:
            done = subprocess.run(
                [sys.executable, *words],
                capture_output=True,
                text=True,
                check=False,
                timeout=_SECONDS,
                env={**os.environ, **variables},
            )
        except subprocess.TimeoutExpired as error:
            raise KitError.uncheckable(engine, f"a script ran for {_SECONDS:.0f} s") from error
    return ScriptRun(output=done.stderr, shows=_shows(done.returncode, done.stderr, fault))


def _shows(status: int, printed: str, fault: Fault) -> bool:
    """Return whether a script failed at the fault's line, or else by its own comparison."""
    if status == 0:
        return False
    if fault.site is not None:
        return f'{Path(fault.site.file).name}", line {fault.site.line}' in printed
    return "\nAssertionError: " in printed
