"""Looks about for a second before it declares."""

from __future__ import annotations

import time

from backend_caps import Capabilities, Declaration, Role

_BEGUN = time.process_time()
while time.process_time() < _BEGUN + 1.1:
    pass

DECLARATION = Declaration(
    capabilities=Capabilities(roles=frozenset(Role)),
    implementation="backend_caps_torch_native.padded:TorchPadded",
)
