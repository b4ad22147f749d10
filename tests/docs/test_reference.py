"""The generated pages and the glossary are what the code says now."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import TypeGuard

import pytest

from backend_caps import BackendCapsError, Origin, Phase, Role
from backend_caps.errors import CodedError
from docs.tools import engines, kit_runs, pictures, schemas
from docs.tools.error_examples import BY_OCCASION
from docs.tools.outputs import RENEW, Files, stale
from docs.tools.sources import problem_texts
from tests.docs.pages import PAGES, REFERENCE, ROOT, name_of, prose_of

GENERATED = [page for page in PAGES if "[[[cog" in page.read_text("utf-8")]
GENERATORS = sorted((ROOT / "docs" / "tools" / "pages").glob("[!_]*.py"))


@pytest.mark.slow
@pytest.mark.no_cover
def test_generated_pages_are_not_stale() -> None:
    """Every generated part is what its generator writes."""
    checked = subprocess.run(
        [sys.executable, "-m", "cogapp", "--check", "-P", "-I", ".", *map(name_of, GENERATED)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert checked.returncode == 0, f"renew them by {RENEW}:\n{checked.stdout}{checked.stderr}"


@pytest.mark.parametrize("module", GENERATORS, ids=lambda path: path.stem)
def test_generator_is_asked_by_a_page(module: Path) -> None:
    """Every part that can be generated stands on a page."""
    statements = ast.parse(module.read_text("utf-8")).body
    pages = "".join(page.read_text("utf-8") for page in GENERATED)

    calls = {f"{module.stem}.{own.name}(" for own in statements if _is_public(own)}

    assert {call for call in calls if f"print({call}" not in pages} == set()


def _is_public(statement: ast.stmt) -> TypeGuard[ast.FunctionDef]:
    return isinstance(statement, ast.FunctionDef) and not statement.name.startswith("_")


@pytest.mark.slow
@pytest.mark.parametrize(
    "files",
    [schemas.FILES, pictures.FILES, kit_runs.FILES],
    ids=["schemas", "pictures", "kit_runs"],
)
def test_files_that_are_written_are_not_stale(files: Files) -> None:
    """Every schema is what its model says, and every picture is drawn again to the last byte."""
    assert stale(files) == [], f"renew them by {RENEW}"


@pytest.mark.parametrize(
    "engine", ["sglang", pytest.param("vllm", marks=[pytest.mark.upstream, pytest.mark.vllm_wheel])]
)
def test_page_of_an_engine_is_not_stale(engine: str) -> None:
    """The matrix of an engine's backends is what its wheel says."""
    page = engines.PAGES[engine]

    assert page.path.read_text("utf-8") == engines.text_of(page), f"renew it by {RENEW}"


@pytest.mark.parametrize("name", schemas.SCHEMAS)
def test_schema_describes_every_field(name: str) -> None:
    """Every field of a published schema has a description."""
    assert list(schemas.undescribed(name)) == []


def test_every_error_has_an_example() -> None:
    """`errors.md` shows each error class of the package, with its fields or its codes."""
    shown = {type(example) for occasion in BY_OCCASION for example in occasion.examples}
    coded = {kind for occasion in BY_OCCASION for kind in occasion.coded}
    kinds = {*BackendCapsError.__subclasses__(), *CodedError.__subclasses__()} - {CodedError}
    ours = {kind for kind in kinds if kind.__module__ in sys.modules}

    missing = {kind for kind in ours if kind.__module__.startswith("backend_caps.")}
    missing -= shown | coded

    assert missing == set()


@pytest.mark.parametrize("kind", CodedError.__subclasses__(), ids=lambda kind: kind.__name__)
def test_every_code_of_an_error_is_raised(kind: type[CodedError]) -> None:
    """A code that the page lists stands in a call that makes the error."""
    paths = [*(ROOT / "backend_caps").rglob("*.py"), *(ROOT / "plugins").rglob("*.py")]
    sources = [path.read_text("utf-8") for path in paths]

    missing = [
        code
        for code in kind.codes
        if not any(re.search(rf'{kind.__name__}\(\s*"{code}"', source) for source in sources)
    ]

    assert missing == []


def test_every_problem_is_listed() -> None:
    """`problems.md` has a row for each code in the source."""
    page = (REFERENCE / "problems.md").read_text("utf-8")

    assert [text.code for text in problem_texts() if f"| `{text.code}` |" not in page] == []


@pytest.mark.parametrize("enum", [Role, Phase, Origin])
def test_reference_has_the_words_of_reports(enum: type[Role | Phase | Origin]) -> None:
    """The words that reports use of a cause stand in the reference."""
    text = (REFERENCE / "capabilities.md").read_text("utf-8")

    assert [member.value for member in enum if f"`{member.value}`" not in text] == []


def test_pages_name_no_machine() -> None:
    """No page holds a path of the machine that it was written on."""
    places = {Path("/tmp"), ROOT, Path.home()} - {Path("/")}  # noqa: S108 - looked for
    any_of_them = "|".join(re.escape(str(place)) for place in places)
    private = re.compile(rf"(?<![\w.-])({any_of_them})(?![\w-])")

    assert [name_of(page) for page in PAGES if private.search(page.read_text("utf-8"))] == []


GLOSSARY = REFERENCE / "glossary.md"
_TERM = re.compile(r"^\*\*(.+?)\*\*", re.MULTILINE)
_REJECTED = re.compile(r"\*Not:\* ([^.]+)\.")
REQUIRED = {
    *("backend", "cause", "draft", "draft_extend", "fact", "flag", "flip", "mirror", "need"),
    *("phase", "plan", "pool row", "publish", "role", "rule", "stash", "support", "target", "use"),
}


def test_glossary_has_every_word() -> None:
    """Each word of the design has an entry."""
    assert REQUIRED - set(_TERM.findall(GLOSSARY.read_text("utf-8"))) == set()


def test_glossary_is_sorted_and_has_each_word_once() -> None:
    """Each word has one meaning, where a reader looks for it."""
    terms = _TERM.findall(GLOSSARY.read_text("utf-8"))

    assert terms == sorted(set(terms), key=str.lower)


@pytest.mark.parametrize("page", [p for p in PAGES if p != GLOSSARY], ids=name_of)
def test_page_uses_no_second_word(page: Path) -> None:
    """No page says by another word what the glossary has a word for."""
    rejected = [
        word.strip()
        for listed in _REJECTED.findall(GLOSSARY.read_text("utf-8"))
        for word in listed.split(",")
    ]

    used = [word for word in rejected if re.search(rf"\b{re.escape(word)}\b", prose_of(page))]

    assert used == []
