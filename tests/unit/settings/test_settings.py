"""What file and environment say, which of them counts, and faults of a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend_caps import UNDECLARED, BackendCapsError, Facts, Policy, Settings
from backend_caps.capability.provenance import Status
from backend_caps.resolution.errors import FlagsError, leaves_of
from backend_caps.settings.settings import trace_settings
from backend_caps.settings.sources import SettingLayer, SettingsError
from tests.cases import cases_of
from tests.unit.building import install_sglang

DECLARATION = """
from backend_caps import Capabilities, Declaration
CAPS = Declaration(capabilities=Capabilities(sync_free_prepare=True), implementation="acme:Acme")
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file that says something of a plain setting and of both sections."""
    path = tmp_path / "s.yaml"
    path.write_text(
        "policy: strict\nplugins: [acme]\nfacts: {dtype: bfloat16, head_size: 64}\n"
        "server: {tensor-parallel-size: 2, page_size: 16}\n"
    )
    return path


def test_sections_are_decided_name_by_name(file: Path) -> None:
    """A variable of one fact or flag leaves what the file says of the others."""
    environ = {"BACKEND_CAPS_FACT_HEAD_SIZE": "128", "BACKEND_CAPS_FLAG_PAGE_SIZE": "32"}

    settings = Settings.load(file, environ=environ)

    assert settings.facts == Facts(dtype="bfloat16", head_size=128)
    assert settings.server.given() == {"page_size": 32, "tp_size": 2}


def test_file_is_named_by_a_variable_unless_by_the_caller(file: Path, tmp_path: Path) -> None:
    """The file that the caller names is read in the place of the variable's."""
    other = tmp_path / "other.yaml"
    other.write_text("policy: quiet\n")
    environ = {"BACKEND_CAPS_CONFIG": str(file)}

    by_variable, by_caller = Settings.load(environ=environ), Settings.load(other, environ=environ)

    assert (by_variable.policy, by_caller.policy) == (Policy.STRICT, Policy.QUIET)
    assert by_caller.plugins is None


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        pytest.param("PLUGINS", " acme , beta,", "plugins", ("acme", "beta"), id="names"),
        pytest.param("PLUGINS", "", "plugins", (), id="blank list of names is empty"),
        pytest.param("PATH", "/:/usr:", "path", (Path("/"), Path("/usr")), id="paths"),
        pytest.param("REQUIRE_EVIDENCE", "Yes", "require_evidence", True, id="switch on"),
        pytest.param("VERBOSE", "0", "verbose", False, id="switch off"),
        pytest.param("AGREEMENT_DEADLINE", "2.5", "agreement_deadline_s", 2.5, id="seconds"),
        pytest.param("DEVICE", " ", "device", None, id="blank word is not given"),
        pytest.param("SOURCE", "/", "source", Path("/"), id="path"),
    ],
)
def test_variable_is_read(variable: str, text: str, name: str, value: object) -> None:
    """Each variable has its spelling of lists, switches and numbers."""
    assert dict(Settings.load(environ={f"BACKEND_CAPS_{variable}": text}))[name] == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param("VERBOSE", "maybe", id="switch"),
        pytest.param("AGREEMENT_DEADLINE", "soon", id="number"),
        pytest.param("FACT_HEAD_SIZE", "[", id="no YAML"),
        pytest.param("FACT_HEAD_SIZE", "wide", id="fact"),
        pytest.param("PATH", "/nowhere", id="path"),
    ],
)
def test_fault_of_a_variable_names_it(name: str, text: str) -> None:
    """A value that cannot be is reported with the variable that has it."""
    with pytest.raises(SettingsError) as raised:
        Settings.load(environ={f"BACKEND_CAPS_{name}": text})

    assert (raised.value.code, raised.value.place) == ("value", f"BACKEND_CAPS_{name}")


