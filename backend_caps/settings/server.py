"""The server's flags, where file and environment give them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from backend_caps.errors import BackendCapsError
from backend_caps.resolution.engine import Engine, option_of
from backend_caps.resolution.errors import leaves_of
from backend_caps.resolution.flags import ServerFlags
from backend_caps.settings.errors import ServerSettingError
from backend_caps.settings.layers import SERVER, Layer, Said, Statements
from backend_caps.settings.variables import variable_of


@dataclass(slots=True, kw_only=True)
class ServerReading:
    """The flags that were read; what is wrong with single ones is among the faults."""

    flags: ServerFlags = field(default_factory=ServerFlags)
    said: dict[str, tuple[Said, ...]] = field(default_factory=dict)
    """By flag, such as `server.page-size`: whoever goes before the others first."""
    faults: list[BackendCapsError] = field(default_factory=list)

    def put(self, flags: ServerFlags, layer: Layer, places: Mapping[str, str]) -> None:
        """Let a layer go before those that were put before it."""
        self.flags = flags.over(self.flags)
        for name, value in flags.given().items():
            key = server_key(name)
            said = Said(layer=layer, place=places[name], value=value)
            self.said[key] = (said, *self.said.get(key, ()))


def server_key(name: str) -> str:
    """Name a field of `ServerFlags` as a setting: by the engine's option."""
    return f"{SERVER}.{option_of(name).removeprefix('--')}"


def read_server(
    file: Statements, environ: Mapping[str, str], engine_name: str | Engine
) -> ServerReading:
    """Read the flags of a file's section and of the environment, which goes before it."""
    reading = ServerReading()
    _read_file(reading, file, engine_name)
    try:
        flags = ServerFlags.from_environ(environ)
    except (BackendCapsError, ExceptionGroup) as error:
        reading.faults += leaves_of(error)
    else:
        variables = {name: variable_of(SERVER, name) for name in flags.given()}
        reading.put(flags, Layer.ENVIRONMENT, variables)
    return reading


def _read_file(reading: ServerReading, file: Statements, engine_name: str | Engine) -> None:
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
            reading.faults += told
        else:
            section = flag.over(section)
            places.update(dict.fromkeys(flag.given(), place))
    reading.put(section, Layer.FILE, places)
