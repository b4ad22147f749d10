"""The site of the atlas: pages made from its data alone, which open from disk and any host."""

from __future__ import annotations

import ast
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from jinja2.utils import htmlsafe_json_dumps

from backend_caps.atlas.build import AtlasError, ReleaseStore
from backend_caps.atlas.documents import CellDocument, ClassDocument, ReleaseDocument
from backend_caps.atlas.question import MACHINE, patterns, shown
from backend_caps.atlas.tables import page_of, table_of
from backend_caps.capability import vocabulary
from backend_caps.capability.kind import Polarity
from backend_caps.capability.vocabulary import CAPABILITIES
from backend_caps.engines.read import ENGINES
from backend_caps.report.document import json_of
from backend_caps.report.html.page import breakable, environment
from backend_caps.report.words import words_of

_TEMPLATES = Path(__file__).parent / "templates"
_COLUMNS = {
    "attention_arch": "Family",
    "kv_cache_dtypes": "KV cache",
    "head_sizes": "Head sizes",
    "page_sizes": "Pages",
    "compute_capability": "Compute capability",
    "sliding_window": "Window",
    "attention_sinks": "Sinks",
    "graph_replay": "Full graphs",
    "host_seq_lens": "Host lengths",
}
"""The capabilities that the table of backends shows, with short names."""
_KINDS = {"mha": "MHA, GQA", "mla": "MLA", "sparse mla": "sparse MLA", "ssm": "state space, linear"}


@dataclass(slots=True)
class _History:
    """The releases of one distribution."""

    name: str
    releases: list[ReleaseDocument]
    """The oldest first."""
    classes: dict[str, ReleaseDocument] = field(default_factory=dict)
    """By class, the last release that has it."""

    def __post_init__(self) -> None:
        self.classes = {name: each for each in self.releases for name in each.classes}

    @property
    def newest(self) -> ReleaseDocument:
        """The newest release."""
        return self.releases[-1]

    def changes(self, name: str) -> Iterator[Mapping[str, str]]:
        """List what changed of a class from one release to the next, the newest first."""
        with_class = [each for each in self.releases if name in each.classes]
        found = []
        for capability in CAPABILITIES:
            cells = [
                (each.version, each.classes[name].cells.get(capability)) for each in with_class
            ]
            for (_, before), (version, now) in pairwise(cells):
                if (before and before.says()) != (now and now.says()):
                    found.append((version, capability, _stated(before), _stated(now)))
        order = [each.version for each in with_class]
        for version, capability, was, becomes in sorted(
            found, key=lambda each: order.index(each[0]), reverse=True
        ):
            yield {"version": version, "capability": capability, "before": was, "now": becomes}

    def gone(self, name: str) -> str | None:
        """Return the first release that has a class no more; None where the newest has it."""
        last = self.classes[name]
        after = self.releases[self.releases.index(last) + 1 :]
        return after[0].version if after else None


def write_site(data: ReleaseStore, folder: Path, made_by: str) -> int:
    """Write the pages of the site into a folder, and return their number.

    Args:
        data: the atlas' data; the site is made of nothing else.
        folder: the site's, where `data` may lie too.
        made_by: the version of backend-caps, for the end of each page.

    Raises:
        AtlasError: the data is damaged or empty, or the folder cannot be written.
    """
    histories = [_History(name, data.load(name)) for name in data.distributions()]
    histories.sort(key=lambda each: (each.newest.distribution != each.newest.engine, each.name))
    if not histories:
        raise AtlasError(
            "atlas-empty",
            f"{data.folder} holds no release; expected files such as vllm/0.33.0.json. Build them: "
            "backend-caps atlas build FOLDER.",
        )
    site = _Site(histories, folder, made_by)
    try:
        for stale in ("backends", "capabilities", "releases", "tables"):
            shutil.rmtree(folder / stale, ignore_errors=True)
        site.write()
    except OSError as error:
        raise AtlasError(
            "atlas-not-written",
            f"{folder} cannot be written: {error.strerror or error}; expected a folder with room.",
        ) from error
    return site.num_pages


