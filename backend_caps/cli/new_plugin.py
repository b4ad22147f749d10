"""`backend-caps new-plugin`: write a plugin project that works, under a chosen name.

The template is itself such a project, of a backend `my_attention`: the checks of code and pages
in this repository run on it where it lies.
"""

from __future__ import annotations

import keyword
import re
import sys
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import Self

import click

from backend_caps.capability.model import AUTO
from backend_caps.capability.provenance import Status
from backend_caps.cli.invocation import Invocation
from backend_caps.cli.output import CommandError, examples, say
from backend_caps.discovery.metadata import PathEntry, named, normalised
from backend_caps.discovery.process import Search
from backend_caps.discovery.scan import scan

LONGEST = 30
"""With more letters, lines of the template become longer than its own rules allow."""
TESTS = "tests"
"""The folder of a plugin's tests."""
_TEST = "test"
"""The prefix of names whose classes pytest would collect, as they begin with `Test`."""
_SPELLING = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_BEFORE_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NO_LETTERS = re.compile(r"[^a-z0-9]+")
_TEMPLATE = Path(__file__).parent.parent / "template"
_REPOSITORY = ".git"
"""May be in the folder already: authors often make the repository first."""
_LEFT_BY_TOOLS = (".", "__pycache__")
"""Prefixes of files that compilers and linters leave beside the template's."""
_NEXT = """\
It passes its own tests as it stands. What to do next:

  cd {folder}
  pip install --editable . 'backend-caps[kit]' pytest
  pytest
  backend-caps report
  backend-caps generate -- --attention-backend {name}
"""


@click.command(
    "new-plugin",
    epilog=examples(
        "backend-caps new-plugin my_flash",
        "backend-caps new-plugin my_flash --into plugins/my_flash",
    ),
)
@click.argument("name")
@click.option(
    "--into",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="The folder to write the project into: new, or empty but for .git; NAME unless given.",
)
@click.pass_context
def new_plugin(ctx: click.Context, /, name: str, into: Path | None) -> None:
    """Write a plugin project for an attention backend NAME.

    It has a declaration, a backend in plain PyTorch that is right and slow, and tests that hold
    the backend to a float64 reference and to its declaration. Nothing is overwritten.
    """
    if ctx.ensure_object(Invocation).server_flags:
        raise click.UsageError("A new plugin is the same for every server: nothing goes after --.")
    check_plugin_name(name)
    folder = Path(name) if into is None else into
    texts = project_files(name)
    write_project(texts, folder)
    listed = "".join(f"  {path}\n" for path in texts)
    following = _NEXT.format(folder=quote(str(folder)), name=name)
    say(f"Wrote a plugin for the backend {name!r} into {folder}:\n\n{listed}\n{following}")


def check_plugin_name(name: str) -> None:
    """Refuse a name that no package can have, or that something installed has already.

    Nothing is imported, and no plugin's code runs.

    Raises:
        CommandError: with a name near it that would do, where there is one.
    """
    installed = _Installed.of_environment()
    if not _is_spelled(name):
        near = _NO_LETTERS.sub("_", _BEFORE_CAPITAL.sub("_", name).lower()).strip("_")
        meant = installed.free_one(near, f"my_{near}", near[:LONGEST].rstrip("_"))
        expected = f"up to {LONGEST} letters and digits in lower case, with '_' between words"
        problem = "it is to name a Python package too"
        text = _name_text(name, problem, expected, meant)
        raise CommandError("plugin-name-misspelled", text)
    owner = installed.owner_of(name)
    if owner is not None:
        meant = installed.free_one(f"my_{name}", f"{name}_attention")
        text = _name_text(name, owner, "a name that nothing else has", meant)
        raise CommandError("plugin-name-taken", text)


def _name_text(name: str, problem: str, expected: str, meant: str | None) -> str:
    remedy = "Choose another." if meant is None else f"Write {meant!r}."
    return f"no plugin can be named {name!r}: {problem}; {expected} was expected. {remedy}"


