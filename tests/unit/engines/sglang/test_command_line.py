"""Reading a server's command line from source, on wheels made here."""

from __future__ import annotations

import zipfile
from pathlib import Path

from backend_caps.engines.sglang.command_line import (
    read_aliases,
    read_command_line,
    read_engine_options,
)
from tests.unit.engines.sglang.building import index_of
from tests.unit.engines.tables import table

SERVER_ARGS = "sglang/srt/server_args.py"
FIELDS = "sglang/srt/arg_groups/fields/spec.py"


def _wheel(folder: Path, **sources: str) -> Path:
    wheel = folder / "sglang-9.9-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(SERVER_ARGS, sources.get("server_args", ""))
        archive.writestr(FIELDS, sources.get("fields", ""))
        archive.writestr("sglang/srt/other.py", "parser.add_argument('--unrelated')")
    return wheel


@table("sglang_command_line", "options_of_a_parser_are_read")
def test_options_of_a_parser_are_read(
    tmp_path: Path, source: str, options: list[tuple[str, ...]]
) -> None:
    """Each call that adds an argument is an option with its aliases."""
    read = read_command_line(_wheel(tmp_path, server_args=source))

    assert read["options"] == [list(each) for each in options]


@table("sglang_command_line", "options_of_fields_are_read")
def test_options_of_fields_are_read(
    tmp_path: Path, source: str, options: list[tuple[str, ...]]
) -> None:
    """Each annotated field is an option, unless it is kept off the command line."""
    read = read_command_line(_wheel(tmp_path, fields=f"class Spec:\n    {source}\n"))

    assert read["options"] == [list(each) for each in options]


def test_attention_backends_are_read(tmp_path: Path) -> None:
    """The list of choices is the list of names, sorted; what is computed is left out."""
    source = "ATTENTION_BACKEND_CHOICES = ['triton', 'fa3', *MORE]\nOTHERS = ['x']"

    read = read_command_line(_wheel(tmp_path, server_args=source))

    assert read["attention_backends"] == ["fa3", "triton"]


def test_fields_of_another_file_are_no_options(tmp_path: Path) -> None:
    """Annotated fields are options in the folder of fields alone."""
    read = read_command_line(
        _wheel(tmp_path, server_args="class Args:\n    tp: A[int, Arg()] = 1\n")
    )

    assert read["options"] == []


def test_options_in_a_method_are_read(tmp_path: Path) -> None:
    """A class that adds its options itself is read as a function is."""
    source = "class Args:\n    def add(self, p):\n        p.add_argument('--tp')\n"

    assert read_command_line(_wheel(tmp_path, server_args=source))["options"] == [["--tp"]]


def test_choices_that_are_no_list_are_left_out(tmp_path: Path) -> None:
    """Names that a call makes are not guessed."""
    read = read_command_line(_wheel(tmp_path, server_args="ATTENTION_BACKEND_CHOICES = make()"))

    assert read["attention_backends"] == []


def test_file_that_is_no_python_has_no_options(tmp_path: Path) -> None:
    """The other files are read."""
    read = read_command_line(
        _wheel(tmp_path, server_args="def (", fields="class S:\n    a: A[int, 'help'] = 1\n")
    )

    assert read["options"] == [["--a"]]


def test_engine_options_are_those_of_the_source() -> None:
    """Every spelling of an option leads to all of them, and the version names the engine."""
    index = index_of({SERVER_ARGS: "p.add_argument('--tp-size', '--tp')\n" + CHOICES})

    engine = read_engine_options(index)

    assert engine.name == "sglang-0.5.13"
    assert engine.options == {"--tp-size": BOTH, "--tp": BOTH}
    assert engine.attention_backends == {"one"}
    assert index.problems == ()


CHOICES = "ATTENTION_BACKEND_CHOICES = ['one']\n"
BOTH = ("--tp-size", "--tp")


def test_options_that_are_not_found_are_problems() -> None:
    """A source without options and without choices lacks both, and that is reported."""
    index = index_of({SERVER_ARGS: ""}, version=None)

    assert read_engine_options(index).name == "sglang-unknown"
    assert [problem.message for problem in index.problems] == [
        f"sglang of unknown version has no {what} in {SERVER_ARGS}, where known versions have it."
        for what in ("command-line option", "ATTENTION_BACKEND_CHOICES")
    ]


@table("sglang_command_line", "old_names_lead_to_the_new_ones")
def test_old_names_lead_to_the_new_ones(files: dict[str, str], aliases: dict[str, str]) -> None:
    """Names that the server replaces are read from its table, or from what it sets."""
    assert read_aliases(index_of(files)) == aliases
