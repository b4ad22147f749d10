"""A simulated accelerator: a torch device on which a missing wait is a wrong value, or a race.

Device work is deferred, and runs in any order that streams, events and the host's waits allow. It
is one device without collectives and without backward. Imports torch.
"""

from backend_caps.simulator.device import DEVICE_NAME, register, simulate
from backend_caps.simulator.errors import (
    CaptureError,
    DirtyRunError,
    GraphStateError,
    NestedSimulationError,
    ScheduleError,
    SimDeviceError,
    Site,
    StarvationWarning,
    UnsupportedOperatorError,
)
from backend_caps.simulator.queues import OrderPolicy, Schedule, systematic_schedules
from backend_caps.simulator.records import (
    HOST,
    Access,
    Counts,
    DeviceWatcher,
    Race,
    Waited,
    WaitKind,
)
from backend_caps.simulator.simulation import HostSync, Simulation
from backend_caps.simulator.tensor import SimTensor

__all__ = [
    "DEVICE_NAME",
    "HOST",
    "Access",
    "CaptureError",
    "Counts",
    "DeviceWatcher",
    "DirtyRunError",
    "GraphStateError",
    "HostSync",
    "NestedSimulationError",
    "OrderPolicy",
    "Race",
    "Schedule",
    "ScheduleError",
    "SimDeviceError",
    "SimTensor",
    "Simulation",
    "Site",
    "StarvationWarning",
    "UnsupportedOperatorError",
    "WaitKind",
    "Waited",
    "register",
    "simulate",
    "systematic_schedules",
]
