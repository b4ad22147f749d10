"""How large a dry run is: the server's sizes where they are small, and smaller ones else."""

from __future__ import annotations

from dataclasses import dataclass

from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.plan import Plan
from backend_caps.runtime.memory import num_pages_of
from backend_caps.runtime.options import EngineOptions, page_size_of
from backend_caps.runtime.speculative.settings import SpecSettings

MOST_REQUESTS = 8
"""Requests that run at once, where the server takes more."""
LONGEST_CHUNK = 64
"""Prompt tokens of a step, where the server takes more."""
MOST_NEW = 24
"""Tokens of the longest output."""
_GRAPHS = (1, 2, 4, MOST_REQUESTS)
_FEW_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSizes:
    """What the server's flags say of room and cutting; None is not said."""

    max_running_requests: int | None = None
    chunked_prefill_size: int | None = None
    """Below 1: prompts are not cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """One size of the server, and what it is here."""

    flag: str
    server: str
    here: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes of a dry run."""

    page_size: int
    max_running_requests: int
    chunked_prefill_size: int | None
    longest_prompt: int
    behind: int
    """Tokens behind a request's end that speculative steps write to."""
    server: ServerSizes
    flags: ServerFlags

    @classmethod
    def of(cls, plan: Plan, server: ServerSizes, longest: int | None = None) -> Sizes:
        """Cut a server's sizes down to what a small run has.

        Args:
            plan: whose flags and pages count.
            server: what else the server's flags say.
            longest: the longest context of a named model; None where one is made.

        Raises:
            PageSizeError: no page size serves every backend.
        """
        page_size, settings = page_size_of(plan), SpecSettings.from_flags(plan.flags)
        rows = min(server.max_running_requests or MOST_REQUESTS, MOST_REQUESTS)
        chunk = _chunk(server.chunked_prefill_size, page_size)
        limits = [own for own in (plan.flags.context_length, longest) if own is not None]
        prompts = [own - MOST_NEW for own in limits]
        return cls(
            page_size=page_size,
            max_running_requests=rows,
            chunked_prefill_size=chunk,
            longest_prompt=max(1, min((2 * (chunk or LONGEST_CHUNK), *prompts))),
            behind=0 if settings is None else settings.lookahead,
            server=server,
            flags=plan.flags,
        )

    @property
    def context_length(self) -> int:
        """The longest context that a request comes to."""
        return self.longest_prompt + MOST_NEW

    @property
    def options(self) -> EngineOptions:
        """The engine's room: as much as all requests of a step can fill."""
        pages = num_pages_of(self.context_length + self.behind, self.page_size)
        chunk = self.chunked_prefill_size or self.longest_prompt
        mixed = self.max_running_requests - 1 if self.flags.enable_mixed_chunk else 0
        return EngineOptions(
            max_running_requests=self.max_running_requests,
            max_total_tokens=self.max_running_requests * pages * self.page_size,
            chunked_prefill_size=self.chunked_prefill_size,
            graph_batch_sizes=_GRAPHS,
            graph_token_counts=tuple(sorted({min(_FEW_TOKENS, chunk), chunk, chunk + mixed})),
        )

    @property
    def told(self) -> tuple[Size, ...]:
        """Each size, as the server's flags have it and as it is here."""
        server, context = self.server, self.flags.context_length
        chunk = server.chunked_prefill_size
        rows = (
            ("--max-running-requests", server.max_running_requests, self.max_running_requests),
            ("--chunked-prefill-size", chunk, self.chunked_prefill_size),
            ("--page-size", self.flags.page_size, self.page_size),
            ("--context-length", context, self.context_length),
        )
        return tuple(
            Size(flag=flag, server=_word(said, "not given"), here=_word(here, "off"))
            for flag, said, here in rows
        )


def _chunk(said: int | None, page_size: int) -> int | None:
    """Cut prompts as the server does, into smaller chunks; none is smaller than a page."""
    if said is not None and said < 1:
        return None
    return max(min(said or LONGEST_CHUNK, LONGEST_CHUNK), page_size)


def _word(size: int | None, nothing: str) -> str:
    return nothing if size is None else str(size)
