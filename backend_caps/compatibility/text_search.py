"""Where the text of an engine has a name: before a file is parsed, its text is searched."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

_DEFINED = re.compile(rb"^[ \t]*(?:async[ \t]+)?def[ \t]+(\w+)", re.MULTILINE)
_CALLED = re.compile(rb"\.(\w+)\(")
# A pattern is searched for ten times faster where it starts with plain text, such as the dot.
_CALLED_OF_OTHERS = re.compile(rb"\.(?<!\bself\.)(?<!\bcls\.)(?<!\bsuper\(\)\.)(\w+)\(")
_ASSIGNED = re.compile(rb"\.(?<!self\.)(\w+)(?::[^=\n]+)?\s*=[^=]")
_SET = re.compile(rb"setattr\([^,]+,\s*[\"'](\w+)[\"']")
_ASKED = re.compile(rb"getattr\([^,()]+,\s*[\"'](\w+)[\"']")
_QUOTED = re.compile(rb"[\"'](\w+)[\"']")
_TAKEN = re.compile(rb"\b([A-Z]\w*\.\w+)\b(?!\()")
_WORD = re.compile(rb"\w+")


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

    def calling_bare(self, name: str) -> Iterator[str]:
        """List the engine's files that may call a function by its bare name."""
        return self._matching(name, rf"(?<![.\w])(?<!def ){name}\(")

    def constructing(self, name: str) -> Iterator[str]:
        """List the engine's files that may call a class, by its bare name or of a module."""
        return self._matching(name, rf"\b(?<!class ){name}\(")

    def _matching(self, word: str, pattern: str) -> Iterator[str]:
        called = re.compile(pattern.encode())
        return (path for path in self.engine_files(word) if called.search(self.files[path]))

    @cached_property
    def calling_of_others(self) -> Mapping[str, Sequence[str]]:
        """The engine's files that call an attribute of something other than `self` and its class.

        By the attribute's name.
        """
        return self._files_with(_CALLED_OF_OTHERS)

    @cached_property
    def quoted(self) -> frozenset[str]:
        """The words that the engine has as texts, as remote calls name methods."""
        return self._words(_QUOTED, self._engines)

    @cached_property
    def _engines(self) -> Mapping[str, bytes]:
        return {path: text for path, text in self.files.items() if self.is_engines(path)}

    def _files_with(self, pattern: re.Pattern[bytes]) -> Mapping[str, Sequence[str]]:
        return _decoded(_paths_by_match(pattern, self._engines))

    @staticmethod
    def _words(pattern: re.Pattern[bytes], files: Mapping[str, bytes]) -> frozenset[str]:
        found: set[bytes] = set().union(*map(pattern.findall, files.values()))
        return frozenset(word.decode("utf-8", "replace") for word in found)

    def engine_files(self, text: str) -> Iterator[str]:
        """List the engine's files with a text."""
        return filter(self.is_engines, self._containing(text))

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
    def assigning(self) -> Mapping[str, Sequence[str]]:
        """The files that assign an attribute of an object other than `self`, by its name."""
        return _decoded(_paths_by_match(_ASSIGNED, self.files))

    @cached_property
    def set_by_text(self) -> frozenset[str]:
        """The attributes that any file sets by their text, with `setattr`."""
        return self._words(_SET, self.files)

    @cached_property
    def taken(self) -> frozenset[str]:
        """The `Class.name` that the plugin reads and does not call, as to assign them elsewhere."""
        own = {path: text for path, text in self.files.items() if path not in self._engines}
        return self._words(_TAKEN, own)

    @cached_property
    def asked_for(self) -> frozenset[str]:
        """The attributes that the engine asks for by `getattr`: an object may have one, or not."""
        return self._words(_ASKED, self._engines)

    @cached_property
    def _by_word(self) -> Mapping[bytes, Sequence[str]]:
        return _paths_by_match(_WORD, self.files)

    def _containing(self, text: str) -> Iterator[str]:
        """List the files with a text, which starts and ends as words do."""
        whole = text.encode()
        words = [self._by_word.get(each, ()) for each in _WORD.findall(whole)]
        fewest = min(words, key=len)
        if len(words) == 1 and _WORD.fullmatch(whole):
            return iter(fewest)
        return (path for path in fewest if whole in self.files[path])


def _paths_by_match(
    pattern: re.Pattern[bytes], files: Mapping[str, bytes]
) -> Mapping[bytes, Sequence[str]]:
    found: dict[bytes, list[str]] = defaultdict(list)
    for path, text in files.items():
        for match in set(pattern.findall(text)):
            found[match].append(path)
    return found


def _decoded(paths: Mapping[bytes, Sequence[str]]) -> Mapping[str, Sequence[str]]:
    return {name.decode("utf-8", "replace"): each for name, each in paths.items()}
