"""The command lines by which `acceptance` finds what SGLang's server takes."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import TypeAlias

from pydantic import JsonValue

from backend_caps.capability.gpu import gpus, machine_of
from backend_caps.engines.sglang.arguments import Follower
from backend_caps.engines.source.index import Index
from backend_caps.resolution.launch import Launch

PLUGIN = "backend_of_a_plugin"
"""The name of a backend that SGLang does not know, as a plugin registers it."""
ARGUMENT = "attention_backend"
MLA, SPARSE, HYBRID = "deepseek-v3", "deepseek-v3.2", "qwen3-next-80b"
MODELS: Mapping[str, dict[str, JsonValue]] = {
    "llama-3.1-8b": {"attention_arch": "mha"},
    MLA: {"attention_arch": "mla"},
    SPARSE: {"attention_arch": "sparse"},
    "gpt-oss-20b": {"attention_arch": "mha", "attention_sinks": True},
    HYBRID: {"attention_arch": "ssm"},
}
"""Models, with what each asks of a backend."""
GPUS = ("H100", "B200", "RTX5090", "T4", "A100", "MI300X")
"""GPUs, one of each kind that SGLang distinguishes."""
TRIED_FIRST = GPUS[:4]
"""Those of which one is refused for a backend that looks at the machine at all."""
_NUM_GPUS = 1
_SET = re.compile(r"\{('[^{}]*')\}")
"""A set of strings as Python writes it."""


@dataclass(frozen=True, slots=True)
class Place:
    """A machine and a model."""

    gpu: str
    model: str

    def __str__(self) -> str:
        return f"{self.gpu}, {self.model}"

    @property
    def machine(self) -> dict[str, JsonValue]:
        """What the machine asks of a backend."""
        return {**machine_of(gpus()[self.gpu])}


BASELINES = tuple(
    Place(gpu, model) for model in [*MODELS][:2] for gpu in ("H100", "B200", "MI300X")
)
"""Where a backend is looked for, in this order, until a server takes it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Option:
    """Words of a command line that set a capability to a value."""

    capability: str
    value: JsonValue
    words: tuple[str, ...]
    kept: Mapping[str, object]
    """The arguments that have to keep their values."""
    before: tuple[str, ...] = ()
    """The words that it is compared with."""


def _page(size: int) -> Option:
    return Option(
        capability="page_sizes",
        value=size,
        words=("--page-size", str(size)),
        kept={"page_size": size},
    )


def _kv_cache(dtype: str) -> Option:
    return Option(
        capability="kv_cache_dtypes",
        value=dtype,
        words=("--kv-cache-dtype", dtype),
        kept={"kv_cache_dtype": dtype},
    )


_EAGLE = (
    *("--speculative-algorithm", "EAGLE3"),
    *("--speculative-draft-model-path", "backend-caps/models/eagle3-llama-3.1-8b"),
    *("--speculative-num-steps", "3"),
    *("--speculative-num-draft-tokens", "8"),
    "--speculative-eagle-topk",
)
NO_PAGE = _page(2)
"""A size that divides what servers need it to, and that no kernel asks for."""
PAGES = tuple(map(_page, (1, 16, 32, 64, 128)))
_E4M3 = _kv_cache("fp8_e4m3")
OPTIONS = (
    NO_PAGE,
    _E4M3,
    *map(_kv_cache, ("fp8_e5m2", "nvfp4", "mxfp4", "fp4_e2m1")),
    Option(
        capability="deterministic",
        value=True,
        words=("--enable-deterministic-inference",),
        kept={"enable_deterministic_inference": True},
    ),
    Option(
        capability="max_speculative_topk",
        value=4,
        words=(*_EAGLE, "4"),
        kept={"speculative_eagle_topk": 4},
        before=(*_EAGLE, "1"),
    ),
)


BUNDLE = (NO_PAGE, _E4M3)
"""Options that are set together first: most backends take both."""
_BUNDLED = tuple(chain.from_iterable(each.words for each in BUNDLE))


def chosen_with(option: Option | None) -> Iterator[Place]:
    """List where a server is left to choose a backend itself, with an option or none."""
    first, *others = MODELS
    if option is None:
        yield from (Place(gpu, model) for gpu in GPUS for model in (first, MLA))
        yield from (Place(gpu, model) for gpu in ("H100", "B200", "MI300X") for model in others[1:])
    elif option.capability != "page_sizes":
        yield from (Place(gpu, first) for gpu in GPUS[:3])


