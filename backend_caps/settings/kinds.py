"""The types of settings: how a value is checked, and how a variable's text becomes one."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, StrictFloat, ValidationInfo
from pydantic_core import PydanticCustomError

from backend_caps.discovery.errors import LONGEST_DEADLINE_S
from backend_caps.resolution.engine import RULE_SETS
from backend_caps.settings.variables import Word


@dataclass(frozen=True, slots=True)
class Spelled:
    """How a setting is spelled in a variable: metadata of its field."""

    word: Word


def _path(value: object, info: ValidationInfo) -> object:
    """Make a path of a text; a relative one begins where the layer says, if it says so."""
    if isinstance(value, Path):
        return value
    if not isinstance(value, str) or not value:
        raise PydanticCustomError("path", "Input should be a path")
    folder = info.context
    return folder / value if isinstance(folder, Path) else Path(value)


def _there(path: Path) -> Path:
    if not path.exists():
        raise PydanticCustomError("there", "Input should be a path that is there")
    return path


def _listed(value: object) -> object:
    """Refuse one text where several are expected."""
    if isinstance(value, str):
        raise PydanticCustomError(
            "listed", "Input should be a list, such as [{value}]", {"value": value}
        )
    return value


def _engine_version(value: str) -> str:
    if value not in RULE_SETS:
        raise PydanticCustomError("rules", "Input should be {known}", {"known": _any_of(RULE_SETS)})
    return value


def _any_of(words: Collection[str]) -> str:
    *others, last = map(repr, words)
    return f"{', '.join(others)} or {last}"


AnyPath = Annotated[Path, BeforeValidator(_path)]
PathThere = Annotated[AnyPath, AfterValidator(_there)]
Name = Annotated[str, Field(min_length=1)]
Names = Annotated[tuple[Name, ...], BeforeValidator(_listed)]
Paths = Annotated[tuple[PathThere, ...], BeforeValidator(_listed)]
EngineVersion = Annotated[str, AfterValidator(_engine_version)]
Seconds = Annotated[StrictFloat, Field(gt=0, le=LONGEST_DEADLINE_S, allow_inf_nan=False)]
