from __future__ import annotations

from pathlib import Path

import pytest

from backend_caps import Declaration, HostSeqLens, Part, Phase, discover
from backend_caps.capability.backend import Backend, Status
from backend_caps.capability.provenance import BY_HAND
from backend_caps.kit import KitError, Subject
from tests.kit.made import HONEST


def _found(declaration: Declaration | None, status: Status = Status.OK) -> Backend:
    return Backend(name="own", status=status, source=BY_HAND, declaration=declaration)


def test_installed_backend_is_a_subject() -> None:
    """What discovery found is checked under its name."""
    subject = Subject.of(discover()["torch_padded"])

    assert subject.name == "torch_padded"
    assert subject.claim("host_seq_lens") is HostSeqLens.NONE


@pytest.mark.parametrize(
    ("backend", "words"),
    [
        pytest.param(_found(None, Status.BROKEN), "broken", id="broken"),
        pytest.param(
            _found(Declaration(parts=[Part("b"), Part("a", phases={Phase.DECODE})])),
            "it is a composite: check its parts, a, b",
            id="composite",
        ),
    ],
)
def test_backend_that_cannot_be_built_is_refused(backend: Backend, words: str) -> None:
    """The error says why the kit has nothing to run."""
    with pytest.raises(KitError) as caught:
        Subject.of(backend)

    assert caught.value.code == "uncheckable"
    assert f"cannot be checked: {words};" in str(caught.value)


def test_claim_that_nobody_made_is_the_worst() -> None:
    """What is undeclared counts as the worst value, as on a server."""
    subject = Subject(name="own", declaration=Declaration())

    assert subject.claim("host_seq_lens") is HostSeqLens.EXACT


def test_root_is_the_package_of_the_implementation() -> None:
    """All files of the package are the backend's, and others are not."""
    root = HONEST.root

    assert root.name == "backend_caps_torch_native"
    assert HONEST.owns(str(root / "padded.py"))
    assert not HONEST.owns(__file__)


def test_root_of_a_lone_module_is_its_file() -> None:
    """A package without a file of its own leaves the module."""
    declaration = HONEST.declaration.model_copy(update={"implementation": f"{__name__}:Path"})
    subject = Subject(name="own", declaration=declaration)

    assert subject.root == Path(__file__)


def test_line_is_the_innermost_of_the_backend() -> None:
    """Of a traceback the backend's own last line counts, and none where it has none."""
    with pytest.raises(AttributeError) as caught:
        HONEST.build(object())  # type: ignore[arg-type] # no pools: its constructor raises
    with pytest.raises(AttributeError) as elsewhere:
        HONEST.no_such_name  # type: ignore[attr-defined] # noqa: B018 - raises here

    site = HONEST.line_in(caught.tb)

    assert site is not None
    assert Path(site.file).name == "paged.py"
    assert HONEST.line_in(elsewhere.tb) is None
