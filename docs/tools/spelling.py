"""Words of the prose that no dictionary has, and `docs/tools/words.txt` has not either.

`typos` knows misspellings that are common, in code as well; this asks of every word of pages and
docstrings whether it is one. Names of code stand in backticks, and are not asked.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from spellchecker import SpellChecker

OWN_WORDS = Path(__file__).with_name("words.txt")
"""What is right here and in no dictionary, a word a line."""
_NO_PROSE = re.compile(
    r"^```.*?^```$|`[^`\n]*`|\]\([^)]*\)|https?://\S+|<!--.*?-->", re.MULTILINE | re.DOTALL
)
_WORD = re.compile(r"(?<![\w.@/\\-])[A-Za-z][a-z]+(?:'[a-z]+)?(?![\w@/\\(=]|\.\w)")


def unknown_words(prose: str) -> set[str]:
    """List the words of a text that nobody knows."""
    words = {match[0].lower() for match in _WORD.finditer(_NO_PROSE.sub(" ", prose))}
    return {word for word in words if not _is_known(word)}


def _is_known(word: str) -> bool:
    base = word.removesuffix("'s")
    return base in own_words() or base in _dictionary()


@cache
def own_words() -> frozenset[str]:
    """Read the words that are right here."""
    return frozenset(OWN_WORDS.read_text("utf-8").split())


def needless_words() -> set[str]:
    """List own words that the dictionary has too."""
    return {word for word in own_words() if word in _dictionary()}


@cache
def _dictionary() -> SpellChecker:
    return SpellChecker()


def docstrings(source: str) -> Iterator[str]:
    """List the docstrings of a module, those of attributes among them."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield text
