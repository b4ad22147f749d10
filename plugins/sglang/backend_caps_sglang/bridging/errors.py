"""What cannot be bridged, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass

from backend_caps import BackendCapsError


@dataclass(eq=False, kw_only=True)
class UnbridgedBackendError(BackendCapsError):
    """A backend cannot serve the model, the machine or the flags of this server."""

    backend: str
    reasons: tuple[str, ...]

    @property
    def message(self) -> str:
        """Each reason, and what to do."""
        return (
            f"backend {self.backend!r} cannot be bridged into this server: "
            f"{'; '.join(self.reasons)}. Change what it does not take, or name another backend in "
            f"--attention-backend."
        )


@dataclass(eq=False, kw_only=True)
class ContradictedDeclarationError(BackendCapsError):
    """A backend's class does otherwise than its declaration says."""

    backend: str
    place: str
    """The class, as the declaration names it."""
    contradictions: tuple[str, ...]

    @property
    def message(self) -> str:
        """Each contradiction, and what to do."""
        return (
            f"backend {self.backend!r} does not serve, for its class {self.place} contradicts its "
            f"declaration: {'; '.join(self.contradictions)}. Correct the declaration or the class; "
            f"backend-caps check {self.backend} finds what a start cannot see."
        )


@dataclass(eq=False, kw_only=True)
class UnbridgedLayerError(BackendCapsError):
    """A layer asks for what a backend of backend-caps is not told."""

    backend: str
    layer_id: int
    reasons: tuple[str, ...]

    @property
    def message(self) -> str:
        """Each reason, and what to do."""
        return (
            f"backend {self.backend!r} cannot serve layer {self.layer_id} through the bridge: "
            f"{'; '.join(self.reasons)}. Plain causal attention was expected; name another backend "
            f"in --attention-backend for this model."
        )


@dataclass(eq=False, kw_only=True)
class UnbridgedBatchError(BackendCapsError):
    """A forward is of a mode that the bridge does not carry over."""

    backend: str
    mode: str
    bridged: tuple[str, ...]

    @property
    def message(self) -> str:
        """The mode, those that are carried over, and what to do."""
        return (
            f"backend {self.backend!r} got a batch of mode {self.mode} through the bridge; "
            f"{', '.join(self.bridged)} were expected. Take the flag away that asks for it, or "
            f"name another backend in --attention-backend."
        )


@dataclass(eq=False, kw_only=True)
class UnreplayedBatchError(BackendCapsError):
    """SGLang captures a graph of batches that the backend does not declare to replay."""

    backend: str
    kind: str
    declared: tuple[str, ...]
    flag: str

    @property
    def message(self) -> str:
        """What is captured, what is declared, and the flag that leaves it out."""
        return (
            f"SGLang captures a graph of {self.kind} batches, and backend {self.backend!r} "
            f"declares graph_replay={{{', '.join(self.declared)}}}. Start the server with "
            f"{self.flag}."
        )
