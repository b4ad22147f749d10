# mypy: disable-error-code="attr-defined"
from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import cached_property, partial

import pytest

from backend_caps.engines.sglang.live import setter_of

NAME = "needs_cpu_seq_lens"


def _decorated(function: Callable[..., None]) -> Callable[..., None]:
    def call(*values: object) -> None:
        function(*values)

    return call


class _Sets:
    def __init__(self) -> None:
        self.needs_cpu_seq_lens = False


class _SaysNothing(_Sets):
    pass


class _Reads(_Sets):
    def forward(self) -> bool:
        return self.needs_cpu_seq_lens or bool(getattr(self, "needs_cpu_seq_lens"))  # noqa: B009


class _SetsByName:
    def __init__(self) -> None:
        setattr(self, "needs_cpu_seq_lens", False)  # noqa: B010


class _SetsLater:
    def __init__(self) -> None:
        self.steps = [self.set_up]

    def set_up(self) -> None:
        def apply() -> None:
            self.needs_cpu_seq_lens = False

        apply()


class _IsDecorated:
    @_decorated
    def set_up(self) -> None:
        self.needs_cpu_seq_lens = False


class _OfClass:
    @classmethod
    def made(cls) -> _OfClass:
        made = cls()
        made.needs_cpu_seq_lens = False
        return made


class _Static:
    @staticmethod
    def prepare(backend: _Sets) -> None:
        backend.needs_cpu_seq_lens = False


class _InProperty:
    @property
    def ready(self) -> bool:
        self.needs_cpu_seq_lens = False
        return True


class _InSetter:
    @property
    def ready(self) -> bool:
        return True

    @ready.setter
    def ready(self, value: bool) -> None:
        self.needs_cpu_seq_lens = value


class _Cached:
    @cached_property
    def ready(self) -> bool:
        self.needs_cpu_seq_lens = False
        return True


class _InContext:
    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        self.needs_cpu_seq_lens = False
        yield


class _Nobody:
    step = partial(print)

    def forward(self) -> None:
        self.ready = True


def _unfilled() -> type:
    class Made(_Nobody):
        def forward(self) -> None:
            late()

    seen = setter_of(Made, NAME)
    late = print
    assert seen is None
    return Made


@pytest.mark.parametrize(
    ("kind", "setter"),
    [
        pytest.param(_Sets, _Sets, id="its constructor"),
        pytest.param(_SaysNothing, _Sets, id="its base's constructor"),
        pytest.param(_Reads, _Sets, id="a class that only reads it"),
        pytest.param(_SetsByName, _SetsByName, id="by its name as text"),
        pytest.param(_SetsLater, _SetsLater, id="a function in a method"),
        pytest.param(_IsDecorated, _IsDecorated, id="a decorated method"),
        pytest.param(_OfClass, _OfClass, id="a class method"),
        pytest.param(_Static, _Static, id="a static method"),
        pytest.param(_InProperty, _InProperty, id="a property"),
        pytest.param(_InSetter, _InSetter, id="the setter of a property"),
        pytest.param(_Cached, _Cached, id="a cached property"),
        pytest.param(_InContext, _InContext, id="a context manager"),
        pytest.param(_Nobody, None, id="nobody"),
        pytest.param(_unfilled(), None, id="a name that is not there yet"),
    ],
)
def test_setter_is_the_nearest_class_whose_code_sets_it(kind: type, setter: type | None) -> None:
    """A class sets an attribute where a function of its own body stores it."""
    assert setter_of(kind, NAME) is setter
