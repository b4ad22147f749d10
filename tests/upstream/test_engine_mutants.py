"""Faults put into engines' Triton backends are found, each by its own check."""

from __future__ import annotations

import subprocess
from functools import cache

import pytest

from tests.upstream.engine_findings import ROOT
from tests.upstream.engine_mutants import MUTANTS
from tests.upstream.sglang_findings import FINDINGS as SGLANG
from tests.upstream.vllm_findings import FINDINGS as VLLM

pytestmark = [pytest.mark.upstream, pytest.mark.installed_engine, pytest.mark.timeout(1800)]

ENGINES = {"sglang": SGLANG, "vllm": VLLM}


@cache
def found(engine: str, *words: str) -> frozenset[str]:
    """Run a mutant, or its check on the class as it is, beside the engine; return what is found."""
    there = ENGINES[engine]
    done = subprocess.run(
        [str(there.python), "-m", "tests.upstream.engine_mutants", engine, *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**there.environment(), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return frozenset(done.stdout.splitlines())


@pytest.mark.parametrize(
    ("engine", "name"), [(engine, name) for engine, own in MUTANTS.items() for name in own]
)
def test_mutant_is_found_by_its_check(engine: str, name: str) -> None:
    """The check finds of a class with a fault what it does not find of the class as it is."""
    mutant = MUTANTS[engine][name]
    # Mutants of one check and effort share the run of the class as it is.
    alike = next(
        other
        for other, own in MUTANTS[engine].items()
        if (own.check, own.effort) == (mutant.check, mutant.effort)
    )

    assert found(engine, name) - found(engine, alike, "--plain")
