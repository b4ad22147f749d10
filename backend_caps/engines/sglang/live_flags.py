"""The flags of a live SGLang: from its `ServerArgs`, or from its runtime context.

Nothing of SGLang is imported with this module; the context is, when it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from types import ModuleType, SimpleNamespace

from backend_caps.capability.backend import Problem
from backend_caps.capability.fit import text_of
from backend_caps.errors import BackendCapsError
from backend_caps.resolution.errors import FlagValueError
from backend_caps.resolution.flags import ServerFlags, without_flags

_CONTEXT = "sglang.srt.runtime_context"
_WHEN_REFUSED: Mapping[str, object] = {
    "enable_two_batch_overlap": True,
    "disable_piecewise_cuda_graph": False,
    "enable_mixed_chunk": True,
    "disable_overlap_schedule": False,
    "speculative_num_steps": None,
}
"""What a flag counts as that has a value of another kind: never less than it may mean."""
_FLAGS = ("speculative_algorithm", *_WHEN_REFUSED)
_REQUIRED_LEAVES: Mapping[str, tuple[str, ...]] = {
    "enable_two_batch_overlap": ("get_exec", "overlap", "enable_two_batch_overlap"),
    "speculative_algorithm": ("get_spec", "speculative_algorithm"),
}
_OTHER_LEAVES: Mapping[str, tuple[str, ...]] = {
    "speculative_num_steps": ("get_spec", "speculative_num_steps"),
    "enable_mixed_chunk": ("get_schedule", "enable_mixed_chunk"),
    "disable_overlap_schedule": ("get_schedule", "disable_overlap_schedule"),
}
"""Not read by SGLang's function; where they are not there they count as not given."""


@dataclass(eq=False, kw_only=True)
class RuntimeContextError(BackendCapsError):
    """SGLang's runtime context, which holds the flags since 0.5.23, cannot be read."""

    cause: str

    @property
    def message(self) -> str:
        """What is missing, and the other way to give the flags."""
        return (
            f"{_CONTEXT} cannot be read: {self.cause}; expected the context of an SGLang 0.5.23 "
            "that has published its flags. Call after that, or give server_args first."
        )


def values_of_args(server_args: object) -> Mapping[str, object]:
    """Read the arguments by attribute; one that this version has no more is not given.

    Raises:
        FlagsError: the object has none of them at all.
    """
    present = {name: getattr(server_args, name) for name in _FLAGS if hasattr(server_args, name)}
    if not present:
        raise without_flags(server_args)
    return present


def values_of_context() -> Mapping[str, object]:
    """Read the flags from the context that SGLang publishes them in, since 0.5.23.

    Raises:
        RuntimeContextError: SGLang is not there, or has not published its flags.
    """
    try:
        context = import_module(_CONTEXT)
        required = {name: _leaf(context, path) for name, path in _REQUIRED_LEAVES.items()}
    except (ImportError, AttributeError, ValueError) as error:
        raise RuntimeContextError(cause=str(error)) from error
    return {**required, **dict(_leaves_there(context))}


def _leaves_there(context: ModuleType) -> Iterator[tuple[str, object]]:
    for name, path in _OTHER_LEAVES.items():
        try:
            yield name, _leaf(context, path)
        except (AttributeError, ValueError):
            continue


def _leaf(context: ModuleType, path: tuple[str, ...]) -> object:
    accessor, *names = path
    return reduce(getattr, names, getattr(context, accessor)())


def parsed_flags(values: Mapping[str, object]) -> tuple[ServerFlags, list[Problem]]:
    """Parse flags; one that has a value of another kind counts as the worst it may mean.

    Raises:
        FlagValueError: the speculative algorithm is no name.
    """
    parsed, problems = dict(values), []
    for name in (each for each in _WHEN_REFUSED if each in values):
        try:
            ServerFlags.from_object(SimpleNamespace(**{name: values[name]}))
        except FlagValueError as fault:
            worst = _WHEN_REFUSED[name]
            parsed[name] = worst
            shown = "not given" if worst is None else text_of(worst)
            problems.append(
                Problem(
                    code="live-server-flag-refused",
                    message=f"{fault.flag} is {fault.value} in SGLang's flags; expected "
                    f"{fault.expected}, so it counts as {shown}.",
                    remedy="Correct the value.",
                )
            )
    return ServerFlags.from_object(SimpleNamespace(**parsed)), problems
