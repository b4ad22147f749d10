"""What SGLang makes of a command line, interpreted from its source.

Its own functions run, from the parser of the command line to the registry of backends and the
factory of draft backends: nothing of it is written down here but what it asks of machine and model
(`surroundings`), and where its functions are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
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
    FunctionValue,
    Hook,
    Instance,
    Native,
    Perhaps,
    Raised,
    Unknown,
)
from backend_caps.resolution.engine import without_options
from backend_caps.resolution.launch import Launch, Refusal, Rewrite, Unchecked, Warned

_ARGUMENTS = "sglang.srt.server_args"
_OVERRIDES = "sglang.srt.arg_groups.overrides"
_REGISTRY = "sglang.srt.layers.attention.attention_registry"
_OUTSIDE = re.compile(
    r"sglang\.(?:jit_kernel|multimodal_gen|lang)(?:\.|$)"
    r"|sglang\.srt\.(?:models|model_loader|managers|entrypoints|mem_cache|distributed)(?:\.|$)"
    r"|sglang\.srt\.utils\.custom_op$"
)
"""Modules that are not followed: what runs the model, and not what decides how."""
_ADDING = "add_cli_args"
"""The method of the arguments' class that adds them all to a parser."""
_UTILITIES = "sglang.srt.arg_groups.arg_utils"
_KEPT = ("fallbacks_of", "field_names", "namespace_of", "resolvable_fields")
"""Functions of it whose results for the arguments' class SGLang keeps."""
_SHAPE = "what the interpreter can follow"


@dataclass(slots=True, kw_only=True)
class _Outcome:
    """What is found while a command line is followed."""

    rewrites: list[Rewrite] = field(default_factory=list)
    warnings: list[Warned] = field(default_factory=list)
    refusal: Refusal | None = None
    unchecked: list[Unchecked] = field(default_factory=list)
    values: Mapping[str, Native] = field(default_factory=dict)
    facts: Mapping[str, object] = field(default_factory=dict)
    backends: Mapping[str, Constructed] = field(default_factory=dict)


def read_launches(index: Index, query: LaunchQuery) -> list[Launch]:
    """Follow several command lines, each as `read_launch` does, on all cores."""
    model = query.model
    lines = [[*without_model(each), "--model-path", model.name] for each in query.lines]
    return Follower(index, query.gpu, query.num_gpus, model).follow(lines)


def read_launch(index: Index, argv: Sequence[str], gpu: Gpu, num_gpus: int, model: Model) -> Launch:
    """Follow a command line through SGLang's functions.

    Args:
        index: SGLang's source.
        argv: the command line; its `--model-path` is replaced by `model`.
        gpu: the machine's GPUs.
        num_gpus: how many it has.
        model: the model, by its configuration.
    """
    return read_launches(index, LaunchQuery(lines=[argv], gpu=gpu, num_gpus=num_gpus, model=model))[
        0
    ]


class Follower:
    """Follows command lines on one machine; what all of them do alike is done once."""

    def __init__(
        self,
        index: Index,
        gpu: Gpu,
        num_gpus: int,
        model: Model | None = None,
        plugin: str | None = None,
        imported: Sequence[str] = (),
    ) -> None:
        """Take SGLang's source and the machine.

        Args:
            index: SGLang's source.
            gpu: the machine's GPUs.
            num_gpus: how many it has.
            model: a model beside the stored ones.
            plugin: the name of a backend that a plugin registers.
            imported: modules that command lines import, as another machine's did.
        """
        self.imported = imported
        self._index, self._gpu, self._num_gpus = index, gpu, num_gpus
        self._model, self._plugin = model, plugin
        self._ready: _Arguments | None = None

    def follow(self, lines: Sequence[Sequence[str]]) -> list[Launch]:
        """Follow command lines, each ending with its model, on all cores."""
        done: list[Launch] = []
        if not self.imported:  # what the first one parses the others need too
            first, *lines = lines
            one = self._run()
            done.append(one.launch(first, self._gpu))
            self.imported = one.imported
        if lines and self._ready is None:
            self._ready = self._run()
            self._ready.prepare(self.imported)
        if self._ready is None:
            return done
        found = dict(in_forks(partial(self._ready.launch, gpu=self._gpu), lines))
        return done + [found[at] for at in range(len(lines))]

    def _run(self) -> _Arguments:
        run = _Arguments(
            self._index, surroundings(self._index, self._gpu, self._num_gpus, self._models)
        )
        if self._plugin is not None:
            run.register(self._plugin)
        return run

    def _models(self, path: str) -> Mapping[str, object] | None:
        model = self._model
        return model.config if model is not None and path == model.name else config_of(path)


