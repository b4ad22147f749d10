"""What vLLM's own check of a backend refuses on machines, one thing after another.

`validate_configuration` of a class, which vLLM asks before it takes the backend, runs with what a
plain layer asks for, and with one thing more: a reason that is new is one against that thing.
"""

from __future__ import annotations

import typing
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

from backend_caps.capability.backend import Backend
from backend_caps.capability.gpu import Gpu, gpus, machine_of
from backend_caps.engines.model import model_of
from backend_caps.engines.reading import Acceptance, Acceptances
from backend_caps.engines.source.calls import NotFollowedError
from backend_caps.engines.source.index import Index
from backend_caps.engines.source.library import forget_types
from backend_caps.engines.source.uncertainty import has_unknown
from backend_caps.engines.source.values import FunctionValue, Hook, Native, Raised
from backend_caps.engines.vllm.server import Server

_CHECK = "validate_configuration"
_MODEL = "llama-3.1-8b"
"""A model, for the configuration that some checks ask for."""
_MACHINES = ("T4", "A100", "H100", "B200", "RTX5090", "MI300X")
_FEATURES = {
    "attention_sinks": "has_sink",
    "multimodal_prefix": "use_mm_prefix",
    "non_causal": "use_non_causal",
    "per_head_kv_scales": "use_per_head_quant_scales",
}
"""The parameter that asks for a feature."""
_OF_CPU = ("torch.cpu._is_amx_tile_supported", "torch.cpu._is_avx512_supported")
"""What the CPU of a server has."""
_KV = "kv_cache_dtypes"
_UNQUANTIZED = frozenset({"auto", "bfloat16", "float16"})


@dataclass(frozen=True, slots=True)
class _Plain:
    """A layer that asks for nothing but its family."""

    use_mla: bool
    use_sparse: bool
    head_size: int


_PLAIN = (
    _Plain(use_mla=False, use_sparse=False, head_size=128),
    _Plain(use_mla=True, use_sparse=False, head_size=576),
    _Plain(use_mla=True, use_sparse=True, head_size=576),
)


