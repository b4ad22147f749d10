"""A small engine in the shape of SGLang, in our own words, and what is read of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent, indent

from backend_caps.capability.backend import Backend, EngineClass, Reading
from backend_caps.capability.declaration import Declaration
from backend_caps.engines.read import read_engine
from backend_caps.engines.reading import EngineReading
from backend_caps.engines.source.files import Tree
from backend_caps.engines.source.index import Index
from tests.unit.engines.source.trees import write_folder
from tests.unit.engines.tables import data

_TEXTS = data("sglang_engine")
ATTENTION = "sglang/srt/layers/attention"
BASE = f"{ATTENTION}/base_attn_backend.py"
REGISTRY = f"{ATTENTION}/attention_registry.py"
ONE = f"{ATTENTION}/one.py"
DRAFTS = "sglang/srt/speculative/draft_utils.py"
DECIDES = "sglang/srt/managers/overlap_utils.py"
ARGS = "sglang/srt/server_args.py"
IMPORTS = """
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend, SharedReadEnds
"""
TWO = f"{ATTENTION}/two.py"
MORE = f"{ATTENTION}/more.py"
CLASSES = IMPORTS + "class A(AttentionBackend): pass\nclass B(AttentionBackend): pass\n"
"""Two classes, for `TWO`."""
A_AND_B = "    from sglang.srt.layers.attention.two import A, B\n"
HEAD = "@register_attention_backend('two')\ndef make(runner):\n"
MAKE = HEAD + A_AND_B
OF_A = MAKE + "    return A(runner)\n"
ROOT = _TEXTS["root"]
ONE_CLASS = _TEXTS["one_class"]
DECISION = _TEXTS["decision"]
OPTIONS = _TEXTS["options"]


def registry(registrations: str) -> str:
    """Write the file in which names are registered."""
    return (
        "ATTENTION_BACKENDS = {}\n"
        "def register_attention_backend(name):\n"
        "    def keep(make):\n"
        "        ATTENTION_BACKENDS[name] = make\n"
        "        return make\n"
        "    return keep\n"
    ) + dedent(registrations)


REGISTERED_ONE = _TEXTS["registered_one"]


def drafts(decode: str, extend: str, methods: str) -> str:
    """Write the draft's factory: two maps from names to methods, and the methods."""
    return (
        "class DraftBackendFactory:\n"
        "    def create_decode_backend(self):\n"
        f"        makers = {{{decode}}}\n"
        "        return self._made(makers)\n"
        "    def create_draft_extend_backend(self):\n"
        f"        makers = {{{extend}}}\n"
        "        return self._made(makers)\n"
    ) + indent(dedent(methods), "    ")


DRAFTS_OF_ONE = drafts(
    '"one": self._one_steps',
    '"one": self._one',
    """
    def _one_steps(self):
        from sglang.srt.layers.attention.one import OneSteps
        return ("one", OneSteps(self.runner))

    def _one(self):
        from sglang.srt.layers.attention.one import One
        return ("one", One(self.runner))
    """,
)
FILES: Mapping[str, str] = {
    "sglang/__init__.py": "",
    BASE: ROOT,
    ONE: IMPORTS + ONE_CLASS,
    REGISTRY: registry(REGISTERED_ONE),
    DRAFTS: DRAFTS_OF_ONE,
    DECIDES: DECISION,
    ARGS: OPTIONS,
}


def read(
    folder: Path, changed: Mapping[str, str] | None = None, *, version: str | None = "0.5.13"
) -> EngineReading:
    """Read the small engine with some of its files changed."""
    stated = {} if version is None else {"sglang/version.py": f'__version__ = "{version}"\n'}
    return read_engine("sglang", write_folder(folder, {**FILES, **stated, **(changed or {})}))


def index_of(files: Mapping[str, str], *, version: str | None = "0.5.13") -> Index:
    """Index texts by their paths."""
    texts = {path: text.encode() for path, text in files.items()}
    return Index(Tree(package="sglang", version=version, source="here", files=texts))


@dataclass(frozen=True)
class Class:
    """What is read of one class."""

    backend: Backend
    engine_class: EngineClass
    declaration: Declaration

    @property
    def needs(self) -> Reading:
        """What it says of lengths on the host."""
        return self.engine_class.readings["host_seq_lens"]

    @property
    def cases(self) -> list[tuple[str, object]]:
        """The conditions that it declares, in words, with what they say of the host's lengths."""
        return [
            (str(when.given), when.capabilities.needs_cpu_seq_lens)
            for when in self.declaration.conditions
            if "host_seq_lens" in when.capabilities.stated()
        ]


def class_of(reading: EngineReading, name: str) -> Class:
    """Look the record of a class up."""
    backend = reading.registry[name]
    assert backend.engine_class is not None, name
    assert backend.declaration is not None, name
    return Class(backend, backend.engine_class, backend.declaration)


def read_class(folder: Path, text: str, name: str = "Two") -> Class:
    """Read one class of a file of its own beside `One`."""
    return class_of(read(folder, {f"{ATTENTION}/two.py": IMPORTS + dedent(text)}), name)


def parts_of(reading: EngineReading, name: str) -> Sequence[tuple[str, str, str]]:
    """List what a name means: each class with its first role, and the condition."""
    declaration = reading.registry[name].declaration
    assert declaration is not None, name
    return [
        (part.backend, min(role.value for role in part.roles), str(part.given or "always"))
        for part in declaration.parts
    ]


def targets(
    folder: Path, registrations: str, name: str = "two", *, more: str = ""
) -> list[tuple[str, str]]:
    """List the classes that a name means in the target's runner, with their conditions."""
    files = {
        TWO: CLASSES,
        REGISTRY: registry(registrations),
        DRAFTS: drafts("", "", ""),
        MORE: more,
    }
    parts = parts_of(read(folder, files), name)
    return [(made, given) for made, role, given in parts if role == "target"]


def codes(reading: EngineReading) -> list[str]:
    """List the codes of what was wrong."""
    return [problem.code for problem in reading.problems]
