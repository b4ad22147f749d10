"""What a liar is: a small backend that breaks one of its claims, in a way that was seen."""

from __future__ import annotations

import re
from dataclasses import dataclass
from inspect import getdoc

from torch_native_caps import TORCH_PADDED

from backend_caps import Declaration, OneOf
from backend_caps.kit import Subject
from backend_caps.runtime.attention import AttentionBackend

HONEST: dict[str, object] = {
    **TORCH_PADDED.capabilities.stated(),
    "dtypes": frozenset({"float32"}),
    "kv_cache_dtypes": frozenset({"float32"}),
    "page_sizes": OneOf({1, 16}),
    "head_sizes": OneOf({16}),
    "max_speculative_topk": 3,
}
"""What liars claim unless they say otherwise: all that `TorchPadded` keeps, of few sizes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Liar:
    """A backend that breaks one claim."""

    lie: str
    """What it claims, and what it does."""
    seen: str
    """Where such a one was met: a thread, as `sglang#26738`, or what it is `modelled on`: a thread
    that tells of something close to it, or what kernels and engines do."""
    check: str
    """The code of the check that has to find it, alone."""
    subject: Subject

    @property
    def name(self) -> str:
        """Its own."""
        return self.subject.name


def liar(kind: type[AttentionBackend], *, seen: str, check: str, **claims: object) -> Liar:
    """Make a liar of a class whose docstring says how it lies.

    Args:
        kind: the class, at the top of its module.
        seen: where such a one was met, or what it is modelled on.
        check: what has to find it.
        claims: what it claims beside, or in place of, `HONEST`.
    """
    lie = getdoc(kind) or ""
    return Liar(lie=lie.splitlines()[0], seen=seen, check=check, subject=subject_of(kind, **claims))


def subject_of(kind: type[AttentionBackend], **claims: object) -> Subject:
    """Put a class under test, by its name in snake case, with these claims beside `HONEST`."""
    declaration = Declaration.model_validate(
        {
            "capabilities": {**HONEST, **claims},
            "implementation": f"{kind.__module__}:{kind.__name__}",
        }
    )
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()
    return Subject(name=name, declaration=declaration)
