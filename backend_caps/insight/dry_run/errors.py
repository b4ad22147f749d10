"""What keeps a server's configuration from being started here."""

from __future__ import annotations

from dataclasses import dataclass

from backend_caps.errors import BackendCapsError


@dataclass(eq=False, kw_only=True)
class CannotRunError(BackendCapsError):
    """Backends that a server uses cannot run on this machine."""

    reasons: tuple[tuple[str, str], ...]
    """Each backend, and all that keeps it from running."""
    device: str
    would_run: tuple[str, ...]
    """The backends that could run in their places, as it was decided."""
    unread_engine: str | None = None
    """The engine that has one of them itself, where none was read."""

    @property
    def message(self) -> str:
        """Each backend with why, and what could stand in for it."""
        told = "; ".join(f"backend {name!r}: {why}" for name, why in self.reasons)
        would = ", ".join(self.would_run) or "no installed backend"
        remedy = f"Add --stand-in {self.would_run[0]}" if self.would_run else "Install one"
        return (
            f"this server cannot be started here on {self.device}: {told}. Expected backends whose "
            f"code runs here; in their places would run: {would}. {remedy}, or start where they "
            f"are installed.{self._of_engine()}"
        )

    def _of_engine(self) -> str:
        if self.unread_engine is None:
            return ""
        return (
            f" Add --engine {self.unread_engine} too: unread, its own backends count as the worst."
        )


@dataclass(eq=False, kw_only=True)
class StandInError(BackendCapsError):
    """A backend that was named cannot stand in for another: the server would be another one."""

    name: str
    problem: str
    would_run: tuple[str, ...] = ()

    @property
    def message(self) -> str:
        """Why not, and who could."""
        would = ", ".join(self.would_run) or "none of the installed"
        return (
            f"backend {self.name!r} cannot stand in: {self.problem}. Expected one that runs here "
            f"and asks for no more than was decided: {would}. Name such a one with --stand-in."
        )


@dataclass(eq=False, kw_only=True)
class DryStartError(BackendCapsError):
    """The engine could not be made for a plan."""

    device: str
    problem: str

    @property
    def message(self) -> str:
        """What was raised, and what to do."""
        return (
            f"this server cannot be started here on {self.device}: {self.problem}. Expected an "
            "engine that starts. Correct the flag or the backend, or name another backend with "
            "--stand-in."
        )
