"""A new plugin's project, made of the template by putting its names in.

The template is itself a project that works, of a backend `my_attention`: what checks code and
pages here checks it where it lies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from backend_caps.cli.plugin_errors import PluginFolderError
from backend_caps.discovery.metadata import normalised

_TEMPLATE = "template"
_REPOSITORY = ".git"
"""What may be in the folder already: an author makes the repository first."""
_LEFT_BY_TOOLS = (".", "__pycache__")
"""How names begin of what compilers and linters put beside the template's own files."""


def project_files(name: str) -> Mapping[str, str]:
    """Return the text of each file of a new plugin, by its path in the project."""
    names = {
        "MyAttention": "".join(word.capitalize() for word in name.split("_")),
        "my_attention": name,
        "my-attention": normalised(name),
    }
    template = files("backend_caps") / _TEMPLATE
    return {_put_in(path, names): _put_in(text, names) for path, text in _texts(template)}


def write_project(texts: Mapping[str, str], folder: Path) -> None:
    """Write a project's files into a folder that is empty but for `.git`, or not there yet.

    Raises:
        PluginFolderError: the folder holds something, or cannot be written. All is then as it
            was: nothing that was there is changed, and nothing is left of what was written.
    """
    if folder.is_file():
        raise _unfit(folder, "it is a file")
    try:
        with ExitStack() as undo:
            _make(folder, undo)
            held = sorted(each.name for each in folder.iterdir() if each.name != _REPOSITORY)
            if held:
                raise _unfit(folder, f"it holds {_some(held)}")
            for path, text in texts.items():
                _make((folder / path).parent, undo)
                _write(folder / path, text, undo)
            undo.pop_all()
    except OSError as error:
        raise _unfit(folder, error.strerror or str(error)) from error


def _make(folder: Path, undo: ExitStack) -> None:
    """Make a folder with those that it stands in."""
    for each in (*reversed(folder.parents), folder):
        if not each.exists():
            each.mkdir()
            undo.callback(each.rmdir)


def _write(file: Path, text: str, undo: ExitStack) -> None:
    with file.open("x", encoding="utf-8", newline="\n") as opened:
        undo.callback(file.unlink)
        opened.write(text)


def _texts(folder: Traversable, within: str = "") -> Iterator[tuple[str, str]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.name.startswith(_LEFT_BY_TOOLS):
            continue
        if entry.is_dir():
            yield from _texts(entry, f"{within}{entry.name}/")
        else:
            yield f"{within}{entry.name}", entry.read_text(encoding="utf-8")


def _put_in(text: str, names: Mapping[str, str]) -> str:
    for placeholder, name in names.items():
        text = text.replace(placeholder, name)
    return text


def _unfit(folder: Path, problem: str) -> PluginFolderError:
    return PluginFolderError(folder=str(folder), problem=problem)


def _some(names: list[str]) -> str:
    """Name the first of several."""
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
