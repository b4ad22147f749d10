"""Say in the log which graphs out-of-tree backends can replay, and what is wrong with that."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from backend_caps import BackendCapsError, Settings
from backend_caps.capability.backend import Backend
from backend_caps.capability.vocabulary import BatchKind
from backend_caps_vllm.engine import (
    ENGINE,
    check_version,
    later_plugins,
    registered,
)
from backend_caps_vllm.looking import Seen, look

# Below vLLM's own logger: no other one shows what is only information.
_LOG = logging.getLogger("vllm.backend_caps_vllm")
_FIELD = "graph_replay"


def check() -> None:
    """Log what out-of-tree backends state of graphs; vLLM's plugin loader calls it.

    Nothing is changed, and nothing is raised: vLLM would not start. A backend whose module nobody
    has imported is left alone.
    """
    try:
        found = check_version()
        for seen in list(seen_of(imports=False)):
            level = logging.WARNING if seen.fault else logging.INFO
            _LOG.log(level, "vLLM %s: %s", found, seen)
        _tell_of_later_plugins()
    except BackendCapsError as error:
        _LOG.error("%s", error)
    except Exception:  # noqa: BLE001 - vLLM does not isolate what a plugin raises
        _LOG.exception("backend-caps-vllm could not check the backends; vLLM goes on without it")


def seen_of(*, imports: bool) -> Iterator[Seen]:
    """Look at every out-of-tree backend, and compare it with what it declares to backend-caps.

    Args:
        imports: whether modules that are not there yet are imported.

    Raises:
        UnsupportedVLLMError: vLLM's registry is not as expected.
        BackendCapsError: a setting of backend-caps is refused.
    """
    found = registered()
    declared = _by_class(Settings.load().discover().values()) if found else {}
    for own in found:
        seen = look(own, imports=imports)
        backend = declared.get(own.path)
        yield seen if backend is None else _compared(seen, backend)


def _by_class(backends: Iterable[Backend]) -> Mapping[str, Backend]:
    """Find declared backends by the class that they name as their adapter for vLLM."""
    return {
        backend.declaration.adapters[ENGINE].replace(":", "."): backend
        for backend in backends
        if backend.declaration is not None and ENGINE in backend.declaration.adapters
    }


def _compared(seen: Seen, backend: Backend) -> Seen:
    """Hold what a class states to what its backend declares; what depends is not compared."""
    declaration = backend.declaration
    assert declaration is not None, "it was found by what it declares"
    declared = declaration.capabilities.stated().get(_FIELD)
    depends = any(_FIELD in when.capabilities.stated() for when in declaration.conditions)
    if not isinstance(declared, frozenset) or depends or seen.replays in {None, declared}:
        return seen
    assert seen.replays is not None, "None was left out above"
    fault = (
        f"Its class replays {_shown(seen.replays)}, and backend {backend.name!r} of "
        f"{backend.source.distribution} {backend.source.version} declares "
        f"{_FIELD}={_shown(declared)}. Correct one of the two."
    )
    return replace(seen, fault=" ".join(filter(None, (seen.fault, fault))))


def _shown(kinds: frozenset[BatchKind]) -> str:
    return f"{{{', '.join(sorted(kind.value for kind in kinds))}}}"


def _tell_of_later_plugins() -> None:
    said = os.environ.get("VLLM_PLUGINS")  # read as vLLM reads it
    if later := later_plugins(None if said is None else said.split(",")):
        _LOG.info(
            "vLLM calls these plugins later, and what they register was not looked at: %s. "
            "python -m backend_caps_vllm looks at all of them.",
            ", ".join(later),
        )
