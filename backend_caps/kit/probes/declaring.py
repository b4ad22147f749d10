"""A declaration as discovery meets it: imported alone, in a new process."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import cast

from backend_caps.kit.probes import declaring_child
from backend_caps.kit.probes.declaring_child import Seen, Work
from backend_caps.kit.subject import Subject

_DEADLINE_S = 60.0


def see(subject: Subject) -> Seen | str:
    """Import a subject's declaration in a new process.

    returns what was seen; or in words, what kept it from being imported
    """
    declaration = subject.declaration
    work = Work(
        path=sys.path,
        declared_at=str(subject.source.declared_at),
        distribution=subject.source.distribution,
        implementation=(declaration.implementation or "").partition(":")[0],
        declaration=declaration.model_dump_json(),
    )
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "seen.json"
        try:
            done = subprocess.run(  # noqa: S603 - this very Python, with a program of ours
                [sys.executable, "-P", declaring_child.__file__, json.dumps(work), str(target)],
                capture_output=True,
                text=True,
                check=False,
                timeout=_DEADLINE_S,
            )
        except subprocess.TimeoutExpired:
            return f"takes more than {_DEADLINE_S:.0f} s to import"
        if not target.exists():
            last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
            return f"ends the process that imports it: {last}"
        return cast("Seen | str", json.loads(target.read_text("utf-8")))
