"""Where the commands' options take their values from."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from backend_caps.settings.settings import KEYS
from backend_caps.settings.sources import SECTIONS
from tests.cli.conftest import CommandLine, process


class Spellings(NamedTuple):
    """A setting with another value in each layer; `@` is the folder of plugins."""

    file: str
    variable: str
    option: str
    values: tuple[object, object, object]
    """As the file, the variable and the option have it."""


_RULES = ("sglang-0.5.13", "sglang-0.5.23", "sglang-0.5.13")
_DTYPES = ("bfloat16", "float16", "float32")
_PATHS = (["@/one", "@"], ["@/two", "@"], ["@/three"])
SPELLED: Mapping[str, Spellings] = {
    "engine": Spellings("sglang", "vllm", "none", ("sglang", "vllm", "none")),
    "source": Spellings("one", "@/two", "@/three", ("@/one", "@/two", "@/three")),
    "rules": Spellings(*_RULES, _RULES),
    "policy": Spellings("strict", "quiet", "warn", ("strict", "quiet", "warn")),
    "plugins": Spellings("[a]", "b,c", "d,e", (["a"], ["b", "c"], ["d", "e"])),
    "path": Spellings("[one, .]", "@/two:@", "@/three", _PATHS),
    "discovery-deadline": Spellings("5", "6.5", "7", (5.0, 6.5, 7.0)),
    "require-evidence": Spellings("true", "no", "", (True, False, True)),
    "agreement-deadline": Spellings("5", "6.5", "7", (5.0, 6.5, 7.0)),
    "lock": Spellings("a.lock", "b.lock", "c.lock", ("@/a.lock", "b.lock", "c.lock")),
    "device": Spellings("cuda", "sim", "cpu", ("cuda", "sim", "cpu")),
    "verbose": Spellings("true", "no", "", (True, False, True)),
    "facts.dtype": Spellings(*_DTYPES, _DTYPES),
    "server.page-size": Spellings("16", "32", "64", (16, 32, 64)),
}
"""Every setting but `format`, which says how the answer is printed, and a name of each section."""
_SPELLED_ON = {"facts.dtype": "--fact dtype=float32 ", "server.page-size": "-- --page-size 64"}
_VARIABLES = {
    "facts.dtype": "BACKEND_CAPS_FACT_DTYPE",
    "server.page-size": "BACKEND_CAPS_FLAG_PAGE_SIZE",
}


LAYERS = ("file", "environment", "command line")


@pytest.fixture
def site(acme: CommandLine, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """The folder of plugins as working directory, with three folders more in it."""
    for folder in ("one", "two", "three"):
        (acme.root / folder).mkdir()
    monkeypatch.chdir(acme.root)
    return acme


def _words(name: str, environ: pytest.MonkeyPatch, root: str, num_layers: int) -> str:
    """Say a setting in so many layers, and return the words of a command line for it."""
    spelled, (section, _, inner) = SPELLED[name], name.partition(".")
    said = f"{section}: {{{inner}: {spelled.file}}}" if inner else f"{name}: {spelled.file}"
    Path("s.yaml").write_text(said, "utf-8")
    if num_layers > 1:
        variable = _VARIABLES.get(name, f"BACKEND_CAPS_{name.replace('-', '_').upper()}")
        environ.setenv(variable, spelled.variable.replace("@", root))
    option = _SPELLED_ON.get(name, f"--{name} {spelled.option}")
    return f"--config s.yaml {option if num_layers > 2 else ''}"


def _shown(site: CommandLine, words: str) -> dict[str, dict[str, object]]:
    document = site.json(f"config show --format json {words}")
    return {each["name"]: each for each in document["settings"]}


def test_every_setting_is_spelled_here() -> None:
    """No setting is without a test of who goes before whom."""
    assert {name.partition(".")[0] for name in SPELLED} == {*KEYS.values()} - {"format"}


@pytest.mark.parametrize("num_layers", [1, 2, 3], ids=LAYERS)
@pytest.mark.parametrize("name", SPELLED)
def test_first_layer_that_says_it_counts(
    site: CommandLine, monkeypatch: pytest.MonkeyPatch, name: str, num_layers: int
) -> None:
    """The command line goes before the environment, and that before the file; all are shown."""
    root = str(site.root)

    shown = _shown(site, _words(name, monkeypatch, root, num_layers))[name]

    value = json.dumps(SPELLED[name].values[num_layers - 1]).replace("@", root)
    assert (shown["layer"], shown["value"]) == (LAYERS[num_layers - 1], json.loads(value))
    default = [] if name.partition(".")[0] in SECTIONS else ["default"]
    assert isinstance(shown["overrides"], list)
    below = [each["layer"] for each in shown["overrides"]]
    assert below == [*reversed(LAYERS[: num_layers - 1]), *default]


@pytest.mark.parametrize(
    ("file", "variable", "option"),
    [
        pytest.param("json", None, "", id="file"),
        pytest.param("table", "json", "", id="environment"),
        pytest.param("table", "markdown", "--format json", id="command line"),
    ],
)
def test_format_is_a_setting_too(
    site: CommandLine, monkeypatch: pytest.MonkeyPatch, file: str, variable: str | None, option: str
) -> None:
    """How a command prints is decided in the same order."""
    Path("s.yaml").write_text(f"format: {file}", "utf-8")
    if variable is not None:
        monkeypatch.setenv("BACKEND_CAPS_FORMAT", variable)

    document = site.json(f"report --path @ --config s.yaml {option}")

    assert document["schema"] == "backend-caps/report@1"


SHOWN = """\
# ours
policy: strict
plugins: [a]
require-evidence: true
server: {page-size: 16}
"""


def test_settings_are_a_table(site: CommandLine) -> None:
    """The table has the value, the place with its line, and what the value goes before."""
    Path("s.yaml").write_text(SHOWN)

    Path("flags.yaml").write_text("page-size: 32")
    words = "--config s.yaml --format markdown --no-require-evidence --flags-file flags.yaml"

    result = site.run(f"config show {words} -- --page-size 64")

    assert [line for line in result.stdout.splitlines() if "default |" not in line][2:] == [
        "| policy | strict | s.yaml:2 |  |",
        r"| plugins | \[a\] | s.yaml:3 |  |",
        "| require-evidence | false | --no-require-evidence | true, s.yaml:4 |",
        "| format | markdown | --format |  |",
        "| server.page-size | 64 | --page-size | 32, flags.yaml; 16, s.yaml:5 |",
    ]


def test_settings_without_a_file_say_how_to_name_one(site: CommandLine) -> None:
    """Where nothing is said, all are defaults."""
    result = site.run("config show")

    last = "No file of settings is named; --config or BACKEND_CAPS_CONFIG names one."
    assert result.stdout.splitlines()[-1] == last
    assert result.stdout.count(" default ") == len(KEYS) - len(SECTIONS)


def test_faults_are_reported_and_nothing_runs(
    site: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each fault of file and environment has its line, and the exit status of wrong usage."""
    Path("s.yaml").write_text("polcy: strict\nserver:\n  page-size: many\n  atention-backend: x\n")
    monkeypatch.setenv("BACKEND_CAPS_VERBOSE", "maybe")

    result = site.run("report --config s.yaml --path @")

    assert result.exit_code == 2
    assert result.stdout == ""
    places = [line.split(": ")[1] for line in result.stderr.splitlines()]
    assert places == ["BACKEND_CAPS_VERBOSE", "s.yaml:1", "s.yaml:3", "s.yaml:4"]


