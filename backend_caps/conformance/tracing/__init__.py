"""A run of the runtime as a timeline: who did what when, and waited for whom. Imports torch."""

from backend_caps.conformance.tracing.costs import CLOCK_SAYS, Costs
from backend_caps.conformance.tracing.errors import TooManyStepsError
from backend_caps.conformance.tracing.running import Traced, traced_levels

__all__ = ["CLOCK_SAYS", "Costs", "TooManyStepsError", "Traced", "traced_levels"]
