"""What a configuration costs a step, counted in a run on the simulated device. Imports torch."""

from backend_caps.insight.measure.errors import NotMeasuredError, StepFailedError
from backend_caps.insight.measure.levels import LeftOut, Levels, measured_levels
from backend_caps.insight.measure.steady import SteadySteps, steady_steps

__all__ = [
    "LeftOut",
    "Levels",
    "NotMeasuredError",
    "SteadySteps",
    "StepFailedError",
    "measured_levels",
    "steady_steps",
]
