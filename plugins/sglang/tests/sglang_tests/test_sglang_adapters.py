"""What is read of a declaration for SGLang's registry."""

from __future__ import annotations

import pytest
from backend_caps_sglang.adapters import adapters_of

from backend_caps import Capabilities, Declaration, Given, Part, When
from backend_caps.capability.backend import Backend, Status
from backend_caps.capability.provenance import Source

SAME_BITS = Capabilities(deterministic=True, batch_invariant=True)
NOT_IN_PAGES = When(
    given=Given(page_size={16}),
    capabilities=Capabilities(deterministic=False),
    reason="its atomics race there",
)


def declaring(
    capabilities: Capabilities, conditions: tuple[When, ...] = (), parts: tuple[Part, ...] = ()
) -> Backend:
    """Describe a backend with an adapter for SGLang."""
    declaration = Declaration(
        capabilities=capabilities,
        conditions=conditions,
        parts=parts,
        adapters={"sglang": "acme_sglang:make"},
    )
    source = Source(distribution="acme", version="1.0")
    return Backend(name="acme", status=Status.OK, source=source, declaration=declaration)


@pytest.mark.parametrize(
    ("backend", "is_deterministic"),
    [
        pytest.param(declaring(SAME_BITS), True, id="always"),
        pytest.param(declaring(SAME_BITS, (NOT_IN_PAGES,)), False, id="not-under-a-condition"),
        pytest.param(declaring(SAME_BITS, parts=(Part("other"),)), False, id="by-its-parts"),
        pytest.param(declaring(Capabilities(deterministic=True)), False, id="in-one-batch-alone"),
    ],
)
def test_adapter_is_deterministic_where_it_is_so_on_every_server(
    backend: Backend, is_deterministic: bool
) -> None:
    """SGLang's choices are made before anything is known of the server."""
    (adapter,) = adapters_of([backend])

    assert adapter.is_deterministic == is_deterministic


def test_backend_without_an_adapter_is_left_out() -> None:
    """One that names none, and one that could not be read, are none of SGLang's."""
    plain = Backend(name="plain", status=Status.OK, source=Source(), declaration=Declaration())
    torn = Backend(name="torn", status=Status.BROKEN, source=Source())

    assert [*adapters_of([plain, torn])] == []
