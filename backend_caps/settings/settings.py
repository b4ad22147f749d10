"""The settings of backend-caps itself, merged from all layers.

The command line overrides the environment, that the file, that the defaults: `SettingLayer` has
them in this order. `cli` reads the command line; the rest is here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from backend_caps.capability.facts import Facts
from backend_caps.capability.model import FrozenModel
from backend_caps.discovery.evidence import require_evidence
from backend_caps.discovery.loading import DEADLINE_S, LONGEST_DEADLINE_S
from backend_caps.discovery.registry import Registry, discover
from backend_caps.discovery.scan import AllowList
from backend_caps.errors import BackendCapsError
from backend_caps.resolution.engine import RULE_SETS, Engine, option_of
from backend_caps.resolution.errors import FlagsError, leaves_of, nearest, raise_all
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.plan import Policy
from backend_caps.settings import sources

AGREEMENT_DEADLINE_S = 60.0
"""The seconds that ranks wait for one another."""
_NEAR = 0.6
"""Similarity from which a name is taken for a misspelled setting."""
_EXPECTED = {
    "bool_type": "true or false",
    **dict.fromkeys(("finite_number", "float_type"), "a number of seconds"),
    "model_type": "a mapping of names to values",
    **dict.fromkeys(("string_too_short", "string_type"), "a name"),
    "tuple_type": "a list",
}
"""The expected values, in place of pydantic's names of Python types."""


def _path(value: object, info: ValidationInfo) -> object:
    """Read a path; a relative one starts at the layer's folder, if there is one."""
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
        *others, last = map(repr, RULE_SETS)
        known = f"{', '.join(others)} or {last}"
        raise PydanticCustomError("rules", "Input should be {known}", {"known": known})
    return value


AnyPath = Annotated[Path, BeforeValidator(_path)]
PathThere = Annotated[AnyPath, AfterValidator(_there)]
Name = Annotated[str, Field(min_length=1)]
Names = Annotated[tuple[Name, ...], BeforeValidator(_listed)]
Paths = Annotated[tuple[PathThere, ...], BeforeValidator(_listed)]
EngineVersion = Annotated[str, AfterValidator(_engine_version)]
Seconds = Annotated[StrictFloat, Field(gt=0, le=LONGEST_DEADLINE_S, allow_inf_nan=False)]


def key_of(name: str) -> str:
    """Write a setting's name as files and options spell it: dashes, and no unit."""
    return name.removesuffix("_s").replace("_", "-")


class Settings(FrozenModel):
    """Hold what configures backend-caps itself; what a server is given is in `server`."""

    model_config = ConfigDict(alias_generator=key_of, validate_by_alias=True, validate_by_name=True)

    engine: Literal["sglang", "vllm", "none"] | None = None
    """The engine whose own backends are read from its source as well."""
    source: PathThere | None = None
    """The folder or wheel to read the engine from, instead of the installed distribution."""
    rules: EngineVersion | None = None
    """The engine version whose flags and rules hold; not given, the installed SGLang's where they
    are known, else the newest known."""
    policy: Policy = Policy.WARN
    """Whether problems are refused, shown, or left out."""
    plugins: Names | None = None
    """The distributions to load; others are skipped. Not given, all are loaded; empty, none."""
    path: Paths = ()
    """Folders to look for plugins in, instead of the environment."""
    discovery_deadline_s: Seconds = DEADLINE_S
    """The seconds that the reading of one declaration may take."""
    require_evidence: StrictBool = False
    """Whether a claim that the conformance kit has not verified counts as undeclared."""
    agreement_deadline_s: Seconds = AGREEMENT_DEADLINE_S
    """The seconds that a rank waits for the others to agree on a plan."""
    lock: AnyPath | None = None
    """The lock file that what is installed and planned is compared with."""
    device: Name | None = None
    """The torch device to run on; not given, each command has its own."""
    format: Literal["table", "json", "markdown", "html"] = "table"
    """How commands print."""
    verbose: StrictBool = False
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
        """Read the settings of this process: variables override the file, both override defaults.

        A file in the working directory is not read unless it is named: one that was planted
        must not change a server.

        Args:
            config: the YAML file; else the one that `BACKEND_CAPS_CONFIG` names; else none.
            environ: the environment; this process's unless given.

        Raises:
            SettingsError: the file cannot be read, or holds no mapping.
            BackendCapsError: a name or a value in file or environment is refused; several faults
                come as one group.
        """
        traced = trace_settings(config, environ)
        server = traced.server(traced.settings.rules)
        raise_all("settings", sources.in_order([*traced.faults, *server.faults]))
        return traced.settings.model_copy(update={"server": server.flags})

    def given(self) -> Mapping[str, object]:
        """List what is set, by name; the rest are defaults."""
        return {name: value for name, value in self if name in self.model_fields_set}

    def discover(self) -> Registry:
        """Find the plugins under these settings; faults come as data."""
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


