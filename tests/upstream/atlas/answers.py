"""Asks a class of an engine's source what a cell of the atlas says of it.

An answer, and a value of the atlas, are brought to the same form: a set of the sizes, the devices
or the names that pass, or a truth value.
"""

from __future__ import annotations

import ast
import enum
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tests.upstream.atlas.live_classes import Archive, Instance, LiveClass, World
from tests.upstream.atlas.statements import run
from tests.upstream.atlas.unknown_values import Unknown, Value

SIZES = (*range(1, 65), *range(66, 640, 2), *range(640, 4100, 32), 4099)
DTYPES = frozenset(
    ["bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "int8", "uint8"]
)
_LAYOUTS = {"LBNHC": "NHD", "LBHNC": "HND"}
_PHASES = {"prefill": "EXTEND", "decode": "DECODE", "verify": "TARGET_VERIFY"}


class DeviceCapability(NamedTuple):
    """The version of a device."""

    major: int
    minor: int

    def to_int(self) -> int:
        """Return both in one number."""
        return self.major * 10 + self.minor


DEVICES = tuple(DeviceCapability(major, minor) for major in range(5, 14) for minor in range(10))


@dataclass(frozen=True)
class MultipleOf:
    """A size that is any multiple."""

    base: int


class AttentionCGSupport(enum.IntEnum):
    """The batches that graphs are replayed for, by vLLM's words."""

    NEVER = 0
    UNIFORM_SINGLE_TOKEN_DECODE = 1
    UNIFORM_BATCH = 2
    ALWAYS = 3


LEVELS = ("single_token_decode", "uniform_batch", "mixed_batch")


class AttentionType:
    """The types of attention, by vLLM's words."""

    DECODER, ENCODER = "decoder", "encoder"
    ENCODER_ONLY, ENCODER_DECODER = "encoder_only", "encoder_decoder"
    ALL = (DECODER, ENCODER, ENCODER_ONLY, ENCODER_DECODER)


class _Members(type):
    def __getattr__(cls, name: str) -> str:
        if name.startswith("_"):
            raise AttributeError(name)
        return name


class KVCacheLayout(metaclass=_Members):
    """The layouts, each its own name."""


class _Torch(Unknown):
    def __getattr__(self, name: str) -> Value:
        return name if name in DTYPES else super().__getattr__(name)


class _Literal:
    def __getitem__(self, items: Value) -> Value:
        return items if isinstance(items, tuple) else (items,)


class SharedReadEnds(enum.IntEnum):
    """Where the reads of shared tensors end, by SGLang's words."""

    PRE_REPLAY, IN_REPLAY, POST_REPLAY, UNKNOWN = range(4)

    @classmethod
    def max_of(cls, ends: Iterable[SharedReadEnds]) -> SharedReadEnds:
        """Return the last."""
        return max(ends)


class ForwardMode(enum.Enum):
    """The modes of a batch."""

    EXTEND, DECODE, TARGET_VERIFY, MIXED, IDLE, DRAFT_EXTEND_V2 = range(6)

    def __getattr__(self, name: str) -> Value:
        if not name.startswith("is_"):
            raise AttributeError(name)
        named = {
            "is_decode": {"DECODE"},
            "is_target_verify": {"TARGET_VERIFY"},
            "is_extend": {"EXTEND", "MIXED", "TARGET_VERIFY", "DRAFT_EXTEND_V2"},
            "is_prefill": {"EXTEND", "MIXED", "TARGET_VERIFY", "DRAFT_EXTEND_V2"},
            "is_decode_or_idle": {"DECODE", "IDLE"},
            "is_extend_or_draft_extend_or_mixed": {"EXTEND", "MIXED", "DRAFT_EXTEND_V2"},
            "is_mixed": {"MIXED"},
        }
        return (
            (lambda *_, **__: self.name in named[name]) if name in named else Unknown(f"fm.{name}")
        )


STUBS: Mapping[str, Value] = {
    "torch": _Torch("torch"),
    "Literal": _Literal(),
    "get_args": lambda items: items,
    **{
        each.__name__: each
        for each in (DeviceCapability, MultipleOf, AttentionCGSupport, AttentionType)
    },
    **{each.__name__: each for each in (KVCacheLayout, SharedReadEnds, ForwardMode)},
}


def world_of(archives: Iterable[Archive]) -> World:
    """Return the modules of archives, with the stubs of the names above."""
    return World(archives, STUBS)


FLAGS = {
    "sliding_window": "supports_sliding_window",
    "attention_sinks": "supports_sink",
    "non_causal": "supports_non_causal",
    "multimodal_prefix": "supports_mm_prefix",
    "per_head_kv_scales": "supports_per_head_quant_scales",
    "decode_context_parallel": "supports_dcp",
    "prefill_context_parallel": "supports_pcp",
    "batch_invariant": "supports_batch_invariance",
}
ATTRIBUTES = {
    "decode_context_parallel": ("supports_dcp", "can_return_lse_for_decode"),
    "prefill_context_parallel": ("supports_pcp",),
}
REFUSED = {"sliding_window": "sliding_window", "logit_soft_cap": "logits_soft_cap"}


TESTS: Mapping[str, tuple[str, Sequence[Value]]] = {
    "dtypes": ("supports_dtype", sorted(DTYPES)),
    "kv_cache_dtypes": ("supports_kv_cache_dtype", ()),
    "head_sizes": ("supports_head_size", SIZES),
    "page_sizes": ("supports_block_size", SIZES),
    "compute_capability": ("supports_compute_capability", DEVICES),
    "attention_types": ("supports_attn_type", AttentionType.ALL),
}
"""The method that tests a value, and the values to ask it for; none for the release's own list."""


class Question:
    """One capability of one class of vLLM."""

    def __init__(
        self, live: LiveClass, root: str, capability: str, cell: Mapping[str, Value]
    ) -> None:
        self.live, self.capability, self.cell = live, capability, cell
        self.root = next((c for c in live.mro_ if c.node_.name == root), None)

    def is_stated(self, name: str) -> bool:
        """Return whether a class below the root states an attribute."""
        owner = self.live.owner_(name)
        return owner is not None and owner is not self.root

    def ask(self) -> Value:
        """Return what the source answers in this run."""
        whole: Mapping[str, Callable[[], Value]] = {
            "kernel_block_sizes": self._blocks,
            "attention_arch": self._arch,
            "kv_layouts": self._layouts,
            "graph_replay": lambda: levels(self.live.get_builder_cls()),
        }
        if self.capability in whole:
            return whole[self.capability]()
        if self.capability not in TESTS:
            return self._flag()
        name, domain = TESTS[self.capability]
        passes = getattr(self.live, name)
        return frozenset(each for each in domain or kv_names(self.live) if passes(each))

    def blocks(self) -> Value:
        """Return the kernel's blocks as the source lists them, for a cache that is not known."""
        name = "get_supported_kernel_block_sizes"
        owner = self.live.owner_(name)
        stated = owner.body_.bound[name][-1] if owner else None
        names = (
            {each.arg for each in stated.args.args}
            if isinstance(stated, ast.FunctionDef)
            else set()
        )
        given = {each: Unknown(each) for each in names & {"kv_cache_spec"}}
        return getattr(self.live, name)(**given)

    def _blocks(self) -> frozenset[int]:
        blocks = list(self.blocks())
        exact = {b for b in blocks if isinstance(b, int)}
        bases = [b.base for b in blocks if isinstance(b, MultipleOf)]
        assert len(exact) + len(bases) == len(blocks), blocks
        multiples = {n for n in SIZES if any(n % base == 0 for base in bases)}
        return frozenset(exact | multiples if blocks else SIZES)

    def _arch(self) -> frozenset[str]:
        asked = [("mla", "is_mla"), ("ssm", "is_ssm"), ("sparse", "is_sparse")]
        found = {name for name, m in asked if self.live.owner_(m) and getattr(self.live, m)()}
        if "sparse" in found:
            return frozenset({"sparse" if "mla" in found else "block_sparse"})
        return frozenset(found or {"mha"})

    def _layouts(self) -> Value:
        name = "supported_kv_cache_layouts"
        name = name if self.is_stated(name) else "get_required_kv_cache_layout"
        answer = getattr(self.live, name)()
        if answer is None:
            return "any"
        names = [answer] if isinstance(answer, str) else list(answer)
        return frozenset(_LAYOUTS.get(each, each) for each in names)

    def _flag(self) -> bool:
        predicate = FLAGS.get(self.capability)
        if predicate and self.is_stated(predicate):
            return bool(getattr(self.live, predicate)())
        implementation = self.live.get_impl_cls()
        for name in ATTRIBUTES.get(self.capability, ()):
            if implementation.owner_(name):
                return bool(getattr(implementation, name))
        return not refuses(implementation, REFUSED[self.capability])


def kv_names(live: LiveClass) -> tuple[str, ...]:
    """Return the names of KV-cache dtypes that the release knows, without `auto`."""
    for home in ("vllm.config.cache", "vllm.config"):
        scope = live.scope_.world.module(home)
        if scope is not None and "CacheDType" in scope.bound:
            names = scope.resolve("CacheDType")
            stated = live.supported_kv_cache_dtypes
            more = stated if isinstance(stated, list | tuple) else ()
            return tuple(sorted({*names, *more} - {"auto"}))
    raise AssertionError("no CacheDType is found")


def levels(builder: LiveClass) -> frozenset[str] | str:
    """Return the batches that a builder's graphs are replayed for."""
    method, attributes = "get_cudagraph_support", ("_cudagraph_support", "cudagraph_support")
    if builder.owner_(method):
        level = builder.get_cudagraph_support(Unknown("vllm_config"), Unknown("kv_cache_spec"))
    else:
        name = next((each for each in attributes if builder.owner_(each)), "")
        if not name:
            return "undeclared"
        level = getattr(builder, name)
    return frozenset(LEVELS[: int(level)])


def refuses(implementation: LiveClass, argument: str) -> bool:
    """Return whether a constructor raises for an argument that is given, and not without."""
    owner = implementation.owner_("__init__")
    assert owner is not None, f"{implementation!r} has no constructor"
    statement = owner.body_.bound["__init__"][-1]
    assert isinstance(statement, ast.FunctionDef), "a constructor is a function"
    names = [each.arg for each in (*statement.args.args, *statement.args.kwonlyargs)][1:]
    plain: dict[str, Value] = {name: Unknown(name) for name in names}
    for name in (
        "alibi_slopes",
        "sliding_window",
        "logits_soft_cap",
        "kv_sharing_target_layer_name",
    ):
        if name in names:
            plain[name] = None
    if "attn_type" in names:
        plain["attn_type"] = AttentionType.DECODER
    short = ast.FunctionDef("probe", statement.args, [*_refusals(statement, argument)], [], None)
    probe = run(ast.fix_missing_locations(short), owner.scope_, {})["probe"]

    def raised(given: Mapping[str, Value]) -> bool:
        try:
            probe(Instance(implementation), **given)
        except (NotImplementedError, ValueError):
            return True
        return False

    return not raised(plain) and raised({**plain, argument: 4096})


def _refusals(constructor: ast.FunctionDef, argument: str) -> list[ast.stmt]:
    """Return the statements up to the first that raises and names an argument, or its list."""
    names, body = {argument}, list[ast.stmt]()
    for part in constructor.body:
        used = {node.id for node in ast.walk(part) if isinstance(node, ast.Name)}
        match part:
            case ast.Assign(targets=[ast.Name(id=name)]):
                names |= {name} if used & names else set()
                body.append(part)
            case ast.If() if used & names and any(isinstance(n, ast.Raise) for n in ast.walk(part)):
                return [*body, part]
    return [ast.Pass()]


def form(capability: str, value: Value) -> Value:
    """Bring a value of the atlas to the form of an answer."""
    if capability == "compute_capability" and value != "depends":
        windows = [">= 0.0"] if value == "any" else value
        return frozenset(d for d in DEVICES if any(_is_within(d, each) for each in windows))
    match value:
        case "any":
            return value if capability == "kv_layouts" else frozenset(SIZES)
        case {"multiple_of": base}:
            return frozenset(n for n in SIZES if n % base == 0)
        case {"exact": size}:
            return frozenset({size})
        case {"one_of": list(names)} | list(names):
            return frozenset(names)
    return value


def _is_within(device: DeviceCapability, window: str) -> bool:
    bounds = re.findall(r"(>=|<) (\d+)\.(\d+)", window)
    tests: Mapping[str, Callable[[Value, Value], bool]] = {
        ">=": lambda a, b: a >= b,
        "<": lambda a, b: a < b,
    }
    return bool(bounds) and all(
        tests[sign](tuple(device), (int(major), int(minor))) for sign, major, minor in bounds
    )


def read_ends(live: LiveClass, phase: str) -> str:
    """Return where SGLang's backend ends its reads of shared tensors in a phase."""
    end = Instance(live).shared_read_ends(ForwardMode[_PHASES[phase]])
    return SharedReadEnds(int(end)).name.lower()
