"""What the kit finds in an engine's own backends: run anew, kept as JSON, and shown on a page.

A module of each engine names its runs. It runs in the environment that `make upstream` builds,
which has the engine in it, prints what was found, and ends with status 1 where that is not what is
kept. `--write` keeps it, where the page reads it.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

import click

from docs.tools.markdown import table

if TYPE_CHECKING:
    from backend_caps.kit import Fault
    from backend_caps.kit.issue import IssueScript

ROOT = Path(__file__).resolve().parents[2]
_NOT_RUN = 2
Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Found:
    """One finding, or one claim that may be too modest."""

    run: str
    check: str
    what: str
    place: str
    """A line of the engine; empty where none raised."""
    replay: str
    """Empty for a hint, which rests on many cases."""
    script: str
    """The name of the script that shows it; empty where there is none."""


class Written(NamedTuple):
    """The script of a finding."""

    found: Found
    fault: Fault
    script: IssueScript


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFindings:
    """What is asked of one engine's classes, and where the answers are kept."""

    engine: str
    version: str
    kept: Path
    """The file of what was found."""
    runs: Mapping[str, Sequence[str]]
    """By name, what is asked of `backend-caps check --engine`."""
    environments: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By the name of a run, variables of its environment."""
    paths: Sequence[Path] = ()
    """Folders with packages that the engine's environment does not have."""

    @property
    def python(self) -> Path:
        """The Python of the environment that has the engine."""
        return ROOT / ".cache" / "engines" / f"{self.engine}-{self.version}" / "bin" / "python"

    def run(self, name: str) -> dict[str, Any]:
        """Run one of the runs in this interpreter's environment, and return what is kept of it.

        Raises:
            RuntimeError: nothing could be checked.
        """
        words = ["-m", "backend_caps", "check", "--engine", self.engine, *self.runs[name]]
        done = subprocess.run(
            [sys.executable, *words, "--format", "json"],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
            env=self.environment(name),
        )
        if done.returncode >= _NOT_RUN:
            raise RuntimeError(f"{' '.join(self.runs[name])}: {done.stderr.strip()}")
        return self.kept_of(json.loads(done.stdout))

    def environment(self, name: str = "") -> dict[str, str]:
        """Return the environment of a run, or that of runs without variables of their own."""
        own = {**os.environ, **self.environments.get(name, {})}
        if self.paths:
            before = filter(None, [own.get("PYTHONPATH")])
            own["PYTHONPATH"] = os.pathsep.join([*map(str, self.paths), *before])
        return own

    def kept_of(self, document: Json) -> dict[str, Any]:
        """Leave of a check's document what is the same on every machine."""
        return {
            "backend": document["backend"],
            "declared_at": document["declared_at"],
            "seeds": len(document["effort"]["seeds"]),
            "checks": [self._kept_check(check) for check in document["checks"]],
        }

    def _kept_check(self, check: Json) -> dict[str, Any]:
        return {
            "code": check["code"],
            "status": check["status"],
            "reason": check.get("reason", ""),
            "num_cases": len(check["cases"]),
            "findings": [
                {name: own[name] for name in ("what", "case")}
                | {"place": self._place(own), "replay": own["replay"]}
                for own in check["findings"]
            ],
            "hints": [own["what"] for own in check["hints"]],
        }

    def _place(self, finding: Json) -> str:
        """Name a line of the engine as it is in its wheel."""
        file = finding.get("file")
        if file is None:
            return ""
        return re.sub(rf"^.*?(?={self.engine}/)", "", f"{file}:{finding['line']}")

    def read_kept(self) -> dict[str, Any]:
        """Read what was found when it was last written down."""
        kept: dict[str, Any] = json.loads(self.kept.read_text("utf-8"))
        return kept

    def found_in(self, kept: Json) -> Iterator[Found]:
        """List what was found: of one check in one run the first finding, and each hint."""
        for name in self.runs:
            yield from _found_of(name, kept[name])

    def findings_table(self) -> str:
        """Give each finding a row: the class, the check, what was seen, the line, the command."""
        kept = self.read_kept()
        rows = [
            (
                f"`{kept[own.run]['backend']}`",
                f"`{own.check}`",
                own.what,
                f"`{own.place}`" if own.place else "",
                f"`{own.replay}`" if own.replay else "",
                f"[`{own.script}`](#{own.script.lower()})" if own.script else "",
            )
            for own in self.found_in(kept)
        ]
        columns = ("class", "check", "what was seen", "where it raised", "run again", "script")
        return table(columns, dict.fromkeys(rows))  # a hint of two runs is one

    @property
    def scripts_folder(self) -> Path:
        """Where the scripts of findings are kept."""
        return self.kept.parent / "scripts" / self.engine

    def scripts_list(self) -> str:
        """Show each script, under its name."""
        files = sorted(self.scripts_folder.glob("*.py"))
        return "\n\n".join(
            f"#### {file.stem}\n\n```py\n{file.read_text('utf-8')}```" for file in files
        )

    def checks_table(self) -> str:
        """Give each check a row: what became of it in each run; empty where it was not made."""
        kept = self.read_kept()
        by_code: dict[str, dict[str, str]] = {}
        for name in self.runs:
            for check in kept[name]["checks"]:
                row = by_code.setdefault(check["code"], {})
                if check["status"] != "not checked":
                    row[name] = f"{check['status']}, {check['num_cases']}"
        rows = [
            (f"`{code}`", *(row.get(name, "") for name in self.runs))
            for code, row in by_code.items()
            if row
        ]
        return table(("check", *(f"`{self._asked(name)}`" for name in self.runs)), rows)

    def reasons_table(self) -> str:
        """Give each reason for which checks were not made a row, with the checks and the runs."""
        kept = self.read_kept()
        by_reason: dict[str, dict[str, dict[str, None]]] = {}
        for name in self.runs:
            for check in kept[name]["checks"]:
                if check["status"] == "not checked":
                    own = by_reason.setdefault(check["reason"], {})
                    own.setdefault(check["code"], {})[kept[name]["backend"]] = None
        rows = []
        for reason, checks in by_reason.items():
            classes = dict.fromkeys(each for own in checks.values() for each in own)
            rows.append((reason, _named(checks), _named(classes)))
        return table(("because", "checks", "classes"), rows)

    def _asked(self, name: str) -> str:
        """Write what a run asks: its variables, and its words."""
        variables = (f"{key}={own}" for key, own in self.environments.get(name, {}).items())
        return " ".join([*variables, *self.runs[name]])

    def versions_line(self) -> str:
        """Say what ran, and with which versions."""
        return ", ".join(f"{name} {own}" for name, own in self.read_kept()["versions"].items())

    def main(self, words: Sequence[str]) -> int:
        """Run what is named, or all; print it; keep it with `--write`, or compare it.

        `--scripts` writes the scripts of what is kept, and `--run-scripts` runs them.
        """
        if "--scripts" in words:
            self.keep_scripts()
            return 0
        if "--run-scripts" in words:
            return self.run_scripts()
        names = [word for word in words if word != "--write"] or [*self.runs]
        if "--write" in words:
            for name in names:
                self.keep({name: self._printed(name)})
            return 0
        kept = self.read_kept()
        found = {name: self._printed(name) for name in names}
        others = [name for name in names if verdicts(found[name]) != verdicts(kept[name])]
        for name in others:
            click.echo(f"{name} differs from what {self.kept.name} keeps; --write keeps what it is")
        return int(bool(others))

    def keep(self, found: Json) -> None:
        """Write down what runs found, and leave what is kept of others."""
        kept = self.read_kept() if self.kept.exists() else {}
        scripts = {name: own.get("scripts", {}) for name, own in kept.items()}
        again = {name: {**own, "scripts": scripts.get(name, {})} for name, own in found.items()}
        both = {**kept, **again, "versions": self._versions()}
        ordered = {name: both[name] for name in (*self.runs, "versions") if name in both}
        self.kept.write_text(json.dumps(ordered, indent=1) + "\n", "utf-8")

    def keep_scripts(self) -> None:
        """Write the scripts that show what is kept, and keep which shows what."""
        kept = self.read_kept()
        shutil.rmtree(self.scripts_folder, ignore_errors=True)
        self.scripts_folder.mkdir(parents=True)
        for name in self.runs:
            kept[name]["scripts"] = {}
        by_place: dict[tuple[str, str], str] = {}
        for own in self.written():
            stem = by_place[own.found.run, own.found.place] = script_name(own.script)
            kept[own.found.run]["scripts"][own.found.check] = stem
            self.scripts_folder.joinpath(f"{stem}.py").write_text(own.script.text, "utf-8")
        for found in self.found_in(kept):  # one line is one cause
            if found.place and (found.run, found.place) in by_place:
                kept[found.run]["scripts"].setdefault(found.check, by_place[found.run, found.place])
        self.kept.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")

    def run_scripts(self) -> int:
        """Run each script as it is kept; print what is wrong with one, and return whether any is.

        Wrong is a script that does not show its fault, or that the adapter writes otherwise now.
        """
        from backend_caps.kit.issue import run_script  # noqa: PLC0415 - pages do without

        def wrong(own: Written) -> str:
            name = script_name(own.script)
            if self.scripts_folder.joinpath(f"{name}.py").read_text("utf-8") != own.script.text:
                return f"{name} is written otherwise now; --scripts keeps what it is"
            ran = run_script(self.engine, own.script, own.fault)
            return "" if ran.shows else f"{name} does not show {own.fault.what}:\n{ran.printed}"

        by_name = {script_name(own.script): own for own in self.written()}
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            problems = [*filter(None, threads.map(wrong, by_name.values()))]
        left = {file.stem for file in self.scripts_folder.glob("*.py")} - {*by_name}
        problems += [f"{name} shows nothing that is kept" for name in sorted(left)]
        click.echo("\n".join([f"{len(by_name)} scripts", *problems]))
        return int(bool(problems))

    def written(self) -> Iterator[Written]:
        """Write the script of each finding that is kept, and has one."""
        from backend_caps.engines.read import read_engine  # noqa: PLC0415 - pages do without
        from backend_caps.kit import Fault, Finding, KitError, find_case  # noqa: PLC0415
        from backend_caps.kit.check import engine_adapter  # noqa: PLC0415
        from backend_caps.simulator import Site  # noqa: PLC0415

        adapter, registry = engine_adapter(self.engine), read_engine(self.engine).registry
        kept = self.read_kept()
        for own in self.found_in(kept):
            if not own.replay:
                continue
            with patch.dict(os.environ, self.environments.get(own.run, {})):
                subject = adapter.subject(registry, kept[own.run]["backend"])
                name = shlex.split(own.replay)[-1]
                _, case = find_case(subject, adapter.checks, name)
            file, _, line = own.place.partition(":")
            fault = Fault(what=own.what, site=Site(file, int(line)) if file else None)
            finding = Finding(subject=subject.name, claims=(), case=case, fault=fault)
            with suppress(KitError):
                yield Written(own, fault, adapter.script(subject, finding))

    def _versions(self) -> dict[str, object]:
        names = (self.engine, "torch", "triton", "backend-caps")
        return {"python": platform.python_version(), **{name: version(name) for name in names}}

    def _printed(self, name: str) -> dict[str, Any]:
        click.echo(f"backend-caps check --engine {self.engine} {self._asked(name)}")
        found = self.run(name)
        for check in found["checks"]:
            click.echo(f"  {check['code']}: {check['status']} {check['reason']}".rstrip())
        for own in _found_of(name, found):
            click.echo(f"  {own.check}: {own.what} {own.place}\n    {own.replay}")
        return found


def script_name(script: IssueScript) -> str:
    """Name a script by the class that it builds, and the check."""
    check, _, class_name, *_ = script.text.removeprefix('"""').split()
    return f"{class_name}-{check}"


def _named(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _found_of(name: str, kept: Json) -> Iterator[Found]:
    for check in kept["checks"]:
        for own in check["findings"][:1]:
            script = kept.get("scripts", {}).get(check["code"], "")
            yield Found(name, check["code"], own["what"], own["place"], own["replay"], script)
        for hint in check["hints"]:
            yield Found(name, check["code"], hint, "", "", "")


def verdicts(kept: Json) -> list[tuple[object, ...]]:
    """List of each check what became of it, and which cases found something where."""
    return [
        (check["code"], check["status"], [(own["case"], own["place"]) for own in check["findings"]])
        for check in kept["checks"]
    ]
