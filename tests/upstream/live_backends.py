"""Live backends as SGLang has them, by how they come by `needs_cpu_seq_lens`."""

from __future__ import annotations


class Base:
    """SGLang's `AttentionBackend`: undeclared is True."""

    needs_cpu_seq_lens: object = True
    max_context_len: object = 8192


class OptsOut(Base):
    """States an opt-out, and a bound of its own."""

    needs_cpu_seq_lens = False

    def __init__(self, max_context_len: object = 8192) -> None:
        self.max_context_len = max_context_len


class Inherits(OptsOut):
    """States nothing; its base opts out."""


class InheritsNeed(Base):
    """States nothing; the root has its default."""


class Reads(Base):
    """States a need."""

    needs_cpu_seq_lens = True


class Sets(Base):
    """Its constructor sets the opt-out."""

    def __init__(self) -> None:
        self.needs_cpu_seq_lens = False


class InheritsSetter(Sets):
    """Says nothing; its base's constructor does."""


class Wraps:
    """A wrapper that states nothing and asks what it wraps."""

    def __init__(self, primary: object) -> None:
        self.primary = primary

    def __getattr__(self, name: str) -> object:
        return getattr(self.primary, name)


class Shadows(Base):
    """SGLang's `TboAttnBackend`: the base's True is found before what it wraps is asked."""

    def __init__(self, primary: object) -> None:
        self.primary = primary

    def __getattr__(self, name: str) -> object:
        return getattr(self.primary, name)
