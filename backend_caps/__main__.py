"""`backend-caps` and `python -m backend_caps`.

The order matters: the working directory is taken off the path before any import beyond this
package and what Python has loaded by then, and a child process, which reads the plugins, is
started before this one imports what it needs.
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
"""Options and variables under which no plugins, or others than the default ones, are read."""


def main(argv: list[str] | None = None, *, working_directory: str | None = None) -> None:
    """Run the command line and exit with its status.

    Args:
        argv: the words after the program's name; those of this process unless given.
        working_directory: the folder that was taken off the head of `sys.path`.
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
        # pydantic's core turns a KeyboardInterrupt into an error of its own, so the signal counts.
        if not interrupts:
            raise
        sys.stderr.write("Aborted!\n")
        sys.exit(1)


def _run(words: list[str], working_directory: str | None) -> None:
    gc.disable()  # the process runs for 0.25 s, of which collecting would take 5 %
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # The first `--` separates the command's words from the server's flags.
    at = words.index("--") if "--" in words else len(words)
    command, server_flags = words[:at], words[at + 1 :]
    log, loading = None, None
    if command[:1] == ["check"]:
        from backend_caps.supervisor import watched  # noqa: PLC0415 - where native code runs

        log = watched()
    if command and command[0] in _READ_PLUGINS:
        options = {word.partition("=")[0] for word in command}
        if _OTHER_PLUGINS.isdisjoint({*options, *os.environ}):
            loading = _begun(working_directory)
    from backend_caps.cli.main import run  # noqa: PLC0415 - slow: while plugins are read

    try:
        run(command, server_flags, loading, log)
    finally:
        if log is not None:
            log.end()
        if loading is not None:
            loading.close()
        gc.freeze()  # Python collects at exit once more, though the system frees the memory anyway


def _begun(working_directory: str | None) -> Loading:
    from backend_caps.discovery.process import Search, start_early  # noqa: PLC0415 - light, so first

    early = start_early(Search.of_process(working_directory))
    from backend_caps.discovery.loading import begin  # noqa: PLC0415 - slow: while that starts

    return begin(environ=os.environ, early=early)


if __name__ == "__main__":
    # `-m` puts the working directory on the path. A `click.py` or the metadata of a distribution
    # there, by chance or planted, must not be imported.
    main(working_directory=None if sys.flags.safe_path else sys.path.pop(0))
