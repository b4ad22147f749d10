"""The options of an engine's command line, and a reader that assigns words to fields.

The options are data, extracted from each version's source. The values read here are still texts;
`ServerFlags` validates them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise, takewhile
from os import PathLike, fspath
from pathlib import Path, PurePath

from backend_caps.errors import BackendCapsError
from backend_caps.resolution.errors import FlagsError, FlagValueError, nearest

ENGINES = ("sglang-0.5.13", "sglang-0.5.23")
"""The engine versions whose command lines and rules are known, the newest last."""
RUNTIME = "backend-caps-1"
"""The rules of this package's own engine (`backend_caps.runtime`)."""
RULE_SETS = (*ENGINES, RUNTIME)
"""The rule sets that come with the package."""
_COMMAND_LINES = {RUNTIME: "sglang-0.5.13"}
"""The engine whose flags a rule set without its own command line takes."""
ENVIRONMENT_PREFIX = "BACKEND_CAPS_FLAG_"
_NEAR = 0.85
YES_OR_NO: Mapping[str, bool] = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}
"""The texts by which a variable sets a switch, in any case."""
_OTHERS: Mapping[tuple[str, str], str] = {
    ("vllm", "serve"): "vllm",
    ("-m", "vllm.entrypoints.openai.api_server"): "vllm",
}
"""Two words that start an unsupported engine, and its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """The options and the backends' names of one version of an engine."""

    name: str
    options: Mapping[str, tuple[str, ...]]
    """Every option with its spellings, itself included."""
    attention_backends: frozenset[str]

    def spellings(self, field: str) -> tuple[str, ...]:
        """List the options that set a field of `ServerFlags`."""
        option = option_of(field)
        return self.options.get(option, (option,))


def option_of(field: str) -> str:
    """Write a field's name as its option on the command line."""
    return "--" + field.replace("_", "-")


def words_of(flags: Mapping[str, object]) -> Iterator[str]:
    """Write flags of a file as words of a command line; a switch that is off has none."""
    for name, value in flags.items():
        if value is False:
            continue
        yield option_of(name.removeprefix("--"))
        if isinstance(value, Mapping):
            yield json.dumps(value)
        elif value is not True:
            yield from map(str, value if isinstance(value, list | tuple) else [value])


def without_options(
    words: Sequence[str], options: Collection[str], value: str | None = None
) -> list[str]:
    """Leave options out of a command line, with the value of each.

    Args:
        words: the command line.
        options: what is left out, in full.
        value: leave an option out only where it has this value.
    """
    kept: list[str] = []
    rest = list(reversed(words))
    while rest:
        word = rest.pop()
        option, equals, text = word.partition("=")
        if option not in options:
            kept.append(word)
            continue
        own = [word] if equals or not rest else [word, text := rest.pop()]
        if value not in {None, text}:
            kept += own
    return kept


def value_in(words: Sequence[str], options: Collection[str]) -> str | None:
    """Return the value of options on a command line, the last; None where none is given."""
    found: str | None = None
    for word, after in pairwise((*words, "")):
        option, equals, text = word.partition("=")
        if option in options:
            found = text if equals else after
    return found


def read_data(name: str) -> str:
    """Read one of the data files that come with the package."""
    return (Path(__file__).parent / "data" / name).read_text("utf-8")


@cache
def engine(name: str) -> Engine:
    """Read the command line that goes with one of `RULE_SETS`."""
    stored = json.loads(read_data(f"{_COMMAND_LINES.get(name, name)}.json"))
    return Engine(
        name=name,
        options={option: tuple(group) for group in stored["options"] for option in group},
        attention_backends=frozenset(stored["attention_backends"]),
    )


def installed_engine() -> tuple[str, str]:
    """Return the default engine version, and why it is the default."""
    newest = ENGINES[-1]
    try:
        installed = f"sglang-{version('sglang')}"
    except PackageNotFoundError:
        return newest, "the newest known; no SGLang is installed"
    if installed in ENGINES:
        return installed, "the installed version"
    return newest, f"the newest known; the installed {installed} is not"


def engine_of(named: str | Engine | None) -> Engine:
    """Look an engine up by its name; None is the default one."""
    return named if isinstance(named, Engine) else engine(named or installed_engine()[0])


