"""The pictures on the pages that a command draws.

python -m docs.tools.pictures            tells which are stale
python -m docs.tools.pictures --write    draws them
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from docs.tools.outputs import Files, main

FOLDER = Path(__file__).parents[1] / "images"
PICTURES: Mapping[str, Sequence[str]] = {
    "the-relay-timeline.svg": (
        *("trace", "--plugins", "backend-caps-torch-native", "--svg", "{}", "--"),
        *("--attention-backend", "torch_padded", "--speculative-algorithm", "EAGLE3"),
        *("--speculative-num-steps", "3", "--speculative-eagle-topk", "1"),
        *("--speculative-num-draft-tokens", "4", "--disable-piecewise-cuda-graph"),
    )
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


FILES: Files = {FOLDER / name: partial(drawn, name) for name in PICTURES}


if __name__ == "__main__":
    sys.exit(main(FILES, sys.argv[1:]))
