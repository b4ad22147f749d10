"""The `speculators` package's own EAGLE3 head, imported from its wheel without its requirements.

The wheel is pure Python, so it is unpacked and imported as it is. Of what it imports, only the
training data loader asks for packages that are not installed here (`datasets`, `openai`); a module
with one name stands in for it.
"""

from __future__ import annotations

import sys
import warnings
import zipfile
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

WHEELS = Path(__file__).resolve().parents[2] / ".cache" / "wheels"
VERSION = "0.9.0"


def eagle3(folder: Path) -> Any:
    """Import the package's module of EAGLE3 heads, unpacked to a folder: a head saves its source.

    Raises:
        FileNotFoundError: the wheel is not there; the message has the command that fetches it.
    """
    found = sorted(WHEELS.glob(f"speculators-{VERSION}-*.whl"))
    if not found:
        raise FileNotFoundError(
            f"no wheel of speculators {VERSION} in .cache/wheels. Fetch it: "
            f"python -m pip download --no-deps speculators=={VERSION} -d .cache/wheels"
        )
    with zipfile.ZipFile(found[0]) as wheel:
        wheel.extractall(folder)
    sys.path.append(str(folder))
    training, data = ModuleType("speculators.train"), ModuleType("speculators.train.data")
    training.__path__ = []
    data.BatchType = dict  # type: ignore[attr-defined] # a name for annotations
    sys.modules |= {own.__name__: own for own in (training, data)}
    try:
        with warnings.catch_warnings():
            # It imports parts of torch that warn of others.
            warnings.simplefilter("ignore", DeprecationWarning)
            return import_module("speculators.models.eagle3")
    finally:
        sys.path.remove(str(folder))
