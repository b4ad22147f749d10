"""Errors of the simulated accelerator and the conformance kit."""

from __future__ import annotations

from backend_caps.kit.errors import BaselineError, KitError
from backend_caps.simulator.errors import (
    CaptureError,
    DirtyRunError,
    GraphStateError,
    NestedSimulationError,
    ScheduleError,
    SimDeviceError,
    UnsupportedOperatorError,
)
from docs.tools.error_examples.occasion import Occasion

SIMULATOR = Occasion(
    title="The simulated accelerator",
    told="Raised by the device `sim`.",
    examples=(
        ScheduleError(text="starve"),
        NestedSimulationError(running="lazy", asked="random:3"),
        SimDeviceError(
            operator="aten::index_select", site="scheduler.py:90", reason="index out of range"
        ),
        UnsupportedOperatorError(
            operator="aten::resize_",
            site="my_flash.py:12",
            reason="it changes a shape in place; use the one that returns a new view",
        ),
        CaptureError(
            action="aten::_local_scalar_dense",
            site="my_flash.py:40",
            expected="only device work was expected",
        ),
        GraphStateError(action="replay", held="no capture"),
        DirtyRunError(schedule="lazy", findings=("race on block 12",)),
    ),
)
KIT = Occasion(
    title="The conformance kit",
    told="Raised by `backend-caps check` and `pytest --backend-caps`.",
    examples=(BaselineError(problem="ValueError: no kernel for heads of 80"),),
    coded=(KitError,),
)
