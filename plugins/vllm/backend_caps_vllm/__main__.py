"""Load all of vLLM's plugins, and say what out-of-tree backends state of graphs.

    python -m backend_caps_vllm

Ends with status 1 where a backend has a fault, and with 2 where nothing could be looked at: there
is no vLLM, or a setting of backend-caps is refused.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module

from backend_caps import BackendCapsError
from backend_caps_vllm.engine import REGISTRIES, UnsupportedVLLMError, version_of_engine
from backend_caps_vllm.graph_statements import statements_of


def main() -> int:
    """Print a line a backend, and return the exit status."""
    try:
        found = version_of_engine()
        _import_registry()
        import_module("vllm.plugins").load_general_plugins()
        seen = list(statements_of(imports=True))
    except BackendCapsError as error:
        print(error, file=sys.stderr)  # noqa: T201 - a program's output
        return 2
    for own in seen:
        print(own)  # noqa: T201 - as above
    if not seen:
        print(f"vLLM {found} has no out-of-tree backend.")  # noqa: T201 - as above
    return 1 if any(own.fault for own in seen) else 0


def _import_registry() -> None:
    """Import the registry of backends from where this release has it."""
    for name in REGISTRIES:
        with suppress(ModuleNotFoundError):
            import_module(name)
            return
    raise UnsupportedVLLMError(found=f"it has none of {', '.join(REGISTRIES)}")


if __name__ == "__main__":
    sys.exit(main())