def read_acceptances(
    index: Index, backends: Iterable[Backend], capabilities: Collection[str] | None = None
) -> Acceptances:
    """Ask the check of each class what its source leaves open.

    Args:
        index: vLLM's source.
        backends: the classes.
        capabilities: those that are asked for; all if None.
    """
    known = (*_FEATURES, _KV)
    wanted = known if capabilities is None else [each for each in known if each in capabilities]
    asked = [*_asked(backends, wanted)]
    answers: dict[_Asked, dict[str, str | None]] = {}
    tried: dict[str, Sequence[str | bool]] = {}
    for name in _MACHINES if asked else ():
        # A release that has no such platform, or none that can be made, answers nothing on it.
        with suppress(Raised, NotFollowedError), closing(_Machine(index, gpus()[name])) as machine:
            dtypes = sorted(machine.kv_cache_dtypes())
            for each in asked:
                tried[each.capability] = dtypes if each.capability == _KV else (True,)
                for value in tried[each.capability]:
                    one = replace(each, value=value)
                    with suppress(Raised, NotFollowedError):
                        answers.setdefault(one, {})[name] = machine.reason(one)
    found = chain.from_iterable(_acceptances(one, own) for one, own in answers.items())
    return Acceptances(found=[*found], tried=tried)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A class, and one thing that is added to what a plain layer asks of it."""

    path: str
    name: str
    """A registered name of the class."""
    capability: str
    at: str
    """The line of what decides, as it was read."""
    value: str | bool = True


def _asked(backends: Iterable[Backend], wanted: Collection[str]) -> Iterator[_Asked]:
    """List what the source leaves open of registered classes."""
    for backend in backends:
        own, declared = backend.engine_class, backend.declaration
        if own is None or declared is None:
            continue
        stated = declared.capabilities.stated()
        for capability, reading in own.readings.items():
            if capability in wanted and capability not in stated:
                for name in own.registered_as:
                    yield _Asked(own.path, name, capability, reading.declared_at or "")


class _Machine:
    """vLLM on one machine, with a server's configuration where that can be made."""

    def __init__(self, index: Index, gpu: Gpu) -> None:
        self._run = Server(index, gpu, 1, model_of(_MODEL), [])
        for each in _OF_CPU:
            self._run.natives[each] = Hook(lambda *_: True)
        self._config: Native = None
        with suppress(Exception):  # of an older release; few checks ask for one
            self._config = self._run.configured(["--model", _MODEL])
        platform = self._run.platform
        self._capability = self._run.call(self._run.attribute(platform, "get_device_capability"))
        self._plain: dict[str, dict[str, Native]] = {}
        self._constant: dict[str, set[str]] = {}

    def close(self) -> None:
        """Leave nothing of this machine to the next."""
        self._run.restore()
        forget_types()

    def kv_cache_dtypes(self) -> set[str]:
        """List the quantized dtypes of a KV cache that the release knows."""
        found = self._run.found("vllm.config.cache.CacheDType")
        return {each for each in typing.get_args(found) if isinstance(each, str)} - _UNQUANTIZED

    def reason(self, asked: _Asked) -> str | None:
        """Return why the check of a class refuses what is asked; None where it does not.

        Raises:
            Raised: the check raises an error.
            NotFollowedError: it is not known what the check returns.
        """
        plain = self._plain_of(asked.path)
        if asked.capability == _KV:
            given = {**plain, "kv_cache_dtype": asked.value}
            before = self._of_any_dtype(asked.path)
        else:
            parameter = _FEATURES[asked.capability]
            if parameter not in plain:
                raise NotFollowedError(f"{_CHECK} has no {parameter}", asked.path)
            given = {**plain, parameter: True}
            before = set(self._reasons(asked.path, plain))
        return next((each for each in self._reasons(asked.path, given) if each not in before), None)

    def _of_any_dtype(self, path: str) -> set[str]:
        """Return the reasons that hold for each dtype of the cache, and so are not of it."""
        if path not in self._constant:
            plain = self._plain_of(path)
            every = (
                self._reasons(path, {**plain, "kv_cache_dtype": each})
                for each in (None, *_UNQUANTIZED, *self.kv_cache_dtypes())
            )
            self._constant[path] = set.intersection(*map(set, every))
        return self._constant[path]

    def _plain_of(self, path: str) -> dict[str, Native]:
        """Return what a plain layer asks, of the family that the class is for."""
        if path not in self._plain:
            every = [self._given(path, each) for each in _PLAIN]
            self._plain[path] = min(every, key=lambda given: len(self._reasons(path, given)))
        return self._plain[path]

    def _given(self, path: str, plain: _Plain) -> dict[str, Native]:
        known = {
            "head_size": plain.head_size,
            "dtype": self._run.natives["torch.bfloat16"],
            "kv_cache_dtype": None,
            "block_size": None,
            "use_mla": plain.use_mla,
            "use_sparse": plain.use_sparse,
            "device_capability": self._capability,
            "attn_type": "decoder",
        }
        check = self._run.found_class(path).lookup(_CHECK)
        function = getattr(check, "function", check)
        if not isinstance(function, FunctionValue):
            raise NotFollowedError(f"{path} has no {_CHECK}", path)
        names = [each.arg for each in function.node.args.args[1:]]
        return {name: known.get(name, False) for name in names}

    def _reasons(self, path: str, given: Mapping[str, Native]) -> list[str]:
        run = self._run
        check = partial(run.call, run.attribute(run.found_class(path), _CHECK), **given)
        reasons = check() if self._config is None else run.under(self._config, check)
        if has_unknown(reasons) or not isinstance(reasons, list):
            raise NotFollowedError(f"{_CHECK} of {path} returns {reasons}", run.at)
        return [str(each) for each in reasons]


def _acceptances(asked: _Asked, answers: Mapping[str, str | None]) -> Iterator[Acceptance]:
    """Write the answers as one where all machines answer, and answer the same."""
    outcomes = {reason is None for reason in answers.values()}
    is_same = len(outcomes) == 1 and len(answers) == len(_MACHINES)
    for name, reason in answers.items():
        gpu = gpus()[name]
        yield Acceptance(
            name=asked.name,
            paths=frozenset({asked.path}),
            settings={asked.capability: asked.value, **({} if is_same else machine_of(gpu))},
            is_accepted=reason is None,
            message=reason or f"{_CHECK}() refuses nothing",
            at=asked.at,
            launch="a plain layer" if is_same else f"{name}, a plain layer",
        )
        if is_same:
            return
