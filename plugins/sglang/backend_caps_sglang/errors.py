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
class RefutedBackendError(BackendCapsError):
    """The evidence beside a backend says that it does not do what it declares."""

    name: str
    owner: str
    """The distribution that declares it, with its version."""
    checks: tuple[str, ...]
    """Those that failed, each with the claims that it is about."""

    @property
    def message(self) -> str:
        """What failed, what holds, and what to do."""
        return (
            f"backend {self.name!r} of {self.owner} is not registered: its own evidence says that "
            f"it failed {'; '.join(self.checks)}. Correct the declaration or the class, and renew "
            f"the evidence: backend-caps check {self.name} --write-evidence."
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
            f"Name the plugins to load in SGLANG_PLUGINS, and of these two only one."
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


@dataclass(eq=False, kw_only=True)
class SchedulersDifferError(BackendCapsError):
    """Schedulers of one server registered different things. Raised in every one of them."""

    differences: tuple[str, ...]
    """One for each entry that differs, sorted."""

    @property
    def message(self) -> str:
        """Each entry with its values and their ranks, and what to do."""
        return (
            f"the schedulers of this server registered different things: "
            f"{'. '.join(self.differences)}. They were expected to be the same: install the same "
            f"distributions on every machine, and set SGLANG_PLUGINS and the variables "
            f"BACKEND_CAPS_* alike."
        )


@dataclass(eq=False, kw_only=True)
class LateSchedulerError(BackendCapsError):
    """A scheduler joins a running server, and is not as its schedulers are. Raised in it alone."""

    rank: int
    host: str
    differences: tuple[str, ...]

    @property
    def message(self) -> str:
        """Who, what is not the same, and what to do."""
        return (
            f"the scheduler of rank {self.rank} ({self.host}) joins a server whose schedulers "
            f"have agreed, and is not as they are: {'. '.join(self.differences)}. It was expected "
            f"to be the same: give it their flags, distributions and variables, or start all "
            f"again, so that they decide together."
        )


@dataclass(eq=False, kw_only=True)
class UnheardSchedulersError(BackendCapsError):
    """Schedulers of this server did not say what they decided: they may lack this plugin."""

    ranks: tuple[int, ...]
    size: int
    deadline_s: float

    @property
    def message(self) -> str:
        """Who, what holds, and what to do."""
        # Loads torch, which the other errors do without.
        from backend_caps.startup.errors import listed  # noqa: PLC0415

        return (
            f"of {self.size} schedulers, {listed(self.ranks)} did not say within "
            f"{self.deadline_s:g} s what was registered and decided, so needs_cpu_seq_lens is True "
            f"in the others; backend-caps-sglang was expected in all. Install it on the machines "
            f"of these ranks, or look in their logs for why it was refused; where they are only "
            f"slow, give more in BACKEND_CAPS_AGREEMENT_DEADLINE."
        )
