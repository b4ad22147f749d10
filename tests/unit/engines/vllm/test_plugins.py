"""Plugins of a small vLLM, of the shapes that its real ones have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pytest

from backend_caps.capability.backend import EngineClass
from backend_caps.discovery.process import Search
from backend_caps.engines.plugin import EnginePlugin, Registration
from backend_caps.engines.read import read_engine
from backend_caps.engines.reading import EngineReading
from tests.unit.engines.source.trees import write_folder
from tests.unit.engines.tables import data, table

ENGINE: Mapping[str, str] = data("vllm_plugins")["engine"]
PLATFORM = "[vllm.platform_plugins]\nacme = acme:register\n"
GENERAL = "[vllm.general_plugins]\nacme = acme:register\n"
_NOTHING: Mapping[str, str] = MappingProxyType({})
_REGISTERS = """
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend


def register():
    register_backend(AttentionBackendEnum.CUSTOM, "ACME")
"""


def read(
    folder: Path,
    files: Mapping[str, str],
    *,
    entries: str = PLATFORM,
    metadata: str = "",
    engine: Mapping[str, str] = _NOTHING,
) -> EngineReading:
    """Store a plugin `acme` 1.0, and read the engine beside it.

    Args:
        folder: where both are stored.
        files: the plugin's.
        entries: its entry points.
        metadata: its fields beside name and version.
        engine: files of the engine that are not as usual.
    """
    own = {
        "acme-1.0.dist-info/entry_points.txt": entries,
        "acme-1.0.dist-info/METADATA": f"Name: acme\nVersion: 1.0\n{metadata}\n",
    }
    version = {"vllm-0.33.0.dist-info/METADATA": "Name: vllm\nVersion: 0.33.0\n"}
    write_folder(folder / "engine", {**ENGINE, **version, **engine})
    write_folder(folder / "site", {**own, **files})
    return read_engine("vllm", folder / "engine", plugins=Search.of_folders([folder / "site"]))


def only(reading: EngineReading) -> EnginePlugin:
    """Return the one plugin of a reading."""
    (plugin,) = reading.plugins
    return plugin


def slot_of(registration: Registration) -> tuple[str, str, str]:
    """Write a registration: slot, class, and what else is said of it."""
    label = f"label {registration.label}" if registration.label else registration.given or ""
    instead = f"in place of {registration.replaces}" if registration.replaces else ""
    return registration.slot, registration.backend or "", label or instead


def class_of(reading: EngineReading, name: str) -> EngineClass:
    """Return the class that a record was read from."""
    found = reading.registry[name].engine_class
    assert found is not None
    return found


@table("vllm_plugins", "plugins")
def test_plugin_is_read(
    tmp_path: Path,
    files: Mapping[str, str],
    choices: Sequence[tuple[str, str]],
    slots: Sequence[tuple[str, str, str]],
    backends: Sequence[str],
    registered: Sequence[tuple[str, ...]],
    given: str | None,
) -> None:
    """Its platform, what that takes and when, what it registers, and its classes."""
    reading = read(tmp_path, files)
    plugin = only(reading)
    (platform,) = plugin.platforms

    taken = {(each.backend or each.refusal, each.given) for each in platform.choices}
    assert taken == set(choices)
    assert [*map(slot_of, plugin.registrations)] == slots
    assert sorted(plugin.backends) == backends
    by_name = [(each, *class_of(reading, each).registered_as) for each in sorted(plugin.backends)]
    assert [own for own in by_name if own[1:]] == registered
    assert (platform.entry, platform.path) == ("acme = acme:register", "acme.platform.AcmePlatform")
    assert (platform.given, plugin.problems) == (given or "", ())


ROW = "a-table-by-flags-and-a-label"
LABELS = next(each for each in data("vllm_plugins")["plugins"] if each["id"] == ROW)["files"]


def test_class_of_a_plugin_is_the_plugins(tmp_path: Path) -> None:
    """A record has the distribution, the line, and what the class states under vLLM's roots."""
    reading = read(tmp_path, LABELS)
    plain = reading.registry["Plain"]

    assert str(plain.source) == "acme 1.0, acme/attention.py:10"
    assert class_of(reading, "Plain").readings["graph_replay"].words == (
        "Builder: _cudagraph_support = AttentionCGSupport.UNIFORM_BATCH"
    )
    assert str(reading.registry["CPUBackend"].source).startswith("vllm 0.33.0, vllm/")


def test_places_of_a_platform_are_lines(tmp_path: Path) -> None:
    """The platform, its method, a class that it takes and a line that refuses have a place."""
    (platform,) = only(read(tmp_path, LABELS)).platforms
    places = {each.backend or "": each.at for each in platform.choices}

    assert (platform.at, platform.chooser) == ("acme/platform.py:5", "acme/platform.py:7")
    assert (places["MLA"], places[""]) == ("acme/attention.py:20", "acme/platform.py:14")