class _Site:
    """Writes pages, each from its template."""

    def __init__(self, histories: Sequence[_History], folder: Path, made_by: str) -> None:
        self._histories, self._folder, self._made_by = histories, folder, made_by
        self.num_pages = 0
        self._jinja = environment(_TEMPLATES)
        self._jinja.filters |= {
            "breakable": breakable,
            "json": htmlsafe_json_dumps,
            "page": page_of,
            "sentence": lambda names: " and ".join(
                [", ".join(names[:-1]), names[-1]][-len(names) :]
            ),
            "settings": _by_capability,
            "shown": shown,
            "statements": lambda release: sum(len(each.cells) for each in release.classes.values()),
            "unknown": _num_unknown,
        }

    def write(self) -> None:
        """Write every page, and what they share."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for name in ("atlas.css", "atlas.js"):
            shutil.copyfile(_TEMPLATES / name, self._folder / name)
        self._index()
        self._page("releases.html", here="releases", distributions=self._newest_first())
        for history in self._histories:
            for release in history.releases:
                self._release(release)
            for name in history.classes:
                self._backend(history, name)
        self._capabilities()

    def _page(self, path: str, template: str = "", **values: object) -> None:
        text = self._jinja.get_template(template or path).render(
            {"root": "../" * path.count("/"), "here": "", "made_by": self._made_by, **values}
        )
        file = self._folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
        self.num_pages += 1

    def _newest_first(self) -> list[dict[str, Any]]:
        return [{"name": each.name, "releases": each.releases[::-1]} for each in self._histories]

    def _index(self) -> None:
        self._page(
            "index.html",
            here="index",
            names=[each.name for each in self._histories],
            distributions=self._histories,
            kinds=_KINDS.items(),
            columns=_COLUMNS.items(),
            questions=patterns(),
            listed={
                each.name: [own.version for own in each.releases[::-1]] for each in self._histories
            },
            tables=[  # those of plugins, and what no column shows, are loaded for a question
                table_of(each.newest, _COLUMNS) for each in self._histories if each.name in ENGINES
            ],
        )

    def _release(self, release: ReleaseDocument) -> None:
        name = f"{release.distribution}-{release.version}"
        columns = _COLUMNS.items()
        self._page(f"releases/{name}.html", "release.html", release=release, columns=columns)
        script = self._folder / "tables" / f"{name}.js"
        script.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(table_of(release), separators=(",", ":"))
        script.write_text(f"atlas.keep({text});\n", "utf-8")

    def _backend(self, history: _History, name: str) -> None:
        release = history.classes[name]
        own = release.classes[name]
        root = {} if release.root is None else release.root.cells
        defaults = [(key, cell) for key, cell in root.items() if key not in own.cells]
        stated = own.cells.keys() | root.keys()
        self._page(
            page_of(history.name, name),
            "backend.html",
            name=name,
            own=own,
            distribution=history.name,
            release=release,
            is_newest=release is history.newest,
            gone=history.gone(name),
            defaults=defaults,
            root_name="" if release.root is None else release.root.path.rpartition(".")[2],
            silent=[each for each in CAPABILITIES if each not in stated],
            changes=[*history.changes(name)],
            versions=[each.version for each in history.releases if name in each.classes],
        )

    def _capabilities(self) -> None:
        listed = []
        for name, kind in CAPABILITIES.items():
            rows = [self._stating(each, name) for each in self._histories]
            self._page(
                f"capabilities/{name}.html",
                "capability.html",
                capability=name,
                meaning=meanings()[name],
                worst=words_of(json_of(kind.worst)),
                is_need=kind.polarity is Polarity.NEED,
                since=kind.since,
                distributions=rows,
            )
            listed.append((name, meanings()[name], sum(len(each["rows"]) for each in rows)))
        self._page(
            "capabilities/index.html", "capabilities.html", here="capabilities", capabilities=listed
        )

    def _stating(self, history: _History, capability: str) -> dict[str, Any]:
        release = history.newest
        return {
            "name": history.name,
            "version": release.version,
            "default": release.root.cells.get(capability) if release.root else None,
            "rows": [
                (name, own.cells[capability], own)
                for name, own in release.classes.items()
                if capability in own.cells
            ],
        }


def _stated(cell: CellDocument | None) -> str:
    """Write a cell's value with its conditions."""
    if cell is None:
        return "not stated"
    others = [f"{shown(each.value)} where {each.words}" for each in cell.when or ()]
    inherited = f" (from {cell.inherited_from})" if cell.inherited_from else ""
    return "; ".join([shown(cell.value) + inherited, *others])


def _by_capability(own: ClassDocument) -> Mapping[str, list[Mapping[str, object]]]:
    """List the settings of a class by what they set: value, machine, name, and whether taken."""
    found: dict[str, list[Mapping[str, object]]] = {}
    for each in own.settings or ():
        (capability, value), *others = sorted(each.settings.items(), key=_rank)
        where = [words_of(other) for _, other in others]
        row = {"value": words_of(value), "where": where, "own": each}
        found.setdefault(capability, []).append(row)
    return found


def _rank(setting: tuple[str, object]) -> bool:
    """Put a machine behind what is set on it."""
    return setting[0] in MACHINE


def _num_unknown(release: ReleaseDocument) -> int:
    cells = [cell for each in release.classes.values() for cell in each.cells.values()]
    return sum(cell.origin == "not-known" for cell in cells)


@cache
def meanings() -> Mapping[str, str]:
    """Return the docstring below each capability, in one line."""
    tree = ast.parse(Path(vocabulary.__file__).read_text("utf-8"))
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == "Capabilities":
            for field_, text in zip(node.body, node.body[1:], strict=False):
                match field_, text:
                    case (
                        ast.AnnAssign(target=ast.Name(id=name)),
                        ast.Expr(value=ast.Constant(value=str(words))),
                    ):
                        found[name] = " ".join(words.replace("`", "").split())
    return found
