"""Small releases of vLLM and of a plugin of it, as wheels in a folder."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from backend_caps.compatibility.releases import Releases
from tests.unit.engines.vllm.building import files_of

FAST = """
class FastBackend(AttentionBackend):
    supported_dtypes = [torch.bfloat16]

    def get_supported_head_sizes():
        return [64, 128]
"""
"""A class that states something."""
_SINKS = """
    def supports_sink(cls):
        return {sinks}
"""
SLOW = """
class SlowBackend(AttentionBackend):
    def supports_sink(cls):
        if is_new():
            return True
        return False
"""
"""A class whose statement depends on what only a run knows."""
PLATFORM = """
def choose():
    return [AttentionBackendEnum.FAST]

def choose_for_vit():
    return AttentionBackendEnum.SLOW
"""
"""A platform that names one of the two for models, and the other for their encoder of images."""
NAMES = {"FAST": "vllm.fast.FastBackend", "SLOW": "vllm.slow.SlowBackend"}
PLUGIN = {
    "acme/__init__.py": "def register():\n    return 'acme.platform.Acme'\n",
    "acme/own.py": """
from vllm.v1.attention.backend import AttentionBackend

class AcmeBackend(AttentionBackend):
    supported_dtypes = [torch.float32]
""",
}
"""A plugin with one class."""


def write_wheel(
    folder: Path, name: str, version: str, files: Mapping[str, str], metadata: str = ""
) -> Path:
    """Write a wheel, whose bytes depend on its files alone."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    own = {f"{name}-{version}.dist-info/METADATA": f"Name: {name}\nVersion: {version}\n{metadata}"}
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in {**files, **own}.items():
            archive.writestr(zipfile.ZipInfo(file), text)
    return path


def write_vllm(
    folder: Path,
    version: str,
    *,
    sinks: bool | None = True,
    has_slow: bool = True,
    others: Sequence[str] = (),
) -> Path:
    """Write a release of vLLM with one class or two, and others that state nothing.

    With `sinks` None, none says whether it has sinks.
    """
    fast = FAST if sinks is None else FAST + _SINKS.format(sinks=sinks)
    modules = {"fast": fast, **({"slow": SLOW} if has_slow else {})}
    names = NAMES if has_slow else {"FAST": NAMES["FAST"]}
    silent = {each: f"\nclass {each}(AttentionBackend):\n    pass\n" for each in others}
    names |= {each.upper(): f"vllm.{each}.{each}" for each in others}
    files = {**files_of({**modules, **silent}, names), "vllm/platforms/cuda.py": PLATFORM}
    return write_wheel(folder, "vllm", version, files)


def write_plugin(folder: Path, version: str, *, requires: str = "") -> Path:
    """Write a release of the plugin `acme`."""
    entries = {
        f"acme-{version}.dist-info/entry_points.txt": (
            "[vllm.platform_plugins]\nacme = acme:register\n"
        )
    }
    metadata = f"Requires-Dist: {requires}\n" if requires else ""
    return write_wheel(folder, "acme", version, {**PLUGIN, **entries}, metadata)


def releases_in(folder: Path) -> Releases:
    """Take releases from a folder, and nothing from an index."""
    return Releases(folders=[folder], cache=folder / "cache", is_offline=True)
