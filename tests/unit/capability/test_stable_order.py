from __future__ import annotations

import os
import subprocess
import sys

import pytest

_WRITES = """
from backend_caps.capability.declaration import Declaration
from tests.unit.capability.test_capabilities import EVERYTHING
print(Declaration(capabilities=EVERYTHING).model_dump_json())
"""
_RESOLVES = """
from backend_caps.capability.kind import Phase, Role
from backend_caps.report.plans import plan_document
from backend_caps.resolution.resolver import resolve
from tests.unit.building import READS, SPECULATING, flags, use
from tests.unit.capability.test_capabilities import EVERYTHING
said = {"fa3": EVERYTHING, "mla": READS}.items()
uses = [use(name, capabilities, phase=phase) for name, capabilities in said for phase in Phase]
print(plan_document(resolve(uses, flags(SPECULATING)), ()).model_dump_json())
"""


@pytest.mark.parametrize("program", [_WRITES, _RESOLVES], ids=["a declaration", "a plan"])
def test_what_is_written_does_not_depend_on_the_hash_seed(program: str) -> None:
    """Two processes whose sets are ordered differently write the same text, as ranks must."""
    paths = os.pathsep.join(filter(None, sys.path))

    written = {_output(program, {"PYTHONHASHSEED": seed, "PYTHONPATH": paths}) for seed in "123"}

    assert len(written) == 1


def _output(program: str, environ: dict[str, str]) -> str:
    run = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True
    )
    return run.stdout