KEYS: Mapping[str, str] = {name: key_of(name) for name in Settings.model_fields}
"""The settings' names, and the keys that files have for them."""


@dataclass(slots=True, kw_only=True)
class TracedFlags:
    """The server's flags of file and environment, with the faults of single flags."""

    flags: ServerFlags = field(default_factory=ServerFlags)
    values: dict[str, tuple[sources.PlacedValue, ...]] = field(default_factory=dict)
    """The values of each flag, such as `server.page-size`; the effective one is first."""
    faults: list[BackendCapsError] = field(default_factory=list)

    def put(self, flags: ServerFlags, layer: sources.SettingLayer, at: Mapping[str, str]) -> None:
        """Add a layer, which overrides those added before."""
        self.flags = flags.over(self.flags)
        for name, value in flags.given().items():
            key = server_key(name)
            placed = sources.PlacedValue(layer=layer, place=at[name], value=value)
            self.values[key] = (placed, *self.values.get(key, ()))


def server_key(name: str) -> str:
    """Name a field of `ServerFlags` as a setting: by the engine's option."""
    return f"{sources.SERVER}.{option_of(name).removeprefix('--')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedSettings:
    """The settings of file and environment, with each value's place. Faults are data."""

    settings: Settings
    """All but `server`, which is read once the engine is known whose flags it holds."""
    values: Mapping[str, tuple[sources.PlacedValue, ...]]
    """The values of each key and of `facts.<name>`; the effective one is first."""
    faults: tuple[BackendCapsError, ...]
    file: Path | None
    """The file that was read; None where none is named."""
    _file_values: sources.LayerValues
    _environ: Mapping[str, str]

    def check(self) -> None:
        """Raise the faults that do not depend on the engine.

        Names of flags depend on it: `--rules` may still choose another. They are raised here only
        beside another fault, for the engine of file and environment.

        Raises:
            BackendCapsError: a name or a value is refused; several faults come as one group.
        """
        faults = self.server(self.settings.rules).faults
        certain = [fault for fault in faults if not _is_of_engine(fault)]
        shown = faults if certain or self.faults else certain
        raise_all("settings", sources.in_order([*self.faults, *shown]))

    def server(self, engine_name: str | Engine | None) -> TracedFlags:
        """Read the file's and the environment's flags, in an engine's spelling."""
        traced, section, places = TracedFlags(), ServerFlags(), dict[str, str]()
        # One flag of the file at a time, so that a fault has its line.
        for key, value in self.server_section().items():
            place = self._file_values.place(sources.SERVER, key)
            try:
                flag = ServerFlags.from_mapping({key: value}, engine_name=engine_name)
            except (BackendCapsError, ExceptionGroup) as error:
                traced.faults += [_server_fault(place, fault) for fault in leaves_of(error)]
            else:
                section = flag.over(section)
                places |= dict.fromkeys(flag.given(), place)
        traced.put(section, sources.SettingLayer.FILE, places)
        try:
            flags = ServerFlags.from_environ(self._environ)
        except (BackendCapsError, ExceptionGroup) as error:
            traced.faults += leaves_of(error)
        else:
            variables = {name: sources.variable_of(sources.SERVER, name) for name in flags.given()}
            traced.put(flags, sources.SettingLayer.ENVIRONMENT, variables)
        return traced

    def server_values(self) -> Mapping[str, object]:
        """List the flags of file and environment by name, the environment's over the file's.

        Raises:
            BackendCapsError: a variable is refused; several come as one group.
        """
        section = self.server_section().items()
        own = {name.removeprefix("--").replace("-", "_"): value for name, value in section}
        return {**own, **ServerFlags.from_environ(self._environ).given()}

    def server_section(self) -> Mapping[str, object]:
        """List the file's server flags before validation; a null flag is not given."""
        section = self._file_values.section(sources.SERVER)
        return {name: value for name, value in section.items() if value is not None}


