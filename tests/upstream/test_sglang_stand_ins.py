"""The stand-ins that a server of SGLang runs on here, held to SGLang's own kernels."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.machine import ROOT
from tests.upstream.sglang_server import PYTHON

pytestmark = [pytest.mark.upstream, pytest.mark.sglang, pytest.mark.timeout(600)]


def test_stand_ins_write_what_sglangs_kernels_write() -> None:
    """Each speculative operator is SGLang's Triton kernel of that name, over ten random draws."""
    done = subprocess.run(
        [PYTHON, "-m", "tests.upstream.sglang_operators"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )

    assert done.stdout, done.stderr
    assert json.loads(done.stdout) == []
