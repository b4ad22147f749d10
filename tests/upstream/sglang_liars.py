"""A third party's plugin for SGLang whose declaration is that of `torch_padded`, and not true."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from torch_native_caps import TORCH_PADDED

from backend_caps import Declaration
from backend_caps.capability.evidence import declaration_digest
from backend_caps.discovery.evidence import Implementation
from tests.unit.evidence import FAILED, evidence

NAME = "liar"
LIES: Mapping[str, tuple[str, str]] = {
    "reads-lengths": (
        "backend_caps_torch_native.native:TorchNative",
        (
            "TorchNative contradicts its declaration: it declares host_seq_lens=none, and "
            "TorchNative reads seq_lens_cpu in init_forward_metadata"
        ),
    ),
    "is-refuted": (
        "liar_backend:Refuted",
        (
            "backend 'liar' of liar 1.0 is not registered: its own evidence says that it failed "
            "check-host-seq-lens (host_seq_lens)"
        ),
    ),
}
"""By kind, the class that is declared, and what a server's log says of it."""
_CAPS = """\
from torch_native_caps import TORCH_PADDED

DECLARATION = TORCH_PADDED.model_copy(update={changes})
"""
_ADAPTER = """\
from backend_caps_sglang.bridge import bridge
from liar_caps import DECLARATION

liar = bridge("liar", DECLARATION)
"""
_BACKEND = "from backend_caps_torch_native.padded import TorchPadded as Refuted\n"


def install_liar(folder: Path, lie: str) -> None:
    """Install a distribution of one backend, named `liar`, into a folder."""
    place, _ = LIES[lie]
    changes = {"implementation": place, "adapters": {"sglang": "liar_sglang:liar"}}
    files = {
        "liar_caps.py": _CAPS.format(changes=changes),
        "liar_sglang.py": _ADAPTER,
        "liar_backend.py": _BACKEND,
        "liar-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: liar\nVersion: 1.0\n",
        "liar-1.0.dist-info/entry_points.txt": (
            "[backend_caps.backends]\nliar = liar_caps:DECLARATION\n"
        ),
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, "utf-8")
    if lie == "is-refuted":
        _refute(folder, place, TORCH_PADDED.model_copy(update=changes))


def _refute(folder: Path, place: str, declaration: Declaration) -> None:
    """Write evidence of what is installed, in which the check of host lengths failed."""
    implementation = Implementation.of(place, [str(folder)])
    assert implementation is not None, place
    written = evidence({"host_seq_lens": FAILED})
    versions = written.versions.model_copy(
        update={"distribution": NAME, "torch": version("torch").partition("+")[0]}
    )
    file = implementation.evidence_file(NAME)
    file.parent.mkdir()
    changes: Mapping[str, object] = {
        "backend": NAME,
        "kit_version": version("backend-caps"),
        "versions": versions,
        "source": implementation.digest(),
        "declaration": declaration_digest(declaration),
    }
    file.write_text(written.model_copy(update=changes).text(), "utf-8")
