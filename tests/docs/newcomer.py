"""A newcomer's path, timed: a fresh clone, an empty home, and the pages as they are printed.

They begin with the README, see a first report, declare a backend of their own, build one, and end
with its claims checked. Every command is the page's own, and has to print what the page shows.

    python -m tests.docs.newcomer    walks it, and tells the seconds of each step
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from docs.tools.examples import Block, blocks_of, shows
from docs.tools.page_reader import ROOT, Reader, Surroundings, commands_of

README = "README.md"
TUTORIALS = ("docs/tutorials/declare-your-first-backend.md", "docs/tutorials/build-a-backend.md")
FIRST = "$ make run\n"
"""How the README's block begins that sets everything up."""
_BEFORE = "…\n"
"""What `make` prints first, of installing, and the README leaves out."""
_FETCHING = ("PIP_", "SSL_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
"""How the variables begin that say where packages are fetched; no other one is handed on."""


class StumbleError(Exception):
    """A page does not lead on; what it shows and what was printed is the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What was done, and how long it took."""

    page: str
    words: str
    seconds: float

    def __str__(self) -> str:
        first, *more = self.words.splitlines()
        return f"{self.page}: {first[:72]}{' …' if more or first[72:] else ''}"


def walk(home: Path) -> Iterator[Step]:
    """Follow the pages in an empty home, and yield each step once it is done.

    Raises:
        StumbleError: something else is printed than a page shows.
    """
    clone = home / "backend-caps"
    began_s = perf_counter()
    clone_into(clone)
    yield Step(page="before all", words="clone", seconds=perf_counter() - began_s)
    bare = Surroundings(checkout=clone, programs=Path("/usr/bin"), variables=_variables())
    with Reader(home, bare) as reader:
        reader.shell("cd backend-caps")
        yield from _set_up(reader, _text(clone, README))
    installed = Surroundings(checkout=clone, programs=activated(clone), variables=_variables())
    for page in TUTORIALS:
        folder = home / Path(page).stem
        folder.mkdir()
        with Reader(folder, installed) as reader:
            yield from follow(reader, page, _text(clone, page))


def _set_up(reader: Reader, readme: str) -> Iterator[Step]:
    (block,) = (own for own in blocks_of(readme) if own.text.startswith(FIRST))
    (command,) = commands_of(block.text)
    began_s = perf_counter()
    printed = reader.shell(command)
    yield Step(page=README, words=command, seconds=perf_counter() - began_s)
    _compare(_dense(_BEFORE + block.text.removeprefix(FIRST)), _dense(printed))


def _dense(text: str) -> str:
    """Leave out blank lines: the README shows none between one command of `make` and the next."""
    return "".join(line for line in text.splitlines(keepends=True) if line.strip())


def follow(reader: Reader, page: str, text: str) -> Iterator[Step]:
    """Follow a page from its top to its end, and yield each step once it is done.

    Raises:
        StumbleError: something else is printed than the page shows.
    """
    blocks = list(blocks_of(text))
    for block, following in zip(blocks, [*blocks[1:], None], strict=True):
        if block.title is not None:
            reader.write(block.title, block.text)
        elif block.language == "console":
            yield from _commands(reader, page, block)
        elif block.language == "python":
            began_s = perf_counter()
            printed = reader.python(block.text)
            yield Step(page=page, words=block.text, seconds=perf_counter() - began_s)
            _compare(following.text if following and following.is_output else "", printed)


def _commands(reader: Reader, page: str, block: Block) -> Iterator[Step]:
    """Run the commands of a block; what all of them print is compared at its end."""
    printed = ""
    for command in commands_of(block.text):
        began_s = perf_counter()
        printed += f"$ {command}\n{reader.shell(command)}"
        yield Step(page=page, words=command, seconds=perf_counter() - began_s)
    _compare(block.text, printed)


def _compare(shown: str, printed: str) -> None:
    if not shows(shown, printed):
        raise StumbleError(f"the page shows\n\n{shown}\nand what is printed is\n\n{printed}")


def clone_into(folder: Path) -> None:
    """Clone the last commit."""
    command = ["/usr/bin/env", "git", "clone", "--quiet", "--depth", "1", ROOT.as_uri()]
    subprocess.run([*command, str(folder)], check=True)


def activated(clone: Path) -> Path:
    """Return where the programs lie once the first tutorial's own line was typed."""
    (line,) = (own.text for own in blocks_of(_text(clone, TUTORIALS[0])) if own.language == "sh")
    command = ["/bin/bash", "-c", f"{line}\ncommand -v backend-caps"]
    done = subprocess.run(command, cwd=clone, capture_output=True, check=True, text=True)
    return Path(done.stdout.strip()).parent


def _text(clone: Path, page: str) -> str:
    return (clone / page).read_text("utf-8")


def _variables() -> Mapping[str, str]:
    """Take over how packages are fetched; what pip says of itself is another thing each month."""
    own = {name: own for name, own in os.environ.items() if name.upper().startswith(_FETCHING)}
    return {**own, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def main() -> int:
    """Walk the path in a new home, and say how long each step took; the status of the process."""
    spent_s = 0.0
    with tempfile.TemporaryDirectory() as home:
        try:
            for step in walk(Path(home)):
                spent_s += step.seconds
                sys.stdout.write(f"{step.seconds:7.1f} s  {spent_s:7.1f} s  {step}\n")
                sys.stdout.flush()
        except StumbleError as error:
            sys.stdout.write(f"stumbled: {error}\n")
            return 1
    sys.stdout.write(
        f"{spent_s:7.1f} s in all, from an empty home to a backend whose claims hold\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
