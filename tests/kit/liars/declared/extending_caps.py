"""Declares by a class of its own, with a field that nobody else knows."""

from __future__ import annotations

from backend_caps import Capabilities, Declaration, Role


class AcmeDeclaration(Declaration):
    """States how many streams it has, too."""

    num_streams: int = 2


DECLARATION = AcmeDeclaration(
    capabilities=Capabilities(roles=frozenset(Role)),
    implementation="backend_caps_torch_native.padded:TorchPadded",
)
