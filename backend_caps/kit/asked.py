"""What to check, as people name it: a backend, checks, a device."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from backend_caps.discovery.registry import Registry
from backend_caps.kit.check import Check
from backend_caps.kit.errors import UnknownCheckError, UnknownSubjectError
from backend_caps.kit.subject import Subject
from backend_caps.resolution.errors import nearest
from backend_caps.simulator import DEVICE_NAME
from backend_caps.startup.configure import check_device

_NEAR = 0.6
"""How much of a name has to be right for it to be meant."""


def subject_named(registry: Registry, name: str) -> Subject:
    """Find the backend of a name, and import its implementation.

    Raises:
        UnknownSubjectError: nothing installed declares it.
        UncheckableError: its declaration was not read, or it is a composite.
        ImplementationError: it names no implementation, or none that can be imported.
    """
    if name not in registry:
        declared = tuple(registry)
        meant = nearest(name, declared, cutoff=_NEAR)
        raise UnknownSubjectError(name=name, declared=declared, meant=meant)
    subject = Subject.of(registry[name])
    subject.load()
    return subject


def checks_named(checks: Sequence[Check], codes: Collection[str]) -> Sequence[Check]:
    """Choose checks by their codes, in the order in which they run; all where none is named.

    Raises:
        UnknownCheckError: there is none of a code.
    """
    known = tuple(check.code for check in checks)
    for code in codes:
        if code not in known:
            raise UnknownCheckError(name=code, known=known)
    return [check for check in checks if not codes or check.code in codes]


def require_device(device: str) -> None:
    """Require a device that torch has here; the simulated one is everywhere.

    Raises:
        UnavailableDeviceError: it has none such.
    """
    if device != DEVICE_NAME:
        check_device(device)
