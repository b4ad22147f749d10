"""Errors of the simulated accelerator and the conformance kit."""

from __future__ import annotations

from backend_caps.kit.errors import BaselineError, KitError
from backend_caps.report.check_catalog import UnknownCheckError
from backend_caps.simulator.errors import SimDeviceError, SimulatorError
from docs.tools.error_examples.occasion import Occasion

SIMULATOR = Occasion(
    title="The simulated accelerator",
    told="Raised by the device `sim`.",
    examples=(
        SimDeviceError(
            operator="aten::index_select", site="scheduler.py:90", reason="index out of range"
        ),
    ),
    coded=(SimulatorError,),
)
KIT = Occasion(
    title="The conformance kit",
    told="Raised by `backend-caps check` and `pytest --backend-caps`.",
    examples=(
        BaselineError(problem="ValueError: no kernel for heads of 80"),
        UnknownCheckError(code="mirror", known=("mirror-absent", "mirror-bound")),
    ),
    coded=(KitError,),
)