Asked: TypeAlias = tuple[Place, str, tuple[str, ...]]
"""A command line: where, with which backend, with which words."""


@dataclass(slots=True)
class Server:
    """Follows command lines, each once."""

    index: Index
    names: Collection[str]
    """The backends' names on the command line."""
    _known: dict[Asked, Launch] = field(default_factory=dict)
    _taken: set[Asked] = field(default_factory=set)
    """Those of bundles that a server takes, which are not followed alone."""
    _followers: dict[str, Follower] = field(default_factory=dict)

    def follow(self, asked: Iterable[Asked]) -> None:
        """Follow the command lines that are not known, those of one machine together."""
        new = sorted(dict.fromkeys(each for each in asked if each not in self._known), key=_gpu)
        for gpu, group in groupby(new, key=_gpu):
            own = [*group]
            launches = self._follower(gpu).follow([_line(*each) for each in own])
            self._known.update(zip(own, launches, strict=True))

    def _follower(self, gpu: str) -> Follower:
        if gpu not in self._followers:
            known = next((each.imported for each in self._followers.values()), ())
            self._followers[gpu] = Follower(
                self.index, gpus()[gpu], _NUM_GPUS, plugin=PLUGIN, imported=known
            )
        return self._followers[gpu]

    def follow_bundles(self, asked: Iterable[tuple[Place, str]]) -> None:
        """Follow the options of the bundle: each alone where a server does not take both."""
        every = [*asked]
        self.follow((*each, _BUNDLED) for each in every)
        kept = {name: value for each in BUNDLE for name, value in each.kept.items()}
        for each in every:
            if self._keeps(self.launch(*each, _BUNDLED), each[1], kept):
                self._taken |= {(*each, own.words) for own in BUNDLE}
        left = [(*each, own.words) for each in every for own in BUNDLE]
        self.follow(each for each in left if each not in self._taken)

    def launch(self, place: Place, name: str, words: tuple[str, ...] = ()) -> Launch:
        """Return what becomes of a command line that was followed."""
        return self._known[place, name, words]

    def takes(self, place: Place, name: str, option: Option | None = None) -> bool | None:
        """Return whether a server starts with a backend; None where that is not known."""
        words = () if option is None else option.words
        if (place, name, words) in self._taken:
            return True
        kept = {} if option is None else option.kept
        return self._keeps(self.launch(place, name, words), name, kept)

    @staticmethod
    def _keeps(launch: Launch, name: str, kept: Mapping[str, object]) -> bool | None:
        if launch.refusal is not None:
            return False
        wanted = {ARGUMENT: name, **kept}
        values = [launch.values.get(each) for each in wanted]
        if launch.unchecked or any(isinstance(each, Mapping) for each in values):
            return None
        return values == [*wanted.values()]

    def classes(self, place: Place, name: str) -> frozenset[str]:
        """Return the classes that a server constructs for a backend."""
        return frozenset(chain.from_iterable(self.launch(place, name).classes.values()))


def _gpu(asked: Asked) -> str:
    return asked[0].gpu


def _line(place: Place, name: str, words: Sequence[str]) -> list[str]:
    backend = ["--attention-backend", name] if name else []
    return [*backend, *words, "--model-path", place.model]


def reason_of(launch: Launch, at_baseline: Launch, arguments: Iterable[str]) -> tuple[str, str]:
    """Return why a server does not take a setting, in its own words, with the line.

    It refuses to start, or it warns and takes another value.

    Args:
        launch: the server with the setting.
        at_baseline: the server without it.
        arguments: the arguments that the setting is of.
    """
    message, at = _reason(launch, at_baseline, arguments)
    # The order of a set's members differs from run to run.
    return _SET.sub(lambda found: f"{{{', '.join(sorted(found[1].split(', ')))}}}", message), at


def _reason(launch: Launch, at_baseline: Launch, arguments: Iterable[str]) -> tuple[str, str]:
    if launch.refusal is not None:
        return launch.refusal.message, launch.refusal.at
    named = (*arguments, ARGUMENT)
    new = [each for each in launch.warnings if each not in at_baseline.warnings]
    old = [each for each in launch.warnings if any(own in each.message for own in named)]
    for warned in (*new, *old):
        return warned.message, warned.at
    rewritten = (each for each in launch.rewrites if each.name in named)
    return next(((f"{e.name} becomes {e.after}", e.at) for e in rewritten), ("", ""))
