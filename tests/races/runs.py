"""Run any case, in a process or under a mutant, and turn what is raised into findings."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from backend_caps.errors import BackendCapsError
from backend_caps.simulator.errors import SimDeviceError
from tests.races.capture_runs import run_captures
from tests.races.cases import Case, Fault, Finding, Program
from tests.races.engine_runs import EndlessError, prepare, run_engine, trace_of
from tests.races.failed_runs import run_ended, run_profiled
from tests.races.handover_runs import run_handovers
from tests.races.mixed_loop import run_mixed
from tests.races.mutation import Mutant, mutated
from tests.races.speculative_loop import run_speculative

_RUNS: Mapping[Program, Callable[[Case, Path], tuple[Finding, ...]]] = {
    Program.ENGINE: run_engine,
    Program.REPLAYS: run_engine,
    Program.DRAFTS: run_engine,
    Program.HANDOVERS: run_handovers,
    Program.ENDS: run_ended,
    Program.SPECULATIVE: run_speculative,
    Program.MIXED: run_mixed,
    Program.CAPTURES: run_captures,
    Program.PROFILES: run_profiled,
}
COMPARED = frozenset({Program.ENGINE, Program.REPLAYS, Program.DRAFTS, Program.HANDOVERS})
"""Those that are compared with runs of code as it is."""


def run_case(case: Case, folder: Path) -> tuple[Finding, ...]:
    """Run a case, and list what is wrong; what the device or the host raises is a finding too.

    Args:
        case: what to run.
        folder: the models'.
    """
    try:
        return run_raising(case, folder)
    except EndlessError as error:
        return (Finding(fault=Fault.ENDLESS, what=str(error)),)
    except SimDeviceError as error:
        return (Finding(fault=Fault.DEVICE, what=error.message),)
    except (AssertionError, BackendCapsError, LookupError, RuntimeError, ValueError) as error:
        return (Finding(fault=Fault.HOST, what=f"{type(error).__name__}: {error}"),)


def run_mutated(mutant: Mutant, case: Case, folder: Path) -> tuple[Finding, ...]:
    """Run a case with a mutant in place, beside what the code as it is makes of it."""
    if case.program in COMPARED:
        prepare(trace_of(case), folder)
    with mutated(mutant):
        return run_case(case, folder)


def run_raising(case: Case, folder: Path) -> tuple[Finding, ...]:
    """Run a case, and list what is wrong; what is raised goes to the caller, with its traceback."""
    with _steady_memory():
        return _RUNS[case.program](case, folder)


@contextmanager
def _steady_memory() -> Iterator[None]:
    """Free memory by reference counts alone: when a collection comes depends on the process."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
