"""The pictures on the pages that a command draws.

python -m docs.tools.pictures            tells which are stale
python -m docs.tools.pictures --write    draws them
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from docs.tools.schemas import RENEW

FOLDER = Path(__file__).parents[1] / "images"
PICTURES: Mapping[str, Sequence[str]] = {
    "the-relay-timeline.svg": (
        *("trace", "--plugins", "backend-caps-torch-native", "--svg", "{}", "--"),
        *("--attention-backend", "torch_padded", "--speculative-algorithm", "EAGLE3"),
        *("--speculative-num-steps", "3", "--speculative-eagle-topk", "1"),
        *("--speculative-num-draft-tokens", "4", "--disable-piecewise-cuda-graph"),
    ),
}
"""What draws each: a command line, with `{}` in the place of the file."""


def drawn(name: str) -> str:
    """Draw a picture anew."""
    with TemporaryDirectory(prefix="backend-caps-") as folder:
        file = Path(folder) / name
        words = [word.format(file) for word in PICTURES[name]]
        subprocess.run(  # noqa: S603 - our own command line
            [sys.executable, "-m", "backend_caps", *words], check=True, stdout=subprocess.DEVNULL
        )
        return file.read_text("utf-8")


def stale() -> list[str]:
    """List the pictures whose files are not what is drawn now."""
    return [
        name
        for name in PICTURES
        if not (FOLDER / name).exists() or (FOLDER / name).read_text("utf-8") != drawn(name)
    ]


def main(arguments: Sequence[str]) -> int:
    """Write the files, or tell which are stale; the status of the process."""
    names = stale()
    if "--write" in arguments:
        FOLDER.mkdir(exist_ok=True)
        for name in names:
            (FOLDER / name).write_text(drawn(name), "utf-8")
        return 0
    for name in names:
        sys.stdout.write(f"docs/images/{name} is stale; renew it: {RENEW}\n")
    return 1 if names else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