def test_variable_that_looks_like_a_setting_is_refused() -> None:
    """A misspelled variable would be lost without a word."""
    with pytest.raises(SettingsError) as raised:
        Settings.load(environ={"BACKEND_CAPS_POLCY": "strict"})

    assert (raised.value.code, raised.value.place) == ("unknown", "environment")
    assert "Did you mean 'BACKEND_CAPS_POLICY'?" in str(raised.value)


def test_variable_that_looks_like_nothing_is_somebody_elses() -> None:
    """A variable with the prefix that is near to no setting is let be."""
    settings = Settings.load(environ={"BACKEND_CAPS_WORKER_FINGERPRINT": "x"})

    assert settings == Settings.load(environ={})


def test_faults_of_flags_in_the_environment_are_reported() -> None:
    """A misspelled flag in the environment is refused as anywhere."""
    with pytest.raises(FlagsError, match="PAGE_SIZES is no flag"):
        Settings.load(environ={"BACKEND_CAPS_FLAG_PAGE_SIZES": "16"})


def test_trace_keeps_what_does_not_count(file: Path) -> None:
    """Each layer's word is kept with its place, whoever counts first."""
    traced = trace_settings(file, {"BACKEND_CAPS_POLICY": "quiet"})

    said = [(each.layer, each.place, each.value) for each in traced.values["policy"]]
    assert said == [
        (SettingLayer.ENVIRONMENT, "BACKEND_CAPS_POLICY", Policy.QUIET),
        (SettingLayer.FILE, f"{file}:1", Policy.STRICT),
    ]


def test_flags_are_read_as_their_engine_spells_them(tmp_path: Path) -> None:
    """The rules of the settings say whose flags the section holds; a later spelling counts."""
    file = tmp_path / "s.yaml"
    file.write_text("rules: sglang-0.5.23\nserver:\n  tp: 2\n  tensor-parallel-size: 4\n")

    traced = trace_settings(file, {})

    server = traced.server(traced.settings.rules)
    assert server.flags.tp_size == 4
    assert [each.place for each in server.values["server.tp-size"]] == [f"{file}:4"]


def test_settings_find_the_plugins_that_they_allow() -> None:
    """Discovery by settings leaves out what they do not name, and says whose list it was."""
    registry = Settings(plugins=("backend-caps-torch-native",)).discover()

    statuses = {entry.name: entry.status for entry in registry.entries}
    assert statuses["torch_native"] is Status.OK
    assert statuses["triton"] is Status.SKIPPED
    assert registry.left_out["triton"].problems[0].message.count("the setting plugins") == 1


def test_settings_take_the_environments_list_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment's allow-list counts where settings are loaded, and not again later."""
    settings = Settings.load(environ={})
    monkeypatch.setenv("BACKEND_CAPS_PLUGINS", "nothing")

    assert "torch_native" in settings.discover()


def test_settings_that_require_evidence_count_no_claim_without(tmp_path: Path) -> None:
    """A claim that nobody has verified is taken out of what is found."""
    info = tmp_path / "acme-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[backend_caps.backends]\nacme = acme_caps:CAPS\n")
    (tmp_path / "acme_caps.py").write_text(DECLARATION)

    trusting, strict = (
        Settings(path=(tmp_path,), require_evidence=asked, device="cuda:0").discover()
        for asked in (False, True)
    )

    claims = [found["acme"].declaration for found in (trusting, strict)]
    assert [each and each.capabilities.sync_free_prepare for each in claims] == [True, UNDECLARED]


def test_settings_take_the_flags_of_the_installed_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the setting `rules`, flags are those of the installed SGLang, else of the newest."""
    file = tmp_path / "s.yaml"
    file.write_text("server: {dcp-size: 2}\n")

    newest = Settings.load(file, environ={})
    install_sglang("0.5.13", tmp_path, monkeypatch)  # which has no such flag

    assert (newest.rules, newest.server.unrelated) == (None, ("--dcp-size",))
    with pytest.raises(SettingsError) as refused:
        Settings.load(file, environ={})
    assert refused.value.code == "server-flag-name"


def _told(file: Path) -> list[str]:
    """List what is said of a file, without its folder."""
    with pytest.raises((BackendCapsError, ExceptionGroup)) as raised:
        Settings.load(file, environ={})
    assert isinstance(raised.value, BackendCapsError | ExceptionGroup)
    return [str(fault).replace(f"{file.parent}/", "") for fault in leaves_of(raised.value)]


MANY = """\
polcy: strict
require-evidence: "yes"
# a comment counts as a line
path:
  - .
  - nowhere
