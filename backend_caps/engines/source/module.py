"""Class statements in the text of files, and what the names of a parsed file mean."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import accumulate, pairwise
from typing import NamedTuple

from backend_caps.engines.source.guards import Function, Guarded, Guards, grouped, guarded, spans
from backend_caps.engines.source.statements import Statement, bound, by_name, statements, surviving

_HEAD = re.compile(rb"class[ \t]+([\w\x80-\xff]+)[ \t]*(?:\[[^\]\n]{0,400}\][ \t]*)?\(")
_IN_BASES = re.compile(rb"#[^\n]*|[()]|\n[ \t\f]*class[ \t]|[^()#\n]+|\n")
_WORD = re.compile(rb"[\w\x80-\xff]+")
_DOTTED = re.compile(rb"[\w.]{1,400}")
_LONGEST_WORD = 200
_FARTHEST = 4096
"""The most bytes that are searched for the end of a class statement's bases."""


@dataclass(frozen=True, eq=False)
class ClassDef:
    """A class statement. It has no slots, as properties are cached."""

    module: Module
    node: ast.ClassDef
    guards: Guards
    """The conditions under which the statement runs."""
    outer: str = ""
    """The functions and classes around it, each with a dot after it."""
    functions: tuple[Function, ...] = ()
    """The functions around it, innermost first."""

    @property
    def name(self) -> str:
        """The name in the class statement."""
        return self.node.name

    @property
    def path(self) -> str:
        """`package.module.Class`."""
        return f"{self.module.name}.{self.outer}{self.name}"

    @property
    def at(self) -> str:
        """`file:line`."""
        return self.module.at(self.node)

    @property
    def lineno(self) -> int:
        """The line of the statement."""
        return self.node.lineno

    @cached_property
    def body(self) -> Sequence[Guarded[ast.stmt]]:
        """The statements of its body, each with its guards."""
        return guarded(self.node.body)

    @cached_property
    def given(self) -> Sequence[Statement]:
        """The statements of its body that set names."""
        return list(statements(self, self.body))

    @cached_property
    def statements(self) -> Mapping[str, Sequence[Statement]]:
        """The statements that set names, by name."""
        return by_name(self.given)

    @cached_property
    def alternatives(self) -> Mapping[str, Sequence[Guarded[Function]]]:
        """By name, the methods that it may call: the last unconditional one, and later ones."""
        methods = grouped(
            (each.name, Guarded(each.guards, each.value))
            for each in self.given
            if isinstance(each.value, Function)
        )
        return {name: surviving(each, lambda one: not one.guards) for name, each in methods.items()}

    @cached_property
    def methods(self) -> Mapping[str, Function]:
        """The methods that its body defines; the last of each name."""
        return {name: found[-1].value for name, found in self.alternatives.items()}


@dataclass(frozen=True, slots=True)
class Import:
    """What an import binds a name to."""

    module: str
    attribute: str | None
    """None where the name is the module itself."""
    lineno: int = 0


Meaning = Import | ast.expr | ClassDef | Function
Meanings = Sequence[Guarded[Meaning]]
Scope = Mapping[str, Meanings]
"""The possible meanings of each name, with their conditions."""


def mentions(meaning: Meaning, name: str) -> bool:
    """Return whether a meaning is an expression that uses a name."""
    nodes = ast.walk(meaning) if isinstance(meaning, ast.expr) else ()
    return any(isinstance(node, ast.Name) and node.id == name for node in nodes)


def _final(scope: Scope) -> Scope:
    """List the meanings that each name may have after all its bindings have run.

    A binding that uses the name itself, such as `A = decorated(A)`, keeps the earlier ones.
    """

    def replaces(name: str, binding: Guarded[Meaning]) -> bool:
        return not binding.guards and not mentions(binding.value, name)

    return {name: surviving(each, partial(replaces, name)) for name, each in scope.items() if each}


