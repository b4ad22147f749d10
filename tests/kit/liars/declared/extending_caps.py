"""Declares by a subclass, which no other process can read."""

from __future__ import annotations

from backend_caps import Capabilities, Declaration, Role


class AcmeDeclaration(Declaration):
    """States how many streams it has, too."""

    num_streams: int = 2


DECLARATION = AcmeDeclaration(
    capabilities=Capabilities(roles=frozenset(Role)),
    implementation="backend_caps_torch_native.padded:TorchPadded",
)
