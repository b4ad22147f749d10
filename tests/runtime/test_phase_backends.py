from __future__ import annotations

import pytest
import torch
from backend_caps_torch_native import TorchNative, TorchPadded

from backend_caps import Capabilities, Declaration, Phase, Role, ServerFlags, Use, discover
from backend_caps.runtime import EngineError, ImplementationError
from backend_caps.runtime.attention import PhaseBackends
from tests.runtime.graphs.rig import make_site

NATIVE = "backend_caps_torch_native.native:TorchNative"
PADDED = "backend_caps_torch_native.padded:TorchPadded"


def _use(
    implementation: str | None = NATIVE,
    *,
    backend: str = "own",
    role: Role = Role.TARGET,
    phase: Phase = Phase.DECODE,
    adds_only: bool = False,
) -> Use:
    declaration = Declaration(capabilities=Capabilities(), implementation=implementation)
    return Use(
        backend=backend, role=role, phase=phase, declaration=declaration, adds_only=adds_only
    )


def _backends(*uses: Use) -> PhaseBackends:
    return PhaseBackends(uses, Role.TARGET, make_site(torch.device("cpu")))


def test_backends_serve_their_own_phases() -> None:
    """Where prefill and decode have a backend each, each phase gets its own."""
    backends = _backends(
        _use(NATIVE, backend="native", phase=Phase.PREFILL), _use(PADDED, backend="padded")
    )

    assert isinstance(backends.of(Phase.PREFILL), TorchNative)
    assert isinstance(backends.of(Phase.DECODE), TorchPadded)


def test_backend_of_two_phases_is_built_once() -> None:
    """One backend keeps one state, whichever of its phases runs."""
    backends = _backends(_use(phase=Phase.PREFILL), _use())

    assert backends.of(Phase.PREFILL) is backends.of(Phase.DECODE)


def test_backends_leave_other_roles_out() -> None:
    """A draft's backend is none of the target's, and is not built."""
    backends = _backends(_use(), _use("nobody.knows:It", backend="draft", role=Role.DRAFT))

    assert [use.backend for use in backends.uses.values()] == ["own"]


def test_backends_leave_out_what_only_adds_needs() -> None:
    """A composite's own capabilities are no backend: its parts run."""
    backends = _backends(_use(), _use("nobody.knows:It", backend="pair", adds_only=True))

    assert [use.backend for use in backends.uses.values()] == ["own"]


def test_backends_refuse_a_phase_that_nobody_serves() -> None:
    """A phase without a use is refused, with those that have one."""
    backends = _backends(_use())

    with pytest.raises(EngineError) as caught:
        backends.of(Phase.PREFILL)

    assert str(caught.value) == (
        "the plan has no use of phase 'prefill'; it has: decode. "
        "Resolve the plan from the uses of the server's flags: registry.uses(flags)."
    )


def test_backends_refuse_two_in_one_phase() -> None:
    """Two backends for one phase are a model's layers to choose between, which none here does."""
    with pytest.raises(EngineError) as caught:
        _backends(_use(backend="second"), _use(backend="first"))

    assert str(caught.value) == (
        "phase 'decode' is shared by 'first', 'second'; one backend a phase was expected. "
        "Name one of them in --attention-backend."
    )


@pytest.mark.parametrize(
    ("implementation", "where", "problem"),
    [
        (None, "", "its declaration names no implementation"),
        ("nobody.knows:It", " (nobody.knows:It)", "No module named 'nobody'"),
        (
            "backend_caps_torch_native.native:Absent",
            " (backend_caps_torch_native.native:Absent)",
            "module 'backend_caps_torch_native.native' has no attribute 'Absent'",
        ),
    ],
)
def test_backends_refuse_one_without_code(
    implementation: str | None, where: str, problem: str
) -> None:
    """A backend that names no code, or none that can be imported, is refused by its name."""
    with pytest.raises(ImplementationError) as caught:
        _backends(_use(implementation))

    assert str(caught.value) == (
        f"backend 'own'{where} cannot be built: {problem}; a declaration with "
        "implementation='package.module:Class' was expected. Install what it needs, or name "
        "another backend."
    )


def test_backends_refuse_one_whose_declaration_was_not_read() -> None:
    """Nothing can be built of a use without a declaration."""
    use = Use(backend="own", role=Role.TARGET, phase=Phase.DECODE, declaration=None)

    with pytest.raises(
        ImplementationError, match="'own' cannot be built: its declaration was not read;"
    ):
        _backends(use)


def test_backends_say_why_a_declaration_was_not_read() -> None:
    """A plugin that nobody installed is missing in so many words."""
    flags = ServerFlags.from_argv(["--attention-backend", "nobodys"])
    use, *_ = discover().uses(flags)

    with pytest.raises(ImplementationError) as caught:
        _backends(use)

    assert caught.value.problem == (
        "no installed plugin declares backend 'nobodys' (--attention-backend)"
    )
