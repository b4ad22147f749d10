"""A run of the runtime as a timeline: who did what when, and waited for whom. Imports torch."""

from backend_caps.insight.trace.costs import CLOCK_SAYS, Costs
from backend_caps.insight.trace.errors import NoTimelineError, TooManyStepsError
from backend_caps.insight.trace.levels import Traced, check_recordable, traced_levels
from backend_caps.insight.trace.profiled import PROFILER_SAYS

__all__ = [
    "CLOCK_SAYS",
    "PROFILER_SAYS",
    "Costs",
    "NoTimelineError",
    "TooManyStepsError",
    "Traced",
    "check_recordable",
    "traced_levels",
]
