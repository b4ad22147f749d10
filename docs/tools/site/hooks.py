"""What MkDocs calls while it builds the site: pages that are no files under `docs`.

The changelog with what is not released yet, the pages at the repository's root, one for each JSON
schema, and one for each source file that a page links to.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docs.tools.schemas import SCHEMAS
from docs.tools.site.links import AT_ROOT, ROOT, page_of, rewritten, schema_page, sources_of
from docs.tools.site.schema_pages import schema_markdown

_RELEASES_BEGIN = "<!-- towncrier release notes start -->\n"
_WIDE = frozenset(
    {
        "explanation/the-relay-timeline.md",
        "how-to/see-the-overlap.md",
        "reference/liars.md",
        "reference/mutants.md",
        "reference/sglang.md",
        "reference/vllm-backends.md",
    }
)
"""Pages whose tables or pictures need the room of their tables of contents."""
_OUTPUT = re.compile("^```text output$", re.MULTILINE)
_PUBLIC_NAME = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)
_AS_OUTPUT = "``` { .text .output }"
_SOURCE_HEAD = "---\nsearch:\n  exclude: true\nhide: [navigation, toc]\n---\n"
_LANGUAGES = {".json": "json", ".py": "python", ".toml": "toml", ".yml": "yaml"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made, and those that they link to."""
    for path, page in AT_ROOT.items():
        files.append(File.generated(config, page, content=_at_root(path)))
    for name in SCHEMAS:
        files.append(File.generated(config, schema_page(name), content=schema_markdown(name)))
    pages = {file.src_uri: file.content_string for file in files if file.is_documentation_page()}
    for path in sorted({to for page, text in pages.items() for to in sources_of(text, page)}):
        files.append(File.generated(config, page_of(path), content=source_markdown(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let each link lead to the site's own page."""
    del config, files
    own = page.file.src_uri
    if own in _WIDE:
        page.meta["hide"] = ["toc"]
    if own.startswith(("source/", "reference/schemas/")):
        return markdown
    if own.startswith("reference/api/"):
        module = markdown.partition("\n")[0].removeprefix("# ")
        markdown = _PUBLIC_NAME.sub(lambda match: _linked(match[1], module), markdown)
    return _OUTPUT.sub(_AS_OUTPUT, rewritten(markdown, own))


def _linked(name: str, module: str) -> str:
    place = f"{module}.{name}"
    return f"| [`{name}`][{place}] |"


def source_markdown(path: str) -> str:
    """Write the page of a source file: its lines, numbered, each with an anchor."""
    text = (ROOT / path).read_text("utf-8")
    fence = "`" * 6
    language = _LANGUAGES.get(PurePosixPath(path).suffix, "text")
    opened = f'{fence} {{ .{language} linenums="1" title="{path}" }}'
    return f"{_SOURCE_HEAD}# {path.rpartition('/')[2]}\n\n{opened}\n{text}{fence}\n"


def _at_root(path: str) -> str:
    text = (ROOT / path).read_text("utf-8")
    if path != "CHANGELOG.md":
        return text
    head, begins, released = text.partition(_RELEASES_BEGIN)
    return head + begins + "".join(_unreleased()) + released


def _unreleased() -> Iterator[str]:
    """Write what the fragments say; nothing where there are none."""
    if not any((ROOT / "changelog").glob("*.*.md")):
        return
    command = (sys.executable, "-m", "towncrier", "build", "--draft", "--version", "Not released")
    yield subprocess.run(  # noqa: S603 - the project's own tool
        [*command, "--dir", str(ROOT), "--date", "coming next"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
