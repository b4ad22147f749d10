"""Which of two values is the safer one."""

from __future__ import annotations

from backend_caps.capability.sets import Conflict, Unchecked
from backend_caps.capability.vocabulary import CAPABILITIES
from backend_caps.resolution.plan import Plan
from tests.property.strategies import normal


def is_no_better(capability: str, value: object, than: object) -> bool:
    """Tell whether `value` grants nothing that `than` does not.

    Sizes that nobody checked, or that conflict, grant nothing.
    """
    if isinstance(value, Unchecked | Conflict):
        return True
    if isinstance(than, Unchecked | Conflict):
        return False
    return normal(CAPABILITIES[capability].join(value, than)) == normal(value)


def improvements(plan: Plan, over: Plan) -> list[str]:
    """List the capabilities that a plan grants more of than another."""
    return [
        resolved.capability
        for (_, resolved), (_, other) in zip(plan.values(), over.values(), strict=True)
        if not is_no_better(resolved.capability, resolved.value, other.value)
    ]
