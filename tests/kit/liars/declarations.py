"""Liars whose declaration is none: no data, or not their own.

What they run is `TorchPadded`, and true of it. Their declarations are files of their own, in the
folder beside this one.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from backend_caps_torch_native import TorchPadded

from backend_caps import Capabilities, Declaration, Role, Source
from backend_caps.kit import Subject
from backend_caps.protocols import ModelRunner
from backend_caps.runtime import AttentionBackend, ForwardBatch
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


def _declared(module: str, seen: str, declaration: Declaration | None = None) -> Specimen:
    """Make a liar of a module in the folder, which says what it does in its first line.

    A declaration that is given is not imported here.
    """
    file = _FOLDER / f"{module.replace('.', '/')}.py"
    lines = file.read_text("utf-8").splitlines()
    line = next(at for at, text in enumerate(lines, start=1) if "DECLARATION" in text)
    lie = lines[0].strip('"')
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
    _declared("torch_dtypes_caps", "modelled on airflow#29625"),
    _declared("eager_plugin.caps", "modelled on torch-spyre#3659"),
    _declared("slow_caps", "modelled on opentelemetry-python#3054", _FEW),
    _declared("borrowing_caps", "modelled on torchtitan#3709"),
    _declared("renaming_caps", "modelled on torchtitan#3709"),
    _declared("looking_caps", "modelled on sglang#35343"),
    _declared("extending_caps", "modelled on vllm-ascend#4400"),
    *specimens_of(__name__),
)
