from __future__ import annotations

from pathlib import Path
from textwrap import indent

import pytest

from backend_caps import ANY, AttentionType, Exact, KVLayout, MultipleOf, OneOf, Origin
from backend_caps.engines.vllm.features import PREDICATES
from tests.unit.engines.vllm.building import class_of, declared, read_one, said

_IMPL = "from vllm.v1.attention.backend import AttentionImpl\n"


def _method(name: str, body: str, *arguments: str) -> str:
    return f"def {name}({', '.join(('cls', *arguments))}):\n{indent(body, '    ')}"


@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize(("feature", "predicate"), PREDICATES.items())
def test_predicate_is_the_feature(
    tmp_path: Path, feature: str, predicate: str, value: object
) -> None:
    """What a class's predicate returns is declared, and no attribute beside the class."""
    backend = read_one(tmp_path, _method(predicate, f"return {value}"))

    assert declared(backend).capabilities.stated() == {feature: value}
    assert said(backend, feature).words == f"{predicate}() returns {value}"
    assert class_of(backend).attributes == {}


def test_predicate_that_only_running_code_knows_is_undeclared(tmp_path: Path) -> None:
    """A predicate that asks for more than a constant is shown, and declares nothing."""
    backend = read_one(tmp_path, _method("supports_sink", "return kernel_has_sinks()"))

    assert declared(backend).capabilities.stated() == {}
    assert said(backend, "attention_sinks").origin is Origin.CONDITIONAL


def test_inherited_predicate_is_undeclared(tmp_path: Path) -> None:
    """A feature that only a parent states is shown as inherited."""
    parent = "class Parent(AttentionBackend):\n    def supports_sink(cls):\n        return True"

    backend = read_one(tmp_path, "pass", before=parent, base="Parent")

    assert declared(backend).capabilities.stated() == {}
    assert said(backend, "attention_sinks").inherited_from == "Parent"


@pytest.mark.parametrize(
    ("test", "types"),
    [
        pytest.param("kind == AttentionType.DECODER", {AttentionType.DECODER}, id="one"),
        pytest.param(
            "kind in (AttentionType.DECODER, AttentionType.ENCODER_ONLY)",
            {AttentionType.DECODER, AttentionType.ENCODER_ONLY},
            id="several",
        ),
        pytest.param("kind in [AttentionType.ENCODER]", {AttentionType.ENCODER}, id="list"),
        pytest.param("kind in {AttentionType.ENCODER}", {AttentionType.ENCODER}, id="set"),
        pytest.param("other == AttentionType.DECODER", None, id="another argument"),
        pytest.param("kind == AttentionType.OTHER", None, id="another type"),
        pytest.param("kind == Kind.DECODER", None, id="another enum"),
        pytest.param("cls.takes(kind)", None, id="a call"),
    ],
)
def test_attention_types_are_what_a_test_lets_pass(
    tmp_path: Path, test: str, types: set[AttentionType] | None
) -> None:
    """The test of an attention type is a set of types; another test is none."""
    backend = read_one(tmp_path, _method("supports_attn_type", f"return {test}", "kind"))

    expected = None if types is None else frozenset(types)
    assert said(backend, "attention_types").value == expected
    assert declared(backend).capabilities.stated().get("attention_types") == expected


@pytest.mark.parametrize(
    ("name", "value", "layouts"),
    [
        pytest.param(
            "supported_kv_cache_layouts",
            "(KVCacheLayout.LBNHC, KVCacheLayout.BLHNC)",
            frozenset({KVLayout.NHD, KVLayout.BLHNC}),
            id="layouts",
        ),
        pytest.param("supported_kv_cache_layouts", "None", ANY, id="no preference"),
        pytest.param(
            "supported_kv_cache_layouts", "super().supported_kv_cache_layouts()", ANY, id="root's"
        ),
        pytest.param("supported_kv_cache_layouts", "(KVCacheLayout.NEW,)", None, id="a new one"),
        pytest.param("supported_kv_cache_layouts", "tuple(common())", None, id="a call"),
        pytest.param("supported_kv_cache_layouts", "layouts()", None, id="another call"),
        pytest.param(
            "get_required_kv_cache_layout", '"HND"', frozenset({KVLayout.HND}), id="the only one"
        ),
        pytest.param("get_required_kv_cache_layout", "None", ANY, id="none required"),
    ],
)
def test_layouts_are_read(tmp_path: Path, name: str, value: str, layouts: object) -> None:
    """A list of layouts, or the one that older releases require, is what a backend takes."""
    backend = read_one(tmp_path, _method(name, f"return {value}"))

    assert said(backend, "kv_layouts").value == layouts


def test_layouts_of_a_parent_are_not_known(tmp_path: Path) -> None:
    """What a parent below the root adds to `super()` is not followed."""
    own = "def supported_kv_cache_layouts(cls):\n        return "
    parent = f"class Parent(AttentionBackend):\n    {own}(KVCacheLayout.LBHNC,)"
    body = _method("supported_kv_cache_layouts", "return super().supported_kv_cache_layouts()")

    backend = read_one(tmp_path, body, before=parent, base="Parent")

    assert said(backend, "kv_layouts").value is None


