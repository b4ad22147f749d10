"""Where every known SGLang has something, and how to tell that a version has it not there."""

from __future__ import annotations

from backend_caps.engines import problems
from backend_caps.engines.source.index import Index


def version_of(index: Index) -> str:
    """Return the version for a sentence about it."""
    return index.tree.version or "of unknown version"


def label_of(index: Index) -> str:
    """Name the version as `ENGINES` does."""
    return f"sglang-{index.tree.version or 'unknown'}"


def path_of(module: str) -> str:
    """Return the file of a module that is no package."""
    return module.replace(".", "/") + ".py"


def tell_missing(index: Index, what: str, path: str) -> None:
    """Tell that something is not in the file where known versions have it."""
    index.tell(problems.anchor_missing("sglang", version_of(index), what, path))
