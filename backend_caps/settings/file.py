"""A YAML file of settings: its values, and the line of each. Loads PyYAML."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from backend_caps.settings.sources import FACTS, SECTIONS, LayerValues, SettingLayer, SettingsError


def read_file(path: Path) -> LayerValues:
    """Read a YAML file of settings; a key may be written with dashes or underscores.

    Problems of single keys are among the layer's faults.

    Raises:
        SettingsError: the file cannot be read, or holds no mapping.
    """
    layer = LayerValues(layer=SettingLayer.FILE, folder=path.absolute().parent)
    try:
        loader = yaml.SafeLoader(path.read_bytes())
        root = loader.get_single_node()
        if isinstance(root, yaml.MappingNode):
            _Reader(path, loader, layer).read(root)
        elif root is not None:
            raise _unreadable(path, f"it holds {_kind(root)}")
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise _unreadable(path, " ".join(str(error).split())) from error
    return layer


def _unreadable(path: Path, cause: str) -> SettingsError:
    return SettingsError(
        "file",
        f"settings file {str(path)!r} cannot be read: {cause}. Expected a YAML mapping "
        "of settings, such as policy: strict. Correct the file, or --config or "
        "BACKEND_CAPS_CONFIG, which name it.",
    )


@dataclass(slots=True)
class _Reader:
    """Reads the keys of one file into a layer, with their lines."""

    _path: Path
    _loader: yaml.SafeLoader
    _layer: LayerValues

    def read(self, root: yaml.MappingNode) -> None:
        """Read every setting; of a section, every name in it."""
        layer = self._layer
        layer.faults.extend(self._repeated(root, set()))
        for key, node, place in self._items(root, "-"):
            layer.places[key,] = place
            if key in SECTIONS and isinstance(node, yaml.MappingNode):
                section: dict[str, object] = {}
                layer.values[key] = section
                for name, value, at in self._items(node, "_" if key == FACTS else "-"):
                    layer.places[key, name] = at
                    section[name] = self._loader.construct_object(value, deep=True)
                continue
            value = self._loader.construct_object(node, deep=True)
            is_blank = key in SECTIONS and value is None  # a section of comments alone
            layer.values[key] = {} if is_blank else value
            if isinstance(node, yaml.SequenceNode):
                for number, item in enumerate(node.value):
                    layer.places[key, str(number)] = self._place(item)

    def _items(self, node: yaml.MappingNode, dash: str) -> Iterator[tuple[str, yaml.Node, str]]:
        """List a mapping's keys as settings spell them, with their values and places."""
        for key, value in node.value:
            if key.tag.endswith(":merge"):
                cause = f"line {_line(key)} takes another mapping over (<<), which is not followed"
                raise _unreadable(self._path, cause)
            yield _name(key).replace("-", dash).replace("_", dash), value, self._place(key)

    def _place(self, node: yaml.Node) -> str:
        return f"{self._path}:{_line(node)}"

    def _repeated(self, node: yaml.Node, seen: set[int]) -> Iterator[SettingsError]:
        """Yield keys that a mapping has twice, at any depth; PyYAML takes the last."""
        if isinstance(node, yaml.ScalarNode) or id(node) in seen:  # an alias may form a cycle
            return
        seen.add(id(node))
        lines: dict[str, int] = {}
        for item in node.value:
            key, inner = item if isinstance(node, yaml.MappingNode) else (None, item)
            if key is not None:
                plain, place = _name(key).replace("_", "-"), self._place(key)
                if plain in lines:
                    text = (
                        f"{place}: {_name(key)!r} is given again, after line {lines[plain]}; "
                        "expected each key once. Keep one of them."
                    )
                    yield SettingsError("repeated", text, place)
                lines.setdefault(plain, _line(key))
            yield from self._repeated(inner, seen)


def _name(key: yaml.Node) -> str:
    """Return a key's text, also of `on` and `1`, which YAML does not read as texts."""
    return str(key.value) if isinstance(key, yaml.ScalarNode) else _kind(key)


def _kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode):
        return f"the text {node.value!r}"
    return "a list" if isinstance(node, yaml.SequenceNode) else "a mapping"


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
