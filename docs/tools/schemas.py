"""The published JSON schemas, with the source's docstrings as descriptions.

python -m docs.tools.schemas            tells which files are stale
python -m docs.tools.schemas --write    writes them
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode

from backend_caps.atlas.answers import AskDocument
from backend_caps.atlas.documents import ReleaseDocument
from backend_caps.capability.declaration import Declaration
from backend_caps.capability.evidence import Evidence
from backend_caps.cli.config import ConfigDocument
from backend_caps.cli.facts import FactsDocument
from backend_caps.report.backends import ReportDocument
from backend_caps.report.check_catalog import CheckListDocument
from backend_caps.report.check_documents import CheckDocument
from backend_caps.report.difference import DiffDocument
from backend_caps.report.dry_run_documents import DryRunDocument
from backend_caps.report.fits_documents import FitsDocument
from backend_caps.report.generate_documents import GenerateDocument
from backend_caps.report.launches import EngineLayersDocument
from backend_caps.report.lock import LockDocument
from backend_caps.report.plans import (
    EngineSelectionDocument,
    PlanDocument,
    RelayDocument,
    SelectionDocument,
)
from backend_caps.report.step_costs import MeasureDocument
from backend_caps.report.trace_documents import TraceDocument
from backend_caps.resolution.flags import ServerFlags
from backend_caps.settings.settings import KEYS, Settings
from docs.tools.outputs import Files, main
from docs.tools.sources import attribute_docs

FOLDER = Path(__file__).parents[1] / "reference"

SCHEMAS: Mapping[str, tuple[type[BaseModel], JsonSchemaMode]] = {
    "ask": (AskDocument, "serialization"),
    "atlas-release": (ReleaseDocument, "serialization"),
    "check": (CheckDocument, "serialization"),
    "check-list": (CheckListDocument, "serialization"),
    "config": (ConfigDocument, "serialization"),
    "declaration": (Declaration, "validation"),
    "diff": (DiffDocument, "serialization"),
    "dry-run": (DryRunDocument, "serialization"),
    "engine-layers": (EngineLayersDocument, "serialization"),
    "engine-selection": (EngineSelectionDocument, "serialization"),
    "evidence": (Evidence, "validation"),
    "facts": (FactsDocument, "serialization"),
    "fits": (FitsDocument, "serialization"),
    "generate": (GenerateDocument, "serialization"),
    "lock": (LockDocument, "validation"),
    "measure": (MeasureDocument, "serialization"),
    "plan": (PlanDocument, "serialization"),
    "relay": (RelayDocument, "serialization"),
    "report": (ReportDocument, "serialization"),
    "selection": (SelectionDocument, "serialization"),
    "server-flags": (ServerFlags, "serialization"),
    "settings": (Settings, "validation"),
    "trace": (TraceDocument, "serialization"),
}
"""What is published, and which way it crosses."""
_SAME_AS = ("ServerFlags", "Facts")
"""Whose words hold for the conditions of `Given` on the same names."""

Schema = dict[str, Any]


def path_of(name: str) -> Path:
    """Return the file of a schema."""
    return FOLDER / f"{name}.schema.json"


def text_of(name: str) -> str:
    """Write a schema as its file holds it."""
    model, mode = SCHEMAS[name]
    schema = model.model_json_schema(mode=mode)
    for title, part in _parts(schema, model.__name__):
        _describe(part, title)
    whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def _parts(schema: Schema, title: str) -> Iterator[tuple[str, Schema]]:
    """List the parts of a schema, each with the name of its class."""
    yield title, schema
    yield from schema.get("$defs", {}).items()


def _describe(part: Schema, title: str) -> None:
    """Put in what the docstrings say: of the fields, and of an enum's members."""
    if "description" in part:
        part["description"] = part["description"].partition("\n")[0]
    docs = {"schema": "Which document this is, and its version.", **_docs_of(title)}
    for name, field in part.get("properties", {}).items():
        if isinstance(field.get("default"), list):
            field["default"].sort()  # a set's own order is another in every process
        if name in docs:
            field["description"] = docs[name]
    names = {value: value.upper().replace(" ", "_") for value in part.get("enum", ())}
    members = [f"`{value}`: {docs[name]}" for value, name in names.items() if name in docs]
    if members:
        part["description"] = "\n".join((part["description"], *members))


def _docs_of(title: str) -> Mapping[str, str]:
    own = {name.rstrip("_"): text for name, text in attribute_docs().get(title, {}).items()}
    if title == Settings.__name__:
        return {KEYS[name]: text for name, text in own.items() if name in KEYS}
    if title != "Given":
        return own
    shared = [attribute_docs()[name] for name in reversed(_SAME_AS)]
    role_and_phase = {"role": "The role of the use.", "phase": "The phase of the use."}
    return {**role_and_phase, **shared[0], **shared[1], **own}


def undescribed(name: str) -> Iterator[str]:
    """List the fields of a schema that nothing is said of."""
    model, _ = SCHEMAS[name]
    for title, part in _parts(json.loads(text_of(name)), model.__name__):
        for field, told in part.get("properties", {}).items():
            if "description" not in told:
                yield f"{title}.{field}"


FILES: Files = {path_of(name): partial(text_of, name) for name in SCHEMAS}


if __name__ == "__main__":
    sys.exit(main(FILES, sys.argv[1:]))
