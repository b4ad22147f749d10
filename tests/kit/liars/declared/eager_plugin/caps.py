"""Declares inside a package that imports the implementation."""

from __future__ import annotations

from backend_caps import Capabilities, Declaration, Role

DECLARATION = Declaration(
    capabilities=Capabilities(roles=frozenset(Role)),
    implementation="backend_caps_torch_native.padded:TorchPadded",
)
