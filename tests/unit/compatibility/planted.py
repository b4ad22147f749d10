"""Edits of a small engine or of its plugin, and what a comparison finds after each.

The texts are in `data/`: `engine*.toml` and `plugin.toml` by path, and tables of edits.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from backend_caps.compatibility.comparison import Comparison, compare, upgrade
from backend_caps.compatibility.contact import Verdict
from backend_caps.compatibility.sources import EngineSource, open_plugin

_DATA = Path(__file__).parent / "data"
_ENGINE = "vllm"

Texts = Mapping[str, str]
"""The files of the engine and the plugin, by path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """An edit of one file."""

    file: str
    old: str = ""
    """It stands in the file once; empty for one that is added, renamed or removed."""
    new: str = ""
    to: str = ""
    """The file's new path; `-` where it is removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """A change of the engine or the plugin."""

    edits: Sequence[Edit]
    verdict: Verdict = Verdict.HOLDS
    at: Sequence[str] = ()
    """Of each line that is to be found: the file, and words that stand in this line alone."""


def plants(*tables: str) -> pytest.MarkDecorator:
    """Parametrize a test by the changes of some tables."""
    rows = [row for table in tables for row in _read(table)["plant"]]
    return pytest.mark.parametrize("plant", [pytest.param(_plant(r), id=r["id"]) for r in rows])


def _plant(row: Mapping[str, Any]) -> Plant:
    edits = row.get("edits") or [{key: row[key] for key in ("file", "old", "new") if key in row}]
    return Plant(
        edits=[Edit(**each) for each in edits],
        verdict=Verdict(row.get("verdict", "holds")),
        at=[row["at"]] if isinstance(row.get("at"), str) else row.get("at", ()),
    )


def _read(table: str) -> dict[str, Any]:
    return tomllib.loads((_DATA / f"{table}.toml").read_text("utf-8"))


@cache
def base() -> Texts:
    """Return the files before any edit."""
    tables = ("engine", "engine_attention", "engine_worker", "plugin")
    return {path: text for table in tables for path, text in _read(table).items()}


def edited(plant: Plant) -> Texts:
    """Return the files after the edits of a plant."""
    texts = dict(base())
    for edit in plant.edits:
        text = texts.pop(edit.file, "")
        if edit.to != "-":
            path = edit.to or edit.file
            texts[path] = _replaced(text, edit)
            if path.endswith(".py"):
                ast.parse(texts[path])
    return texts


def _replaced(text: str, edit: Edit) -> str:
    if not edit.old:
        assert edit.to or not text, f"{edit.file} is there already"
        return text or edit.new
    assert text.count(edit.old) == 1, f"{edit.old!r} is not once in {edit.file}"
    return text.replace(edit.old, edit.new)


def brought(plant: Plant, before: Comparison, folder: Path) -> Comparison:
    """Compare the plugin with the engine after a change.

    Args:
        plant: the change. One of the engine is an upgrade: what it brings alone is kept.
        before: the comparison of the files before the change.
        folder: an empty folder for the files after it.
    """
    texts = edited(plant)
    after = compared(texts, folder)
    is_upgrade = _of_plugin(texts) == _of_plugin(base())
    return upgrade(before, after) if is_upgrade else after


def compared(texts: Texts, folder: Path) -> Comparison:
    """Write the files into a folder, and compare the plugin in it with the engine in it."""
    for path, text in texts.items():
        file = folder / ("engine" if path.startswith(f"{_ENGINE}/") else "plugin") / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
    plugin = open_plugin(str(folder / "plugin"))
    return compare(plugin, EngineSource(package=_ENGINE, path=folder / "engine").open())


def _of_plugin(texts: Texts) -> dict[str, str]:
    return {p: text for p, text in texts.items() if not p.startswith(f"{_ENGINE}/")}


def found(comparison: Comparison) -> set[tuple[Verdict, str]]:
    """Return the verdicts of the findings, each with its line."""
    return {(each.verdict, each.at) for each in comparison.findings}


def expected(plant: Plant) -> set[tuple[Verdict, str]]:
    """Return what is to be found after the edits of a plant."""
    return {(plant.verdict, at) for at in _lines(edited(plant), plant.at)}


def _lines(texts: Texts, at: Sequence[str]) -> Iterator[str]:
    for place in at:
        path, _, words = place.partition(": ")
        lines = [n for n, line in enumerate(texts[path].splitlines(), 1) if words in line]
        assert len(lines) == 1, f"{words!r} is in lines {lines} of {path}"
        yield f"{path}:{lines[0]}"
