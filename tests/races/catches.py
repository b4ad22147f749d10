"""Which case shows which mutant: what `make races` finds, kept in `catches.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.races.cases import Case, Fault

_FILE = Path(__file__).with_name("catches.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Catch:
    """A run that shows a mutant, where the same run of the code as it is shows nothing."""

    case: Case
    fault: Fault
    """The first thing that is wrong."""
    num_runs: int | None = None
    """Runs of the search, this one included; nobody keeps it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Catches:
    """Who shows one mutant."""

    by_effect: Catch | None
    """A run whose results are wrong, with memory that is handed out again."""
    by_sanitizer: Catch | None
    """A run with a reported race."""

    @property
    def first(self) -> Catch | None:
        """The run that is repeated to show the mutant again."""
        return self.by_effect or self.by_sanitizer


def read_catches() -> Mapping[str, Catches]:
    """Read what the last search found, by the mutants' names."""
    document = json.loads(_FILE.read_text("utf-8"))
    return {
        name: Catches(by_effect=_read(own["by_effect"]), by_sanitizer=_read(own["by_sanitizer"]))
        for name, own in document.items()
    }


def write_catches(found: Mapping[str, Catches]) -> None:
    """Keep what a search found."""
    document = {
        name: {"by_effect": _written(own.by_effect), "by_sanitizer": _written(own.by_sanitizer)}
        for name, own in found.items()
    }
    _FILE.write_text(json.dumps(document, indent=2) + "\n", "utf-8")


def _read(stored: Mapping[str, str] | None) -> Catch | None:
    if stored is None:
        return None
    return Catch(case=Case.parse(stored["case"]), fault=Fault(stored["fault"]))


def _written(catch: Catch | None) -> Mapping[str, str] | None:
    return None if catch is None else {"case": str(catch.case), "fault": catch.fault.value}
