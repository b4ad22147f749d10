"""What the help of a command ends with can be typed as it stands, on any terminal."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from packaging.requirements import Requirement

from backend_caps.atlas.build import RELEASES
from backend_caps.cli.invocation import Invocation
from backend_caps.cli.main import cli
from backend_caps.compatibility.releases import cache_folder
from tests.unit.atlas.wheels import PLUGIN, write_vllm, write_wheel
from tests.unit.report.fits_scene import HOLDS, write_plugin, write_release

WHEELS = Path(__file__).resolve().parents[2] / ".cache" / "wheels"
DIFFERS = {"diff"}
"""Commands whose status says that something differs, and here it does."""
_HEAD = "  Examples:\n"
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_PLAIN = {"COLUMNS": "80", "FORCE_COLOR": "1", "NO_COLOR": "1", "TERM": "xterm"}
"""A terminal of 80 columns that wants no colour; as for its characters, it has ASCII alone."""


def _commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Name every command with the groups that it is in, the program itself among them."""
    yield path
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        if isinstance(command, click.Group):
            yield from _commands(command, (*path, name))
        else:
            yield (*path, name)


def _help(command: tuple[str, ...]) -> str:
    result = CliRunner(env={**_PLAIN}).invoke(cli, [*command, "--help"], terminal_width=80)
    assert result.exit_code == 0, result.output
    return result.stdout


def _examples(command: tuple[str, ...]) -> list[str]:
    """Read the examples off a command's help, one line each."""
    _, _, text = _help(command).partition(_HEAD)
    return [" ".join(line.split()) for line in text.replace("\\\n", " ").splitlines() if line]


COMMANDS = [*_commands(cli)]
EXAMPLES = sorted({line for command in COMMANDS for line in _examples(command)})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What examples name: a plugin, releases of engines, an index of them, an atlas, and locks."""
    made = tmp_path_factory.mktemp("examples")
    write_plugin(made)
    write_plugin(made / "my_plugin")
    for version in ("0.32.0", "0.33.0"):
        write_release(cache_folder({"XDG_CACHE_HOME": str(made)}), version, HOLDS)
    for name, version in (("old.whl", "0.5.13"), ("new.whl", "0.5.23")):
        (wheel,) = WHEELS.glob(f"sglang-{version}-*.whl")
        (made / name).symlink_to(wheel)
    _write_index(made)
    write_vllm(made / "wheels", "0.30.0")
    _typed(f"backend-caps atlas build {made / 'atlas'} vllm --releases {made / 'wheels'} --offline")
    for name, backend in (
        ("server.lock", "torch_native"),
        ("before.lock", "torch_native"),
        ("after.lock", "torch_padded"),
    ):
        _typed(f"backend-caps lock --output {made / name} -- --attention-backend {backend}")
    return made


def _write_index(folder: Path) -> None:
    """Write a package index with one release of each distribution that the atlas reads."""
    for each in RELEASES:
        name = Requirement(each).name
        made = folder / "index" / name
        if name == "vllm":
            write_vllm(made, "0.33.0")
        elif name == "sglang":
            made.mkdir(parents=True)
            (wheel,) = WHEELS.glob("sglang-0.5.23-*.whl")
            (made / wheel.name).symlink_to(wheel)
        else:
            write_wheel(made, name.replace("-", "_"), "9.0", PLUGIN)
        links = "".join(f'<a href="{own.name}">{own.name}</a>' for own in made.glob("*.whl"))
        (made / "index.html").write_text(links)


def _typed(line: str) -> Result:
    """Run a command line on a terminal."""
    program, *words = shlex.split(line)
    assert program == "backend-caps"
    own, flags = words, list[str]()
    if "--" in words:
        own, flags = words[: words.index("--")], words[words.index("--") + 1 :]
    runner = CliRunner(charset="ascii", env=_PLAIN)
    return runner.invoke(cli, own, obj=Invocation(server_flags=tuple(flags)))


@pytest.mark.parametrize("command", COMMANDS, ids=lambda own: " ".join(own) or "backend-caps")
def test_help_ends_with_two_examples(command: tuple[str, ...]) -> None:
    """Each has two examples of itself, and no line of its help is wider than 80 columns."""
    found = _examples(command)

    own = [line.startswith(" ".join(("backend-caps", *command))) for line in found]
    assert own == [True, True]
    assert [line for line in _help(command).splitlines() if len(line) > 80] == []


def test_list_of_commands_cuts_no_sentence() -> None:
    """Each command is summed up in a sentence that has room beside its name."""
    _, _, listed = _help(()).partition("Commands:\n")

    sentences = listed.partition("\n\n")[0].splitlines()
    assert len(sentences) == len(cli.list_commands(click.Context(cli)))
    assert [line for line in sentences if not re.fullmatch(r"  [\w-]+ +[A-Z].*\w\.", line)] == []


@pytest.mark.slow
@pytest.mark.parametrize("line", EXAMPLES)
def test_example_runs_on_a_plain_terminal(
    line: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does what it says in 80 columns of ASCII: nothing is wider, escaped, or broken off."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.setenv("PIP_INDEX_URL", (folder / "index").as_uri())

    command, _, file = line.partition(" > ")

    result = _typed(command)

    printed = "" if file else _ANSI.sub("", result.stdout)
    assert result.exit_code == (line.split()[1] in DIFFERS), result.output
    assert [own for own in printed.splitlines() if len(own) > 80 and "/" not in own] == []
    assert re.findall(r"\\u[0-9a-f]{4}|\\x[0-9a-f]{2}", printed) == []
