"""What vLLM's plugin loader calls in every process, and what follows in those with a worker.

A plugin that raises ends the process, so only what the policy strict refuses is raised.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from backend_caps import BackendCapsError, Settings
from backend_caps.resolution.plan import Policy
from backend_caps_vllm.engine import CACHE, DEVICE, later_plugins, version_of_engine, worker_wrapper
from backend_caps_vllm.graph_statements import statements_of
from backend_caps_vllm.live import GraphWords, is_first_of_stage, live_server
from backend_caps_vllm.metrics import offer
from backend_caps_vllm.start import RefusedStartError, announce

# Below vLLM's own logger: no other one shows what is only information.
_LOG = logging.getLogger("vllm.backend_caps_vllm")
_Wrapper: TypeAlias = Any
"""A `WorkerWrapperBase`."""
_HOOKED: set[type] = set()
_WARNINGS: WeakKeyDictionary[_Wrapper, GraphWords] = WeakKeyDictionary()


def check() -> None:
    """Log what out-of-tree backends state of graphs, and have the plan logged once it is known.

    vLLM's plugin loader calls it in every process. Nothing is raised here: a vLLM that lacks what
    is hooked is one line, and so is a setting that is refused. A backend whose module is not
    imported yet is left alone.
    """
    try:
        found, wrapper = version_of_engine(), worker_wrapper()
        for seen in list(statements_of(imports=False)):
            level = logging.WARNING if seen.fault else logging.INFO
            _LOG.log(level, "vLLM %s: %s", found, seen)
        _log_later_plugins()
        offer(os.environ)
        hook(wrapper)
    except BackendCapsError as error:
        _LOG.error("%s", error)
    except Exception:  # noqa: BLE001 - vLLM does not isolate what a plugin raises
        _LOG.exception("backend-caps-vllm could not check the backends; vLLM goes on without it")


def _log_later_plugins() -> None:
    said = os.environ.get("VLLM_PLUGINS")  # read as vLLM reads it
    if later := later_plugins(None if said is None else said.split(",")):
        _LOG.info(
            "vLLM calls these plugins later, and what they register was not looked at: %s. "
            "python -m backend_caps_vllm looks at all of them.",
            ", ".join(later),
        )


def hook(wrapper: type) -> None:
    """Collect warnings while a model is loaded, and log the plan once its cache is there."""
    if wrapper not in _HOOKED:
        _HOOKED.add(wrapper)
        for name, around in ((DEVICE, _with_warnings), (CACHE, _with_plan)):
            setattr(wrapper, name, around(vars(wrapper)[name]))


def _with_warnings(original: Callable[..., object]) -> Callable[..., object]:
    @wraps(original)
    def init_device(self: _Wrapper) -> object:
        _WARNINGS[self] = GraphWords(self.vllm_config)
        return original(self)

    return init_device


def _with_plan(original: Callable[..., object]) -> Callable[..., object]:
    @wraps(original)
    def initialize_from_config(self: _Wrapper, kv_cache_configs: object) -> object:
        words = _WARNINGS.pop(self, None) or GraphWords(self.vllm_config)
        try:
            done = original(self, kv_cache_configs)
        finally:
            words.close()
        _log_plan(self, words)
        return done

    return initialize_from_config


def _log_plan(wrapper: _Wrapper, words: GraphWords) -> None:
    """Log the plan of a worker.

    Raises:
        RefusedStartError: the policy is strict, and something is wrong, or cannot be checked.
    """
    settings = None
    try:
        if is_first_of_stage(wrapper):
            settings = Settings.load()
            announce(live_server(wrapper, version_of_engine(), words), settings)
    except RefusedStartError:
        raise
    except BackendCapsError as error:
        _LOG.error("%s", error)
    except Exception as error:
        if settings is not None and settings.policy is Policy.STRICT:
            unread = f"its plan could not be read ({type(error).__name__}: {error})."
            raise RefusedStartError(problems=(unread,)) from error
        _LOG.exception("backend-caps-vllm could not read the plan; vLLM goes on without it")
