"""SGLang's backends as subjects of the kit: what their source declares, and what is tried."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from types import SimpleNamespace

from backend_caps.capability.backend import Backend
from backend_caps.capability.declaration import Declaration
from backend_caps.capability.kind import Role
from backend_caps.capability.sets import OneOf
from backend_caps.capability.vocabulary import BatchKind, Capabilities
from backend_caps.discovery.registry import Registry
from backend_caps.kit import KitError, Subject
from backend_caps.kit.scenes import Pools
from backend_caps.runtime.attention import BackendSite
from backend_caps_sglang.kit.adapter import Adapted
from backend_caps_sglang.kit.engine_modules import ENGINE, load_sglang
from backend_caps_sglang.kit.variants import PLAIN, LayerVariant

TRIED: Mapping[str, Capabilities] = {
    "TorchNativeAttnBackend": Capabilities(
        dtypes=frozenset({"float32", "bfloat16", "float16"}),
        head_sizes=OneOf(frozenset({16, 64, 80, 128, 256})),
        page_sizes=OneOf(frozenset({1, 16, 64})),
        max_speculative_topk=1,
        two_batch_overlap=True,
    ),
    "TritonAttnBackend": Capabilities(
        dtypes=frozenset({"float32", "bfloat16", "float16"}),
        head_sizes=OneOf(frozenset({16, 64, 80, 128, 256})),
        page_sizes=OneOf(frozenset({1, 16, 64})),
        max_speculative_topk=3,
        two_batch_overlap=True,
        graph_replay=frozenset({BatchKind.SINGLE_TOKEN_DECODE, BatchKind.UNIFORM_BATCH}),
    ),
}
"""What SGLang's classes do not declare, and its server relies on all the same.

It runs either class in two-batch overlap, captures Triton's decodes and verifies, and gives it
trees; of torch_native it captures nothing.
"""
_OTHERS = frozenset({Role.DRAFT})
"""Roles whose decode SGLang gives to another class, a container of steps, which has no adapter."""


def sglang_subject(registry: Registry, name: str) -> Subject:
    """Find a class of SGLang's by its name, and import it.

    Args:
        registry: what was read of SGLang's source.
        name: of the class.

    Raises:
        KitError: there is no adapter for it, or SGLang cannot be imported here.
    """
    if name not in TRIED or name not in registry:
        adapted = ", ".join(sorted(TRIED))
        problem = f"the kit has no adapter for it; of SGLang it checks {adapted}"
        raise KitError.uncheckable(name, problem)
    found = registry[name]
    load_sglang()
    declaration = _tried(found)
    module, _, class_name = str(declaration.implementation).partition(":")
    implementation = vars(import_module(module))[class_name]

    return Subject(
        name=name,
        declaration=declaration,
        source=found.source,
        builder=partial(_built, implementation, PLAIN),
        words=("--engine", ENGINE),
    )


def with_variant(subject: Subject, variant: LayerVariant) -> Subject:
    """Return a subject whose every layer is of a variant."""
    module, _, class_name = str(subject.declaration.implementation).partition(":")
    implementation = vars(import_module(module))[class_name]
    return replace(subject, builder=partial(_built, implementation, variant))


def _built(
    implementation: Callable[[SimpleNamespace], SimpleNamespace],
    variant: LayerVariant,
    site: BackendSite,
) -> Adapted:
    assert isinstance(site, Pools), "the kit brings pools of its own"
    return Adapted(load_sglang(), implementation, site, variant)


def _tried(backend: Backend) -> Declaration:
    """Put what is tried beside what the class declares."""
    declaration = backend.declaration
    assert declaration is not None, "a class that was read has one"
    roles = declaration.capabilities.roles
    assert isinstance(roles, frozenset), "SGLang's routing says which roles a class has"
    tried = {**TRIED[backend.name].stated(), "roles": roles - _OTHERS}
    capabilities = declaration.capabilities.model_copy(update=tried)
    return declaration.model_copy(update={"capabilities": capabilities})
