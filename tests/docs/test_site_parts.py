"""What the site's pages are made of, part by part."""

from __future__ import annotations

from typing import Any

import pytest

from docs.tools.site.docstrings import as_markdown
from docs.tools.site.hooks import source_markdown
from docs.tools.site.links import page_of, rewritten, sources_of
from docs.tools.site.schema_pages import type_text


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        pytest.param("docs/how-to/add-a-rule.md", "how-to/add-a-rule.md", id="a page"),
        pytest.param("CONTRIBUTING.md", "contributing.md", id="a page at the root"),
        pytest.param("docs/images/a.svg", "images/a.svg", id="a picture"),
        pytest.param("docs/reference/plan.schema.json", "reference/schemas/plan.md", id="a schema"),
        pytest.param("backend_caps/errors.py", "source/backend_caps/errors.py.md", id="source"),
        pytest.param("docs/tools/values.py", "source/docs/tools/values.py.md", id="the docs' own"),
    ],
)
def test_file_has_a_page(path: str, expected: str) -> None:
    """Every file that a page may link to has its own page on the site."""
    assert page_of(path) == expected


@pytest.mark.parametrize(
    ("page", "link", "expected"),
    [
        pytest.param(
            "explanation/a.md", "../../backend_caps/b.py#L3", "../source/backend_caps/b.py.md#L3"
        ),
        pytest.param("contributing.md", "docs/how-to/c.md#d", "how-to/c.md#d"),
        pytest.param("README.md", "../CHANGELOG.md", "changelog.md"),
        pytest.param("how-to/a.md", "https://semver.org", "https://semver.org"),
        pytest.param("how-to/a.md", "#below", "#below"),
    ],
)
def test_link_leads_to_the_site(page: str, link: str, expected: str) -> None:
    """A link of the repository is written as it holds on the site."""
    assert rewritten(f"See [this]({link}).", page) == f"See [this]({expected})."


@pytest.mark.parametrize("code", ["`[a](../../b.py)`", "```text\n[a](../../b.py)\n```"])
def test_code_is_left_alone(code: str) -> None:
    """What looks like a link in code is none."""
    assert (rewritten(code, "how-to/a.md"), list(sources_of(code, "how-to/a.md"))) == (code, [])


def test_sources_are_what_is_no_page() -> None:
    """Of the links of a page those to source files are listed, by their place in the repository."""
    text = "[one](../../benchmarks/relay.py#L1) [two](b.md) [three](https://semver.org) [four](#x)"

    assert list(sources_of(text, "how-to/a.md")) == ["benchmarks/relay.py"]


def test_source_page_shows_the_file() -> None:
    """A page of source has a fence longer than any in it, with the file's language and path."""
    text = source_markdown("docs/tools/examples.py")

    assert '``` { .python linenums="1" title="docs/tools/examples.py" }' in text


def test_tensor_table_is_fenced() -> None:
    """Rows whose columns are lined up keep them; sentences stay sentences."""
    docstring = (
        "Store lengths.\n\nrows  [B] int64  unique\nlens  [B] int64  committed\n\nThen more."
    )

    assert as_markdown(docstring) == (
        "Store lengths.\n\n"
        "```text\nrows  [B] int64  unique\nlens  [B] int64  committed\n```\n\n"
        "Then more."
    )


def test_contract_is_a_list() -> None:
    """The words of a contract begin a line each, wherever the docstring breaks."""
    docstring = (
        "Stream: the current one,\nwhich waits. Sync: none. Keeps: nothing; both\nare copied."
    )

    assert as_markdown(docstring).splitlines() == [
        "* **Stream**: the current one, which waits.",
        "* **Sync**: none.",
        "* **Keeps**: nothing; both are copied.",
    ]


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        pytest.param({"type": "integer"}, "a number", id="plain"),
        pytest.param(
            {"anyOf": [{"type": "string"}, {"type": "null"}]}, "a text or `null`", id="or"
        ),
        pytest.param({"$ref": "#/$defs/Part"}, "[Part](#part)", id="a part"),
        pytest.param({"type": "array", "items": {"type": "string"}}, "a list: a text", id="list"),
        pytest.param({"enum": ["a", 1]}, '`"a"`, `1`', id="enum"),
        pytest.param({"const": "x@1"}, '`"x@1"`', id="constant"),
        pytest.param({}, "anything", id="anything"),
        pytest.param(
            {"type": "object", "additionalProperties": {"type": "boolean"}},
            "an object of `true`, `false`",
            id="object",
        ),
    ],
)
def test_schema_says_what_a_value_can_be(field: dict[str, Any], expected: str) -> None:
    """Each shape of a schema is reported in words."""
    assert type_text(field) == expected
