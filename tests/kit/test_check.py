from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from backend_caps.capability.backend import Backend, Status
from backend_caps.capability.provenance import BY_HAND
from backend_caps.discovery.registry import Registry
from backend_caps.kit import KitError, checks_named, require_device, subject_named
from backend_caps.startup.configuration import ImplementationError
from backend_caps.startup.errors import StartupError
from tests.kit.made import HONEST, ODD

OTHER = replace(ODD, code="other")


def _registry(implementation: str | None) -> Registry:
    declaration = HONEST.declaration.model_copy(update={"implementation": implementation})
    found = Backend(name="flash", status=Status.OK, source=BY_HAND, declaration=declaration)
    return Registry.of([found])


def test_subject_is_found_by_its_name() -> None:
    """A backend that is declared and can be imported can be checked."""
    registry = _registry(HONEST.declaration.implementation)

    assert subject_named(registry, "flash").name == "flash"


@pytest.mark.parametrize("implementation", [None, "nowhere:Flash"])
def test_subject_that_cannot_be_imported_is_refused(implementation: str | None) -> None:
    """What names no class, or none that is there, has nothing to run."""
    with pytest.raises(ImplementationError):
        subject_named(_registry(implementation), "flash")


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        pytest.param("flesh", "Did you mean 'flash'?", id="near"),
        pytest.param("xyz", "Install its plugin.", id="far"),
    ],
)
def test_unknown_subject_is_refused(name: str, remedy: str) -> None:
    """The error has the name, what is declared, and what to do."""
    with pytest.raises(KitError) as caught:
        subject_named(_registry(None), name)

    assert str(caught.value) == f"no backend {name!r} is declared; declared: flash. {remedy}"


def test_checks_run_in_their_own_order() -> None:
    """Whatever order they are named in; all, where none is named."""
    assert checks_named([ODD, OTHER], ["other", "made"]) == [ODD, OTHER]
    assert checks_named([ODD, OTHER], ["other"]) == [OTHER]
    assert checks_named([ODD, OTHER], []) == [ODD, OTHER]


def test_unknown_check_is_refused() -> None:
    """The error lists those that there are."""
    with pytest.raises(KitError, match="no check 'mode'; expected one of: made, other"):
        checks_named([ODD, OTHER], ["mode"])


@pytest.mark.parametrize("device", ["sim", "cpu"])
def test_device_that_is_here_is_taken(device: str) -> None:
    """The simulated device and the CPU are everywhere."""
    require_device(device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_device_that_is_not_here_is_refused() -> None:
    """A GPU is asked for where there is none."""
    with pytest.raises(StartupError):
        require_device("cuda")