@dataclass(eq=False)
class Module:
    """A file of the tree."""

    name: str
    path: str
    tree: ast.Module
    text: bytes
    _lines: dict[frozenset[str], Sequence[int]] = field(default_factory=dict)

    def lines(self, words: Collection[str]) -> Sequence[int]:
        """List the numbers of the lines that contain any of `words`, in order."""
        key = frozenset(words)
        if key not in self._lines:
            pattern = "|".join(map(re.escape, sorted(key))).encode()
            starts = [0, *(match.start() for match in re.finditer(pattern, self.text))]
            num_newlines = (self.text.count(b"\n", *places) for places in pairwise(starts))
            self._lines[key] = [1 + before for before in accumulate(num_newlines)]
        return self._lines[key]

    @cached_property
    def classes(self) -> Sequence[ClassDef]:
        """Every class statement of the file that may run, inner ones too."""
        return list(self._classes(self.body, (), ""))

    @cached_property
    def definitions(self) -> Mapping[ast.ClassDef, ClassDef]:
        """The classes by their statements; without those that never run."""
        return {each.node: each for each in self.classes}

    @cached_property
    def body(self) -> Sequence[Guarded[ast.stmt]]:
        """The statements of the file, each with its guards."""
        return guarded(self.tree.body)

    def at(self, node: ast.stmt | ast.expr) -> str:
        """Return the place of a node, as `file:line`."""
        return f"{self.path}:{node.lineno}"

    @cached_property
    def stars(self) -> list[str]:
        """The modules that `from ... import *` names."""
        return [star.module for _, star in self.bound.get("*", ()) if isinstance(star, Import)]

    @cached_property
    def bound(self) -> Scope:
        """Every binding of the module's names, in text order."""
        return self._bindings(self.body)

    @cached_property
    def scope(self) -> Scope:
        """The meanings of the module's names after it has run."""
        return _final(self.bound)

    def scope_of(self, body: Sequence[ast.stmt]) -> Scope:
        """Return the meanings of the names that a body binds."""
        return _final(self._bindings(guarded(body)))

    def scope_in(self, function: Function) -> Scope:
        """Return the meanings of names in a function; an argument means itself."""
        names = (node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg))
        arguments = {name: [Guarded((), ast.Name(id=name, ctx=ast.Load()))] for name in names}
        return {**arguments, **self.scope_of(function.body)}

    def scope_before(self, line: int, names: Collection[str]) -> Scope:
        """Return the meanings that some names of the module have at a line."""
        return _final(
            {
                name: [each for each in self.bound.get(name, ()) if each.value.lineno < line]
                for name in names
            }
        )

    def _bindings(self, body: Iterable[Guarded[ast.stmt]]) -> Scope:
        return grouped(
            (name, Guarded(guards, meaning))
            for guards, node in body
            for name, meaning in self._bound(node)
        )

    def absolute(self, statement: ast.ImportFrom) -> str:
        """Return the full name of the module that a `from` import names."""
        if not statement.level:
            return statement.module or ""
        parts = self.name.split(".")
        kept = len(parts) - statement.level + self.path.endswith("/__init__.py")
        base = ".".join(parts[: max(kept, 0)])
        return ".".join(part for part in (base, statement.module) if part)

    def _bound(self, node: ast.stmt) -> Iterator[tuple[str, Meaning]]:
        match node:
            case ast.Import() | ast.ImportFrom():
                yield from self._imported(node)
            case ast.ClassDef(name=name) if node in self.definitions:
                yield name, self.definitions[node]
            case _:
                for target, value, operator in bound(node):
                    if isinstance(target, ast.Name) and operator is None:
                        yield target.id, value

    def _imported(self, node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, Import]]:
        for alias in node.names:
            if isinstance(node, ast.ImportFrom):
                source, name, attribute = self.absolute(node), alias.name, alias.name
            else:
                name, attribute = alias.name.partition(".")[0], None
                source = alias.name if alias.asname else name
            yield alias.asname or name, Import(source, attribute, node.lineno)

    def _classes(
        self,
        body: Iterable[Guarded[ast.stmt]],
        around: Guards,
        outer: str,
        functions: tuple[Function, ...] = (),
    ) -> Iterator[ClassDef]:
        """List the class statements of a body, and of its functions and classes."""
        for inner_guards, node in body:
            guards = around + inner_guards
            if isinstance(node, ast.ClassDef):
                definition = ClassDef(self, node, guards, outer, functions)
                yield definition
                yield from self._classes(definition.body, guards, f"{outer}{node.name}.", functions)
            elif isinstance(node, Function) and spans(node, self.lines(["class"])):
                inner, within = guarded(node.body), (node, *functions)
                yield from self._classes(inner, guards, f"{outer}{node.name}.", within)


