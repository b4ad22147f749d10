"""The examples on the pages: run, and compared with what the pages show.

A page is a transcript. Its fenced blocks are taken from top to bottom, in one folder of its own:

* ```` ```console ```` holds commands after `$ `, each followed by what it prints.
* ```` ```python ```` is run; ```` ```text output ```` after it is what it prints.
* A block with `title="FILE"` is that file, written before what follows is run.

Other blocks are not run. A line that is just `…` stands for lines left out.

    python -m docs.tools.examples PAGE...           tells what a page shows wrongly
    python -m docs.tools.examples --write PAGE...   puts in what was printed
"""

from __future__ import annotations

import difflib
import json
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

ROOT = Path(__file__).parents[2]
"""The checkout."""
RENEW = "make docs-write"
"""What puts in what is printed now."""

_FENCE = re.compile(r"^```(?P<info>[^`\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_TITLE = re.compile(r'title="([^"]+)"')
_LEFT_OUT = "…"
_HOME = "/home/you"
_BIN = Path(sys.executable).parent
_DRIVER = """
import contextlib, io, json, sys
namespace = {"__name__": "__main__"}
for line in sys.stdin:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            exec(compile(json.loads(line), "<page>", "exec"), namespace)
        except Exception as error:
            print(f"{type(error).__module__}.{type(error).__name__}: {error}")
    print(json.dumps(printed.getvalue()), flush=True)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block of a page."""

    language: str
    title: str | None
    is_output: bool
    """Whether it is what the block before it prints."""
    text: str
    span: tuple[int, int]
    """Where the text stands in the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A block that does not show what was printed."""

    block: Block
    printed: str

    def __str__(self) -> str:
        lines = difflib.ndiff(self.block.text.splitlines(), self.printed.splitlines())
        return "\n".join(line for line in lines if not line.startswith("?"))


def blocks_of(text: str) -> Iterator[Block]:
    """List the fenced blocks of a page."""
    for match in _FENCE.finditer(text):
        language, _, rest = match["info"].partition(" ")
        title = _TITLE.search(rest)
        yield Block(
            language=language,
            title=title[1] if title else None,
            is_output="output" in rest.split(),
            text=match["text"],
            span=match.span("text"),
        )


def has_examples(page: Path) -> bool:
    """Tell whether anything on a page is run."""
    blocks = blocks_of(page.read_text("utf-8"))
    return any(block.language in {"console", "python"} and not block.title for block in blocks)


def differences(page: Path, folder: Path) -> list[Difference]:
    """Run a page's examples in an empty folder; list the blocks that show something else."""
    blocks = list(blocks_of(page.read_text("utf-8")))
    found = []
    with _Reader(folder) as reader:
        for block, following in zip(blocks, [*blocks[1:], None], strict=True):
            if block.title is not None:
                reader.write(block.title, block.text)
            elif block.language == "console":
                found.append(Difference(block=block, printed=reader.transcript(block.text)))
            elif block.language == "python":
                printed = reader.python(block.text)
                shown = following if following and following.is_output else None
                assert shown or not printed, f"{page}: printed, and shown nowhere: {printed}"
                if shown:
                    found.append(Difference(block=shown, printed=printed))
    return [each for each in found if not _shows(each.block.text, each.printed)]


def _shows(shown: str, printed: str) -> bool:
    lines = [
        r"(?:.*\n)+?" if line == _LEFT_OUT else re.escape(line) + r"\n"
        for line in shown.splitlines()
    ]
    return re.fullmatch("".join(lines), printed) is not None


def _trimmed(shown: str, printed: str) -> str:
    """Leave out of what is printed what the page leaves out, where the lines around it are left."""
    page, lines, at = shown.splitlines(), printed.splitlines(), 0
    for before, line, after in zip(page, page[1:], page[2:], strict=False):
        if line == _LEFT_OUT and before in lines[at:]:
            start = lines.index(before, at) + 1
            if after in lines[start:]:
                lines[start : lines.index(after, start)] = [_LEFT_OUT]
                at = start
    return "".join(f"{line}\n" for line in lines)


def write(page: Path) -> bool:
    """Put what is printed in the place of what a page shows; tell whether it was another."""
    with tempfile.TemporaryDirectory() as folder:
        found = differences(page, Path(folder))
    text = page.read_text("utf-8")
    for each in reversed(found):
        start, end = each.block.span
        text = text[:start] + _trimmed(each.block.text, each.printed) + text[end:]
    page.write_text(text, "utf-8")
    return bool(found)


class _Reader:
    """One reader at work: a folder that is their home, a shell and a Python."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._status = 0
        self._python = subprocess.Popen(  # noqa: S603 - this very Python
            [sys.executable, "-P", "-c", _DRIVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=self._environment(),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._python.communicate()

    def _environment(self) -> dict[str, str]:
        """Name everything that a command sees.

        Pip finds what it builds with in this venv, and the engines among what was fetched. Each
        computes on one thread: more would wait for those of the tests beside it, spinning.
        """
        return {
            "PATH": f"{_BIN}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self._folder),
            "LANG": "C.UTF-8",
            "OMP_NUM_THREADS": "1",
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(ROOT / ".cache" / "wheels"),
            "PIP_NO_BUILD_ISOLATION": "0",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }

    def write(self, name: str, text: str) -> None:
        """Write a file that the page shows."""
        file = self._folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")

    def python(self, code: str) -> str:
        """Run a block; the names that it binds stay."""
        assert self._python.stdin is not None
        assert self._python.stdout is not None
        self._python.stdin.write(json.dumps(code) + "\n")
        self._python.stdin.flush()
        return self._shown(json.loads(self._python.stdout.readline()))

    def transcript(self, text: str) -> str:
        """Run the commands of a block, and write them down with what they print."""
        return "".join(f"$ {command}\n{self._output(command)}" for command in _commands(text))

    def _output(self, command: str) -> str:
        if command == "make run":
            return "".join(f"{line}\n{self._shell(line, ROOT)}" for line in _made("run"))
        return self._shell(command, self._folder)

    def _shell(self, command: str, folder: Path) -> str:
        command = command.removeprefix(".venv/bin/")
        done = subprocess.run(  # noqa: S603 - the page's own command
            ["/bin/bash", "-c", f"(exit {self._status}); {command}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            check=False,
            cwd=folder,
            env=self._environment(),
        )
        self._status = done.returncode
        return self._shown(done.stdout)

    def _shown(self, printed: str) -> str:
        """Write output as a page does: no blank lines at its ends, and nobody's own paths."""
        printed = printed.replace(str(self._folder), _HOME)
        printed = printed.replace(str(ROOT), f"{_HOME}/backend-caps")
        lines = "\n".join(line.rstrip() for line in printed.splitlines()).strip("\n")
        return f"{lines}\n" if lines else ""


def _commands(text: str) -> Iterator[str]:
    """List the commands of a block; one goes on while its lines end in a backslash."""
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith("$ "):
            command = line.removeprefix("$ ")
            while command.endswith("\\"):
                command += "\n" + next(lines)
            yield command


def _made(target: str) -> list[str]:
    """List our own commands that a target runs, once everything is installed."""
    told = subprocess.run(  # noqa: S603 - asks, and makes nothing
        ["/usr/bin/env", "-u", "MAKEFLAGS", "make", "--dry-run", "--no-print-directory", target],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.replace("\\\n", " ")
    return [shlex.join(shlex.split(line)) for line in told.splitlines() if "/backend-caps " in line]


def main(arguments: Sequence[str]) -> int:
    """Compare pages, or write them; the status of the process."""
    pages = [Path(each) for each in arguments if each != "--write"]
    status = 0
    for page in filter(has_examples, pages):
        if "--write" in arguments:
            sys.stdout.write(f"renewed {page}\n" if write(page) else "")
            continue
        with tempfile.TemporaryDirectory() as folder:
            for difference in differences(page, Path(folder)):
                status = 1
                sys.stdout.write(f"{page} shows something else; renew it: {RENEW}\n{difference}\n")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
