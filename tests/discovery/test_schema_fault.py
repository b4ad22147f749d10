"""What a declaration of another version has wrong, in a sentence."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pydantic import BaseModel, ValidationError

from backend_caps import Capabilities, Declaration, Given, Part, When
from backend_caps.discovery.diagnosis import schema_fault


class Own(BaseModel):
    """A model of a plugin's own."""

    size: int


def raised(make: Callable[[], object]) -> BaseException:
    """Return what making it raises."""
    with pytest.raises((ValidationError, AttributeError, ImportError)) as caught:
        make()
    return caught.value


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        pytest.param(
            lambda: Capabilities.model_validate({"zzz": 1}),
            "Capabilities has no field 'zzz'",
            id="unknown-field",
        ),
        pytest.param(
            lambda: Capabilities.model_validate({"needs_cpu_seq_lens": 1, "zzz": 1}),
            "Capabilities.needs_cpu_seq_lens is 1: Input should be a valid boolean; "
            "Capabilities has no field 'zzz'",
            id="two-fields",
        ),
        pytest.param(
            lambda: When(given=Given(tp_size={1}), capabilities=Capabilities(), reason="x"),
            "When(tp_size = 1) states no capability; name at least one that differs there",
            id="a-model-of-its-own",
        ),
        pytest.param(
            lambda: Part("a", phazes=()),  # type: ignore[call-arg]
            "Part has no field 'phazes'",
            id="a-dataclass",
        ),
        pytest.param(
            lambda: Declaration.model_validate({"implementation": "x"}),
            "Declaration.implementation is 'x': Input should be 'x:Name'",
            id="a-value",
        ),
        pytest.param(
            lambda: Declaration.model_validate({"api": "x" * 100}),
            f"Declaration.api is '{'x' * 59}...: Input should be 1",
            id="a-long-value",
        ),
    ],
)
def test_schema_fault_tells_each_field_once(make: Callable[[], object], expected: str) -> None:
    """A validation error is one line, a union's many complaints one."""
    error = raised(make)

    assert schema_fault(error) == expected


def test_schema_fault_is_none_for_a_model_of_the_plugins_own() -> None:
    """A plugin may use pydantic for itself."""
    error = raised(lambda: Own.model_validate({"size": "x"}))

    assert schema_fault(error) is None


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(ImportError("x", name="other"), id="import"),
        pytest.param(AttributeError("x", name="x", obj=int), id="attribute"),
        pytest.param(ValueError("x"), id="another"),
    ],
)
def test_schema_fault_is_none_for_what_is_not_ours(error: BaseException) -> None:
    """What a plugin asks others for is no matter of the contract."""
    assert schema_fault(error) is None
