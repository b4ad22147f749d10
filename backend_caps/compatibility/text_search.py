"""Where the text of an engine has a name: before a file is parsed, its text is searched."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

_DEFINED = re.compile(rb"^[ \t]*(?:async[ \t]+)?def[ \t]+(\w+)", re.MULTILINE)
_CALLED = re.compile(rb"\.(\w+)\(")
_CALLED_OF_OTHERS = re.compile(rb"(?<!\bself)(?<!\bcls)(?<!\bsuper\(\))\.(\w+)\(")
_CONSTRUCTED = re.compile(rb"(?<!class )\b([A-Z]\w+)\(")
_ASSIGNED = re.compile(
    rb"(?<!self)\.(\w+)\b(?::[^=\n]+)?\s*=[^=]|setattr\([^,]+,\s*[\"'](\w+)[\"']"
)
_ASKED = re.compile(rb"getattr\([^,()]+,\s*[\"'](\w+)[\"']")
_CLASS_NAME = re.compile(rb"\b_*[A-Z]\w+")
_QUOTED = re.compile(rb"[\"'](\w+)[\"']")


@dataclass
class TextSearch:
    """The texts of an engine and of a plugin, searched for names."""

    files: Mapping[str, bytes]
    """By path."""
    is_engines: Callable[[str], bool]
    """Returns whether the file of a path is the engine's."""

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
            for name in set(_CALLED_OF_OTHERS.findall(text))
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

    @cached_property
    def mentioning(self) -> Mapping[str, Sequence[str]]:
        """The engine's files with a word that may name a class, by the word."""
        return self._files_with(_CLASS_NAME)

    def is_imported(self, module: str) -> bool:
        """Return whether a file of the engine imports a module."""
        pattern = re.compile(rf"(?m)^\s*(?:from|import)\s+{re.escape(module)}\b".encode())
        return any(pattern.search(self.files[path]) for path in self.engine_files(module))

    def is_read(self, whole: str) -> bool:
        """Return whether any file reads `owner.name` of a dotted name, or has the name as a text.

        The functions of a module read its names bare, but for a name that it does not define.
        """
        owner, _, name = whole.rpartition(".")
        owner = owner.rpartition(".")[2]
        of_owner = "" if owner[:1].isupper() else rf"\b{owner}"  # an instance has any name
        words = rf"{of_owner}\.{name}\b(?!\s*=[^=])|[\"']{name}[\"']"
        pattern = re.compile(rf"(?m)^[^#\n]*(?:{words})".encode())
        return any(pattern.search(self.files[path]) for path in self._containing(name))

    @cached_property
    def assigned(self) -> frozenset[str]:
        """The attributes that any file assigns of an object other than `self`."""
        return self._words(_ASSIGNED)

    @cached_property
    def asked_for(self) -> frozenset[str]:
        """The attributes that the engine asks for by `getattr`: an object may have one, or not."""
        return frozenset(self._files_with(_ASKED))

    def _words(self, pattern: re.Pattern[bytes]) -> frozenset[str]:
        return frozenset(
            word.decode("utf-8", "replace")
            for text in self.files.values()
            for words in set(pattern.findall(text))
            for word in words
        )

    def _containing(self, text: str) -> Iterator[str]:
        word = text.encode()
        return (path for path, content in self.files.items() if word in content)
