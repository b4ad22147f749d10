"""What configures backend-caps itself, from everywhere it can be said, in one order.

Command line, then environment, then file, then what is built in: `SettingLayer` has them in this
order. The command line is read by `cli`; the rest is here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, StrictBool, ValidationError, WithJsonSchema
from pydantic_core import ErrorDetails

from backend_caps.capability.facts import Facts, Situation
from backend_caps.capability.model import FrozenModel
from backend_caps.discovery.admission import AllowList
from backend_caps.discovery.evidence import require_evidence
from backend_caps.discovery.loading import DEADLINE_S
from backend_caps.discovery.registry import Registry, discover
from backend_caps.errors import BackendCapsError
from backend_caps.resolution.engine import DEFAULT_ENGINE, Engine
from backend_caps.resolution.errors import FlagsError, nearest, raise_all
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.plan import Policy
from backend_caps.settings.errors import (
    ServerSettingError,
    SettingValueError,
    UnknownSettingError,
    in_order,
)
from backend_caps.settings.kinds import (
    AnyPath,
    EngineVersion,
    Name,
    Names,
    Paths,
    PathThere,
    Seconds,
    Spelled,
)
from backend_caps.settings.layers import FACTS, SERVER, LayerValues, PlacedValue, SettingLayer
from backend_caps.settings.server import TracedFlags, trace_server
from backend_caps.settings.variables import (
    CONFIG,
    folders,
    names,
    number,
    plain,
    read_variables,
    switch,
)

AGREEMENT_DEADLINE_S = 60.0
"""How long ranks wait for one another."""
_NEAR = 0.6
"""How much of a setting's name has to be right for it to be meant."""


def key_of(name: str) -> str:
    """Write a setting's name as files and options spell it: dashes, and no unit."""
    return name.removesuffix("_s").replace("_", "-")


class Settings(FrozenModel):
    """Hold what configures backend-caps itself; what a server is given is in `server`."""

    model_config = ConfigDict(alias_generator=key_of, validate_by_alias=True, validate_by_name=True)

    engine: Annotated[Literal["sglang", "vllm", "none"] | None, Spelled(plain)] = None
    """The engine whose own backends are read from its source as well."""
    source: Annotated[PathThere | None, Spelled(plain)] = None
    """The folder or wheel to read the engine from, instead of the installed distribution."""
    rules: Annotated[EngineVersion, Spelled(plain)] = DEFAULT_ENGINE
    """The engine version whose flags and rules hold."""
    policy: Annotated[Policy, Spelled(plain)] = Policy.WARN
    """Whether problems are refused, shown, or left out."""
    plugins: Annotated[Names | None, Spelled(names)] = None
    """The distributions to load; others are skipped. Not given, all are loaded; empty, none."""
    path: Annotated[Paths, Spelled(folders)] = ()
    """Folders to look for plugins in, instead of the environment."""
    discovery_deadline_s: Annotated[Seconds, Spelled(number)] = DEADLINE_S
    """The seconds that the reading of one declaration may take."""
    require_evidence: Annotated[StrictBool, Spelled(switch)] = False
    """Whether a claim that the conformance kit has not verified counts as undeclared."""
    agreement_deadline_s: Annotated[Seconds, Spelled(number)] = AGREEMENT_DEADLINE_S
    """The seconds that a rank waits for the others to agree on a plan."""
    lock: Annotated[AnyPath | None, Spelled(plain)] = None
    """The lock file that what is installed and planned is compared with."""
    device: Annotated[Name | None, Spelled(plain)] = None
    """The torch device to run on; not given, each command has its own."""
    format: Annotated[Literal["table", "json", "markdown", "html"], Spelled(plain)] = "table"
    """How commands print."""
    verbose: Annotated[StrictBool, Spelled(switch)] = False
    """Whether server flags that do not matter are named."""
    facts: Facts = Field(default_factory=Facts)
    """What is known of machine and model."""
    server: Annotated[ServerFlags, WithJsonSchema({"type": "object"})] = Field(
        default_factory=ServerFlags
    )
    """The server's flags that come before those of its command line."""

    @classmethod
    def load(
        cls, config: str | PathLike[str] | None = None, environ: Mapping[str, str] | None = None
    ) -> Settings:
        """Read the settings of this process: variables go before the file, both before defaults.

        A file in the working directory is not read unless it is named: one that was planted
        must not change a server.

        Args:
            config: the YAML file; else the one that `BACKEND_CAPS_CONFIG` names; else none.
            environ: the environment; this process's unless given.

        Raises:
            SettingsFileError: the file cannot be read, or holds no mapping.
            BackendCapsError: a name or a value in file or environment is refused; several faults
                come as one group.
        """
        traced = trace_settings(config, environ)
        server = traced.server(traced.settings.rules)
        raise_all("settings", in_order([*traced.faults, *server.faults]))
        return traced.settings.model_copy(update={"server": server.flags})

    def discover(self) -> Registry:
        """Find the plugins as these settings say; faults come as data."""
        allow = None
        if self.plugins is not None:
            allow = AllowList.named("the setting plugins", self.plugins)
        registry = discover(
            self.path or None, allow=allow, deadline_s=self.discovery_deadline_s, environ={}
        )
        if not self.require_evidence:
            return registry
        device = self.facts.device or (self.device or "").partition(":")[0] or None
        return require_evidence(registry, path=self.path, device=device)


