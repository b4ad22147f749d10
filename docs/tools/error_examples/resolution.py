"""Errors of reading flags, of who runs what, and of plans."""

from __future__ import annotations

from backend_caps.resolution.errors import (
    FlagsError,
    FlagValueError,
    PlanRefusedError,
    ResolutionError,
)
from docs.tools.error_examples.occasion import Occasion

FLAGS = Occasion(
    title="Server flags",
    told="Raised while flags are read, and by `resolve` for an override.",
    examples=(FlagValueError(flag="--page-size", value="'large'", expected="a valid integer"),),
    coded=(FlagsError,),
)
BACKENDS = Occasion(
    title="Backends in use",
    told="Raised when it is settled who runs what, and by `resolve`.",
    coded=(ResolutionError,),
)
PLANS = Occasion(
    title="Plans",
    told="Raised by `resolve` under the policy `strict`.",
    examples=(
        PlanRefusedError(
            code="engine-default",
            problem="the backend for decode is the engine's own choice (no --attention-backend); "
            "nothing is known of it, so it counts as undeclared.",
            remedy="Name it with --attention-backend.",
        ),
    ),
)
