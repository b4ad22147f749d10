from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from backend_caps_flashinfer.package import FlashInferPackage

from . import fake

PACKAGE: FlashInferPackage = fake
"""The stand-in takes every call that the adapter may make: this line is checked with the types."""


@pytest.fixture(scope="module")
def fake_flashinfer() -> Iterator[None]:
    """Let `import flashinfer` find wrappers that compute anywhere, and need no workspace."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "flashinfer", PACKAGE)
        patch.setattr("backend_caps_flashinfer.backend._WORKSPACE_BYTES", 1)
        yield