def without_model(argv: Sequence[str]) -> list[str]:
    """Leave the model's path out of a command line, and what starts the program."""
    flags = dropwhile(lambda word: not word.startswith("--"), argv)
    return without_options([*flags], MODEL_OPTIONS)


class _Arguments(Constructions):
    """An interpreter that records what SGLang rewrites of its arguments."""

    def __init__(self, index: Index, names: Mapping[str, Native]) -> None:
        super().__init__(index, {**library({}), **names})
        self._found = _Outcome()
        self._known_fallbacks: Mapping[str, Native] | None = None
        self.imported: Sequence[str] = ()
        """The modules that had been imported when the arguments were processed."""
        self.natives[f"{_OVERRIDES}.declare_resolution"] = Hook(self._declare)
        self.natives[f"{_OVERRIDES}.resolution_result"] = Hook(self._resolved)
        self.natives["logging.Logger.warning"] = Hook(self._warn)

    def register(self, plugin: str) -> None:
        """Register a backend as a plugin does, whose class is not known."""
        self.call(self.found(f"{_ARGUMENTS}.add_attention_backend_choices"), [plugin])
        registered = self.found(f"{_REGISTRY}.ATTENTION_BACKENDS")
        if isinstance(registered, dict):
            registered[plugin] = Hook(lambda *_: Constructed(plugin, ()))

    def prepare(self, modules: Iterable[str]) -> None:
        """Do beforehand what each launch does alike: import modules, and make the parser."""
        for each in modules:
            self.import_module(each)
        cls = self.found(f"{_ARGUMENTS}.ServerArgs")
        add_all = self.attribute_or(cls, _ADDING, None)
        utilities = self.import_module(_UTILITIES)
        for name in _KEPT:
            function = self.attribute_or(utilities, name, None)
            if isinstance(function, FunctionValue | Hook):
                self.call(function, cls)
        if isinstance(cls, ClassValue) and isinstance(add_all, FunctionValue):
            parser = self.call(self.natives["argparse.ArgumentParser"])
            self.call(add_all, parser)
            cls.names[_ADDING] = Hook(partial(_add_same, parser))

    def launch(self, argv: Sequence[str], gpu: Gpu) -> Launch:
        """Follow a command line through to its launch; the interpreter is used up by it."""
        found = self._found
        try:
            self.follow(argv)
        except Raised as error:
            found.refusal = Refusal(message=error.message or error.error, at=error.at)
        except NotFollowedError as error:
            found.unchecked.append(Unchecked(message=str(error), at=error.at, unless=_SHAPE))
        except Exception as error:  # noqa: BLE001 - a fault of ours is no answer of the engine's
            words = f"the interpreter fails ({type(error).__name__}: {error})"
            found.unchecked.append(Unchecked(message=words, at=_ARGUMENTS, unless=_SHAPE))
        finally:
            forget_types()
            self.restore()
        found.unchecked += [Unchecked(message=n.text, at=n.at, unless=n.why) for n in self.notes]
        values = {name: plain(value) for name, value in found.values.items()}
        made = found.backends
        return Launch(
            engine=self.index.label,
            machine=gpu.key,
            model=argv[-1],
            refusal=found.refusal,
            unchecked=tuple(dict.fromkeys(found.unchecked)),
            rewrites=tuple(found.rewrites),
            warnings=tuple(found.warnings),
            values=values,
            flags=flags_of(values),
            facts=found.facts,
            classes={slot: each.in_slot(slot) for slot, each in made.items()},
            wrappers=frozenset(chain.from_iterable(each.wrappers() for each in made.values())),
            joined=frozenset(slot for slot, each in made.items() if each.asks_prefill()),
        )

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
        self.imported = (*self.modules,)
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
            self._rewritten(name, before, owner.attributes[name], self.at)

    def _rewritten(self, name: str, before: Native, after: Native, at: str) -> None:
        if before is not after and plain(before) != plain(after):
            self._found.rewrites.append(
                Rewrite(name=name, before=plain(before), after=plain(after), at=at)
            )

    def _warn(self, _run: Interpreter, args: Sequence[Native], _named: object) -> None:
        """Record a warning that is certain, and whose text is known."""
        match args if self.is_certain else ():
            case [str(text), *values] if all(isinstance(each, PLAIN) for each in values):
                with suppress(TypeError, ValueError):  # Python goes on where values do not fit
                    message = text % tuple(values) if values else text
                    self._found.warnings.append(Warned(message=message, at=self.at))

    def _declare(
        self, _run: Interpreter, args: Sequence[Native], fields: Mapping[str, Native]
    ) -> Native:
        """Do what `declare_resolution` does: add the fields to those that are decided.

        Their line is that at which the function returned them that is named as the source.
        """
        server_args, source = args
        decided = self.attribute_or(server_args, "_resolved_overrides", None)
        if not isinstance(decided, list):
            decided = []
            self.set_raw(server_args, "_resolved_overrides", decided)
        known = {}
        for name, value in fields.items():
            before = _decided(server_args, decided, name)
            before = None if before is MISSING else before
            is_certain = self.is_certain and not isinstance(value, Perhaps)
            own = value.value if isinstance(value, Perhaps) else value
            known[name] = own if is_certain else joined(before, own)
            at = self.left_at(source) if isinstance(source, str) else None
            self._rewritten(name, before, known[name], at or self.at)
        decided.append((source, known))

    def _resolved(
        self, _run: Interpreter, args: Sequence[Native], named: Mapping[str, Native]
    ) -> Native:
        """Do what `resolution_result` does, in one step: it is asked for each argument, often."""
        server_args, name, *default = args
        value = _decided(server_args, self._decisions(server_args), name)
        if value is MISSING:
            value = self.attribute_or(server_args, name, named.get("default", *default or [None]))
        return value if value is not None else self._fallbacks(server_args).get(name)

    def _decisions(self, args: Native) -> Sequence[tuple[Native, Mapping[str, Native]]]:
        decided: Sequence[tuple[Native, Mapping[str, Native]]] = (
            self.attribute_or(args, "_resolved_overrides", None) or ()
        )
        return decided

    def _fallbacks(self, args: Native) -> Mapping[str, Native]:
        """Return the values of arguments that are None in the end."""
        if self._known_fallbacks is None:
            found = self.call(self.found(f"{_UTILITIES}.fallbacks_of"), args.cls)
            self._known_fallbacks = found if isinstance(found, dict) else {}
        return self._known_fallbacks

    def final_values(self, args: Native) -> dict[str, Native]:
        """Return the final value of each argument."""
        decided = self._decisions(args)
        values = {}
        for name in args.cls.record_fields():
            value = _decided(args, decided, name)
            if value is None and decided:
                value = self._fallbacks(args).get(name)
            values[name] = None if value is MISSING else value
        return values


def _add_same(parser: Instance, _run: Interpreter, args: Sequence[Native], _named: object) -> None:
    """Give a parser the arguments of another one."""
    args[0].attributes.update(parser.attributes)


def _decided(
    args: Instance, decided: Sequence[tuple[Native, Mapping[str, Native]]], name: str
) -> Native:
    """Return the last value that was decided, or the given one; missing where there is none."""
    for _, fields in reversed(decided):
        if name in fields:
            return fields[name]
    given = args.attributes.get("_raw_input")
    if isinstance(given, dict) and name in given:
        return given[name]
    return args.attributes.get(name, MISSING)


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