@dataclass(slots=True)
class CommandLine:
    """The content of a command line: values by field, other flags, faults."""

    values: dict[str, object] = field(default_factory=dict)
    unrelated: tuple[str, ...] = ()
    faults: tuple[BackendCapsError, ...] = ()

    def over(self, base: CommandLine) -> CommandLine:
        """Put this line's values over those of another."""
        values, unrelated = {**base.values, **self.values}, base.unrelated + self.unrelated
        return CommandLine(values, unrelated, base.faults + self.faults)


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads words for one version of an engine.

    `switches` holds each field that concerns us, and whether its flag takes no value; a flag of
    `lists` takes all words up to the next flag, as a tuple.
    """

    engine: Engine
    switches: Mapping[str, bool]
    lists: frozenset[str] = frozenset()

    def argv(self, argv: Sequence[str]) -> CommandLine:
        """Read a command line; words before the first flag are skipped.

        If they start an unsupported engine, that is a fault: its flags differ.
        """
        line = CommandLine(faults=tuple(self._others(argv)))
        rest = list(reversed(argv))
        while rest:
            word = rest.pop()
            if not word.startswith("--") or word == "--":
                continue
            option, equals, text = word.partition("=")
            value = text if equals else _taken(rest)
            if option != "--config":
                self._option(option, value, rest, line)
            elif value is None:
                line.faults += (_missing(option, "the path of a file"),)
            else:
                line = line.over(self.file(value))
        return line

    def _others(self, argv: Sequence[str]) -> Iterator[FlagsError]:
        for first, second in pairwise(takewhile(lambda word: not word.startswith("--"), argv)):
            owner = _OTHERS.get((PurePath(first).name, second))
            if owner is not None:
                program = f"{first} {second}"
                yield FlagsError(
                    "other-engine",
                    f"{program!r} starts {owner}, whose flags and routing are not read; expected "
                    f"the flags of {self.engine.name}. Write them in place of {program!r} and what "
                    f"follows it; backend-caps report --engine {owner}, without server flags, "
                    f"shows what {owner}'s backends say.",
                )

    def _option(self, option: str, value: str | None, rest: list[str], line: CommandLine) -> None:
        name = self._place(option, line)
        if name is None:
            return
        if self.switches[name]:
            if value is not None:
                fault = FlagValueError(flag=option, value=repr(value), expected="no value")
                line.faults += (fault,)
            line.values[name] = True
        elif value is None:
            line.faults += (_missing(option, "a value"),)
        elif name in self.lists:
            line.values[name] = (value, *iter(lambda: _taken(rest), None))
        else:
            line.values[name] = value

    def field_of(self, option: str) -> str | None:
        """Return the field that an option, also abbreviated, sets; None if unrelated."""
        return self._place(option, CommandLine())

    def mapping(self, values: Mapping[str, object]) -> CommandLine:
        """Read values by flag name, with dashes or underscores."""
        line = CommandLine()
        for key, value in values.items():
            name = self._place(option_of(key.removeprefix("--")), line)
            if name is not None:
                line.values[name] = value
        return line

    def file(self, path: str | PathLike[str]) -> CommandLine:
        """Read a YAML or JSON mapping; a flag that is `null` is not given."""
        return self.mapping(read_flags(path))

    def environ(self, environ: Mapping[str, str]) -> CommandLine:
        """Read the variables with our prefix; a switch takes yes or no."""
        line, expected = CommandLine(), "1, true, yes, on, 0, false, no or off"
        for variable in sorted(each for each in environ if each.startswith(ENVIRONMENT_PREFIX)):
            name, value = variable.removeprefix(ENVIRONMENT_PREFIX).lower(), environ[variable]
            if name not in self.switches:
                near = nearest(name, list(self.switches), cutoff=0.0)
                line.faults += (_unknown(variable, ENVIRONMENT_PREFIX + str(near).upper()),)
            elif not self.switches[name]:
                line.values[name] = value
            elif value.lower() in YES_OR_NO:
                line.values[name] = YES_OR_NO[value.lower()]
            else:
                fault = FlagValueError(flag=variable, value=repr(value), expected=expected)
                line.faults += (fault,)
        return line

    def _place(self, option: str, line: CommandLine) -> str | None:
        """Return the field that an option sets; record it as a fault or unrelated."""
        fields = {word: name for name in self.switches for word in self.engine.spellings(name)}
        if option in fields:
            return fields[option]
        if option not in self.engine.options:
            # SGLang's argparse accepts prefixes, unless several flags share them.
            spelled = self.engine.options
            matches = {known for known in {*fields, *spelled} if known.startswith(option)}
            meant = sorted({min(matches.intersection(spelled.get(m, (m,)))) for m in matches})
            if len(meant) == 1 and meant[0] in fields:
                return fields[meant[0]]
            if len(meant) > 1 and not fields.keys().isdisjoint(meant):
                text = f"{option} could be {', '.join(meant)}. Write the flag out."
                line.faults += (FlagsError("ambiguous-flag", text),)
                return None
            if not meant and (near := nearest(option, list(fields), cutoff=_NEAR)) is not None:
                line.faults += (_unknown(option, near),)
                return None
        line.unrelated += (option,)
        return None


def read_flags(path: str | PathLike[str]) -> dict[str, object]:
    """Read a YAML or JSON mapping of flags; one that is `null` is not given.

    Raises:
        FlagsError: the file is not there, or is no such mapping.
    """
    import yaml  # noqa: PLC0415 - 20 ms that only a file of flags is worth

    try:
        loaded = yaml.safe_load(Path(path).read_bytes())
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise _unreadable(path, " ".join(str(error).split())) from error
    values = {} if loaded is None else loaded
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise _unreadable(path, f"it holds a {type(values).__name__}, or keys that are no text")
    return {key: value for key, value in values.items() if value is not None}


def _unknown(flag: str, meant: str) -> FlagsError:
    return FlagsError(
        "unknown-flag",
        f"{flag} is no flag of this engine, and looks like {meant}. "
        f"Write {meant}, or leave it out.",
    )


def _missing(flag: str, expected: str) -> FlagsError:
    text = f"{flag} has no value; expected {expected}. Add it after the flag."
    return FlagsError("missing-value", text)


def _unreadable(path: str | PathLike[str], cause: str) -> FlagsError:
    return FlagsError(
        "flags-file",
        f"flags file {fspath(path)!r} cannot be read: {cause}. Expected a YAML or JSON "
        "mapping of flag names to values. Correct the file or its path.",
    )


def _taken(rest: list[str]) -> str | None:
    """Pop the next word, the last of `rest`; None at the end or before a flag."""
    return rest.pop() if rest and not rest[-1].startswith("--") else None
