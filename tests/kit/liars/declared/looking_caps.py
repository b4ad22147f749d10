"""Declares by what it finds in the process that reads it."""

from __future__ import annotations

import os

from backend_caps import Capabilities, Declaration, Role

DECLARATION = Declaration(
    capabilities=Capabilities(roles=frozenset(Role), max_speculative_topk=os.getpid()),
    implementation="backend_caps_torch_native.padded:TorchPadded",
)