@dataclass(frozen=True, slots=True)
class _Installed:
    """The names that are taken in an environment."""

    backends: Mapping[str, str]
    """By backend, the words for what declares it."""
    distributions: AbstractSet[str]

    @classmethod
    def of_environment(cls) -> Self:
        search = Search.of_process()
        claims = (claim for claim in scan(search).claims if claim.is_backend)
        backends = {c.name: c.owner for c in claims if c.status is not Status.SKIPPED}
        places = ((root, PathEntry.at(root)) for root in search.searched)
        # Distributions are read off the names of their metadata.
        distributions = {
            named(folder, root)[0]
            for root, place in places
            if place is not None
            for folder in place.folders
        }
        return cls(backends, distributions)

    def owner_of(self, name: str) -> str | None:
        """Return why a name is taken, as a sentence; None where it is free."""
        distribution = normalised(name)
        modules = [module for module in (name, f"{name}_caps") if find_spec(module) is not None]
        owners = {
            "it is a keyword of Python": keyword.iskeyword(name),
            "as a server flag it leaves the choice to the engine": name == AUTO,
            "the folder of the plugin's tests has that name": name == TESTS,
            "its class would be called Test…, and pytest would take that for tests": (
                name.startswith(_TEST)
            ),
            f"{self.backends.get(name)} declares a backend of that name": name in self.backends,
            "it is a module of Python's standard library": name in sys.stdlib_module_names,
            f"distribution {distribution!r} is installed, and would be replaced": (
                distribution in self.distributions
            ),
            f"module {''.join(modules[:1])!r} is there to be imported already": bool(modules),
        }
        return next((owner for owner, is_taken in owners.items() if is_taken), None)

    def free_one(self, *names: str) -> str | None:
        """Return the first name that a plugin can have."""
        fitting = (name for name in names if _is_spelled(name) and self.owner_of(name) is None)
        return next(fitting, None)


def _is_spelled(name: str) -> bool:
    return len(name) <= LONGEST and _SPELLING.fullmatch(name) is not None


def project_files(name: str) -> Mapping[str, str]:
    """Return the text of each file of a new plugin, by its path in the project."""
    names = {
        "MyAttention": "".join(word.capitalize() for word in name.split("_")),
        "my_attention": name,
        "my-attention": normalised(name),
    }
    paths = [path.relative_to(_TEMPLATE) for path in sorted(_TEMPLATE.rglob("*")) if path.is_file()]
    return {
        _put_in(path.as_posix(), names): _put_in((_TEMPLATE / path).read_text("utf-8"), names)
        for path in paths
        if not any(part.startswith(_LEFT_BY_TOOLS) for part in path.parts)
    }


def write_project(texts: Mapping[str, str], folder: Path) -> None:
    """Write a project's files into a folder that is empty but for `.git`, or not there yet.

    Raises:
        CommandError: the folder holds something, or cannot be written. Its old content is then
            unchanged, and nothing new is left.
    """
    if folder.is_file():
        raise _unfit(folder, "it is a file")
    try:
        with ExitStack() as undo:
            _make(folder, undo)
            held = sorted(each.name for each in folder.iterdir() if each.name != _REPOSITORY)
            if held:
                more = f" and {len(held) - 1} more" if len(held) > 1 else ""
                raise _unfit(folder, f"it holds {held[0]}{more}")
            for path, text in texts.items():
                _make((folder / path).parent, undo)
                with (folder / path).open("x", encoding="utf-8", newline="\n") as opened:
                    undo.callback((folder / path).unlink)
                    opened.write(text)
            undo.pop_all()
    except OSError as error:
        raise _unfit(folder, error.strerror or str(error)) from error


def _make(folder: Path, undo: ExitStack) -> None:
    """Make a folder and its missing parents; `undo` removes them."""
    for each in (*reversed(folder.parents), folder):
        if not each.exists():
            each.mkdir()
            undo.callback(each.rmdir)


def _put_in(text: str, names: Mapping[str, str]) -> str:
    for placeholder, name in names.items():
        text = text.replace(placeholder, name)
    return text


def _unfit(folder: Path, problem: str) -> CommandError:
    return CommandError(
        "plugin-folder",
        f"folder {str(folder)!r} cannot take a new plugin: {problem}; a folder with room that is "
        "empty but for .git, or none, was expected. Name another with --into.",
    )
