"""A simulated accelerator: a torch device on which a missing wait is a wrong value, or a race.

Device work is deferred, and runs in any order that streams, events and the host's waits allow. It
is one device without collectives and without backward. Imports torch.
"""

from backend_caps.extras import require_extra

require_extra("relay", __name__)

from backend_caps.simulator.device import DEVICE_NAME, is_simulated, register, simulate
from backend_caps.simulator.errors import SimDeviceError, SimulatorError, Site, StarvationWarning
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
    "Counts",
    "DeviceWatcher",
    "HostSync",
    "OrderPolicy",
    "Race",
    "Schedule",
    "SimDeviceError",
    "SimTensor",
    "Simulation",
    "SimulatorError",
    "Site",
    "StarvationWarning",
    "WaitKind",
    "Waited",
    "is_simulated",
    "register",
    "simulate",
    "systematic_schedules",
]
