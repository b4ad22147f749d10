"""Values that only a run has, and the outcomes of a question for each that decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Value = Any
"""A value of the source, whose type is not known here."""
_RUNS = 256
"""The most runs of one question."""


class OnlyRunError(BaseException):
    """A value that only a run has was asked for its content."""


class BrokenError(BaseException):
    """The stubs here cannot run a statement."""


class Decisions:
    """The answers of unknown values in one run; those after the planned ones are yes."""

    current: Decisions

    def __init__(self, planned: tuple[bool, ...]) -> None:
        self.planned = planned
        self.made: dict[str, bool] = {}

    def decide(self, text: str) -> bool:
        """Answer a question, the same each time it is asked in this run."""
        if text not in self.made:
            at = len(self.made)
            self.made[text] = self.planned[at] if at < len(self.planned) else True
        return self.made[text]


Decisions.current = Decisions(())


class Unknown:
    """A value that only a run has, with the expression that gives it."""

    def __init__(self, text: str) -> None:
        self.__dict__["text"] = text

    def __repr__(self) -> str:
        return str(self.__dict__["text"])

    def __getattr__(self, name: str) -> Unknown:
        if name.startswith("__"):
            raise AttributeError(name)
        return Unknown(f"{self!r}.{name}")

    def __setattr__(self, name: str, value: object) -> None:
        pass

    def __call__(self, *args: object, **named: object) -> Unknown:
        """Return what a call of it gives."""
        given = [*map(repr, args), *(f"{name}={value!r}" for name, value in named.items())]
        return Unknown(f"{self!r}({', '.join(given)})")

    def __bool__(self) -> bool:
        return Decisions.current.decide(repr(self))

    def __hash__(self) -> int:
        return hash(repr(self))

    def __contains__(self, item: object) -> bool:
        return Decisions.current.decide(f"{item!r} in {self!r}")

    def __getitem__(self, key: object) -> Unknown:
        return Unknown(f"{self!r}[{key!r}]")

    def __iter__(self) -> Iterator[Value]:
        raise OnlyRunError(repr(self))

    def __len__(self) -> int:
        raise OnlyRunError(repr(self))

    def __index__(self) -> int:
        raise OnlyRunError(repr(self))

    def __int__(self) -> int:
        raise OnlyRunError(repr(self))

    def __eq__(self, other: object) -> Unknown:  # type: ignore[override]
        return Unknown(f"{self!r} == {other!r}")

    def __ne__(self, other: object) -> Unknown:  # type: ignore[override]
        return Unknown(f"{self!r} != {other!r}")


def _operation(sign: str) -> Callable[[Unknown, object], Unknown]:
    return lambda self, other: Unknown(f"{self!r} {sign} {other!r}")


for _name, _sign in {
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "add": "+",
    "sub": "-",
    "mul": "*",
    "floordiv": "//",
    "truediv": "/",
    "mod": "%",
    "or": "|",
    "and": "&",
    "radd": "+",
    "rmul": "*",
    "ror": "|",
    "rand": "&",
    "rsub": "-",
}.items():
    setattr(Unknown, f"__{_name}__", _operation(_sign))


@dataclass(frozen=True)
class Outcome:
    """What one run of a question gives: a value, or why there is none."""

    value: Value = None
    open: str = ""
    """What only a run knows."""
    broken: str = ""
    """What the stubs here cannot run."""


def outcomes(question: Callable[[], Value]) -> list[Outcome]:
    """Run a question for each answer of the unknown values that it meets."""
    plans: list[tuple[bool, ...]] = [()]
    found: list[Outcome] = []
    while plans:
        if len(found) == _RUNS:
            return [*found, Outcome(broken=f"more than {_RUNS} runs")]
        plan = plans.pop()
        Decisions.current = decisions = Decisions(plan)
        try:
            found.append(Outcome(value=question()))
        except OnlyRunError as error:
            found.append(Outcome(open=str(error)))
        except BrokenError as error:
            found.append(Outcome(broken=str(error)))
        except Exception as error:  # noqa: BLE001 the source or a stub may raise anything
            found.append(Outcome(broken=f"{type(error).__name__}: {error}"))
        made = list(decisions.made.values())
        plans += [(*made[:at], False) for at in range(len(plan), len(made))]
    return found
