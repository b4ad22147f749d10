"""A YAML file of settings: its values, and the line of each. Loads PyYAML."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import yaml

from backend_caps.settings.errors import RepeatedSettingError, SettingsFileError
from backend_caps.settings.layers import FACTS, SECTIONS, LayerValues, SettingLayer


def read_file(path: Path) -> LayerValues:
    """Read what a file says; a key may be written with dashes or underscores.

    What is wrong with single keys is among the faults.

    Raises:
        SettingsFileError: the file cannot be read, or holds no mapping.
    """
    said = LayerValues(layer=SettingLayer.FILE, folder=path.absolute().parent)
    try:
        loader = yaml.SafeLoader(path.read_bytes())
        root = loader.get_single_node()
        if isinstance(root, yaml.MappingNode):
            _Reader(path, loader, said).read(root)
        elif root is not None:
            raise SettingsFileError(path=str(path), cause=f"it holds {_kind(root)}")
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        cause = " ".join(str(error).split())
        raise SettingsFileError(path=str(path), cause=cause) from error
    return said


class _Reader:
    """Writes down the keys of one file."""

    def __init__(self, path: Path, loader: yaml.SafeLoader, said: LayerValues) -> None:
        self._path = path
        self._loader = loader
        self._said = said

    def read(self, root: yaml.MappingNode) -> None:
        """Write down every setting; of a section, every name in it."""
        self._said.faults.extend(self._repeated(root, set()))
        for key, value, place in self._items(root, "-"):
            self._said.places[key,] = place
            if key in SECTIONS and isinstance(value, yaml.MappingNode):
                self._said.values[key] = self._section(key, value)
                continue
            self._said.values[key] = said = self._value(value)
            if key in SECTIONS and said is None:  # every line of it is a comment
                self._said.values[key] = {}
            if isinstance(value, yaml.SequenceNode):
                for number, item in enumerate(value.value):
                    self._said.places[key, str(number)] = self._place(item)

    def _section(self, section: str, node: yaml.MappingNode) -> dict[str, object]:
        values: dict[str, object] = {}
        for name, value, place in self._items(node, "_" if section == FACTS else "-"):
            self._said.places[section, name] = place
            values[name] = self._value(value)
        return values

    def _items(self, node: yaml.MappingNode, dash: str) -> Iterator[tuple[str, yaml.Node, str]]:
        """List a mapping's keys as they are called here, with their values and places."""
        for key, value in node.value:
            if key.tag.endswith(":merge"):
                cause = f"line {_line(key)} takes another mapping over (<<), which is not followed"
                raise SettingsFileError(path=str(self._path), cause=cause)
            yield _name(key).replace("-", dash).replace("_", dash), value, self._place(key)

    def _value(self, node: yaml.Node) -> object:
        value: object = self._loader.construct_object(node, deep=True)
        return value

    def _place(self, node: yaml.Node) -> str:
        return f"{self._path}:{_line(node)}"

    def _repeated(self, node: yaml.Node, seen: set[int]) -> Iterator[RepeatedSettingError]:
        """Find keys that a mapping has twice, at any depth; YAML itself takes the last."""
        if isinstance(node, yaml.ScalarNode) or id(node) in seen:  # an alias may lead back here
            return
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            yield from self._repeated_keys(node)
        for item in node.value:
            yield from self._repeated(item[1] if isinstance(item, tuple) else item, seen)

    def _repeated_keys(self, node: yaml.MappingNode) -> Iterator[RepeatedSettingError]:
        lines: dict[str, int] = {}
        for key, _ in node.value:
            plain = _name(key).replace("_", "-")
            if plain in lines:
                first = lines[plain]
                yield RepeatedSettingError(
                    place=self._place(key), name=_name(key), first_line=first
                )
            lines.setdefault(plain, _line(key))


def _name(key: yaml.Node) -> str:
    """Name a key as it is written, `on` and `1` too, which YAML takes for no text."""
    return str(key.value) if isinstance(key, yaml.ScalarNode) else _kind(key)


def _kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode):
        return f"the text {node.value!r}"
    return "a list" if isinstance(node, yaml.SequenceNode) else "a mapping"


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
