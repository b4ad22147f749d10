"""What can be wrong where SGLang and declared backends meet."""

from __future__ import annotations

from dataclasses import dataclass

from backend_caps import BackendCapsError


@dataclass(eq=False, kw_only=True)
class UnsupportedSGLangError(BackendCapsError):
    """The installed SGLang is not one that this plugin was written for."""

    found: str
    supported: str

    @property
    def message(self) -> str:
        """What was found, what is supported, and what to do."""
        return (
            f"backend-caps-sglang changes nothing here: {self.found}; supported is SGLang "
            f"{self.supported}. Install such an SGLang, or a backend-caps-sglang for yours."
        )


@dataclass(eq=False, kw_only=True)
class NameTakenError(BackendCapsError):
    """A backend's name is one that SGLang has already."""

    name: str
    owner: str
    """The distribution that declares it, with its version."""
    taken_by: str
    """What SGLang has under the name."""

    @property
    def message(self) -> str:
        """Both origins, what holds, and what to do."""
        return (
            f"backend {self.name!r} of {self.owner} is not registered: SGLang has that name "
            f"already, for {self.taken_by}, which stays. Give the backend another name, or take "
            f"its adapter for sglang out of its declaration."
        )


@dataclass(eq=False, kw_only=True)
class DecisionTakenError(BackendCapsError):
    """Another plugin replaces the decision function, or it can be replaced no more."""

    target: str
    taken_by: str

    @property
    def message(self) -> str:
        """Who has it, and what to do."""
        return (
            f"{self.target} is replaced already, by {self.taken_by}; only one can be in its place. "
            f"Leave one of the two out of SGLANG_PLUGINS."
        )


@dataclass(eq=False, kw_only=True)
class AdapterError(BackendCapsError):
    """The adapter that a declaration names makes no backend of SGLang's."""

    backend: str
    owner: str
    adapter: str
    problem: str

    @property
    def message(self) -> str:
        """Whose it is, what is wrong, and what to do."""
        return (
            f"backend {self.backend!r} of {self.owner} cannot be built by its adapter for sglang, "
            f"{self.adapter}: {self.problem}. A callable was expected that takes SGLang's model "
            f"runner and returns a backend of its interface. Install what it needs, or name "
            f"another backend."
        )
