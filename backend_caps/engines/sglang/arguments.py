"""What SGLang makes of a command line, interpreted from its source.

Its own functions run, from the parser of the command line to the registry of backends and the
factory of draft backends: nothing of it is written down here but what it asks of machine and model
(`surroundings`), and where its functions are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, dropwhile

from backend_caps.capability.gpu import Gpu
from backend_caps.engines.ahead import in_forks
from backend_caps.engines.model import MODEL_OPTIONS, Model, config_of
from backend_caps.engines.reading import LaunchQuery
from backend_caps.engines.sglang.construction import Constructed, Constructions, facts_of
from backend_caps.engines.sglang.query import flags_of
from backend_caps.engines.sglang.surroundings import surroundings
from backend_caps.engines.source.calls import NotFollowedError
from backend_caps.engines.source.index import Index
from backend_caps.engines.source.interpreter import Interpreter
from backend_caps.engines.source.library import forget_types, library
from backend_caps.engines.source.uncertainty import joined
from backend_caps.engines.source.values import (
    MISSING,
    PLAIN,
    ClassValue,
    External,
    Hook,
    Instance,
    Native,
    Perhaps,
    Raised,
    Unknown,
)
from backend_caps.resolution.engine import without_options
from backend_caps.resolution.launch import Launch, Refusal, Rewrite, Unchecked

_ARGUMENTS = "sglang.srt.server_args"
_OVERRIDES = "sglang.srt.arg_groups.overrides"
_OUTSIDE = re.compile(
    r"sglang\.(?:jit_kernel|multimodal_gen|lang)(?:\.|$)"
    r"|sglang\.srt\.(?:models|model_loader|managers|entrypoints|mem_cache|distributed)(?:\.|$)"
    r"|sglang\.srt\.utils\.custom_op$"
)
"""Modules that are not followed: what runs the model, and not what decides how."""
_SHAPE = "what the interpreter can follow"


@dataclass(slots=True, kw_only=True)
class _Outcome:
    """What is found while a command line is followed."""

    rewrites: list[Rewrite] = field(default_factory=list)
    refusal: Refusal | None = None
    unchecked: list[Unchecked] = field(default_factory=list)
    values: Mapping[str, Native] = field(default_factory=dict)
    facts: Mapping[str, object] = field(default_factory=dict)
    backends: Mapping[str, Constructed] = field(default_factory=dict)


def read_launches(index: Index, query: LaunchQuery) -> list[Launch]:
    """Follow several command lines, each as `read_launch` does, on all cores."""
    follow = partial(read_launch, index, gpu=query.gpu, num_gpus=query.num_gpus, model=query.model)
    first, *rest = query.lines
    parsing = follow(first)  # what it parses the others need too
    found = dict(in_forks(follow, rest))
    return [parsing, *(found[at] for at in range(len(rest)))]


def read_launch(index: Index, argv: Sequence[str], gpu: Gpu, num_gpus: int, model: Model) -> Launch:
    """Follow a command line through SGLang's functions.

    Args:
        index: SGLang's source.
        argv: the command line; its `--model-path` is replaced by `model`.
        gpu: the machine's GPUs.
        num_gpus: how many it has.
        model: the model, by its configuration.
    """

    def models(path: str) -> Mapping[str, object] | None:
        return model.config if path == model.name else config_of(path)

    found = _Outcome()
    run = _Arguments(index, found, surroundings(index, gpu, num_gpus, models))
    try:
        run.follow([*without_model(argv), "--model-path", model.name])
    except Raised as error:
        found.refusal = Refusal(message=error.message or error.error, at=error.at)
    except NotFollowedError as error:
        found.unchecked.append(Unchecked(message=str(error), at=error.at, unless=_SHAPE))
    except Exception as error:  # noqa: BLE001 - a fault of ours is no answer of the engine's
        words = f"the interpreter fails ({type(error).__name__}: {error})"
        found.unchecked.append(Unchecked(message=words, at=_ARGUMENTS, unless=_SHAPE))
    finally:
        forget_types()
        run.restore()
    found.unchecked += [Unchecked(message=n.text, at=n.at, unless=n.why) for n in run.notes]
    values = {name: plain(value) for name, value in found.values.items()}
    return Launch(
        engine=index.label,
        machine=gpu.key,
        model=model.name,
        refusal=found.refusal,
        unchecked=tuple(dict.fromkeys(found.unchecked)),
        rewrites=tuple(found.rewrites),
        values=values,
        flags=flags_of(values),
        facts=found.facts,
        classes={slot: made.in_slot(slot) for slot, made in found.backends.items()},
        wrappers=frozenset(
            chain.from_iterable(each.wrappers() for each in found.backends.values())
        ),
        joined=frozenset(slot for slot, made in found.backends.items() if made.asks_prefill()),
    )


def without_model(argv: Sequence[str]) -> list[str]:
    """Leave the model's path out of a command line, and what starts the program."""
    flags = dropwhile(lambda word: not word.startswith("--"), argv)
    return without_options([*flags], MODEL_OPTIONS)


