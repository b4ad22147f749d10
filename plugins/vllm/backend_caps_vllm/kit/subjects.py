"""vLLM's backends as subjects of the kit: what their source declares, and what is tried."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import PurePosixPath
from types import ModuleType
from typing import Any

from backend_caps.capability.backend import Backend
from backend_caps.capability.declaration import Declaration
from backend_caps.capability.kind import Role
from backend_caps.capability.sets import OneOf
from backend_caps.capability.vocabulary import Capabilities, SharedReadsEnd
from backend_caps.discovery.registry import Registry
from backend_caps.kit import KitError, Subject
from backend_caps.kit.scenes import Pools
from backend_caps.runtime.attention import BackendSite
from backend_caps_vllm.kit.adapter import Adapted
from backend_caps_vllm.kit.engine_modules import ENGINE, VLLM, load_vllm
from backend_caps_vllm.kit.flex import stand_in_for_compiled
from backend_caps_vllm.kit.mla import AdaptedLatent

_RELIED_ON: Mapping[str, Any] = {
    "roles": frozenset({Role.TARGET}),
    "max_speculative_topk": 1,
    "two_batch_overlap": True,
    "sync_free_prepare": True,
    "shared_reads_end": SharedReadsEnd.PRE_REPLAY,
}
"""What the runner does with every class: it runs it in two microbatches, gives it chains of drafts,
builds its metadata while the step before runs, and copies what is shared into buffers for that.
"""
TRIED: Mapping[str, Capabilities] = {
    "TritonAttentionBackend": Capabilities(
        head_sizes=OneOf(frozenset({32, 64, 80, 128})), **_RELIED_ON
    ),
    "TritonMLABackend": Capabilities(head_sizes=OneOf(frozenset({16, 64})), **_RELIED_ON),
    "FlexAttentionBackend": Capabilities(head_sizes=OneOf(frozenset({16, 64, 128})), **_RELIED_ON),
}
"""What vLLM's classes do not declare, and its runner relies on all the same, by class."""
_ADAPTERS: Mapping[str, type[Adapted]] = {"TritonMLABackend": AdaptedLatent}
"""What calls a class, where it is not called as most are."""


def vllm_subject(registry: Registry, name: str) -> Subject:
    """Find a class of vLLM's by its name, and import it.

    Args:
        registry: what was read of vLLM's source.
        name: of the class.

    Raises:
        KitError: there is no adapter for it, or vLLM cannot be imported here.
    """
    if name not in TRIED or name not in registry:
        adapted = ", ".join(sorted(TRIED))
        problem = f"the kit has no adapter for it; of vLLM it checks {adapted}"
        raise KitError.uncheckable(name, problem)
    found, vllm = registry[name], load_vllm()
    declaration = _tried(found, vllm)
    if name == "FlexAttentionBackend":
        stand_in_for_compiled(_module_of(declaration))
    implementation = class_of(declaration)

    def build(site: BackendSite) -> Adapted:
        assert isinstance(site, Pools), "the kit brings pools of its own"
        return _ADAPTERS.get(name, Adapted)(vllm, implementation, site)

    return Subject(
        name=name,
        declaration=declaration,
        source=found.source,
        builder=build,
        words=("--engine", ENGINE),
    )


def windowed(subject: Subject, pools: BackendSite, window: int) -> Adapted:
    """Build a subject's backend for a layer with a sliding window."""
    assert isinstance(pools, Pools), "the kit brings pools of its own"
    adapter = _ADAPTERS.get(subject.name, Adapted)
    return adapter(load_vllm(), class_of(subject.declaration), pools, window=window)


def class_of(declaration: Declaration) -> Any:
    """Import the class of a declaration."""
    name = str(declaration.implementation).rpartition(":")[2]
    return vars(_module_of(declaration))[name]


def _module_of(declaration: Declaration) -> ModuleType:
    return import_module(str(declaration.implementation).partition(":")[0])


def _tried(backend: Backend, vllm: VLLM) -> Declaration:
    """Put what is tried, and where the class is, beside what it declares."""
    declaration = backend.declaration
    assert declaration is not None, "a class that was read has one"
    file = str(backend.source.declared_at).partition(":")[0]
    module = ".".join(PurePosixPath(file).with_suffix("").parts)
    located = declaration.model_copy(update={"implementation": f"{module}:{backend.name}"})
    tried = TRIED[backend.name].stated()
    # vLLM promises it where the server's environment asks for it.
    if vllm.module("envs").VLLM_BATCH_INVARIANT:
        tried = {**tried, "batch_invariant": class_of(located).supports_batch_invariance()}
    capabilities = declaration.capabilities.model_copy(update=tried)
    return located.model_copy(update={"capabilities": capabilities})
