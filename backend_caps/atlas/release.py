"""Read one release: its archive becomes a document."""

from __future__ import annotations

import hashlib
import json
from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

from backend_caps.atlas.documents import (
    SCHEMA,
    AtlasConditionDocument,
    AtlasSettingDocument,
    CellDocument,
    ClassDocument,
    ReleaseDocument,
    VerdictDocument,
)
from backend_caps.capability.backend import Backend
from backend_caps.compatibility.archives import unpacked
from backend_caps.compatibility.releases import Release
from backend_caps.discovery.process import Search
from backend_caps.engines.read import read_acceptances, read_engine
from backend_caps.engines.reading import Acceptance, Acceptances, EngineReading
from backend_caps.report.backends import EngineRuleDocument, backend_document
from backend_caps.report.document import json_of
from backend_caps.report.plans import ProblemDocument

_READS = (
    *("atlas/documents.py", "atlas/kit_runs.json", "atlas/release.py"),
    *("capability", "compatibility", "discovery", "engines", "report", "resolution"),
)
"""The files and folders whose code decides what a document says."""


def read_release(release: Release, beside: Release | None = None) -> ReleaseDocument:
    """Read the backends of one release from its archive, without importing it.

    The document is the same for the same archive and reader: it holds no time, and no path of
    this machine.

    Args:
        release: an engine's, or a plugin's.
        beside: the release of vLLM that a plugin extends; None for an engine.

    Raises:
        ArchiveError: the source distribution cannot be unpacked.
        EngineError: no reader knows the engine, or the archive does not hold it.
    """
    engine = release if beside is None else beside
    with ExitStack() as stack:
        plugins: Search | None = None
        if beside is not None:
            plugins = Search.of_folders([stack.enter_context(unpacked(release.path))])
        folder = stack.enter_context(unpacked(engine.path, package=engine.package))
        # First, as each command line is followed in a fork of all that this process has.
        decided = None if beside is not None else read_acceptances(engine.package, folder)
        reading = read_engine(engine.package, folder, plugins=plugins)
        if beside is None and reading.acceptances is not None:
            decided = reading.acceptances(None)
    document = reading_document(reading, decided)
    found: dict[str, Any] = {
        "version": str(release.version),
        "archive": release.path.name,
        "sha256": hashlib.sha256(release.path.read_bytes()).hexdigest(),
    }
    if beside is not None:
        own = [each for each in reading.backends if each.source.distribution == release.package]
        problems = [each for plugin in reading.plugins for each in plugin.problems]
        found |= {
            "distribution": release.package,
            "beside": str(beside.version),
            "rules": [],
            "problems": [ProblemDocument.of(each) for each in problems],
            **_backends(reading, own),
        }
    return document.model_copy(update=found)


def reading_document(reading: EngineReading, decided: Acceptances | None = None) -> ReleaseDocument:
    """Write an engine that was read, installed or from source, as a document of the atlas.

    Args:
        reading: the engine.
        decided: what the processing of its arguments decides, where that was followed.
    """
    rules = () if reading.rules is None else reading.rules.rules
    return ReleaseDocument(
        schema_=SCHEMA,
        distribution=reading.engine,
        version=reading.version or "",
        engine=reading.engine,
        archive=reading.source,
        sha256="",
        reader=reader_digest(),
        rules=[EngineRuleDocument.of(rule) for rule in rules],
        problems=[ProblemDocument.of(each) for each in reading.problems],
        root=None if reading.root is None else _class(reading.root, reading),
        tried=None if decided is None else {**decided.tried} or None,
        **_backends(reading, reading.backends, () if decided is None else decided.found),
    )


def _backends(
    reading: EngineReading, backends: Iterable[Backend], decided: Sequence[Acceptance] = ()
) -> dict[str, Any]:
    """Write names and classes, each sorted."""
    ordered = sorted(backends, key=lambda backend: backend.name)
    return {
        "names": {
            each.name: backend_document(each, is_engines=True).classes or []
            for each in ordered
            if each.engine_class is None
        },
        "classes": {
            each.name: _class(each, reading, decided)
            for each in ordered
            if each.engine_class is not None
        },
    }


def _class(
    backend: Backend, reading: EngineReading, decided: Iterable[Acceptance] = ()
) -> ClassDocument:
    own, stated = backend.engine_class, backend_document(backend, is_engines=True)
    assert own is not None, "a name has no values of its own"
    conditions = _conditions(backend)
    platforms = [reading.platforms.get(name, {}) for name in own.registered_as]
    return ClassDocument(
        path=own.path,
        declared_at=backend.source.declared_at or "",
        registered_as=[*own.registered_as],
        platforms=dict(ChainMap(*map(dict, platforms))) or None,
        composite=own.composite,
        cells={
            name: CellDocument.of(each, when=conditions.get(name))
            for name, each in stated.capabilities.items()
            if each.words is not None
        },
        settings=[
            _setting(e)
            for e in decided
            if (not e.paths or own.path in e.paths) and e.name in own.registered_as
        ]
        or None,
        verdicts=_verdicts(reading, backend.name),
    )


@cache
def kit_runs() -> Mapping[str, Mapping[str, list[dict[str, Any]]]]:
    """Read what the kit found, by release and class."""
    found: Mapping[str, Mapping[str, list[dict[str, Any]]]] = json.loads(
        Path(__file__).with_name("kit_runs.json").read_text("utf-8")
    )
    return found


def _verdicts(reading: EngineReading, name: str) -> list[VerdictDocument] | None:
    """Return what the kit found of a class of this very release."""
    found = kit_runs().get(reading.title, {}).get(name)
    if found is None:
        return None
    return [VerdictDocument.model_validate({**e, "words": e["words"] or None}) for e in found]


def _setting(own: Acceptance) -> AtlasSettingDocument:
    return AtlasSettingDocument(
        name=own.name,
        settings=json_of(dict(own.settings)),
        accepted=own.is_accepted,
        words=" ".join(own.message.split()),
        declared_at=own.at or None,
        followed_on=own.launch,
    )


def _conditions(backend: Backend) -> Mapping[str, list[AtlasConditionDocument]]:
    """List the values under conditions, by capability."""
    found: dict[str, list[AtlasConditionDocument]] = {}
    for when in () if backend.declaration is None else backend.declaration.conditions:
        given = when.given.model_dump(mode="json", exclude_none=True)
        for name, value in when.capabilities.stated().items():
            condition = AtlasConditionDocument(given=given, words=str(when.given), value=value)
            found.setdefault(name, []).append(condition)
    return found


@cache
def reader_digest() -> str:
    """Return the digest of the code and data that decide what a release's document says."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for name in _READS:
        for path in sorted([package / name, *(package / name).rglob("*")]):
            if path.suffix in {".json", ".py", ".toml"}:
                digest.update(path.relative_to(package).as_posix().encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()
