"""SGLang's backends as subjects of the kit: what their source declares, and what is tried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from types import SimpleNamespace

from backend_caps.capability.backend import Backend
from backend_caps.capability.declaration import Declaration
from backend_caps.capability.kind import Role
from backend_caps.discovery.registry import Registry
from backend_caps.kit import KitError, Subject
from backend_caps.kit.scenes import Pools
from backend_caps.runtime.attention import BackendSite
from backend_caps_sglang.kit.adapter import Adapted
from backend_caps_sglang.kit.classes import ADAPTED
from backend_caps_sglang.kit.engine_modules import ENGINE, load_sglang
from backend_caps_sglang.kit.variants import PLAIN, ServedVariant

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
    if name not in ADAPTED or name not in registry:
        adapted = ", ".join(sorted(ADAPTED))
        problem = f"the kit has no adapter for it; of SGLang it checks {adapted}"
        raise KitError.uncheckable(name, problem)
    found = registry[name]
    load_sglang()
    subject = Subject(
        name=name,
        declaration=_tried(found),
        source=found.source,
        words=("--engine", ENGINE),
        stand_ins=ADAPTED[name].stand_ins,
    )
    return with_variant(subject, PLAIN)


def with_variant(subject: Subject, variant: ServedVariant) -> Subject:
    """Return a subject whose every layer is of a variant."""
    module, _, class_name = str(subject.declaration.implementation).partition(":")
    own = vars(import_module(module))[class_name]
    adapted = ADAPTED[subject.name]
    build = partial(_built, adapted.adapter, partial(adapted.build, own), variant)
    return replace(subject, builder=build)


def _built(
    adapter: type[Adapted],
    implementation: Callable[[SimpleNamespace], SimpleNamespace],
    variant: ServedVariant,
    site: BackendSite,
) -> Adapted:
    assert isinstance(site, Pools), "the kit brings pools of its own"
    return adapter(load_sglang(), implementation, site, variant)


def _tried(backend: Backend) -> Declaration:
    """Put what is tried beside what the class declares."""
    declaration, own = backend.declaration, ADAPTED[backend.name]
    assert declaration is not None, "a class that was read has one"
    roles: object = own.roles
    if own.roles is None:
        routed = declaration.capabilities.roles
        assert isinstance(routed, frozenset), "SGLang's routing says which roles a class has"
        roles = routed - _OTHERS
    tried = {**own.tried.stated(), "roles": roles}
    capabilities = declaration.capabilities.model_copy(update=tried)
    return declaration.model_copy(update={"capabilities": capabilities})
