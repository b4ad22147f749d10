"""Draws cells of the atlas and checks each against the source of its archive.

    python -m tests.upstream.atlas.cells DATA ARCHIVES... --seed 24 --number 300

DATA holds `<distribution>/<version>.json`, and each of ARCHIVES is a folder with the wheels and
source distributions that were read. Nothing of backend_caps is used: the statements of the source
are run. Exits with 1 where a cell is wrong.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from tests.upstream.atlas.answers import world_of
from tests.upstream.atlas.checks import NOT_KNOWN, RIGHT, WRONG, Cell, Result, check_vllm
from tests.upstream.atlas.length_checks import check_lengths, check_longest
from tests.upstream.atlas.live_classes import Archive, World
from tests.upstream.atlas.sglang_checks import check_sglang
from tests.upstream.atlas.unknown_values import BrokenError


@dataclass(frozen=True)
class Draw:
    """One cell that was drawn."""

    release: Path
    """The JSON of its release."""
    name: str
    """The name of its class."""
    path: str
    """The path of its class."""
    capability: str
    """The capability."""
    cell: Cell
    """What the atlas says."""


def draws(data: Path, seed: int, number: int) -> list[Draw]:
    """Draw cells: first a release of all, then a class of it, then a cell of that."""
    chance = random.Random(seed)  # noqa: S311 no secret
    releases = sorted(data.glob("*/*.json"))
    filled: list[tuple[Path, dict[str, Any]]] = []
    for path in releases:
        classes = json.loads(path.read_text())["classes"]
        classes = {name: each for name, each in sorted(classes.items()) if each["cells"]}
        if classes:
            filled.append((path, classes))
    found = []
    for _ in range(number):
        path, classes = chance.choice(filled)
        name = chance.choice(list(classes))
        capability = chance.choice(sorted(classes[name]["cells"]))
        cell = classes[name]["cells"][capability]
        found.append(Draw(path, name, classes[name]["path"], capability, cell))
    return sorted(found, key=lambda each: (str(each.release), each.path, each.capability))


class Worlds:
    """The sources of releases, from folders of archives."""

    def __init__(self, data: Path, folders: Iterable[Path]) -> None:
        self._data = data
        self._archives = {path.name: path for folder in folders for path in folder.iterdir()}
        self._read = lru_cache(maxsize=2)(lambda name: Archive(self._archives[name]))
        self.of = lru_cache(maxsize=1)(self._of)

    def _of(self, release: Path) -> World:
        document = json.loads(release.read_text())
        names = [document["archive"]]
        if "beside" in document:
            engine = self._data / document["engine"] / f"{document['beside']}.json"
            names.append(
                json.loads(engine.read_text())["archive"]
                if engine.exists()
                else self._named(document)
            )
        return world_of(self._read(name) for name in names)

    def _named(self, document: Mapping[str, Any]) -> str:
        start = f"{document['engine']}-{document['beside']}"
        found = [n for n in self._archives if n.startswith((f"{start}.tar", f"{start}-"))]
        if not found:
            message = f"no archive of {start}"
            raise BrokenError(message)
        return found[0]


def check(world: World, draw: Draw) -> Result:
    """Check one cell; what the check itself cannot do is not known."""
    try:
        if draw.release.parent.name == "sglang":
            return check_sglang(world, draw.path, draw.capability, draw.cell)
        if draw.capability == "max_context_len_known":
            return check_longest(world, draw.cell)
        if draw.capability == "host_seq_lens":
            return check_lengths(world, draw.path, draw.cell)
        return check_vllm(world, draw.path, draw.capability, draw.cell)
    except (Exception, BrokenError) as error:  # noqa: BLE001 the source may be anything
        return Result(NOT_KNOWN, f"not run: {type(error).__name__}: {error}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the wrong cells, then the count of each outcome by capability."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("archives", type=Path, nargs="+")
    parser.add_argument("--seed", type=int, default=24)
    parser.add_argument("--number", type=int, default=300)
    parser.add_argument("--verbose", action="store_true", help="print what is not known too")
    options = parser.parse_args(arguments)
    worlds = Worlds(options.data, options.archives)
    counts: dict[str, Counter[str]] = {}
    for draw in draws(options.data, options.seed, options.number):
        try:
            result = check(worlds.of(draw.release), draw)
        except BrokenError as error:
            result = Result(NOT_KNOWN, str(error))
        counts.setdefault(draw.capability, Counter())[result.verdict] += 1
        if result.verdict == WRONG or (options.verbose and result.verdict == NOT_KNOWN):
            release = f"{draw.release.parent.name} {draw.release.stem}"
            cell = json.dumps(draw.cell)
            line = (
                f"{result.verdict}: {release} {draw.path} {draw.capability}: {result.why}; {cell}"
            )
            print(line)  # noqa: T201
    print(*_table(counts), sep="\n")  # noqa: T201
    return 1 if any(found[WRONG] for found in counts.values()) else 0


def _table(counts: Mapping[str, Counter[str]]) -> Iterator[str]:
    """Yield the lines of the counts by capability, and that of them all."""
    yield f"{'':24}{RIGHT:>10}{WRONG:>10}{NOT_KNOWN:>12}"
    whole = sum(counts.values(), Counter[str]())
    for name, found in (*sorted(counts.items()), ("all", whole)):
        yield f"{name:24}{found[RIGHT]:10}{found[WRONG]:10}{found[NOT_KNOWN]:12}"


if __name__ == "__main__":
    sys.exit(main())
