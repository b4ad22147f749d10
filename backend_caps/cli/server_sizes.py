"""The sizes on a server's command line, which decide nothing about backends."""

from __future__ import annotations

import click

from backend_caps.cli.invocation import Invocation
from backend_caps.cli.options import Request
from backend_caps.conformance.dry_run import ServerSizes
from backend_caps.resolution.command_line import Reader
from backend_caps.resolution.engine import engine
from backend_caps.resolution.errors import FlagValueError, raise_all

_SIZES = ("max_running_requests", "chunked_prefill_size")
"""The engine's flags that set one."""


def sizes_in(ctx: click.Context, request: Request) -> ServerSizes:
    """Read the sizes from the words after `--` and from the file of flags.

    Raises:
        BackendCapsError: a value is no number; several faults come as one group.
    """
    own = None if request.reading is None else request.reading.command_line
    reader = Reader(own or engine(ctx.params["rules"]), dict.fromkeys(_SIZES, False))
    line = reader.argv(ctx.ensure_object(Invocation).server_flags)
    if ctx.params["flags_file"] is not None:
        line = line.over(reader.file(ctx.params["flags_file"]))
    faults = list(line.faults)
    sizes: dict[str, int] = {}
    for name, value in line.values.items():
        try:
            sizes[name] = int(str(value))
        except ValueError:
            flag = f"--{name.replace('_', '-')}"
            faults.append(FlagValueError(flag=flag, value=repr(value), expected="a number"))
    raise_all("server flags", faults)
    return ServerSizes(
        max_running_requests=sizes.get("max_running_requests"),
        chunked_prefill_size=sizes.get("chunked_prefill_size"),
    )
