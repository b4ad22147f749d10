"""What an engine is given and cannot use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from backend_caps.errors import BackendCapsError, CodedError


class EngineError(CodedError):
    """What an engine is given cannot be used; `code` names the cause."""

    codes: ClassVar[Mapping[str, str]] = {
        "attention-shape": "A backend's forward returned another shape than its contract says.",
        "chunk-sizes": "No chunk size is a multiple of the page size and within the limit.",
        "configuration": "A configuration was made for other models or options.",
        "context-length": "The flags ask for a longer context than the model was made for.",
        "disaggregation-mode": "An engine was asked for what engines of another mode do.",
        "draft-model": "A draft model is missing, or is named and nothing drafts with a model.",
        "flags": "The plan's flags ask for what this engine does not do.",
        "foreign-request": "A request was given to an engine that it was not submitted to.",
        "graph-token-count": "A graph is asked for more tokens than any step has.",
        "handover": "A handover is of another model, or of other shapes, than the engine.",
        "metrics-port": "Metrics cannot be served on an address and port.",
        "page-size": "No page size suits every backend of the plan.",
        "phase": "A forward needs a backend that the plan does not have.",
        "pool-shape": "A pool was asked for without room for anything.",
        "shared-phase": "Two parts of a composite serve one phase, layer by layer.",
        "speculation": "A flag names a speculation that this engine does not have.",
        "tree-mask-buffer": "A buffer for tree masks is smaller than a batch's mask can be.",
    }


def check_size(field: str, value: int) -> None:
    """Refuse a size below 1.

    Raises:
        EngineError: `pool-shape`.
    """
    if value < 1:
        message = f"{field} is {value}; at least 1 was expected. Make it larger."
        raise EngineError("pool-shape", message)


@dataclass(eq=False, kw_only=True)
class SamplingError(BackendCapsError):
    """A value of a request's sampling is out of its range."""

    field: str
    value: object
    expected: str

    @property
    def message(self) -> str:
        """The value, and its range."""
        return (
            f"sampling has {self.field}={self.value!r}; {self.expected} was expected. "
            f"Give Sampling(..., {self.field}=...) such a value."
        )


@dataclass(eq=False, kw_only=True)
class OutOfPagesError(BackendCapsError):
    """More pages of the KV cache were asked for than are free."""

    wanted: int
    free: int
    pages: int

    @property
    def message(self) -> str:
        """What was asked for, what there is, and what to do."""
        return (
            f"{self.wanted} pages of the KV cache were asked for, and {self.free} of {self.pages} "
            f"are free. Retract requests first, or make the cache larger."
        )


@dataclass(eq=False, kw_only=True)
class UnfitBackendError(BackendCapsError):
    """A backend of the plan declares that it does not take this model, device or page size."""

    problems: tuple[str, ...]

    @property
    def message(self) -> str:
        """Each misfit, and what to do."""
        return (
            f"the plan cannot run here: {' '.join(self.problems)} Backends that take all of it "
            f"were expected. Name others in --attention-backend, or change what they do not take; "
            f"backend-caps select shows which fit."
        )


@dataclass(eq=False, kw_only=True)
class EngineFailedError(BackendCapsError):
    """A step of the engine failed before, so what it holds of its requests is not true any more."""

    cause: str

    @property
    def message(self) -> str:
        """What failed, and what to do."""
        return (
            f"a step of this engine failed: {self.cause}; no further step was expected. Make a "
            f"new Engine, and submit the requests that have not ended there."
        )


@dataclass(eq=False, kw_only=True)
class EngineClosedError(BackendCapsError):
    """An engine was asked for more after it was closed."""

    @property
    def message(self) -> str:
        """That it was closed, and what to do."""
        return (
            "this engine was closed; requests and steps were expected before that. "
            "Make a new Engine, or leave its `with` block later."
        )


@dataclass(eq=False, kw_only=True)
class RequestTooLongError(BackendCapsError):
    """A request can never run: it is longer than the context or than the whole KV cache."""

    num_prompt_tokens: int
    max_new_tokens: int
    limit: int
    limited_by: str
    lookahead: int = 0
    """Slots behind it that speculative steps write to."""

    @property
    def message(self) -> str:
        """Its length, the limit, and what sets it."""
        behind = f", and {self.lookahead} behind them for drafts" if self.lookahead else ""
        return (
            f"a prompt of {self.num_prompt_tokens} tokens with max_new_tokens="
            f"{self.max_new_tokens} needs {self.num_prompt_tokens + self.max_new_tokens - 1} "
            f"tokens, the last one's keys aside{behind}; {self.limited_by} has {self.limit}. "
            f"Shorten one of them, or enlarge that."
        )


@dataclass(eq=False, kw_only=True)
class PromptError(BackendCapsError):
    """A prompt holds no token, or one that the model does not have."""

    problem: str
    expected: str

    @property
    def message(self) -> str:
        """What it holds, and what it may hold."""
        return f"a prompt {self.problem}; {self.expected}. Check the tokenizer that made it."
