"""How far from exact a backend's outputs may be, by dtype."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

from pydantic import AfterValidator, Field, PlainSerializer

from backend_caps.capability.spelling import Dtype


class BoundOfDtype(Mapping[str, float]):
    """Bounds by dtype: a mapping that nobody changes, and that has a hash."""

    def __init__(self, bounds: Mapping[str, float]) -> None:
        self._bounds = dict(sorted(bounds.items()))

    def __getitem__(self, dtype: str) -> float:
        """Return the bound of a dtype."""
        return self._bounds[dtype]

    def __iter__(self) -> Iterator[str]:
        """List the dtypes, sorted."""
        return iter(self._bounds)

    def __len__(self) -> int:
        """Count the dtypes."""
        return len(self._bounds)

    def __hash__(self) -> int:
        """Be the same for equal bounds."""
        return hash(tuple(self._bounds.items()))

    def __repr__(self) -> str:
        """Be written as the author wrote it."""
        return repr(self._bounds)


Bound = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Tolerances = Annotated[
    Mapping[Dtype, Bound], AfterValidator(BoundOfDtype), PlainSerializer(dict, dict[str, float])
]
"""Of each dtype, what an output may differ by from float64, absolutely and relatively."""
