"""What a plugin declares of a backend, beside what the class of it tells the engine."""

from __future__ import annotations

from textwrap import dedent

import pytest

from backend_caps.compatibility.contact import Contact, Verdict
from backend_caps.compatibility.declarations import declarations
from backend_caps.compatibility.pair import Pair
from backend_caps.compatibility.plugin import EntryPoint, Plugin
from backend_caps.compatibility.sources import open_pair
from backend_caps.engines.source.files import Tree

VLLM = {
    "vllm/__init__.py": "",
    "vllm/v1/attention/backend.py": """
        class AttentionBackend:
            @classmethod
            def get_supported_head_sizes(cls): return []
            @classmethod
            def supports_head_size(cls, head_size):
                sizes = cls.get_supported_head_sizes()
                return not sizes or head_size in sizes
            @staticmethod
            def get_supported_kernel_block_sizes(): return [1]
            @staticmethod
            def get_builder_cls(): raise NotImplementedError
        class AttentionMetadataBuilder: ...
        """,
}
SGLANG = {
    "sglang/__init__.py": "",
    "sglang/srt/layers/attention/base_attn_backend.py": """
        class AttentionBackend:
            needs_cpu_seq_lens = True
        """,
}
BACKENDS = {
    "vllm": """
        from vllm.v1.attention.backend import AttentionBackend
        class Acme(AttentionBackend):
            @classmethod
            def get_supported_head_sizes(cls): return [64, 128]
        """,
    "sglang": """
        from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
        class Acme(AttentionBackend):
            needs_cpu_seq_lens = False
        def make(runner):
            return Acme()
        def load(runner):
            return runner.load()
        class Other: ...
        def other(runner):
            return Other()
        made = Acme()
        """,
}


def _pair(capabilities: str, *, engine: str = "vllm", rest: str = "", text: str = "") -> Pair:
    adapter = "acme.backend:Acme" if engine == "vllm" else "acme.backend:make"
    declared = f"Declaration(capabilities=Capabilities({capabilities}), "
    declared += rest or f"adapters={{'{engine}': '{adapter}'}}"
    plugin = {
        "acme/__init__.py": "",
        "acme/backend.py": BACKENDS[engine],
        "acme_caps.py": f"{_NAMES}\n{text or f'ACME = {declared})'}",
    }
    opened = Plugin(
        name="acme",
        version=None,
        files=_bytes(plugin),
        entry_points=(
            EntryPoint(group="vllm.general_plugins", name="x", value="acme:x", at="m.toml:1"),
            EntryPoint(
                group="backend_caps.backends", name="acme", value="acme_caps:ACME", at="m.toml:2"
            ),
        ),
    )
    tree = Tree(package=engine, version="1.0", source="here", files=_bytes(_ENGINES[engine]))
    return open_pair(opened, tree)


_ENGINES = {"vllm": VLLM, "sglang": SGLANG}
_NAMES = """
from backend_caps import (
    ANY, BatchKind, Capabilities, Declaration, Given, HostSeqLens, OneOf, When, discover,
)
import backend_caps
import os
"""


def _bytes(files: dict[str, str]) -> dict[str, bytes]:
    return {path: dedent(text).encode() for path, text in files.items()}


def _told(found: list[Contact]) -> list[tuple[str, Verdict]]:
    return [(each.what, each.verdict) for each in found]


SAME = [("acme.head_sizes", Verdict.HOLDS)]
OTHER = [("acme.head_sizes", Verdict.CHANGED)]
OPEN = [("acme", Verdict.NOT_CHECKED)]
CLAIMS = [
    pytest.param("head_sizes=OneOf({64, 128})", SAME, id="the same"),
    pytest.param("head_sizes=backend_caps.OneOf(frozenset([64, 128]))", SAME, id="by a module"),
    pytest.param("head_sizes=OneOf(set((64, 128)))", SAME, id="by other displays"),
    pytest.param("head_sizes=OneOf({64, 128} | {64})", SAME, id="by a union"),
    pytest.param("head_sizes=OneOf({64, 128, 256})", OTHER, id="more"),
    pytest.param("head_sizes=OneOf({64})", OTHER, id="less"),
    pytest.param("head_sizes=ANY", OTHER, id="any"),
    pytest.param("deterministic=True", [], id="what the class does not state"),
    pytest.param("", [], id="nothing"),
    pytest.param("head_sizes=OneOf({-64})", OPEN, id="what is refused"),
    pytest.param("head_sizes=BatchKind.GONE", OPEN, id="what there is not"),
    pytest.param("head_sizes=backend_caps.gone", OPEN, id="what is not exported"),
    pytest.param("head_sizes=discover()", OPEN, id="what would be run"),
    pytest.param("head_sizes=os.getcwd()", OPEN, id="what another package has"),
    pytest.param("head_sizes=OneOf({each for each in sizes})", OPEN, id="what is computed"),
    pytest.param("head_sizes=OneOf(**sizes)", OPEN, id="with any names"),
    pytest.param("head_sizes=OneOf.__name__", OPEN, id="a private name"),
]