def _server_fault(place: str, fault: BackendCapsError) -> sources.SettingsError:
    text = f"{place}: {fault}"
    if isinstance(fault, FlagsError) and fault.code in {"unknown-flag", "ambiguous-flag"}:
        return sources.SettingsError("server-flag-name", text, place)
    return sources.SettingsError("server-flag", text, place)


def _is_of_engine(fault: BackendCapsError) -> bool:
    return isinstance(fault, sources.SettingsError) and fault.code == "server-flag-name"


def trace_settings(
    config: str | PathLike[str] | None = None, environ: Mapping[str, str] | None = None
) -> TracedSettings:
    """Read the settings as `Settings.load` does, and keep each value's place.

    Raises:
        SettingsError: the file cannot be read, or holds no mapping.
    """
    environ = os.environ if environ is None else environ
    named = config or environ.get(sources.CONFIG)
    file = sources.LayerValues(layer=sources.SettingLayer.FILE)
    if named:
        from backend_caps.settings.file import read_file  # noqa: PLC0415 - where one is named

        file = read_file(Path(named))
    values: dict[str, object] = {}
    facts: dict[str, object] = {}
    placed_values: dict[str, tuple[sources.PlacedValue, ...]] = {}
    faults: list[BackendCapsError] = []
    for layer in (file, sources.read_environment(environ, KEYS.values())):
        settings, wrong = _checked(layer)
        faults += [*layer.faults, *wrong]
        known, given = settings.facts.known(), settings.given()
        paths: dict[tuple[str, ...], object] = {(KEYS[name],): given[name] for name in given}
        paths.pop((sources.FACTS,), None)  # each fact has a place of its own
        paths |= {(sources.FACTS, name): fact for name, fact in known.items()}
        for path, value in paths.items():
            key = ".".join(path)
            placed = sources.PlacedValue(layer=layer.layer, place=layer.place(*path), value=value)
            placed_values[key] = (placed, *placed_values.get(key, ()))
        values |= given
        facts |= known
    merged = {**values, sources.FACTS: Facts.model_validate(facts)} if facts else values
    return TracedSettings(
        settings=Settings.model_validate(merged),
        values=placed_values,
        faults=tuple(faults),
        file=Path(named) if named else None,
        _file_values=file,
        _environ=environ,
    )


def _checked(layer: sources.LayerValues) -> tuple[Settings, list[BackendCapsError]]:
    """Validate one layer's values; a fault in one drops all of them."""
    faults: list[BackendCapsError] = []
    stated = dict(layer.values)
    server = stated.pop(sources.SERVER, {})
    if not isinstance(server, dict):
        expected = _EXPECTED["model_type"]
        faults.append(
            sources.wrong_value(layer.place(sources.SERVER), sources.SERVER, server, expected)
        )
    try:
        return Settings.model_validate(stated, context=layer.folder), faults
    except ValidationError as error:
        return Settings(), [*faults, *(_fault(layer, detail) for detail in error.errors())]


def _fault(layer: sources.LayerValues, detail: ErrorDetails) -> BackendCapsError:
    path = tuple(map(str, detail["loc"]))
    place = layer.place(*path)
    name = ".".join(path[:2]) if path[0] == sources.FACTS else path[0]
    if detail["type"] == "extra_forbidden":
        known = tuple(Facts.model_fields if path[0] == sources.FACTS else KEYS.values())
        return sources.unknown_setting(place, name, known, nearest(path[-1], known, cutoff=_NEAR))
    text = re.sub(r"^\w+ should (be|have) ", "", detail["msg"])
    return sources.wrong_value(place, name, detail["input"], _EXPECTED.get(detail["type"], text))