def test_flag_that_only_another_engine_has_is_refused_by_its_rules(site: CommandLine) -> None:
    """Which names a section may have is known once the command line has named the rules."""
    Path("s.yaml").write_text("server:\n  atention-backend: acme_lean\n")

    result = site.run("resolve --config s.yaml --path @ --rules sglang-0.5.23")

    assert result.exit_code == 2
    assert result.stderr.startswith("error: s.yaml:2: --atention-backend is no flag of this engine")


PLANNED = """\
path: [.]
policy: strict
facts: {kv_cache_dtype: bfloat16, dtype: bfloat16, device: cuda}
server: {attention-backend: acme_lean, speculative-algorithm: EAGLE}
"""


def test_file_gives_what_a_command_line_would(site: CommandLine) -> None:
    """Folders, facts and flags of a file make the plan that the same words make."""
    Path("s.yaml").write_text(PLANNED)
    words = "--fact kv_cache_dtype=bfloat16 --fact dtype=bfloat16 --fact device=cuda"
    flags = "--attention-backend acme_lean --speculative-algorithm EAGLE"

    by_file = site.run("resolve --config s.yaml --policy warn --format json")

    by_words = site.run(f"resolve --path . {words} --format json -- {flags}")
    assert by_file.exit_code == 0
    assert by_file.stdout == by_words.stdout


def test_report_plans_where_the_file_has_flags(site: CommandLine) -> None:
    """Flags in a file are a server to plan for, and its policy is obeyed."""
    Path("s.yaml").write_text(PLANNED)

    result = site.run("report --config s.yaml")

    assert result.exit_code == 1
    assert "not-checked" in result.stderr or "does not say" in result.stderr


