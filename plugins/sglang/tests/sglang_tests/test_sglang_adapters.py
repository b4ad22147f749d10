"""What is read of a declaration for SGLang's registry."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

import pytest
from backend_caps_sglang.adapters import adapters_of
from backend_caps_sglang.errors import BridgeError, unbridged_backend

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


class _Base:
    """Stands in for SGLang's interface."""


class _Acme(_Base):
    def __init__(self, runner: object) -> None:
        self.runner = runner


def _refuses(runner: object) -> object:
    raise unbridged_backend("acme", [f"it does not serve a {runner}"])


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[object], object]], None]:
    """Put an adapter beside SGLang's interface."""

    def put(make: Callable[[object], object]) -> None:
        base = "sglang.srt.layers.attention.base_attn_backend"
        named: dict[str, dict[str, object]] = {
            base: {"AttentionBackend": _Base},
            "acme_sglang": {"make": make},
        }
        for name, values in named.items():
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
            vars(sys.modules[name]).update(values)

    return put


def test_adapter_builds_from_sglangs_runner(
    install: Callable[[Callable[[object], object]], None],
) -> None:
    """What it makes is handed on as it is."""
    install(_Acme)
    (adapter,) = adapters_of([declaring(SAME_BITS)])

    made = adapter("runner")

    assert isinstance(made, _Acme)
    assert made.runner == "runner"


def test_refusal_of_an_adapter_keeps_its_reasons(
    install: Callable[[Callable[[object], object]], None],
) -> None:
    """An error of backend-caps is raised as it is, and not as one of the adapter's faults."""
    install(_refuses)
    (adapter,) = adapters_of([declaring(SAME_BITS)])

    with pytest.raises(BridgeError, match="into this server: it does not serve a draft") as caught:
        adapter("draft")

    assert caught.value.code == "backend-unbridged"


class _Declared:
    """Makes the backend of the declaration that it is given."""

    def __init__(self) -> None:
        self.given: list[Declaration] = []

    def with_declaration(self, declaration: Declaration) -> Callable[[object], object]:
        """Note the declaration."""
        self.given.append(declaration)
        return _Acme

    def __call__(self, runner: object) -> object:
        """Make the backend of its own declaration, which is not asked for."""
        raise AssertionError(runner)


def test_adapter_resolves_the_declaration_that_the_registry_has(
    install: Callable[[Callable[[object], object]], None],
) -> None:
    """Where evidence is required, claims that lack it do not count inside SGLang either."""
    declared, reduced = _Declared(), declaring(Capabilities())
    install(declared)
    (adapter,) = adapters_of([reduced])

    adapter("runner")

    assert declared.given == [reduced.declaration]
