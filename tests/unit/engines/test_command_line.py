"""Reading a server's command line from source, on wheels made here."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from backend_caps.engines.sglang.command_line import read_command_line

SERVER_ARGS = "sglang/srt/server_args.py"
FIELDS = "sglang/srt/arg_groups/fields/spec.py"


def _wheel(folder: Path, **sources: str) -> Path:
    wheel = folder / "sglang-9.9-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(SERVER_ARGS, sources.get("server_args", ""))
        archive.writestr(FIELDS, sources.get("fields", ""))
        archive.writestr("sglang/srt/other.py", "parser.add_argument('--unrelated')")
    return wheel


@pytest.mark.parametrize(
    ("source", "options"),
    [
        pytest.param("p.add_argument('--tp-size', '--tp', type=int)", [["--tp-size", "--tp"]]),
        pytest.param("p.add_argument(NAME, '--tp')", [["--tp"]], id="a name that is computed"),
        pytest.param("p.add_argument(*names, **kwargs)", [], id="all that is computed"),
        pytest.param("p.add_option('--tp')", [], id="another call"),
    ],
)
def test_options_of_a_parser_are_read(
    tmp_path: Path, source: str, options: list[list[str]]
) -> None:
    """Each call that adds an argument is an option with its aliases."""
    read = read_command_line(_wheel(tmp_path, server_args=source))

    assert read["options"] == options


@pytest.mark.parametrize(
    ("source", "options"),
    [
        pytest.param("page_size: A[int, 'help'] = 1", [["--page-size"]], id="plain"),
        pytest.param(
            "tp_size: A[int, Arg(cli_name='--tp', aliases=['--tensor'])] = 1",
            [["--tp", "--tensor"]],
            id="named, with an alias",
        ),
        pytest.param("hidden: A[int, Arg(no_cli=True)] = 1", [], id="kept off the command line"),
        pytest.param("page_size: int = 1", [], id="no annotation of its own"),
    ],
)
def test_options_of_fields_are_read(tmp_path: Path, source: str, options: list[list[str]]) -> None:
    """Each annotated field is an option, unless it is kept off the command line."""
    read = read_command_line(_wheel(tmp_path, fields=f"class Spec:\n    {source}\n"))

    assert read["options"] == options


def test_attention_backends_are_read(tmp_path: Path) -> None:
    """The list of choices is the list of names, sorted; what is computed is left out."""
    source = "ATTENTION_BACKEND_CHOICES = ['triton', 'fa3', *MORE]\nOTHERS = ['x']"

    read = read_command_line(_wheel(tmp_path, server_args=source))

    assert read["attention_backends"] == ["fa3", "triton"]