@pytest.mark.parametrize(
    ("blocks", "sizes"),
    [
        pytest.param("[64]", Exact(64), id="one"),
        pytest.param("[32, 64]", OneOf({32, 64}), id="several"),
        pytest.param("[MultipleOf(16)]", MultipleOf(16), id="multiples"),
        pytest.param("[]", ANY, id="any"),
    ],
)
def test_kernel_blocks_are_the_list(tmp_path: Path, blocks: str, sizes: object) -> None:
    """The kernel's blocks are apart from the pages, which may be multiples of them."""
    method = _method("get_supported_kernel_block_sizes", f"return {blocks}")

    backend = read_one(tmp_path, method)

    assert declared(backend).capabilities.kernel_block_sizes == sizes


def _computed_by(
    tmp_path: Path, impl: str, *, base: str = "AttentionImpl", value: str = "Impl"
) -> dict[str, object]:
    """Return what a backend declares whose implementation has a body."""
    before = f"{_IMPL}\nclass Impl({base}):\n{indent(impl, '    ')}\n"
    backend = read_one(tmp_path, _method("get_impl_cls", f"return {value}"), before=before)
    return dict(declared(backend).capabilities.stated())


_ASKS = "def __init__(self, bias, sliding_window, logits_soft_cap, kind):\n"
_NEITHER = {"sliding_window": False, "logit_soft_cap": False}


@pytest.mark.parametrize(
    ("lines", "refused"),
    [
        pytest.param(
            "    unsupported = [bias, sliding_window, logits_soft_cap]\n"
            "    if any(unsupported):\n        raise ValueError",
            _NEITHER,
            id="any of a named list",
        ),
        pytest.param(
            "    if any([bias, sliding_window]):\n        raise ValueError",
            {"sliding_window": False},
            id="any of a list",
        ),
        pytest.param(
            "    if sliding_window is not None or logits_soft_cap:\n        raise ValueError",
            _NEITHER,
            id="either",
        ),
        pytest.param(
            "    if logits_soft_cap not in (None, 0):\n        raise ValueError",
            {"logit_soft_cap": False},
            id="none of these",
        ),
        pytest.param(
            "    if sliding_window and kind != AttentionType.DECODER:\n        raise ValueError",
            {},
            id="only with another argument",
        ),
        pytest.param("    if bias is not None:\n        raise ValueError", {}, id="another"),
        pytest.param("    if any(bias):\n        raise ValueError", {}, id="any of what is given"),
        pytest.param("    raise ValueError", {}, id="always"),
        pytest.param("    self.window = sliding_window", {}, id="nothing"),
    ],
)
def test_argument_that_a_constructor_refuses_is_declared(
    tmp_path: Path, lines: str, refused: dict[str, object]
) -> None:
    """A feature whose argument alone makes the implementation raise is not supported."""
    assert _computed_by(tmp_path, _ASKS + lines) == refused


def test_constructor_of_a_base_is_inherited(tmp_path: Path) -> None:
    """What a base of the implementation refuses is shown as inherited."""
    lines = "    if sliding_window:\n        raise ValueError"
    before = f"{_IMPL}\nclass Base(AttentionImpl):\n{indent(_ASKS + lines, '    ')}\n"
    before += "\nclass Impl(Base):\n    pass\n"

    backend = read_one(tmp_path, _method("get_impl_cls", "return Impl"), before=before)

    window = said(backend, "sliding_window")
    assert (window.origin, window.inherited_from) == (Origin.INHERITED, "Base")
    assert window.words == "Impl: __init__() refuses sliding_window"
    assert declared(backend).capabilities.stated() == {}


_BOTH = {"decode_context_parallel": True, "prefill_context_parallel": False}


@pytest.mark.parametrize(
    ("body", "base", "parallel"),
    [
        pytest.param("supports_dcp = True\nsupports_pcp = False", "AttentionImpl", _BOTH, id="own"),
        pytest.param("can_return_lse_for_decode = True", "AttentionImpl", {}, id="the root's"),
        pytest.param(
            "can_return_lse_for_decode = True",
            "object",
            {"decode_context_parallel": True},
            id="older release",
        ),
        pytest.param("__init__ = make", "AttentionImpl", {}, id="no constructor of its own"),
    ],
)
def test_parallelism_is_the_implementations(
    tmp_path: Path, body: str, base: str, parallel: dict[str, object]
) -> None:
    """Context parallelism is what the implementation states; what its root states is a default."""
    assert _computed_by(tmp_path, body, base=base) == parallel


@pytest.mark.parametrize("value", ["chosen()", "Impl if on_rocm() else Other"])
def test_implementation_that_is_not_known_states_nothing(tmp_path: Path, value: str) -> None:
    """Of an implementation that a call or a condition chooses, nothing is read."""
    assert _computed_by(tmp_path, "supports_dcp = True", value=value) == {}