def _given(settings: Settings) -> dict[str, object]:
    return {name: value for name, value in settings if name in settings.model_fields_set}


KEYS: Mapping[str, str] = {name: key_of(name) for name in Settings.model_fields}
"""The settings' names, and the keys that files have for them."""
_NAMES = {key: name for name, key in KEYS.items()}
_WORDS = {
    KEYS[name]: each.word
    for name, own in Settings.model_fields.items()
    for each in own.metadata
    if isinstance(each, Spelled)
}
_EXPECTED = {
    "bool_type": "true or false",
    "finite_number": "a number of seconds",
    "float_type": "a number of seconds",
    "model_type": "a mapping of names to values",
    "string_too_short": "a name",
    "string_type": "a name",
    "tuple_type": "a list",
}
"""What is expected, where pydantic says it as Python would."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedSettings:
    """What file and environment say, and where each value stands. Faults are data."""

    settings: Settings
    """All but `server`, which is read once the engine is known whose flags it holds."""
    said: Mapping[str, tuple[PlacedValue, ...]]
    """By key, and by `facts.<name>`: whoever goes before the others first."""
    faults: tuple[BackendCapsError, ...]
    file: Path | None
    """The file that was read; None where none is named."""
    _stated: LayerValues
    _environ: Mapping[str, str]

    def given(self) -> Mapping[str, object]:
        """List what is said, by name, `server` left out; the rest are defaults."""
        return _given(self.settings)

    def check(self) -> None:
        """Refuse what is wrong whichever engine it is.

        Raises:
            BackendCapsError: a name or a value is refused; several faults come as one group.
        """
        raise_all("settings", in_order([*self.faults, *self._server_faults()]))

    def server(self, engine_name: str | Engine) -> TracedFlags:
        """Read the server's flags as an engine spells them."""
        return trace_server(self._stated, self._environ, engine_name)

    def server_section(self) -> Mapping[str, object]:
        """List what the file says of the server, in its own words; null is not said."""
        section = self._stated.section(SERVER)
        return {name: value for name, value in section.items() if value is not None}

    def _server_faults(self) -> list[BackendCapsError]:
        """List the values among the server's flags that no engine takes.

        Where something is wrong anyway, names are told too, as far as file and environment say
        which engine it is.
        """
        faults = self.server(self.settings.rules).faults
        certain = [fault for fault in faults if not _is_of_engine(fault)]
        return faults if certain or self.faults else certain


