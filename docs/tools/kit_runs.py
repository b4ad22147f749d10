"""The kit's verdicts on the engines' own backends, in the form that the atlas ships.

python -m docs.tools.kit_runs            tells whether the file is stale
python -m docs.tools.kit_runs --write    writes it
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from backend_caps.report.check_catalog import CATALOG
from docs.tools.outputs import ROOT, Files, main

FILE = ROOT / "backend_caps/atlas/kit_runs.json"
_KEPT = {engine: ROOT / f"tests/upstream/{engine}_findings.json" for engine in ("sglang", "vllm")}
_ABOUT = {
    **dict.fromkeys(
        ("sliding-window", "mixed-windows", "window-pools", "windowed-sinks"), "sliding_window"
    ),
    "sinks": "attention_sinks",
    "soft-cap": "logit_soft_cap",
}
"""The capability of features' checks, which the catalogue does not have."""


def _about(check: str) -> list[str]:
    """Return the capabilities that a check is about."""
    if check in _ABOUT:
        return [_ABOUT[check]]
    # Numbers that are wrong in one case say nothing of a size or dtype alone.
    return CATALOG[check].claims if check in CATALOG and check != "numerics" else []


def _verdicts(kept: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield what the runs say of each class, of several runs of one the worse."""
    found: dict[tuple[str, str], dict[str, object]] = {}
    for run in kept.values():
        for check in run.get("checks", ()):
            if check["status"] not in {"held", "failed"}:
                continue
            words = check["findings"][0]["what"] if check["findings"] else ""
            own = {
                "check": check["code"],
                "held": check["status"] == "held",
                "about": _about(check["code"]),
                "words": words,
            }
            known = found.get((run["backend"], check["code"]))
            if known is None or known["held"]:
                found[run["backend"], check["code"]] = own
    for (backend, _), own in found.items():
        yield backend, own


def text() -> str:
    """Write the verdicts by release and class."""
    releases: dict[str, dict[str, list[object]]] = {}
    for engine, path in _KEPT.items():
        kept = json.loads(path.read_text("utf-8"))
        own = releases.setdefault(f"{engine} {kept['versions'][engine]}", {})
        for backend, verdict in _verdicts(kept):
            own.setdefault(backend, []).append(verdict)
    return json.dumps(releases, indent=1) + "\n"


FILES: Files = {FILE: text}

if __name__ == "__main__":
    sys.exit(main(FILES, sys.argv[1:]))