class Head(NamedTuple):
    """A class statement in a file's text."""

    name: str
    bases: frozenset[str]
    """The last word of each base, as `B` of `a.B`."""
    at: int
    """The offset of the statement in the text."""


class Heads:
    """The class statements of a tree's files."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files

    @cached_property
    def by_file(self) -> Mapping[str, list[Head]]:
        """The class statements of each file that has any."""
        found = {path: list(_heads_of(text)) for path, text in self._files.items()}
        return {path: heads for path, heads in found.items() if heads}

    def files_below(self, roots: Collection[str]) -> list[str]:
        """List the files with a direct or indirect subclass of any of `roots`."""
        names = self.names_below(roots)
        return sorted(p for p, heads in self.by_file.items() if any(h.name in names for h in heads))

    def names_below(self, roots: Collection[str]) -> frozenset[str]:
        """List the names of `roots` and of their direct and indirect subclasses."""
        names = set(roots)
        fresh = list(roots)
        while fresh:
            below = {name for base in fresh for name in self._below.get(base, ())}
            fresh = sorted(below - names)
            names |= below
        return frozenset(names)

    @cached_property
    def _below(self) -> Mapping[str, list[str]]:
        """The names of the direct subclasses of each base, also by the base's other names."""
        known = frozenset(head.name for heads in self.by_file.values() for head in heads)
        below: dict[str, list[str]] = {}
        for path, heads in self.by_file.items():
            by_base = grouped((base, head) for head in heads for base in head.bases)
            for base, subclasses in by_base.items():
                originals = self._originals(path, base, subclasses[0].at, is_class=base in known)
                for name in (base, *originals):
                    below.setdefault(name, []).extend(head.name for head in subclasses)
        return below

    def _originals(self, path: str, name: str, until: int, *, is_class: bool) -> list[str]:
        """List the names that a file renames to `name` before an offset of its text."""
        text, word = self._files[path][:until], name.encode()
        *aliases, _ = text.split(b" as " + word)
        words = [_last_word(each[-_LONGEST_WORD:]) for each in aliases]
        if not is_class:
            _, *values = text.split(word + b" = ")
            words += [_last_word(match[0]) for match in map(_DOTTED.match, values) if match]
        return list(filter(None, words))


def _heads_of(text: bytes) -> Iterator[Head]:
    for match in _HEAD.finditer(text):
        at = match.start()
        before = text[text.rfind(b"\n", max(at - _FARTHEST, 0), at) + 1 : at]
        if not before or before.isspace():
            bases = _bases(text, match.end())
            if bases is not None:
                names = frozenset(word for base in bases.split(b",") if (word := _last_word(base)))
                yield Head(match[1].decode(errors="replace"), names, at)


def _bases(text: bytes, start: int) -> bytes | None:
    """Return the bases without comments; None where they do not end.

    Arguments of a call among the bases count as bases.
    """
    pieces, depth = [], 1
    for match in _IN_BASES.finditer(text, start, start + _FARTHEST):
        token = match[0]
        depth += {b"(": 1, b")": -1}.get(token, 0)
        # To stop at the next class statement keeps the search linear in the text's length.
        if not depth or (token.startswith(b"\n") and token.strip()):
            break
        if not token.startswith(b"#"):
            pieces.append(b"," if token in b"()" else token)
    else:
        return None
    return b"".join(pieces)


def _last_word(base: bytes) -> str:
    """Return the last word of a base; an empty text if it ends in none."""
    # Matched in the reversed text: a search for the last word could take quadratic time.
    word = _WORD.match(base.partition(b"[")[0].rstrip()[::-1])
    return word[0][::-1].decode(errors="replace") if word else ""
