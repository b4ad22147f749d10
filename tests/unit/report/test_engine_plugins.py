"""Plugins of an engine in a report."""

from __future__ import annotations

from dataclasses import replace

from backend_caps import Source
from backend_caps.capability.provenance import Problem
from backend_caps.engines.plugin import EnginePlugin, Platform, PlatformChoice, Registration
from backend_caps.report.backend_views import report_view
from backend_caps.report.backends import ReportDocument, report_document
from backend_caps.report.engine_plugins import EnginePluginDocument, plugin_view
from backend_caps.report.html.page import page
from backend_caps.report.sections import markdown
from tests.unit.report.engine_scene import VLLM, read_class

PROBLEM = Problem(code="engine-plugin-other-version", message="It is of 0.30.", remedy="Read that.")
PLATFORM = Platform(
    entry="acme = acme:register",
    path="acme.platform.AcmePlatform",
    at="acme/platform.py:5",
    given="is_there()",
    chooser="acme/platform.py:7",
    choices=(
        PlatformChoice(given="use_sink", refusal="raises ValueError: no", at="acme/platform.py:9"),
        PlatformChoice(given="use_mla", backend="MLA", at="acme/mla.py:3"),
        PlatformChoice(given="not use_mla", backend="MLA", at="acme/mla.py:3"),
    ),
)
PLUGIN = EnginePlugin(
    distribution="acme",
    version="1.0",
    entries=("vllm.platform_plugins: acme = acme:register",),
    platforms=(PLATFORM,),
    registrations=(
        Registration(slot="CUSTOM", at="acme/mla.py:2", backend="MLA", label="ACME"),
        Registration(slot="CUSTOM", at="acme/plain.py:2", backend="Plain", label="ACME"),
        Registration(slot="FLASH", at="acme/fast.py:2", backend="MLA", replaces="FlashBackend"),
        Registration(slot="FLASH", at="acme/slow.py:2", backend="Plain"),
        Registration(slot="name.upper()", at="acme/more.py:8", given="find()"),
        Registration(slot="LOST", at="acme/more.py:9"),
    ),
    backends=("MLA", "Plain"),
    problems=(PROBLEM,),
)
SHOWN = """\
## Out-of-tree plugin acme 1.0: 2 classes

- AcmePlatform (acme/platform.py:5), by acme = acme:register where is\\_there(), chooses at \
acme/platform.py:7:

| what it takes, where | for a layer where |
| --- | --- |
| MLA mla.py:3 | use\\_mla; not use\\_mla |
| nothing: raises ValueError: no platform.py:9 | use\\_sink |

| class, where | slot | what vLLM's registry has |
| --- | --- | --- |
| MLA mla.py:2 | CUSTOM | the label 'ACME': the platform returns the class |
| Plain plain.py:2 | CUSTOM | the label 'ACME': the platform returns the class |
| MLA fast.py:2 | FLASH | the class, in place of FlashBackend |
| Plain slow.py:2 | FLASH | the class |
| find() more.py:8 | name.upper() | what only running code knows |
| no class more.py:9 | LOST | what only running code knows |

- CUSTOM is registered for several classes, MLA, Plain: the platform decides.
- FLASH is registered for several classes, MLA, Plain: the last module imported decides.

- On no path, and so taken by a model or a patch if at all: Plain.
"""


def shown(plugin: EnginePlugin) -> str:
    """Write the view of a plugin as Markdown."""
    return markdown(plugin_view(EnginePluginDocument.of(plugin)))


def report() -> ReportDocument:
    """Make the report of a small vLLM with the plugin beside it."""
    own = Source(distribution="acme", version="1.0", declared_at="acme/mla.py:3")
    classes = [replace(read_class(name, "acme/mla.py:3"), source=own) for name in PLUGIN.backends]
    reading = replace(VLLM, backends=(*VLLM.backends, *classes), plugins=(PLUGIN,))
    return report_document(reading.backends, (), None, reading=reading)


def test_plugin_is_shown_whole() -> None:
    """Platforms with what they take, slots with what they have, and classes that are on no path."""
    assert shown(PLUGIN) == SHOWN


def test_plugin_without_a_platform_has_its_slots_alone() -> None:
    """Where no platform chooses, nothing is said of what none takes."""
    text = shown(replace(PLUGIN, platforms=(), registrations=PLUGIN.registrations[:1]))

    assert "| MLA mla.py:2 | CUSTOM | the label 'ACME', which names no class |" in text
    assert "On no path" not in text
    assert "registered for several" not in text


def test_platform_without_a_method_is_said() -> None:
    """A platform whose method was not found takes nothing that is known."""
    bare = replace(PLATFORM, chooser=None, choices=(), given="")

    text = shown(replace(PLUGIN, platforms=(bare,), registrations=(), backends=()))

    assert "by acme = acme:register, has no method that chooses" in text


def test_classes_of_a_plugin_are_shown_behind_it() -> None:
    """They are in a table of their own, and the engine's count has the engine's alone."""
    text = markdown(report_view(report()))
    engine, _, plugin = text.partition("Out-of-tree plugin acme 1.0")

    assert ("mla.py:3" in engine, "Plain mla.py:3" in plugin) == (False, True)
    assert "| acme | engine-plugin-other-version | It is of 0.30. Read that. |" in plugin


def test_report_has_plugins_as_data() -> None:
    """A plugin's JSON has its platforms, registrations and classes; without one the key is gone."""
    (plugin,) = report().model_dump(mode="json")["plugins"]
    bare = report_document(VLLM.backends, (), None, reading=VLLM).model_dump(mode="json")

    assert plugin["platforms"][0]["choices"][1] == {
        "given": "use_mla",
        "backend": "MLA",
        "at": "acme/mla.py:3",
    }
    assert plugin["registrations"][0]["label"] == "ACME"
    assert "plugins" not in bare


def test_page_shows_plugins() -> None:
    """A page has the same tables."""
    document = report()

    text = page(document, report_view(document))

    assert "Out-of-tree plugin acme 1.0" in text
    assert "the last module imported decides" in text
