"""What the kit finds in SGLang's own backends: run anew, kept as JSON, and shown on a page.

Runs in the environment that `make upstream` builds, which has SGLang in it:

    python -m tests.upstream.sglang_findings [--write] [NAME ...]

It prints what was found, and ends with status 1 where that is not what is kept. `--write` keeps
it, where the page reads it.
"""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from docs.tools.markdown import table

VERSION = "0.5.23"
ROOT = Path(__file__).resolve().parents[2]
KEPT = Path(__file__).with_suffix(".json")
PYTHON = ROOT / ".cache" / "engines" / f"sglang-{VERSION}" / "bin" / "python"
RUNS: Mapping[str, Sequence[str]] = {
    "torch-native": ("TorchNativeAttnBackend",),
    "torch-native-rest": ("TorchNativeAttnBackend", "--without", "verify"),
    "triton": ("TritonAttnBackend", "--quick"),
}
"""What is asked of `backend-caps check --engine sglang`; Triton's interpreter takes minutes."""
_NOT_RUN = 2
Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Found:
    """One finding, or one claim that may be too modest."""

    run: str
    check: str
    what: str
    place: str
    """A line of SGLang; empty where none raised."""
    replay: str
    """Empty for a hint, which rests on many cases."""


def run(name: str) -> dict[str, Any]:
    """Run one of `RUNS` in this interpreter's environment, and return what is kept of it.

    Raises:
        RuntimeError: nothing could be checked.
    """
    words = ["-m", "backend_caps", "check", "--engine", "sglang", *RUNS[name], "--format", "json"]
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False, cwd=ROOT
    )
    if done.returncode >= _NOT_RUN:
        raise RuntimeError(f"{' '.join(RUNS[name])}: {done.stderr.strip()}")
    return kept_of(json.loads(done.stdout))


def kept_of(document: Json) -> dict[str, Any]:
    """Leave of a check's document what is the same on every machine."""
    return {
        "backend": document["backend"],
        "declared_at": document["declared_at"],
        "seeds": len(document["effort"]["seeds"]),
        "checks": [_kept_check(check) for check in document["checks"]],
    }


def _kept_check(check: Json) -> dict[str, Any]:
    return {
        "code": check["code"],
        "status": check["status"],
        "reason": check.get("reason", ""),
        "num_cases": len(check["cases"]),
        "findings": [
            {name: own[name] for name in ("what", "case")}
            | {"place": _place(own), "replay": own["replay"]}
            for own in check["findings"]
        ],
        "hints": [own["what"] for own in check["hints"]],
    }


def _place(finding: Json) -> str:
    """Name a line of SGLang as it is in its wheel."""
    file = finding.get("file")
    return "" if file is None else re.sub(r"^.*?(?=sglang/)", "", f"{file}:{finding['line']}")


def read_kept() -> dict[str, Any]:
    """Read what was found when it was last written down."""
    kept: dict[str, Any] = json.loads(KEPT.read_text("utf-8"))
    return kept


def found_in(kept: Json) -> Iterator[Found]:
    """List what was found: of one check in one run the first finding, and each hint."""
    for name in RUNS:
        yield from _found_of(name, kept[name])


def _found_of(name: str, kept: Json) -> Iterator[Found]:
    for check in kept["checks"]:
        for own in check["findings"][:1]:
            yield Found(name, check["code"], own["what"], own["place"], own["replay"])
        for hint in check["hints"]:
            yield Found(name, check["code"], hint, "", "")


def findings_table() -> str:
    """Give each finding a row: the class, the check, what was seen, the line, and the command."""
    kept = read_kept()
    rows = [
        (
            f"`{kept[own.run]['backend']}`",
            f"`{own.check}`",
            own.what,
            f"`{own.place}`" if own.place else "",
            f"`{own.replay}`" if own.replay else "",
        )
        for own in found_in(kept)
    ]
    columns = ("class", "check", "what was seen", "where it raised", "run again")
    return table(columns, dict.fromkeys(rows))  # a hint of two runs is one


def checks_table() -> str:
    """Give each check a row: what became of it in each run."""
    kept = read_kept()
    by_code: dict[str, list[str]] = {}
    for name in RUNS:
        for check in kept[name]["checks"]:
            told = f"{check['status']}, {check['num_cases']} cases"
            is_checked = check["status"] != "not checked"
            by_code.setdefault(check["code"], []).append(told if is_checked else check["reason"])
    rows = [(f"`{code}`", *told) for code, told in by_code.items()]
    return table(("check", *(f"`{' '.join(words)}`" for words in RUNS.values())), rows)


def versions_line() -> str:
    """Say what ran, and with which versions."""
    return ", ".join(f"{name} {own}" for name, own in read_kept()["versions"].items())


def _versions() -> dict[str, object]:
    names = ("sglang", "torch", "triton", "backend-caps")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


def verdicts(kept: Json) -> list[tuple[object, ...]]:
    """List of each check what became of it, and which cases found something where."""
    return [
        (check["code"], check["status"], [(own["case"], own["place"]) for own in check["findings"]])
        for check in kept["checks"]
    ]


def main(words: Sequence[str]) -> int:
    """Run what is named, or all; print it; keep it with `--write`, or compare it with what is."""
    names = [word for word in words if word != "--write"] or [*RUNS]
    kept = read_kept() if KEPT.exists() else {}
    found = {name: _printed(name) for name in names}
    if "--write" in words:
        both = {**kept, **found, "versions": _versions()}
        KEPT.write_text(json.dumps(both, indent=1) + "\n", "utf-8")
        return 0
    others = [name for name in names if verdicts(found[name]) != verdicts(kept[name])]
    for name in others:
        click.echo(f"{name} differs from what {KEPT.name} keeps; --write keeps what was found")
    return int(bool(others))


def _printed(name: str) -> dict[str, Any]:
    click.echo(f"backend-caps check --engine sglang {' '.join(RUNS[name])}")
    found = run(name)
    for check in found["checks"]:
        click.echo(f"  {check['code']}: {check['status']} {check['reason']}".rstrip())
    for own in _found_of(name, found):
        click.echo(f"  {own.check}: {own.what} {own.place}\n    {own.replay}")
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
