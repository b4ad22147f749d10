"""`backend-caps` and `python -m backend_caps`.

The order is the point: the working directory leaves the path before anything but this package
and what Python itself has loaded by then is imported, and plugins are read by a process of
their own, which is started before this one imports what it needs.
"""

from __future__ import annotations

import gc
import os
import signal
import sys

TYPE_CHECKING = False  # that of `typing`, which the working directory could stand in for
if TYPE_CHECKING:
    from types import FrameType

    from backend_caps.discovery.loading import Loading

_READ_PLUGINS = frozenset(
    {
        *("check", "dry-run", "explain", "generate", "lock"),
        *("relay", "report", "resolve", "select", "verify"),
    }
)
_OTHER_PLUGINS = frozenset(
    {
        *("-h", "--help", "--config", "--discovery-deadline", "--path", "--plugins"),
        *("BACKEND_CAPS_CONFIG", "BACKEND_CAPS_DISCOVERY_DEADLINE", "BACKEND_CAPS_PATH"),
    }
)
"""Options and variables that need no plugins, or other ones than those that are read early."""


def main(argv: list[str] | None = None, *, working_directory: str | None = None) -> None:
    """Run the command line and exit with its status.

    Args:
        argv: the words after the program's name; those of this process unless given.
        working_directory: what was taken off the head of `sys.path`.
    """
    interrupts: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        interrupts.append(number)
        signal.default_int_handler(number, frame)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    try:
        _run(sys.argv[1:] if argv is None else argv, working_directory)
    except (KeyboardInterrupt, Exception):
        # pydantic's core gives an interrupt that it meets as an error of its own.
        if not interrupts:
            raise
        sys.stderr.write("Aborted!\n")
        sys.exit(1)


def _run(words: list[str], working_directory: str | None) -> None:
    gc.disable()  # a process of a quarter of a second: collecting is a twentieth of it
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # The first `--` divides our own words from the server's.
    at = words.index("--") if "--" in words else len(words)
    own, server_flags = words[:at], words[at + 1 :]
    log, loading = None, None
    if own[:1] == ["check"]:
        from backend_caps.supervisor import watched  # noqa: PLC0415 - where native code runs

        log = watched()
    if own and own[0] in _READ_PLUGINS:
        options = {word.partition("=")[0] for word in own}
        if _OTHER_PLUGINS.isdisjoint({*options, *os.environ}):
            loading = _begun(working_directory)
    from backend_caps.cli.main import run  # noqa: PLC0415 - slow: while plugins are read

    try:
        run(own, server_flags, loading, log)
    finally:
        if log is not None:
            log.end()
        if loading is not None:
            loading.close()
        gc.freeze()  # Python's own end collects once more, what the system takes back anyway


def _begun(working_directory: str | None) -> Loading:
    from backend_caps.discovery.process import Search, start_early  # noqa: PLC0415 - light, so first

    early = start_early(Search.of_process(working_directory))
    from backend_caps.discovery.loading import begin  # noqa: PLC0415 - slow: while that starts

    return begin(environ=os.environ, early=early)


if __name__ == "__main__":
    # What lies by chance, or was planted, in the working directory that `-m` put on the path must
    # not be imported: neither a `click.py` nor the metadata of a distribution.
    main(working_directory=None if sys.flags.safe_path else sys.path.pop(0))
