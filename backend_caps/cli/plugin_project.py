"""A new plugin's project, made of the template by putting its names in.

The template is itself a project that works, of a backend `my_attention`: what checks code and
pages here checks it where it lies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from backend_caps.cli.plugin_errors import PluginFolderError
from backend_caps.discovery.metadata import normalised

_TEMPLATE = "template"
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
    """Write a project's files into a folder that is empty, or not there yet.

    Raises:
        PluginFolderError: the folder holds something, or cannot be written. Nothing that was
            there is changed.
    """
    if folder.is_file():
        raise _unfit(folder, "it is a file")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = sorted(entry.name for entry in folder.iterdir())
        if held:
            raise _unfit(folder, f"it holds {_some(held)}")
        for path, text in texts.items():
            file = folder / path
            file.parent.mkdir(exist_ok=True)
            with file.open("x", encoding="utf-8", newline="\n") as opened:
                opened.write(text)
    except OSError as error:
        raise _unfit(folder, error.strerror or str(error)) from error


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