facts:
  head_sizes: 128
  dtype: 16
server:
  page-size: many
  atention-backend: triton
policy: strickt
rules: sglang-0.5.14
rules: sglang-0.5.13
"""


def test_every_fault_is_reported_with_its_line(tmp_path: Path) -> None:
    """One error lists all faults, sorted by line, each with what was expected."""
    file = tmp_path / "s.yaml"
    file.write_text(MANY)

    told = _told(file)

    places = [each.partition(": ")[0] for each in told]
    lines = (1, 2, 6, 8, 9, 11, 12, 13, 15)
    assert places == [f"s.yaml:{line}" for line in lines]


@pytest.mark.parametrize(("text", "message"), cases_of(Path(__file__).parent / "faults.txt"))
def test_fault_is_reported(tmp_path: Path, text: str, message: str) -> None:
    """What is wrong with a key is reported with its line, its value and what was expected."""
    file = tmp_path / "s.yaml"
    file.write_text(text)

    assert _told(file) == [message]


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        pytest.param(b"- policy", "it holds a list", id="list"),
        pytest.param(b"strict", "it holds the text 'strict'", id="text"),
        pytest.param(b"a: 1\n---\nb: 2", "expected a single document", id="two documents"),
        pytest.param(b"a: [", "line 1, column 5", id="no YAML"),
        pytest.param(b"\xff\xfe\x00", "", id="no text"),
        pytest.param(b"policy: !!python/name:os.system x", "could not determine", id="tag"),
        pytest.param(b"server: &a {x: *a}", "recursive", id="mapping within itself"),
        pytest.param(
            b"facts: &a {dtype: bfloat16}\nserver:\n  <<: *a",
            "line 3 takes another mapping over (<<)",
            id="merged mapping",
        ),
    ],
)
def test_file_that_is_no_mapping_is_refused(tmp_path: Path, text: bytes, cause: str) -> None:
    """A file that holds anything but one YAML mapping is an error that says what it holds."""
    file = tmp_path / "s.yaml"
    file.write_bytes(text)

    with pytest.raises(SettingsError) as raised:
        Settings.load(file, environ={})

    assert (raised.value.code, cause in str(raised.value)) == ("file", True)


def test_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """A file that was named has to be there."""
    with pytest.raises(SettingsError, match="No such file or directory"):
        Settings.load(tmp_path / "none.yaml", environ={})


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param("# policy: strict\n", id="comments"),
        pytest.param("{}", id="empty mapping"),
        pytest.param("facts:\n#  dtype: bfloat16\nserver:\n", id="empty sections"),
        pytest.param("server: {page-size: null}", id="flag that is not given"),
    ],
)
def test_file_that_says_nothing_changes_nothing(tmp_path: Path, text: str) -> None:
    """What is left out, or only commented, is the default."""
    file = tmp_path / "s.yaml"
    file.write_text(text)

    assert Settings.load(file, environ={}) == Settings.load(environ={})


def test_relative_path_begins_at_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path in a file means the same wherever the file is read from."""
    folder, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    for each in (folder, elsewhere):
        each.mkdir()
    (tmp_path / "s.yaml").write_text("path: [site]\nlock: caps.lock\n")
    monkeypatch.chdir(elsewhere)

    settings = Settings.load("../s.yaml", environ={})

    assert [each.resolve() for each in settings.path] == [folder]
    assert settings.lock is not None
    assert settings.lock.resolve() == tmp_path / "caps.lock"