@pytest.mark.parametrize(("capabilities", "expected"), CLAIMS)
def test_a_claim_is_what_the_class_states(
    capabilities: str, expected: list[tuple[str, Verdict]]
) -> None:
    """A difference is to be looked at; an expression of other names is not evaluated."""
    assert _told([*declarations(_pair(capabilities))]) == expected


def test_a_difference_has_both_values_and_the_place_of_the_class() -> None:
    """And what the class states, in its own words."""
    [found] = declarations(_pair("head_sizes=OneOf({64})"))

    assert found.why == (
        "it declares head_sizes=one of 64; its class tells the engine one of 64, 128"
    )
    assert found.at == "acme/backend.py:5"
    assert "get_supported_head_sizes" in found.remedy


RESTS = [
    pytest.param("adapters={'sglang': 'acme.backend:Acme'}", [], id="for another engine"),
    pytest.param("adapters={}", [], id="for none"),
    pytest.param("adapters={'vllm': 'acme.gone:Acme'}", OPEN, id="in no module"),
    pytest.param("adapters={'vllm': 'acme.backend:Gone'}", OPEN, id="of no class"),
    pytest.param("conditions=[When(given=Given(kv_cache_dtype={'fp8_e5m2'}), reason='it is so', "
                 "capabilities=Capabilities(head_sizes=ANY))], "
                 "adapters={'vllm': 'acme.backend:Acme'}", [], id="under conditions"),
]  # fmt: skip


@pytest.mark.parametrize(("rest", "expected"), RESTS)
def test_a_class_is_found_by_its_adapter(rest: str, expected: list[tuple[str, Verdict]]) -> None:
    """What a condition states is not compared with what the class states of all."""
    assert _told([*declarations(_pair("head_sizes=ANY", rest=rest))]) == expected


OTHERS = [
    pytest.param("ACME = 1", [], id="no declaration"),
    pytest.param("GONE = 1", OPEN, id="nothing"),
    pytest.param("ACME = {'a': -1, 'b': list(tuple())}", [], id="a mapping"),
    pytest.param("ACME = {**x}", OPEN, id="a mapping that running code knows"),
    pytest.param("def ACME(): ...", OPEN, id="a function"),
    pytest.param("ACME = Declaration.model_construct()", OPEN, id="what a method of a class makes"),
    pytest.param("ACME = backend_caps.Declaration.model_construct()", OPEN, id="by a module"),
    pytest.param("ACME = 'a'.upper()", OPEN, id="what a method of a value makes"),
    pytest.param("ACME = BatchKind.UNIFORM_BATCH()", OPEN, id="what is no class"),
]


@pytest.mark.parametrize(("text", "expected"), OTHERS)
def test_what_is_no_declaration_claims_nothing(
    text: str, expected: list[tuple[str, Verdict]]
) -> None:
    """What an entry point may name besides is a matter for `backend-caps check`."""
    assert _told([*declarations(_pair("", text=text))]) == expected


def test_a_declaration_of_another_package_is_left_out() -> None:
    """Its module is not there."""
    pair = _pair("")
    files = {path: text for path, text in pair.plugin.files.items() if path != "acme_caps.py"}
    plugin = Plugin(name="acme", version=None, files=files, entry_points=pair.plugin.entry_points)
    tree = Tree(package="vllm", version="1.0", source="here", files=_bytes(VLLM))

    assert [*declarations(open_pair(plugin, tree))] == []


LEVELS = [
    pytest.param("host_seq_lens=HostSeqLens.NONE", Verdict.HOLDS, id="the same"),
    pytest.param("needs_cpu_seq_lens=True", Verdict.CHANGED, id="another"),
]


@pytest.mark.parametrize(("capabilities", "verdict"), LEVELS)
def test_a_function_makes_the_class_of_sglang(capabilities: str, verdict: Verdict) -> None:
    """The class is that of which it returns an instance."""
    found = [*declarations(_pair(capabilities, engine="sglang"))]

    assert _told(found) == [("acme.host_seq_lens", verdict)]


@pytest.mark.parametrize("name", ["load", "other", "made"])
def test_what_an_adapter_makes_may_be_unknown(name: str) -> None:
    """An object of running code, of no backend's class, or no function: nothing is compared."""
    rest = f"adapters={{'sglang': 'acme.backend:{name}'}}"

    assert _told([*declarations(_pair("", engine="sglang", rest=rest))]) == OPEN
