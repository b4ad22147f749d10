"""What a configuration costs a step, counted in a run on the simulated device. Imports torch."""

from backend_caps.conformance.measuring.errors import NotMeasuredError, StepFailedError
from backend_caps.conformance.measuring.levels import LeftOut, Levels, measured_levels
from backend_caps.conformance.measuring.models import ModelSizes, SmallModels, small_models
from backend_caps.conformance.measuring.steady import SteadySteps, steady_steps

__all__ = [
    "LeftOut",
    "Levels",
    "ModelSizes",
    "NotMeasuredError",
    "SmallModels",
    "SteadySteps",
    "StepFailedError",
    "measured_levels",
    "small_models",
    "steady_steps",
]