class _Arguments(Constructions):
    """An interpreter that records what SGLang rewrites of its arguments."""

    def __init__(self, index: Index, found: _Outcome, names: Mapping[str, Native]) -> None:
        super().__init__(index, {**library({}), **names})
        self._found = found
        self.natives[f"{_OVERRIDES}.declare_resolution"] = Hook(self._declare)

    def follow(self, argv: Sequence[str]) -> None:
        """Parse the arguments, process and check them, and construct the backends."""
        args = self.call(self.found(f"{_ARGUMENTS}.prepare_server_args"), list(argv))
        if not isinstance(args, Instance):
            raise NotFollowedError(f"it makes no arguments that are known: {args}", _ARGUMENTS)
        resolve = self.attribute_or(args, "resolve_once", None)
        if resolve is not None:
            self.call(resolve)
        self.call(self.attribute(args, "check_server_args"))
        self._found.values = values = self.final_values(args)
        config = self.published(args)
        self._found.facts = facts_of(self, config, values)
        self._found.backends = self.backends(args, config, values)

    def import_module(self, name: str) -> Native:
        """Leave out the modules that run the model."""
        if _OUTSIDE.match(name):
            return External(name)
        return super().import_module(name)

    def set_raw(self, owner: Instance, name: str, value: Native) -> None:
        """Record what older versions assign to their arguments."""
        before = owner.attributes.get(name, MISSING)
        super().set_raw(owner, name, value)
        is_argument = owner.cls.name == "ServerArgs" and name in owner.cls.record_fields()
        if is_argument and before is not MISSING:
            self._rewritten(name, before, owner.attributes[name])

    def _rewritten(self, name: str, before: Native, after: Native) -> None:
        if before is not after and plain(before) != plain(after):
            self._found.rewrites.append(
                Rewrite(name=name, before=plain(before), after=plain(after), at=self.at)
            )

    def _declare(
        self, _run: Interpreter, args: Sequence[Native], fields: Mapping[str, Native]
    ) -> Native:
        """Do what `declare_resolution` does: add the fields to those that are decided."""
        server_args, source = args
        decided = self.attribute_or(server_args, "_resolved_overrides", None)
        if not isinstance(decided, list):
            decided = []
            self.set_raw(server_args, "_resolved_overrides", decided)
        known = {}
        for name, value in fields.items():
            before = _decided(server_args, decided, name)
            is_certain = self.is_certain and not isinstance(value, Perhaps)
            own = value.value if isinstance(value, Perhaps) else value
            known[name] = own if is_certain else joined(before, own)
            self._rewritten(name, before, known[name])
        decided.append((source, known))

    def final_values(self, args: Native) -> dict[str, Native]:
        """Return the final value of each argument."""
        decided = args.attributes.get("_resolved_overrides") or []
        fallbacks: Native = {}
        if self.index.module(_OVERRIDES) is not None and decided:
            fallbacks = self.call(
                self.found("sglang.srt.arg_groups.arg_utils.fallbacks_of"), args.cls
            )
        values = {}
        for name in args.cls.record_fields():
            value = _decided(args, decided, name)
            if value is None and isinstance(fallbacks, dict):
                value = fallbacks.get(name)
            values[name] = value
        return values


def _decided(args: Instance, decided: Sequence[Native], name: str) -> Native:
    for _, fields in reversed(decided):
        if name in fields:
            return fields[name]
    given = args.attributes.get("_raw_input")
    return given[name] if isinstance(given, dict) and name in given else args.attributes.get(name)


def plain(value: Native) -> object:
    """Make a value one that JSON has; what is not known is `{"unknown": why}`."""
    match value:
        case Unknown():
            return {"unknown": value.why}
        case Instance() if value.cls.is_enum:
            return plain(value.attributes["value"])
        case Instance():
            return {name: plain(each) for name, each in value.attributes.items()}
        case dict():
            return {str(key): plain(each) for key, each in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(each) for each in value]
        case ClassValue():
            return value.path
    return value if isinstance(value, PLAIN) else str(value)
