"""What can be wrong where SGLang and declared backends meet, and what cannot be bridged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from backend_caps import BackendCapsError
from backend_caps.errors import CodedError

NOTHING = "nothing"
"""What stands in the place of an entry that one side lacks."""


def entry_differences(there: Mapping[str, str], here: Mapping[str, str]) -> tuple[str, ...]:
    """Say of each entry that is not the same on two sides what it is on each."""
    return tuple(
        f"{name} is {there.get(name, NOTHING)} there, and {here.get(name, NOTHING)} here"
        for name in sorted({*there, *here})
        if there.get(name) != here.get(name)
    )


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
class ParentDiffersError(BackendCapsError):
    """A process registered something else than the process that started it."""

    parent: int
    """The process id of the one that started this."""
    differences: tuple[str, ...]
    """One for each entry that differs, sorted."""

    @property
    def message(self) -> str:
        """Each entry with both sides, and what to do."""
        return (
            f"this process and the one that started it, {self.parent}, registered different "
            f"things: {'; '.join(self.differences)}. They were expected to be the same: start the "
            f"server from one environment, and change nothing installed while it starts."
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


class DecisionError(CodedError):
    """`decide_needs_cpu_seq_lens` was called with what it cannot use, or too early."""

    codes: ClassVar[Mapping[str, str]] = {
        "attn-backends-no-sequence": "what SGLang hands over as backends is no sequence",
        "runtime-context-unreadable": "SGLang's runtime context has not published its flags",
    }


class BridgeError(CodedError):
    """A backend of backend-caps cannot serve in this SGLang through the bridge."""

    codes: ClassVar[Mapping[str, str]] = {
        "backend-unbridged": "It cannot serve the model, the machine or the flags of this server.",
        "batch-unbridged": "A forward is of a mode that the bridge does not carry over.",
        "batch-unreplayed": "A graph is captured of batches that it does not declare to replay.",
        "declaration-contradicted": "Its class does otherwise than its declaration says.",
        "layer-unbridged": "A layer asks for what a backend of backend-caps does not receive.",
    }


def unbridged_backend(name: str, reasons: Iterable[str]) -> BridgeError:
    """Refuse a backend that cannot serve this server."""
    return BridgeError(
        "backend-unbridged",
        f"backend {name!r} cannot be bridged into this server: {'; '.join(reasons)}. Change what "
        "it does not take, or name another backend in --attention-backend.",
    )