def _is_of_engine(fault: BackendCapsError) -> bool:
    match fault:
        case ServerSettingError(fault=FlagsError(code="unknown-flag" | "ambiguous-flag")):
            return True
    return False


def trace_settings(
    config: str | PathLike[str] | None = None, environ: Mapping[str, str] | None = None
) -> TracedSettings:
    """Read what `Settings.load` does, and keep where each value stands.

    Raises:
        SettingsFileError: the file cannot be read, or holds no mapping.
    """
    environ = os.environ if environ is None else environ
    named = config or environ.get(CONFIG)
    file = _file(Path(named)) if named else LayerValues(layer=SettingLayer.FILE)
    values: dict[str, object] = {}
    said: dict[str, tuple[PlacedValue, ...]] = {}
    faults: list[BackendCapsError] = []
    for layer in (file, read_variables(environ, _WORDS)):
        checked, wrong = _checked(layer)
        faults += [*layer.faults, *wrong]
        for where, value in _flat(checked):
            key = ".".join(where)
            one = PlacedValue(layer=layer.layer, place=layer.place(*where), value=value)
            said[key] = (one, *said.get(key, ()))
        values = _over(checked, values)
    return TracedSettings(
        settings=Settings.model_validate(values),
        said=said,
        faults=tuple(faults),
        file=Path(named) if named else None,
        _stated=file,
        _environ=environ,
    )


def _file(path: Path) -> LayerValues:
    from backend_caps.settings.file import read_file  # noqa: PLC0415 - where one is named

    return read_file(path)


def _checked(layer: LayerValues) -> tuple[dict[str, object], list[BackendCapsError]]:
    """Give one layer's values their types, by the settings' names; none where one is wrong."""
    stated = {key: value for key, value in layer.values.items() if key != SERVER}
    if not layer.values:
        return {}, []
    faults = list(_faults_of_section(layer))
    try:
        settings = Settings.model_validate(stated, context=layer.folder)
    except ValidationError as error:
        return {}, [*faults, *(_fault(layer, detail) for detail in error.errors())]
    return _given(settings), faults


def _faults_of_section(layer: LayerValues) -> Iterator[BackendCapsError]:
    server = layer.values.get(SERVER, {})
    if not isinstance(server, dict):
        yield SettingValueError(
            place=layer.place(SERVER),
            name=SERVER,
            value=repr(server),
            expected=_EXPECTED["model_type"],
        )


def _fault(layer: LayerValues, detail: ErrorDetails) -> BackendCapsError:
    where = tuple(map(str, detail["loc"]))
    place = layer.place(*where)
    name = ".".join(where[:2]) if where[0] == FACTS else where[0]
    if detail["type"] == "extra_forbidden":
        known = tuple(Facts.model_fields if where[0] == FACTS else _NAMES)
        meant = nearest(where[-1], known, cutoff=_NEAR)
        return UnknownSettingError(place=place, name=name, known=known, meant=meant)
    said = re.sub(r"^\w+ should (be|have) ", "", detail["msg"])
    expected = _EXPECTED.get(detail["type"], said)
    return SettingValueError(place=place, name=name, value=repr(detail["input"]), expected=expected)


def _over(values: Mapping[str, object], below: Mapping[str, object]) -> dict[str, object]:
    """Put one layer's values over another's; facts name by name."""
    facts = {**_known(below), **_known(values)}
    merged = {**below, **values}
    return {**merged, FACTS: Facts.model_validate(facts)} if facts else merged


def _known(values: Mapping[str, object]) -> Situation:
    facts = values.get(FACTS)
    return facts.known() if isinstance(facts, Facts) else {}


def _flat(values: Mapping[str, object]) -> Iterator[tuple[tuple[str, ...], object]]:
    """List values by where they are said: a setting's key, and in a section the name too."""
    for name, value in values.items():
        if isinstance(value, Facts):
            yield from (((name, fact), known) for fact, known in value.known().items())
        else:
            yield (KEYS[name],), value
