"""The engines' own attention backends fit the engine that they come with."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from backend_caps.compatibility.comparison import compare
from backend_caps.compatibility.contact import ContactKind, Verdict
from backend_caps.compatibility.sources import EngineSource, open_plugin
from tests.upstream.sglang_wheel import find_wheel

pytestmark = pytest.mark.upstream


@dataclass(frozen=True)
class Backends:
    """The folder of an engine that has its attention backends."""

    engine: str
    version: str
    folder: str
    base: str
    """The module of their base, which stays the engine's; empty where it is elsewhere."""

    def copy_to(self, root: Path) -> None:
        """Write the folder as a package `own`, which derives from the engine's base."""
        package = self.folder.replace("/", ".")
        with zipfile.ZipFile(find_wheel(self.version, self.engine)) as wheel:
            for path in wheel.namelist():
                name = path.removeprefix(f"{self.folder}/")
                if name == path or not name.endswith(".py") or name == f"{self.base}.py":
                    continue
                file = root / "own" / name
                file.parent.mkdir(parents=True, exist_ok=True)
                kept, others = f"{package}.{self.base}", f"{package}."
                text = wheel.read(path).decode()
                text = text.replace(kept, "\0") if self.base else text
                file.write_text(text.replace(others, "own.").replace("\0", kept))
        (root / "own/__init__.py").touch()


ENGINES = [
    pytest.param(
        Backends("sglang", "0.5.23", "sglang/srt/layers/attention", "base_attn_backend"),
        marks=pytest.mark.slow,
        id="sglang",
    ),
    pytest.param(
        Backends("vllm", "0.33.0", "vllm/v1/attention/backends", ""),
        marks=pytest.mark.vllm_wheel,
        id="vllm",
    ),
]


@pytest.mark.parametrize("backends", ENGINES)
def test_an_engines_own_backends_break_nowhere(backends: Backends, tmp_path: Path) -> None:
    """They are read as a plugin's, and what holds for each of them is no break of a plugin's."""
    backends.copy_to(tmp_path)
    wheel = find_wheel(backends.version, backends.engine)
    engine = EngineSource(package=backends.engine, path=wheel).open()

    found = compare(open_plugin(str(tmp_path)), engine)

    assert [each for each in found.findings if each.verdict is Verdict.BREAKS] == []
    overrides = [each for each in found.contacts if each.kind is ContactKind.OVERRIDE]
    assert len(overrides) > 250, "it was read"
    assert not found.is_open
