"""The server's flags, where file and environment give them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from backend_caps.errors import BackendCapsError
from backend_caps.resolution.engine import Engine, option_of
from backend_caps.resolution.errors import leaves_of
from backend_caps.resolution.flags import ServerFlags
from backend_caps.settings.errors import ServerSettingError
from backend_caps.settings.layers import SERVER, LayerValues, PlacedValue, SettingLayer
from backend_caps.settings.variables import variable_of


@dataclass(slots=True, kw_only=True)
class TracedFlags:
    """The flags that were read; what is wrong with single ones is among the faults."""

    flags: ServerFlags = field(default_factory=ServerFlags)
    said: dict[str, tuple[PlacedValue, ...]] = field(default_factory=dict)
    """By flag, such as `server.page-size`: whoever goes before the others first."""
    faults: list[BackendCapsError] = field(default_factory=list)

    def put(self, flags: ServerFlags, layer: SettingLayer, places: Mapping[str, str]) -> None:
        """Let a layer go before those that were put before it."""
        self.flags = flags.over(self.flags)
        for name, value in flags.given().items():
            key = server_key(name)
            said = PlacedValue(layer=layer, place=places[name], value=value)
            self.said[key] = (said, *self.said.get(key, ()))


def server_key(name: str) -> str:
    """Name a field of `ServerFlags` as a setting: by the engine's option."""
    return f"{SERVER}.{option_of(name).removeprefix('--')}"


def trace_server(
    file: LayerValues, environ: Mapping[str, str], engine_name: str | Engine
) -> TracedFlags:
    """Read the flags of a file's section and of the environment, which goes before it."""
    traced = TracedFlags()
    _read_file(traced, file, engine_name)
    try:
        flags = ServerFlags.from_environ(environ)
    except (BackendCapsError, ExceptionGroup) as error:
        traced.faults += leaves_of(error)
    else:
        variables = {name: variable_of(SERVER, name) for name in flags.given()}
        traced.put(flags, SettingLayer.ENVIRONMENT, variables)
    return traced


def _read_file(traced: TracedFlags, file: LayerValues, engine_name: str | Engine) -> None:
    """Read each flag by itself, so that a fault has its line."""
    section = ServerFlags()
    places: dict[str, str] = {}
    for key, value in file.section(SERVER).items():
        place = file.place(SERVER, key)
        if value is None:  # not given, as in a server's own file
            continue
        try:
            flag = ServerFlags.from_mapping({key: value}, engine_name=engine_name)
        except (BackendCapsError, ExceptionGroup) as error:
            told = [ServerSettingError(place=place, fault=each) for each in leaves_of(error)]
            traced.faults += told
        else:
            section = flag.over(section)
            places.update(dict.fromkeys(flag.given(), place))
    traced.put(section, SettingLayer.FILE, places)
