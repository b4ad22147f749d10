"""What an engine is given and cannot use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from backend_caps.errors import BackendCapsError, CodedError


@dataclass(eq=False)
class EngineError(CodedError):
    """What an engine is given cannot be used; `code` names the cause."""

    codes: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "chunk-sizes": "No chunk size is a multiple of the page size and within the limit.",
            "graph-token-count": "A graph is asked for more tokens than any step has.",
            "metrics-port": "Metrics cannot be served on an address and port.",
            "tree-mask-buffer": "A buffer for tree masks is smaller than a batch's mask can be.",
        }
    )


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
class PoolShapeError(BackendCapsError):
    """A pool was asked for without room for anything."""

    field: str
    value: int

    @property
    def message(self) -> str:
        """The size, and the least one."""
        return f"{self.field} is {self.value}; at least 1 was expected. Make it larger."


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
class UnservedFlagsError(BackendCapsError):
    """The plan's flags ask for what this engine does not do."""

    flags: tuple[str, ...]
    """Each in its command-line spelling, with its value."""

    @property
    def message(self) -> str:
        """The flags, and what to do."""
        return (
            f"the plan was resolved with {', '.join(self.flags)}, which this engine does not do; "
            f"flags of one process that decodes text, with a KV cache of bfloat16, float16 or "
            f"float32, were expected. Resolve a plan without them."
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
class ContextTooLongError(BackendCapsError):
    """The flags ask for a longer context than the model was made for."""

    context_length: int
    max_position_embeddings: int

    @property
    def message(self) -> str:
        """Both lengths, and what to do."""
        return (
            f"--context-length is {self.context_length}; at most the model's "
            f"{self.max_position_embeddings} was expected. Lower it, or correct "
            f"max_position_embeddings in the model's config.json."
        )


@dataclass(eq=False, kw_only=True)
class AttentionShapeError(BackendCapsError):
    """A backend's forward returned another shape than its contract says."""

    backend: str
    layer_id: int
    shape: tuple[int, ...]
    expected: tuple[int, ...]

    @property
    def message(self) -> str:
        """The class, the layer and both shapes."""
        return (
            f"{self.backend}.forward returned shape {self.shape} in layer {self.layer_id}; "
            f"{self.expected}, tokens by heads times value features, was expected. Flatten the "
            f"heads there."
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
class ForeignRequestError(BackendCapsError):
    """A request was given to an engine that it was not submitted to."""

    number: int

    @property
    def message(self) -> str:
        """The request's number, and what to do."""
        return (
            f"request {self.number} is none of this engine's; one that its submit returned was "
            f"expected. Give it to the engine that it was submitted to."
        )


@dataclass(eq=False, kw_only=True)
class PageSizeError(BackendCapsError):
    """No page size suits every backend of the plan."""

    conflict: str

    @property
    def message(self) -> str:
        """The conflicting sizes, and what to do."""
        return (
            f"no page size suits every backend: {self.conflict}; one that they share was expected. "
            f"Name other backends, or give --page-size where one of them says too little."
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


@dataclass(eq=False, kw_only=True)
class UnservedPhaseError(BackendCapsError):
    """A forward needs a backend that the plan does not have."""

    phase: str
    served: tuple[str, ...]

    @property
    def message(self) -> str:
        """The phase, and the phases that have one."""
        served = ", ".join(sorted(self.served)) or "none"
        return (
            f"the plan has no use of phase {self.phase!r}; it has: {served}. "
            f"Resolve the plan from the uses of the server's flags: registry.uses(flags)."
        )


@dataclass(eq=False, kw_only=True)
class SharedUseError(BackendCapsError):
    """Two parts of a composite serve one phase, layer by layer."""

    phase: str
    backends: tuple[str, ...]

    @property
    def message(self) -> str:
        """The phase, the backends, and what this runtime can run."""
        return (
            f"phase {self.phase!r} is shared by {', '.join(map(repr, self.backends))}; one backend "
            f"a phase was expected. Name one of them in --attention-backend."
        )


@dataclass(eq=False, kw_only=True)
class ConfigurationMisfitError(BackendCapsError):
    """An engine was given a configuration that was made for other models or options."""

    field: str
    configured: str
    needed: str

    @property
    def message(self) -> str:
        """What was configured, what these models and options need, and how to get it."""
        return (
            f"the configuration's {self.field} is {self.configured}; {self.needed} was expected, "
            "for these models and options. Make the configuration by configure_engine, with the "
            "model_path, draft_model_path and options that the engine gets."
        )


@dataclass(eq=False, kw_only=True)
class UnusedDraftModelError(BackendCapsError):
    """A draft model is named, and nothing drafts with a model."""

    path: str
    algorithm: str | None

    @property
    def message(self) -> str:
        """The folder, the algorithm, and those that have a draft model."""
        asked = f"--speculative-algorithm {self.algorithm}" if self.algorithm else "no speculation"
        return (
            f"a draft model was given, {self.path!r}, and the plan has {asked}; EAGLE, EAGLE3 or "
            f"STANDALONE was expected. Name one of these, or leave the model out."
        )


@dataclass(eq=False, kw_only=True)
class MissingDraftModelError(BackendCapsError):
    """An algorithm drafts with a model, and none is named."""

    algorithm: str

    @property
    def message(self) -> str:
        """The algorithm, and where a model is named."""
        return (
            f"--speculative-algorithm {self.algorithm} drafts with a model, and none was given; a "
            f"Hugging Face folder of one was expected. Name it: Engine(..., draft_model_path=...)."
        )


@dataclass(eq=False, kw_only=True)
class SpeculationError(BackendCapsError):
    """A flag asks for a speculation that there is not."""

    flag: str
    value: object
    expected: str

    @property
    def message(self) -> str:
        """The flag's value, and what it may be."""
        return (
            f"{self.flag} is {self.value!r}; {self.expected} was expected. Give such a value, "
            f"or leave it to the engine's default."
        )


@dataclass(eq=False, kw_only=True)
class DisaggregationModeError(BackendCapsError):
    """An engine was asked for what engines of another mode do."""

    asked: str
    """The method that was called."""
    mode: str
    """The engine's."""
    expected: str
    """The mode that has the method."""

    @property
    def message(self) -> str:
        """The method, the mode, and the mode that has it."""
        return (
            f"{self.asked} was asked of an engine of --disaggregation-mode {self.mode}; one of "
            f"mode {self.expected} was expected. Ask such an engine, or resolve this one's plan "
            f"with --disaggregation-mode {self.expected}."
        )


@dataclass(eq=False, kw_only=True)
class HandoverMisfitError(BackendCapsError):
    """A handover is of another model, or of other shapes, than the engine that it was given to."""

    problems: tuple[str, ...]

    @property
    def message(self) -> str:
        """Every misfit, and what to do."""
        return (
            f"the handover does not fit this engine: {'; '.join(self.problems)}. The states of "
            f"the same models were expected, in the same dtypes. Make both engines from the same "
            f"folders, with the same --kv-cache-dtype and speculative flags."
        )
