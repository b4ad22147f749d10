"""The installed SGLang, as far as this plugin changes it, and only where it is as expected.

The range is the 0.5.23 line: what is hooked here was read and run there. SGLang moves these places
between patch releases (0.5.13's decision takes two arguments), so the version is held, and the
shape of each place is looked at too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pkgutil import resolve_name
from typing import TypeVar

from packaging.specifiers import SpecifierSet

from backend_caps_sglang.errors import UnsupportedSGLangError

SUPPORTED = ">=0.5.23,<0.5.24"
"""The versions that this plugin was written against."""
_DRAFTS = "sglang.srt.speculative.draft_utils:DraftBackendFactory"
_OVERLAP = "sglang.srt.managers.overlap_utils"
_REGISTRY = "sglang.srt.layers.attention.attention_registry"
_CHOICES = "sglang.srt.arg_groups.choices"
_HOOKS = "sglang.srt.plugins.hook_registry"
_NAME = "decide_needs_cpu_seq_lens"
DECISION = f"{_OVERLAP}.{_NAME}"
"""The function that ours takes the place of, as SGLang's hooks name it."""
_SIGNATURES = {
    f"{_OVERLAP}:{_NAME}": ("attn_backends",),
    f"{_REGISTRY}:register_attention_backend": ("name",),
    f"{_HOOKS}:HookRegistry.register": ("target", "hook", "hook_type", "source"),
    f"{_HOOKS}:HookRegistry.apply_hooks": (),
    f"{_DRAFTS}._create_backend": (
        "self",
        "backend_name",
        "backend_map",
        "error_template",
        "stamps_children",
    ),
    f"{_OVERLAP}:FutureMap.__init__": (
        "self",
        "device",
        "spec_algo",
        "req_to_token_pool",
        "needs_cpu_seq_lens",
        "needs_confidence_relay",
    ),
}
"""The parameters of each function that is called or replaced."""

Hook = tuple[object, object, object]
"""A hook as SGLang keeps it: its kind, the function and who hooked it."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """The places of SGLang that this plugin changes."""

    version: str
    backends: MutableMapping[str, object]
    """`ATTENTION_BACKENDS`: what makes a backend, by its name."""
    choices: list[str]
    """The names that the flags take."""
    deterministic_choices: list[str]
    """The names that deterministic inference takes."""
    draft_choices: list[str]
    """The names that a draft's own flag takes."""
    register_backend: Callable[..., object]
    """`register_attention_backend`."""
    hooks: MutableMapping[str, list[Hook]]
    """By target, what plugins hooked."""
    patched: set[str]
    """The targets to which hooks were applied; one more has no effect."""
    register_hook: Callable[..., object]
    """`HookRegistry.register`."""
    apply_hooks: Callable[..., object]
    """`HookRegistry.apply_hooks`, which SGLang calls when all plugins are loaded."""
    replace: object
    """The kind of hook that takes a function's place."""
    around: object
    """The kind of hook that is called in a function's place, and calls it."""
    after: object
    """The kind of hook that is called behind a function."""

    @classmethod
    def installed(cls) -> Engine:
        """Find SGLang's places, and change nothing.

        Raises:
            UnsupportedSGLangError: another version is installed, or a place is not as expected.
        """
        found = _version()
        for place, expected in _SIGNATURES.items():
            parameters = _parameters(place)
            if parameters != expected:
                shown = [", ".join(names) for names in (parameters, expected)]
                raise _unsupported(f"{place} takes ({shown[0]}), not ({shown[1]})")
        return cls(
            version=found,
            backends=_typed(f"{_REGISTRY}:ATTENTION_BACKENDS", dict),
            choices=_typed(f"{_CHOICES}:ATTENTION_BACKEND_CHOICES", list),
            deterministic_choices=_typed(
                f"{_CHOICES}:DETERMINISTIC_ATTENTION_BACKEND_CHOICES", list
            ),
            register_backend=_callable(f"{_REGISTRY}:register_attention_backend"),
            draft_choices=_typed(f"{_CHOICES}:DRAFT_ATTENTION_BACKEND_CHOICES", list),
            hooks=_typed(f"{_HOOKS}:HookRegistry._hooks", dict),
            patched=_typed(f"{_HOOKS}:HookRegistry._patched", set),
            register_hook=_callable(f"{_HOOKS}:HookRegistry.register"),
            apply_hooks=_callable(f"{_HOOKS}:HookRegistry.apply_hooks"),
            replace=_found(f"{_HOOKS}:HookType.REPLACE"),
            around=_found(f"{_HOOKS}:HookType.AROUND"),
            after=_found(f"{_HOOKS}:HookType.AFTER"),
        )

    def origin(self, name: str) -> str | None:
        """Say what SGLang has under a backend's name; None where it has nothing."""
        if name in self.backends:
            return f"{described(self.backends[name])} (SGLang {self.version})"
        return f"a choice of its flags (SGLang {self.version})" if name in self.choices else None

    def replacements(self) -> list[Hook]:
        """List the hooks that take the decision function's place."""
        return [hook for hook in self.hooks.get(DECISION, ()) if hook[0] is self.replace]


def described(thing: object) -> str:
    """Say where a function is from."""
    function = inspect.unwrap(thing) if callable(thing) else thing
    if inspect.isfunction(function):
        return f"{function.__module__}:{function.__qualname__}"
    return repr(function)


def _version() -> str:
    try:
        found = version("sglang")
    except PackageNotFoundError:
        raise _unsupported("no distribution named sglang is installed") from None
    if found not in SpecifierSet(SUPPORTED, prereleases=True):
        raise _unsupported(f"SGLang {found} is installed")
    return found


def _unsupported(found: str) -> UnsupportedSGLangError:
    return UnsupportedSGLangError(found=found, supported=SUPPORTED)


def _found(place: str) -> object:
    try:
        found: object = resolve_name(place)
    except Exception as error:  # an engine raises what it likes while it is imported
        raise _unsupported(f"{place} is not there ({type(error).__name__}: {error})") from error
    return found


def _callable(place: str) -> Callable[..., object]:
    found = _found(place)
    if not callable(found):
        raise _unsupported(f"{place} cannot be called")
    return found


def _parameters(place: str) -> tuple[str, ...]:
    function = _callable(place)
    try:
        return tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError) as error:
        raise _unsupported(f"{place} has no signature to read") from error


def _typed(place: str, kind: type[_T]) -> _T:
    found = _found(place)
    if not isinstance(found, kind):
        raise _unsupported(f"{place} is of type {type(found).__name__}, not {kind.__name__}")
    return found
