"""Where links of the repository's pages lead on the site.

A page links as it is read in the repository: to other pages, to schemas, to source files. The site
has a page for each of them, under another name where its own lies elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath

ROOT = Path(__file__).resolve().parents[3]
AT_ROOT = {
    "README.md": "about.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
"""Pages at the repository's root, and their names on the site."""
_PAGES = "docs/"
_SCHEMA = ".schema.json"
_CODE_OR_LINK = re.compile(
    r"(?P<code>^```.*?^```$|`[^`\n]*`)|\]\((?P<link>[^)\s]+)\)", re.MULTILINE | re.DOTALL
)


def page_of(path: str) -> str:
    """Name the site's page for a file of the repository."""
    if path in AT_ROOT:
        return AT_ROOT[path]
    if path.startswith(_PAGES) and path.endswith(_SCHEMA):
        return schema_page(PurePosixPath(path).name.removesuffix(_SCHEMA))
    if path.startswith(_PAGES) and not path.endswith(".py"):
        return path.removeprefix(_PAGES)
    return f"source/{path}.md"


def schema_page(name: str) -> str:
    """Name the page of a JSON schema."""
    return f"reference/schemas/{name}.md"


def file_of(page: str) -> str:
    """Name the repository's file that a page of the site is made of."""
    at_root = {name: path for path, name in AT_ROOT.items()}
    return at_root.get(page, f"{_PAGES}{page}")


def rewritten(markdown: str, page: str) -> str:
    """Write a page with each link as it holds on the site."""

    def link(target: str) -> str:
        path, sign, anchor = target.partition("#")
        if not path or _is_elsewhere(target):
            return target
        to = page_of(_in_repository(page, path))
        return relpath(to, str(PurePosixPath(page).parent)) + sign + anchor

    return _with_links(markdown, link)


def sources_of(markdown: str, page: str) -> Iterator[str]:
    """List the files of the repository that a page links to and that are no pages."""
    for match in _CODE_OR_LINK.finditer(markdown):
        path = (match["link"] or "").partition("#")[0]
        if path and not _is_elsewhere(path):
            file = _in_repository(page, path)
            if page_of(file).startswith("source/"):
                yield file


def _in_repository(page: str, path: str) -> str:
    return normpath(str(PurePosixPath(file_of(page)).parent / path))


def _is_elsewhere(target: str) -> bool:
    return target.startswith(("https://", "http://", "mailto:"))


def _with_links(markdown: str, link: Callable[[str], str]) -> str:
    def put(match: re.Match[str]) -> str:
        return match[0] if match["code"] else f"]({link(match['link'])})"

    return _CODE_OR_LINK.sub(put, markdown)
