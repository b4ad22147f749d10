"""Liars whose declaration is none: no data, or not their own.

What they run is `TorchPadded`, and true of it. Their declarations are files of their own, in the
folder beside this one.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from backend_caps_torch_native import TorchPadded

from backend_caps import Capabilities, Declaration, Role
from backend_caps.capability.provenance import Source
from backend_caps.kit import Subject
from backend_caps.protocols import ModelRunner
from backend_caps.runtime.attention import AttentionBackend
from backend_caps.runtime.forward_batch import ForwardBatch
from tests.kit.specimen import NO_GRAPHS, Specimen, liar, specimens_of

_FOLDER = Path(__file__).parent / "declared"


_FEW = Declaration(
    capabilities=Capabilities(roles=frozenset(Role)),
    implementation="backend_caps_torch_native.padded:TorchPadded",
)
"""What most of the files declare."""


@liar("declaration-hygiene", seen="sglang#20777", **NO_GRAPHS)
class Unforwarded:
    """Claims what its part does, and does not hand `init_cuda_graph_state` on."""

    def __init__(self, site: ModelRunner) -> None:
        self._part: AttentionBackend = TorchPadded(site)
        self.forward = self._part.forward

    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        """Hand it on."""
        self._part.init_forward_metadata(batch)

    def init_forward_metadata_out_graph(self, batch: ForwardBatch) -> None:
        """Hand it on."""
        self._part.init_forward_metadata_out_graph(batch)

    def init_forward_metadata_in_graph(self, batch: ForwardBatch) -> None:
        """Hand it on."""
        self._part.init_forward_metadata_in_graph(batch)


def _declared(module: str, lie: str, seen: str, declaration: Declaration | None = None) -> Specimen:
    """Make a liar of a declaration in the folder; one that is given is not imported here."""
    file = _FOLDER / f"{module.replace('.', '/')}.py"
    lines = file.read_text("utf-8").splitlines()
    line = next(at for at, text in enumerate(lines, start=1) if "DECLARATION" in text)
    subject = Subject(
        name=module.partition(".")[0].removesuffix("_caps"),
        declaration=declaration or _imported(module),
        source=Source(distribution="acme", declared_at=f"{file}:{line}"),
    )
    return Specimen(behaviour=lie, seen=seen, check="declaration-hygiene", subject=subject)


def _imported(module: str) -> Declaration:
    sys.path.insert(0, str(_FOLDER))
    try:
        found: object = vars(import_module(module))["DECLARATION"]
    finally:
        sys.path.remove(str(_FOLDER))
    assert isinstance(found, Declaration)
    return found


LIARS: tuple[Specimen, ...] = (
    _declared(
        "torch_dtypes_caps",
        "Imports torch to name its dtypes.",
        "modelled on airflow#29625",
    ),
    _declared(
        "eager_plugin.caps",
        "Declares inside a package that imports the implementation.",
        "modelled on torch-spyre#3659",
    ),
    _declared(
        "slow_caps",
        "Looks about for a second before it declares.",
        "modelled on opentelemetry-python#3054",
        _FEW,
    ),
    _declared(
        "borrowing_caps",
        "Copies another plugin's declaration, and with it claims that it does not state.",
        "modelled on torchtitan#3709",
    ),
    _declared(
        "renaming_caps",
        "Declares another plugin's very object.",
        "modelled on torchtitan#3709",
    ),
    _declared(
        "looking_caps",
        "Declares something else in each process.",
        "modelled on sglang#35343",
    ),
    _declared(
        "extending_caps",
        "Declares by a subclass, which no other process can read.",
        "modelled on vllm-ascend#4400",
    ),
    *specimens_of(__name__),
)