def test_engine_counts_its_own_files(tmp_path: Path) -> None:
    """Files of a plugin are none of the engine's."""
    beside = read(tmp_path, LABELS)
    alone = read_engine("vllm", tmp_path / "engine")

    assert (beside.num_files, alone.num_files) == (len(ENGINE), len(ENGINE))
    assert (alone.plugins, [each.source.distribution for each in alone.backends]) == (
        (),
        ["vllm"] * len(alone.backends),
    )


def test_platform_that_vllm_names_itself_is_the_plugins(tmp_path: Path) -> None:
    """tpu-inference has no entry point of a platform: vLLM names its class."""
    files = {
        "acme/__init__.py": "",
        "acme/platform.py": """
            from vllm.platforms import Platform
            class NamedPlatform(Platform):
                pass
        """,
    }

    (platform,) = only(read(tmp_path, files, entries=GENERAL)).platforms

    assert platform.entry == "vLLM's own, vllm/platforms/__init__.py:5"
    assert platform.path == "acme.platform.NamedPlatform"


def test_plugin_without_attention_backends_is_left_out(tmp_path: Path) -> None:
    """Most general plugins register models, and are no part of this report."""
    reading = read(tmp_path, {"acme/__init__.py": "def register(): ..."}, entries=GENERAL)

    assert reading.plugins == ()


def test_plugin_of_another_vllm_is_a_problem(tmp_path: Path) -> None:
    """What its metadata requires of vLLM is compared with the version that was read."""
    metadata = (
        "Requires-Dist: vllm<0.18.1,>=0.17.0\nRequires-Dist: vllm[audio]; extra == 'audio'\n"
        "Requires-Dist: ]\nRequires-Dist: torch==2.8.0"
    )

    plugin = only(read(tmp_path, LABELS, metadata=metadata))

    (found,) = plugin.problems
    assert found.code == "engine-plugin-other-version"
    assert found.message == "acme 1.0 requires vllm<0.18.1,>=0.17.0, and vllm 0.33.0 was read."


def test_bases_of_another_vllm_are_one_problem(tmp_path: Path) -> None:
    """vllm-ascend 0.13.0 has vLLM's root of that time; its classes are listed nevertheless."""
    text = """
        from vllm.attention.backends.abstract import AttentionBackend, AttentionImpl
        class Old(AttentionBackend):
            def is_mla(cls):
                return True
        class OldImpl(AttentionImpl, AttentionBackend):
            pass
    """

    files = {"acme/__init__.py": "def register(): ...", "acme/old.py": text}
    reading = read(tmp_path, files, entries=GENERAL)
    plugin = only(reading)

    assert plugin.backends == ("Old", "OldImpl")
    assert "engine-base-not-found" not in {each.code for each in reading.problems}
    (found,) = plugin.problems
    assert found.message == (
        "acme 1.0 derives classes from vllm.attention.backends.abstract.AttentionBackend and 1 "
        "more (acme/old.py:6), which vllm 0.33.0 does not have."
    )


def test_method_of_another_vllm_is_said(tmp_path: Path) -> None:
    """A platform whose method takes other arguments than vLLM gives refuses every layer."""
    text = """
        from vllm.platforms import Platform
        class AcmePlatform(Platform):
            @classmethod
            def get_attn_backend_cls(cls, selected_backend, attn_selector_config):
                return ""
    """

    files = {"acme/__init__.py": LABELS["acme/__init__.py"], "acme/platform.py": text}
    ((choice,),) = (each.choices for each in only(read(tmp_path, files)).platforms)

    words = "raises TypeError: get_attn_backend_cls() takes other arguments: ['num_heads']"
    assert (choice.refusal, choice.at) == (words, None)


def test_flags_of_an_older_selector_are_arguments(tmp_path: Path) -> None:
    """Before vLLM had `AttentionSelectorConfig` it gave each flag by itself."""
    selector = """
        from vllm.platforms import current_platform
        def choose(backend, head_size, use_mla):
            return current_platform.get_attn_backend_cls(backend, head_size, True, use_mla)
    """
    text = """
        from vllm.platforms import Platform
        class AcmePlatform(Platform):
            @classmethod
            def get_attn_backend_cls(cls, selected_backend, head_size, use_v1, use_mla):
                return {(True, True): "a.MLA", (True, False): "a.Plain"}[(use_v1, use_mla)]
    """

    files = {"acme/__init__.py": LABELS["acme/__init__.py"], "acme/platform.py": text}
    engine = {"vllm/v1/attention/selector.py": selector}
    (platform,) = only(read(tmp_path, files, engine=engine)).platforms

    taken = {(each.backend, each.given) for each in platform.choices}
    assert taken == {("a.MLA", "use_mla"), ("a.Plain", "not use_mla")}


