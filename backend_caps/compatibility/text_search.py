"""Where the text of an engine has a name: before a file is parsed, its text is searched."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

_DEFINED = re.compile(rb"^[ \t]*(?:async[ \t]+)?def[ \t]+(\w+)", re.MULTILINE)
_CALLED = re.compile(rb"\.(\w+)\(")
_CALLED_OF = re.compile(rb"(?:\b(self|cls)|(super\(\)))?\.(\w+)\(")
_CONSTRUCTED = re.compile(rb"(?<!class )\b([A-Z]\w+)\(")
_QUOTED = re.compile(rb"[\"'](\w+)[\"']")


@dataclass
class TextSearch:
    """The texts of an engine and of a plugin, searched for names."""

    files: Mapping[str, bytes]
    """By path."""
    is_engines: Callable[[str], bool]
    """Returns whether the file of a path is the engine's."""
    _found: dict[str, bool] = field(default_factory=dict)

    @cached_property
    def defining(self) -> Mapping[str, Sequence[str]]:
        """The engine's files that define a function or method, by its name."""
        return self._files_with(_DEFINED)

    @cached_property
    def calling(self) -> Mapping[str, Sequence[str]]:
        """The engine's files that call an attribute, by its name."""
        return self._files_with(_CALLED)

    @cached_property
    def constructing(self) -> Mapping[str, Sequence[str]]:
        """The engine's files that call a name with a capital letter first, by the name."""
        return self._files_with(_CONSTRUCTED)

    @cached_property
    def called_of_others(self) -> frozenset[str]:
        """The attributes that the engine calls of something other than `self` and its class."""
        return frozenset(
            name.decode("utf-8", "replace")
            for path, text in self.files.items()
            if self.is_engines(path)
            for own, base, name in set(_CALLED_OF.findall(text))
            if not own and not base
        )

    @cached_property
    def quoted(self) -> frozenset[str]:
        """The words that the engine has as texts, as remote calls name methods."""
        return frozenset(
            word.decode("utf-8", "replace")
            for path, text in self.files.items()
            if self.is_engines(path)
            for word in set(_QUOTED.findall(text))
        )

    def _files_with(self, pattern: re.Pattern[bytes]) -> Mapping[str, Sequence[str]]:
        found: dict[str, list[str]] = defaultdict(list)
        for path, text in self.files.items():
            for name in set(pattern.findall(text)) if self.is_engines(path) else ():
                found[name.decode("utf-8", "replace")].append(path)
        return found

    def engine_files(self, text: str) -> Iterator[str]:
        """List the engine's files with a text."""
        return filter(self.is_engines, self._containing(text))

    def is_read(self, name: str) -> bool:
        """Return whether any file reads an attribute, or has its name as a text."""
        return self._has(name, rf"(?m)^[^#\n]*(?:\.{name}\b(?!\s*=[^=])|[\"']{name}[\"'])")

    def is_assigned(self, name: str) -> bool:
        """Return whether any file assigns an attribute of an object other than `self`."""
        of_other = rf"(?<!self)\.{name}\b(?::[^=\n]+)?\s*=[^=]"
        return self._has(name, rf"{of_other}|setattr\([^,]+,\s*[\"']{name}[\"']")

    def _has(self, name: str, pattern: str) -> bool:
        if pattern not in self._found:
            compiled = re.compile(pattern.encode())
            texts = (self.files[path] for path in self._containing(name))
            self._found[pattern] = any(map(compiled.search, texts))
        return self._found[pattern]

    def _containing(self, text: str) -> Iterator[str]:
        word = text.encode()
        return (path for path, content in self.files.items() if word in content)
