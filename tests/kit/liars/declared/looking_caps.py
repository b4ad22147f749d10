"""Declares something else in each process."""

from __future__ import annotations

import os

from backend_caps import Capabilities, Declaration, Role

DECLARATION = Declaration(
    capabilities=Capabilities(roles=frozenset(Role), max_speculative_topk=os.getpid()),
    implementation="backend_caps_torch_native.padded:TorchPadded",
)
