"""Which way each of torch's operators runs on the device.

Collectives and backward are not there. Random numbers are drawn in the order of the launches.
"""

from __future__ import annotations

from backend_caps.simulator.copies import COPIES
from backend_caps.simulator.factories import LIKES
from backend_caps.simulator.ops import OPERATORS, AnyOperator, Effect
from backend_caps.simulator.running import run_fresh, run_read, run_view, run_write
from backend_caps.simulator.special_cases import SPECIAL_CASES
from backend_caps.simulator.tensor import Args, Kwargs

_HANDLERS = {**COPIES, **SPECIAL_CASES, **LIKES}


def is_composite(func: AnyOperator) -> bool:
    """Tell whether an operator is run as those that it is made of."""
    return OPERATORS[func].effect is Effect.COMPOSITE and func not in _HANDLERS


def dispatch(func: AnyOperator, args: Args, kwargs: Kwargs) -> object:
    """Run one of torch's operators on tensors of the device."""
    operator = OPERATORS[func]
    special = _HANDLERS.get(func)
    if special is not None:
        return special(operator, args, kwargs)
    match operator.effect:
        case Effect.FRESH:
            return run_fresh(operator, args, kwargs)
        case Effect.VIEW:
            return run_view(operator, args, kwargs)
        case Effect.WRITE:
            return run_write(operator, args, kwargs)
        case Effect.READ:
            return run_read(operator, args, kwargs)
        case Effect.COMPOSITE:
            return func.decompose(*args, **kwargs)
