"""What pydantic is given to call, which a process of every command has to look at first."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from pydantic import BaseModel

from backend_caps.capability.declaration import Declaration
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.rules import Rule


def _called(schema: object) -> Iterator[Callable[..., object]]:
    """List the validators and serializers in a core schema."""
    if isinstance(schema, dict):
        for name, value in schema.items():
            if name == "function" and callable(value):
                yield value
            yield from _called(value)
    elif isinstance(schema, list | tuple):
        for value in schema:
            yield from _called(value)


@pytest.mark.parametrize(
    "model", [pytest.param(each, id=each.__name__) for each in (Declaration, Rule, ServerFlags)]
)
def test_model_calls_nothing_whose_signature_is_a_text(model: type[BaseModel]) -> None:
    """No validator is a class or function in C: pydantic would parse their help text."""
    model.model_rebuild()

    called = set(_called(model.__pydantic_core_schema__))

    assert called
    assert not [each for each in called if getattr(each, "__text_signature__", None)]
