"""What tests ask of the machine that they run on."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path
from secrets import SystemRandom

ROOT = Path(__file__).resolve().parents[1]

_GIVEN_TO_NOBODY = range(20_000, 32_000)
"""Below what Linux gives to whoever asks for any port: what is found free stays so for a while."""


def free_port() -> int:
    """Return a port that nobody listens on, and that no other test is given by the system."""
    while True:
        port = SystemRandom().choice(_GIVEN_TO_NOBODY)
        with socket.socket() as asked:
            if asked.connect_ex(("127.0.0.1", port)):
                return port


def git(*words: str) -> str:
    """Return what git says of this checkout, whoever owns it."""
    command = ["/usr/bin/env", "git", "-c", "safe.directory=*", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
