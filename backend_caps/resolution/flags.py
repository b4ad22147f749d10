"""A server's flags as typed values, in SGLang's own spelling."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, StrictBool, StrictInt, ValidationError, ValidationInfo
from pydantic_core import ErrorDetails

from backend_caps.capability.facts import Facts, Situation
from backend_caps.capability.model import AUTO, Device, FrozenModel, OrAuto, Text, algorithm, dtype
from backend_caps.resolution.engine import CommandLine, Engine, Reader, engine_of, option_of
from backend_caps.resolution.errors import FlagsError, FlagValueError, raise_all

_FACTORS = {"k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
_WORDS = "words"
"""The validation context of values that are words of a command line."""


def _number(value: object, info: ValidationInfo) -> object:
    """Read a number given as a word, with the suffixes that the engine takes, such as `32k`."""
    if info.context != _WORDS or not isinstance(value, str):
        return value
    match = re.fullmatch(r"(\d+)(k|M|G|Ki|Mi|Gi)?", value.strip())
    return value if match is None else int(match[1]) * _FACTORS.get(match[2], 1)


def _algorithm(value: object) -> object:
    return None if algorithm(value) == "NONE" else algorithm(value)


Count = Annotated[StrictInt, Field(ge=1, lt=2**31), BeforeValidator(_number)]


class ServerFlags(FrozenModel):
    """Hold the flags that decide what a server needs of its backends.

    `None` is not given; the engine then decides, or the value is not known yet.
    """

    attention_backend: Text | None = None
    """The backend of every phase that has none of its own. `auto` has one chosen, here and in the
    other flags that name a backend."""
    prefill_attention_backend: Text | None = None
    """The backend of prefill."""
    decode_attention_backend: Text | None = None
    """The backend of decode."""
    speculative_algorithm: Annotated[Text | None, BeforeValidator(_algorithm)] = None
    """`EAGLE`, `EAGLE3`, `STANDALONE`, `NGRAM` or another; none is speculation switched off."""
    speculative_draft_attention_backend: Text | None = None
    """The backend of the draft model."""
    speculative_attention_mode: Literal["prefill", "decode"] = "prefill"
    """Whose backend runs verify and draft-extend."""
    speculative_eagle_topk: Count | None = None
    """The width of the draft tree."""
    speculative_num_steps: Annotated[StrictInt, Field(ge=0), BeforeValidator(_number)] | None = None
    """The draft model's steps before a verify."""
    speculative_num_draft_tokens: Count | None = None
    """The draft tokens that one verify takes, a request."""
    enable_two_batch_overlap: StrictBool = False
    """Split each batch in two and overlap the halves."""
    disable_piecewise_cuda_graph: StrictBool = False
    """Run prefill without the piecewise CUDA graph."""
    enforce_piecewise_cuda_graph: StrictBool = False
    """Run prefill with the piecewise CUDA graph where the server would switch it off."""
    disable_cuda_graph: StrictBool = False
    """Run without CUDA graphs."""
    disable_overlap_schedule: StrictBool = False
    """Prepare a step only when the last one has ended."""
    page_size: Count | None = None
    """The KV cache's page size, in tokens."""
    kv_cache_dtype: Annotated[Text, BeforeValidator(dtype)] = "auto"
    """The KV cache's dtype; `auto` is decided from the model."""
    enable_mixed_chunk: StrictBool = False
    """Run prefill chunks and decode in one batch."""
    enable_dp_attention: StrictBool = False
    """Run attention data-parallel."""
    enable_kv_cache_sharding: StrictBool = False
    """Shard the KV cache's pages over the ranks of a prefill server."""
    enable_deterministic_inference: StrictBool = False
    """Give the same answer to the same request, whatever else is served beside it."""
    disaggregation_mode: Literal["null", "prefill", "decode"] = "null"
    """The server's part where prefill and decode run on different servers."""
    context_length: Count | None = None
    """The longest context, in tokens."""
    tp_size: Count = 1
    """Tensor-parallel ranks."""
    pp_size: Count = 1
    """Pipeline stages."""
    dp_size: Count = 1
    """Data-parallel ranks."""
    device: OrAuto[Device] = None
    """The torch device type."""
    unrelated: Annotated[tuple[str, ...], Field(exclude=True, repr=False)] = ()
    """The flags of a command line that do not concern us, in its order."""

    @classmethod
    def from_argv(cls, argv: Sequence[str], *, engine_name: str | Engine | None = None) -> Self:
        """Read a server's command line, whole or in part.

        Args:
            argv: as the server gets it; words before the first flag are skipped, and a
                `--config FILE` is read as the server reads it.
            engine_name: the engine whose flags and aliases count; unless given, the installed
                SGLang's where they are known, else the newest known.

        Raises:
            FlagsError: one string instead of words, or a flag that the engine does not have and
                that looks like one that matters here.
            FlagValueError: a value of the wrong kind. Several faults come as one group.
        """
        if isinstance(argv, str):
            raise FlagsError(
                "one-string",
                f"the command line is one string, {argv!r}; expected a list of its words. "
                "Split it with shlex.split.",
            )
        return cls._from_line(cls._reader(engine_name).argv(argv), context=_WORDS)

    @classmethod
    def from_file(
        cls, path: str | PathLike[str], *, engine_name: str | Engine | None = None
    ) -> Self:
        """Read a YAML or JSON mapping of flags, as the server's `--config` takes it.

        Raises:
            FlagsError: the file is not there, or is no such mapping.
        """
        return cls._from_line(cls._reader(engine_name).file(path), context=_WORDS)

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Self:
        """Read the variables `BACKEND_CAPS_FLAG_<NAME>`, such as `BACKEND_CAPS_FLAG_PAGE_SIZE`."""
        return cls._from_line(cls._reader(None).environ(environ), context=_WORDS)

    @classmethod
    def from_mapping(
        cls, values: Mapping[str, object], *, engine_name: str | Engine | None = None
    ) -> Self:
        """Read values by flag name, with dashes or underscores; each must have its own type.

        Raises:
            FlagsError: the engine has no flag of that name, and it looks like one that matters.
            FlagValueError: a value of the wrong kind. Several faults come as one group.
        """
        return cls._from_line(cls._reader(engine_name).mapping(values))

    @classmethod
    def from_object(cls, args: object) -> Self:
        """Read an engine's live arguments, such as SGLang's `ServerArgs`, by attribute.

        An attribute that this version of the engine lacks counts as not given.

        Raises:
            FlagsError: the object has none of them at all.
        """
        present = [name for name in _SWITCHES if hasattr(args, name)]
        if not present:
            raise without_flags(args)
        line = CommandLine({name: getattr(args, name) for name in present})
        return cls._from_line(line)

    @classmethod
    def _reader(cls, named: str | Engine | None) -> Reader:
        return Reader(engine_of(named), _SWITCHES)

    @classmethod
    def _from_line(cls, cli: CommandLine, *, context: str | None = None) -> Self:
        try:
            flags = cls.model_validate({**cli.values, "unrelated": cli.unrelated}, context=context)
        except ValidationError as error:
            wrong = [_fault(detail) for detail in error.errors()]
            raise_all("server flags", [*cli.faults, *wrong])
        raise_all("server flags", cli.faults)
        return flags

    @property
    def accept_tokens(self) -> int | None:
        """The most tokens that one step can accept, bonus token included; None if open.

        A chain of drafts is as long as its steps whatever `speculative_num_draft_tokens` says,
        so the larger of the two counts.
        """
        steps, drafted = self.speculative_num_steps, self.speculative_num_draft_tokens
        return max((drafted or 0, 0 if steps is None else steps + 1)) or None

    def situation(self, facts: Facts) -> Situation:
        """List the known flags and facts by name, without those that contradict."""
        contradicted = self.contradicted(facts)
        known = {**self._known(), **facts.known()}
        return {name: value for name, value in known.items() if name not in contradicted}

    def contradicted(self, facts: Facts) -> tuple[str, ...]:
        """List the names whose values differ between these flags and the facts."""
        flags, known = self._known(), facts.known()
        return tuple(name for name in known if name in flags and flags[name] != known[name])

    def with_facts(self, facts: Facts) -> Facts:
        """Return the facts, with open ones filled from these flags."""
        flags = self._known()
        names = type(facts).model_fields.keys() & flags.keys()
        return Facts.model_validate({**{name: flags[name] for name in names}, **facts.known()})

    def _known(self) -> Situation:
        values = {name: getattr(self, name) for name in type(self).model_fields}
        values["speculative_algorithm"] = self.speculative_algorithm or "NONE"
        decode = self.decode_attention_backend or self.attention_backend
        values["decode_attention_backend"] = None if decode == AUTO else decode
        if self.kv_cache_dtype == AUTO:
            values["kv_cache_dtype"] = None
        return {name: value for name, value in values.items() if value is not None}

    def given(self) -> Mapping[str, object]:
        """List the flags that were given, by name; the rest are defaults."""
        return {name: getattr(self, name) for name in _SWITCHES if name in self.model_fields_set}

    def over(self, base: Self) -> Self:
        """Put the flags given here over those given in `base`."""
        unrelated = base.unrelated + self.unrelated
        given = {**base.given(), **self.given(), "unrelated": unrelated}
        return type(self).model_validate(given)

    def updated(self, changes: Mapping[str, object]) -> Self:
        """Return these flags with some changed, by the names of this class."""
        return type(self).model_validate({**dict(self), **changes})


_SWITCHES: Mapping[str, bool] = {
    name: isinstance(field.default, bool)
    for name, field in ServerFlags.model_fields.items()
    if name != "unrelated"
}
"""Whether each flag takes no value on a command line."""


def without_flags(args: object) -> FlagsError:
    """Return the error of an object that has none of a server's arguments."""
    return FlagsError(
        "no-arguments",
        f"an object of type {type(args).__name__!r} has none of a server's arguments as "
        "attributes; expected one such as SGLang's ServerArgs. Read a mapping with "
        "ServerFlags.from_mapping.",
    )


def _fault(detail: ErrorDetails) -> FlagValueError:
    expected = re.sub(r"^\w+ should (be|have) ", "", detail["msg"])
    return FlagValueError(
        flag=option_of(str(detail["loc"][0])), value=repr(detail["input"]), expected=expected
    )
