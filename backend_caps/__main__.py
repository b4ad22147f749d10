"""`backend-caps` and `python -m backend_caps`.

The order is the point: the working directory leaves the path before anything is imported from
it, and plugins are read by a process of their own while this one imports what it needs.
"""

from __future__ import annotations

import os
import sys

_READ_PLUGINS = frozenset({"report", "resolve", "explain", "relay"})
_NEED_NO_PLUGINS = frozenset({"--path", "-h", "--help"})


def main(argv: list[str] | None = None, *, working_directory: str | None = None) -> None:
    """Run the command line and exit with its status.

    Args:
        argv: the words after the program's name; those of this process unless given.
        working_directory: what was taken off the head of `sys.path`.
    """
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from backend_caps.cli.invocation import Invocation, split  # noqa: PLC0415 - see above
    from backend_caps.discovery.loading import begin  # noqa: PLC0415 - see above

    own, server_flags = split(sys.argv[1:] if argv is None else argv)
    reads = own[:1] and own[0] in _READ_PLUGINS and _NEED_NO_PLUGINS.isdisjoint(own)
    loading = begin(environ=os.environ, working_directory=working_directory) if reads else None
    try:
        from backend_caps.cli.main import cli  # noqa: PLC0415 - slow: while plugins are read

        cli.main(own, obj=Invocation(server_flags=server_flags, loading=loading))
    finally:
        if loading is not None:
            loading.close()


def _leave_working_directory() -> str | None:
    """Take off `sys.path` the working directory that `-m` put first.

    What lies there by chance, or was planted, must not be imported: neither a `click.py` nor
    the metadata of a distribution.
    """
    return None if sys.flags.safe_path else sys.path.pop(0)


if __name__ == "__main__":
    main(working_directory=_leave_working_directory())