def test_engine_without_a_selector_or_a_registry_is_followed(tmp_path: Path) -> None:
    """What cannot be read of the call stays unknown, and is a problem."""
    engine = {"vllm/v1/attention/selector.py": "", "vllm/v1/attention/backends/registry.py": ""}

    reading = read(tmp_path, LABELS, engine=engine)

    (platform,) = only(reading).platforms
    assert [each.backend for each in platform.choices][:1] == ["Old"]
    missing = [each.message for each in reading.problems if "current_platform" in each.message]
    words = (
        "vllm 0.33.0 has no call of current_platform.get_attn_backend_cls in "
        "vllm/v1/attention/selector.py, where known versions have it."
    )
    assert missing == [words]


TOO_MANY = "\n".join(f"        if driver.{name}: total.append(1)" for name in "abcdefg")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        pytest.param(
            f"        total = []\n{TOO_MANY}\n        return str(len(total))",
            "(NotFollowedError: it has more than 64 paths)",
            id="paths",
        ),
        pytest.param(
            "        classes = {}\n        del classes[0]",
            "(KeyError: 0)",
            id="a-fault-of-the-interpreter",
        ),
    ],
)
def test_method_that_is_not_followed_is_a_problem(tmp_path: Path, body: str, words: str) -> None:
    """The class is named with its line, and the rest of the plugin is read."""
    text = (
        "import driver\nfrom vllm.platforms import Platform\n\n\n"
        "class AcmePlatform(Platform):\n    @classmethod\n"
        f"    def get_attn_backend_cls(cls, *args, **named):\n{body}\n"
    )

    files = {"acme/__init__.py": LABELS["acme/__init__.py"], "acme/platform.py": text}
    plugin = only(read(tmp_path, files))

    (found,) = plugin.problems
    assert (found.code, plugin.platforms[0].choices) == ("engine-platform-not-followed", ())
    assert words in found.message


def test_calls_of_others_register_nothing(tmp_path: Path) -> None:
    """Torch has a function of that name too, and one that no import names may be anything."""
    text = """
        from torch._dynamo import register_backend
        from vllm.v1.attention.backends.registry import register_backend as ours
        register_backend(name="bypass", compiler_fn=compile)
        table["register_backend"]("CUSTOM")
        made.register_backend("CUSTOM")
        Platforms.register("acme", "acme.Acme")
        def other():
            register_backend = find()
            register_backend("CUSTOM")
        def later(NAME):
            ours("ACME", NAME)
    """

    plugin = only(read(tmp_path, {"acme/__init__.py": text}, entries=GENERAL))

    assert [*map(slot_of, plugin.registrations)] == [("ACME", "", "NAME")]


def test_registration_in_another_vllms_module_counts(tmp_path: Path) -> None:
    """vllm-ascend 0.13.0 imports the function from where vLLM had it then."""
    text = """
        from vllm.attention.backends.registry import AttentionBackendEnum, register_backend
        register_backend(AttentionBackendEnum.CUSTOM, "ACME")
    """

    plugin = only(read(tmp_path, {"acme/__init__.py": text}, entries=GENERAL))

    assert [*map(slot_of, plugin.registrations)] == [("CUSTOM", "", "label ACME")]


@pytest.mark.parametrize(
    ("files", "code", "words"),
    [
        pytest.param(
            {"acme/__init__.py": "def register(): return find()"},
            "engine-platform-not-followed",
            "acme 1.0 names a platform at acme-1.0.dist-info/entry_points.txt:2, and what "
            "acme:register returns could not be followed.",
            id="computed",
        ),
        pytest.param(
            {"acme/__init__.py": "register = lambda: None"},
            "engine-platform-not-followed",
            "acme 1.0 names a platform at acme-1.0.dist-info/entry_points.txt:2, and what "
            "acme:register returns could not be followed.",
            id="no-function",
        ),
        pytest.param(
            {},
            "engine-plugin-not-found",
            "acme 1.0 has entry points in the package acme, of which no Python file is in @/site.",
            id="no-package",
        ),
    ],
)
def test_what_cannot_be_followed_is_a_problem(
    tmp_path: Path, files: Mapping[str, str], code: str, words: str
) -> None:
    """The place of the entry point is named, and nobody is told to repair anything."""
    (found,) = only(read(tmp_path, files)).problems

    assert (found.code, found.message.replace(str(tmp_path), "@")) == (code, words)
    assert "epair" not in found.remedy


def test_package_of_an_editable_installation_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --path, a package that is not beside its metadata is looked up as by imports."""
    files = {"acme/__init__.py": _REGISTERS}
    read(tmp_path, {}, entries=GENERAL)
    write_folder(tmp_path / "checkout", files)
    monkeypatch.setattr("sys.path", [str(tmp_path / "site"), str(tmp_path / "checkout")])

    reading = read_engine("vllm", tmp_path / "engine", plugins=Search.of_process())

    assert [*map(slot_of, only(reading).registrations)] == [("CUSTOM", "", "label ACME")]


def test_entry_points_of_vllm_itself_are_not_plugins(tmp_path: Path) -> None:
    """VLLM registers resolvers of its own by the same groups."""
    entries = "[vllm.general_plugins]\nlora = vllm.plugins.lora:register\n"

    assert read(tmp_path, {}, entries=entries).plugins == ()