@pytest.mark.parametrize(
    ("words", "variable", "list_name"),
    [
        pytest.param("--plugins other", None, "--plugins", id="option"),
        pytest.param("", "other", "BACKEND_CAPS_PLUGINS", id="variable"),
        pytest.param("--config s.yaml", None, "the list at s.yaml:1", id="file"),
    ],
)
def test_plugin_that_is_left_out_names_the_list(
    site: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
    words: str,
    variable: str | None,
    list_name: str,
) -> None:
    """Whoever misses a plugin learns where the list stands that leaves it out."""
    Path("s.yaml").write_text("plugins: [other]")
    if variable is not None:
        monkeypatch.setenv("BACKEND_CAPS_PLUGINS", variable)

    document = site.json(f"report --path @ --format json {words}")

    told = document["backends"][0]["problems"][0]["message"]
    assert f"is not in {list_name}, which names: other." in told


def test_deadline_of_discovery_is_kept(site: CommandLine) -> None:
    """A plugin that takes longer than the setting allows is broken, and says how long it had."""
    site.install(
        "slow", "[backend_caps.backends]\nslow = slow_caps:X\n", "import time; time.sleep(60)"
    )

    document = site.json("report --path @ --discovery-deadline 0.5 --format json")

    problems = {each["name"]: each["problems"] for each in document["backends"]}
    assert [each["code"] for each in problems["slow"]] == ["hangs"]
    assert "0.5 s" in problems["slow"][0]["message"]


def test_verify_takes_the_lock_of_the_settings(site: CommandLine) -> None:
    """The lock is compared that the file names, beside the file."""
    Path("s.yaml").write_text("path: [.]\nlock: caps.lock\n")

    written = site.run("lock --config s.yaml --output caps.lock")
    verified = site.run("verify --config s.yaml")

    assert (written.exit_code, verified.exit_code) == (0, 0)
    assert "caps.lock" in verified.stdout


def test_format_of_a_lock_is_its_own(site: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock is JSON however everything else is printed."""
    monkeypatch.setenv("BACKEND_CAPS_FORMAT", "markdown")

    assert site.json("lock --path @")["schema"] == "backend-caps/lock@1"


def test_engine_of_the_settings_can_be_left_out(
    site: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--engine none` reads no engine where settings name one."""
    monkeypatch.setenv("BACKEND_CAPS_ENGINE", "vllm")

    planned = site.run("resolve --path @ -- --attention-backend acme_lean")
    without = site.run("resolve --path @ --engine none -- --attention-backend acme_lean")

    assert (planned.exit_code, without.exit_code) == (2, 0)
    assert "a plan for vllm is of the layers of a model" in planned.stderr


def test_device_is_that_of_the_settings(site: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command with a device of its own takes the setting's."""
    monkeypatch.setenv("BACKEND_CAPS_DEVICE", "xpu")

    result = site.run("relay --path @ -- --attention-backend acme_reads")

    assert result.stderr.startswith("error: device 'xpu' is not available")


PROGRAM = """
import sys
from backend_caps.__main__ import main
try: main(sys.argv[1:])
except SystemExit as exit: status = exit.code
print("status", status, *{"yaml", "backend_caps.settings.settings"}.intersection(sys.modules))
"""


def _run(cwd: Path, *words: str, environ: Mapping[str, str] | None = None) -> str:
    """Run the program in a process of its own."""
    clean = {key: text for key, text in os.environ.items() if not key.startswith("BACKEND_CAPS_")}
    env = {**clean, **(environ or {})}
    return process(sys.executable, "-c", PROGRAM, *words, cwd=cwd, env=env).stdout


def test_planted_file_is_not_read_and_loads_nothing(site: CommandLine) -> None:
    """A file in the working directory changes no command, and YAML is not loaded for it."""
    (site.root / "backend-caps.yaml").write_text("format: json\n")

    printed = _run(site.root, "report")

    assert printed.splitlines()[-1] == "status 0"
    assert printed.splitlines()[1] == "Backends"


def test_named_file_says_where_plugins_are(site: CommandLine) -> None:
    """The plugins that are read early are not those of the file, and do not count."""
    (site.root / "s.yaml").write_text("path: [.]\n")

    printed = _run(site.root, "report", environ={"BACKEND_CAPS_CONFIG": "s.yaml"})

    assert " acme_lean " in printed
    assert " torch_native " not in printed
