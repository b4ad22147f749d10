"""vLLM's backends as subjects of the kit: what their source declares, and what is tried."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import cast

from backend_caps.capability.backend import Backend
from backend_caps.capability.declaration import Declaration
from backend_caps.discovery.registry import Registry
from backend_caps.kit import KitError, Subject
from backend_caps.kit.layer_variants import PLAIN, LayerVariant
from backend_caps.kit.scenes import Pools
from backend_caps.runtime.attention import BackendSite
from backend_caps_vllm.kit.adapter import Adapted
from backend_caps_vllm.kit.classes import ADAPTED, NOT_ASKED
from backend_caps_vllm.kit.engine_modules import ENGINE, VLLM, load_vllm


def vllm_subject(registry: Registry, name: str) -> Subject:
    """Find a class of vLLM's by its name, and import it.

    Args:
        registry: what was read of vLLM's source.
        name: of the class.

    Raises:
        KitError: there is no adapter for it, or vLLM cannot be imported here.
    """
    if name not in ADAPTED or name not in registry:
        adapted, reason = ", ".join(sorted(ADAPTED)), NOT_ASKED.get(name)
        because = "" if reason is None else f", since {reason}"
        problem = f"the kit has no adapter for it{because}; of vLLM it checks {adapted}"
        raise KitError.uncheckable(name, problem)
    found, vllm = registry[name], load_vllm()
    subject = Subject(
        name=name,
        declaration=_tried(found, vllm),
        source=found.source,
        words=("--engine", ENGINE),
        stand_ins=ADAPTED[name].stand_ins,
        takes=ADAPTED[name].takes,
    )
    class_of(subject.declaration)  # raises here what its import raises
    return replace(subject, builder=partial(built, subject))


def built(subject: Subject, site: BackendSite, variant: LayerVariant = PLAIN) -> Adapted:
    """Build a subject's backend for a layer of a variant."""
    assert isinstance(site, Pools), "the kit brings pools of its own"
    own = class_of(subject.declaration)
    return ADAPTED[subject.name].adapter(load_vllm(), own, site, variant)


def class_of(declaration: Declaration) -> type:
    """Import the class of a declaration."""
    module, _, name = str(declaration.implementation).partition(":")
    found: type = vars(import_module(module))[name]
    return found


def _tried(backend: Backend, vllm: VLLM) -> Declaration:
    """Put what is tried, and where the class is, beside what it declares."""
    declaration = backend.declaration
    assert declaration is not None, "a class that was read has one"
    file = str(backend.source.declared_at).partition(":")[0]
    module = ".".join(PurePosixPath(file).with_suffix("").parts)
    located = declaration.model_copy(update={"implementation": f"{module}:{backend.name}"})
    tried = ADAPTED[backend.name].tried.stated()
    # vLLM promises it where the server's environment asks for it.
    if vllm.module("envs").VLLM_BATCH_INVARIANT:
        own = cast("SimpleNamespace", class_of(located))
        tried = {**tried, "batch_invariant": own.supports_batch_invariance()}
    capabilities = declaration.capabilities.model_copy(update=tried)
    return located.model_copy(update={"capabilities": capabilities})
