# ruff: noqa: INP001 - the folder holds pages, and the modules that keep them true
"""The generated parts of the reference pages: markdown from what the code says.

A page asks for its part between cog's markers; `make docs` tells which pages are stale, and
`make docs-write` renews them.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import click
from pydantic.fields import FieldInfo

import backend_caps
from backend_caps.capability.compute import ComputeRange, Version
from backend_caps.capability.facts import AtLeast, Facts, Given
from backend_caps.capability.fit import CHECKED_AGAINST
from backend_caps.capability.kind import EVERY_USE, Kind, Polarity
from backend_caps.capability.scale import Anything, Scale, Undeclared
from backend_caps.capability.sizes import Exact, MultipleOf, OneOf, Unchecked
from backend_caps.capability.vocabulary import CAPABILITIES, NO_LIMIT, SPELLINGS, Capabilities
from backend_caps.cli.main import cli
from backend_caps.discovery.problems import CODES
from backend_caps.engines.problems import CODES as ENGINE_CODES
from backend_caps.resolution.command_line import ENVIRONMENT_PREFIX
from backend_caps.resolution.engine import DEFAULT_ENGINE, ENGINES, engine, option_of
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.plan import Policy
from backend_caps.resolution.rules import RuleSet
from backend_caps.settings.layers import FACTS, SECTIONS, SERVER
from backend_caps.settings.settings import KEYS, Settings
from backend_caps.settings.variables import variable_of
from docs.error_examples import BY_OCCASION
from docs.sources import attribute_docs, problem_texts

_WIDTH = 100
_OF_TWO = 2


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Draw a markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


# What a field can hold, from its annotation.


_CONSTANTS = {
    "ANY": "Every value is taken: stated, which is not the same as unstated.",
    "DEVICE_TRAITS": "What each torch device type has that the relay can use.",
    "UNDECLARED": "What nobody stated. It resolves to the worst value.",
}


def first_line(thing: object, name: str = "") -> str:
    """Return the first line of a docstring; a constant has its own."""
    text = _CONSTANTS.get(name) or inspect.getdoc(thing)
    assert text is not None, f"{name or thing} has no docstring"
    return text.partition("\n\n")[0]


def values_of(annotation: object) -> str:
    """Write what a field can hold."""
    options = [option for option in _options(annotation) if option is not Undeclared]
    return " or ".join(dict.fromkeys(_option(option) for option in options))


def _options(annotation: object) -> Iterator[object]:
    """List the members of a union, through every `Annotated` around them."""
    if get_origin(annotation) is Annotated:
        yield from _options(get_args(annotation)[0])
    elif get_origin(annotation) in {Union, UnionType}:
        for member in get_args(annotation):
            yield from _options(member)
    else:
        yield annotation


_PLAIN: dict[object, str] = {
    Path: "a path",
    float: "seconds",
    bool: "`True`, `False`",
    int: "a number",
    str: "a name",
    NoneType: "not given",
    Anything: "`ANY`",
    AtLeast: "`AtLeast(n)`",
    Exact: "`Exact(n)`",
    MultipleOf: "`MultipleOf(n)`",
    OneOf: "`OneOf({n, …})`",
    ComputeRange: "`ComputeRange((9, 0), below=…)`",
}


_PLURALS = {"a name": "names", "a number": "numbers", "a path": "paths"}


def _option(option: object) -> str:
    if option in _PLAIN:
        return _PLAIN[option]
    if get_origin(option) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(option))
    if isinstance(option, type) and issubclass(option, Enum):
        sign = " < " if issubclass(option, Scale) else ", "
        return sign.join(f"`{member.name}`" for member in option)
    if option == Version:
        return "(major, minor)"
    kind = "a set of" if get_origin(option) is AbstractSet else "several of"
    return f"{kind} {_PLURALS.get(said := values_of(get_args(option)[0]), said)}"


def _shown(value: object) -> str:
    """Write a value as it stands in a declaration."""
    match value:
        case Unchecked():
            return "not checked"
        case bool():
            return f"`{value}`"
        case int():
            return "no limit" if value == NO_LIMIT else f"`{value}`"
        case Enum():
            return f"`{value.name}`"
        case frozenset() | tuple():
            members = [member for member in value if isinstance(member, Enum)]
            members.sort(key=lambda member: list(type(member)).index(member))
            return ", ".join(f"`{member.name}`" for member in members) or "none"
    raise AssertionError(f"no capability has the extreme {value!r}")


# capabilities.md


def capabilities_table() -> str:
    """Give each capability a row with its algebra."""
    rows = [
        (
            f"[`{name}`](#{name})",
            kind.polarity.value,
            _worst(name, kind),
            _shown(kind.best),
            kind.scope.value,
        )
        for name, kind in CAPABILITIES.items()
    ]
    return table(("capability", "polarity", "worst", "best", "scope"), rows)


def capabilities() -> str:
    """Give each capability a section."""
    return "\n\n".join(_capability(name, kind) for name, kind in CAPABILITIES.items())


def _capability(name: str, kind: Kind) -> str:
    field = Capabilities.model_fields[name]
    facts = [
        f"values: {values_of(field.annotation)}",
        f"polarity: {kind.polarity.value}; {_joins(kind)}",
        f"worst, where undeclared: {_worst(name, kind)}; best: {_shown(kind.best)}",
        f"scope: {kind.scope.value}",
        *_counted(kind),
        *([f"counts only with: [`{kind.requires}`](#{kind.requires})"] if kind.requires else []),
        *([f"checked against the fact: `{fact}`"] if (fact := CHECKED_AGAINST.get(name)) else []),
        *(f"second spelling: `{other}`" for other, main in SPELLINGS.items() if main == name),
    ]
    parts = [f"### {name}", attribute_docs()["Capabilities"][name], _bullets(facts)]
    parts += [_members(each) for each in _enums(field.annotation)]
    return "\n\n".join(parts)


def _worst(name: str, kind: Kind) -> str:
    """Write what an undeclared capability counts as."""
    return "not checked" if name in CHECKED_AGAINST else _shown(kind.worst)


def _joins(kind: Kind) -> str:
    way = "more" if kind.polarity is Polarity.NEED else "less"
    said = inspect.getdoc(kind.join)
    assert said is not None, f"{kind.join} has no docstring"
    how = said.partition("\n")[0].removeprefix("Join ").removesuffix(".")
    return f"joins towards {way}: {how}"


def _counted(kind: Kind) -> Iterator[str]:
    if kind.counted != EVERY_USE:
        places = sorted(f"{role.value} {phase.value}" for role, phase in kind.counted)
        yield f"counted in: {', '.join(places)}"


def _enums(annotation: object) -> Iterator[type[Enum]]:
    for option in _options(annotation):
        inner = get_args(option)[0] if get_origin(option) is AbstractSet else option
        if isinstance(inner, type) and issubclass(inner, Enum) and len(inner) >= _OF_TWO:
            yield inner


def _members(enum: type[Enum]) -> str:
    docs = attribute_docs()[enum.__name__]
    rows = [(f"`{enum.__name__}.{m.name}`", f"`{m.value}`", docs[m.name]) for m in enum]
    return table(("member", "in JSON", "meaning"), rows)


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"* {line}" for line in lines)


def enum(name: str) -> str:
    """Give the members of one of the package's enums with their meanings."""
    docs = attribute_docs()[name]
    return table(("", "meaning"), [(f"`{member.lower()}`", text) for member, text in docs.items()])


def facts() -> str:
    """Give each fact with its type."""
    docs = attribute_docs()["Facts"]
    rows = [
        (f"`{name}`", values_of(field.annotation).removesuffix(" or not given"), docs[name])
        for name, field in Facts.model_fields.items()
    ]
    return table(("fact", "value", "meaning"), rows)


def conditions() -> str:
    """Give each name that a condition can ask for."""
    rows = [
        (f"`{name}`", values_of(field.annotation).removesuffix(" or not given"))
        for name, field in Given.model_fields.items()
    ]
    return table(("name", "what can be asked for"), rows)


# flags.md and rules.md


def flags() -> str:
    """Give each server flag that matters, with its spellings on a command line."""
    docs = attribute_docs()["ServerFlags"]
    known = engine(DEFAULT_ENGINE)
    rows = []
    for name, field in ServerFlags.model_fields.items():
        if name == "unrelated":
            continue
        aliases = [each for each in known.spellings(name) if each != option_of(name)]
        spelled = " ".join(f"`{each}`" for each in (option_of(name), *aliases))
        is_switch = isinstance(field.default, bool)
        takes = "nothing" if is_switch else values_of(field.annotation)
        rows.append(
            (spelled, takes.removesuffix(" or not given"), _default(field.default), docs[name])
        )
    return table(("flag", "takes", "default", "meaning"), rows)


def _default(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "off"
    return f"`{value}`"


# settings.md


def settings() -> str:
    """Give each setting with its spellings, by what it takes and what is built in."""
    docs = attribute_docs()["Settings"]
    rows = []
    for name, field in Settings.model_fields.items():
        key = KEYS[name]
        is_section = key in SECTIONS
        variable = variable_of(key, "<NAME>") if is_section else variable_of(key)
        option = {FACTS: "`--fact`", SERVER: "after `--`"}.get(key, f"`--{key}`")
        default = "" if is_section or field.default in {None, ()} else _written(field.default)
        rows.append((f"`{key}`", f"`{variable}`", option, _taken(field), default, docs[name]))
    return table(("in a file", "variable", "option", "takes", "default", "meaning"), rows)


def _taken(field: FieldInfo) -> str:
    """Write what a setting takes, as a file has it."""
    if field.annotation is Policy:
        return ", ".join(f"`{policy.value}`" for policy in Policy)
    if field.annotation in {Facts, ServerFlags}:
        return "a mapping"
    if field.annotation is bool:
        return "`true`, `false`"
    taken = values_of(field.annotation).removesuffix(" or not given")
    return taken.replace("several of", "a list of")


def _written(value: object) -> str:
    match value:
        case bool():
            return f"`{str(value).lower()}`"
        case float():
            return f"`{value:g}`"
        case Enum():
            return f"`{value.value}`"
    return f"`{value}`"


def environment() -> str:
    """Give the variable of a flag, as an example."""
    return f"`{ENVIRONMENT_PREFIX}PAGE_SIZE=16` is `--page-size 16`."


def engines() -> str:
    """Give each engine version with how many flags and backends it is known to have."""
    rows = []
    for name in ENGINES:
        known = engine(name)
        num_options = len(set(known.options.values()))
        rows.append((f"`{name}`", str(num_options), str(len(known.attention_backends))))
    return table(("engine version", "flags", "backend names"), rows)


def rules() -> str:
    """Give each built-in rule set with its rules."""
    return "\n\n".join(_rule_set(RuleSet.builtin(name)) for name in ENGINES)


def _rule_set(rules: RuleSet) -> str:
    rows = [
        (
            f"`{rule.name}`",
            f"{rule.given}",
            ", ".join(f"`{name}` {_shown(value)}" for name, value in rule.forces.stated().items()),
            rule.reason,
        )
        for rule in rules.rules
    ]
    default = ", the default" if rules.name == DEFAULT_ENGINE else ""
    return "\n\n".join(
        (
            f"### {rules.name}{default}",
            f"Overlaps the steps of: {', '.join(sorted(rules.relays))}.",
            f"Built in besides: {', '.join(sorted(rules.algorithms - rules.relays)) or 'none'}.",
            table(("rule", "where", "forces", "reason"), rows),
        )
    )


# cli.md


def command_line() -> str:
    """Give each command's own help."""
    parts = [_help(cli, "backend-caps", None)]
    assert isinstance(cli, click.Group)
    context = click.Context(cli, info_name="backend-caps", **cli.context_settings)
    return "\n\n".join([*parts, *_commands(cli, context)])


def _commands(group: click.Group, context: click.Context) -> Iterator[str]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, f"{name} is listed and not there"
        yield _help(command, name, context)
        if isinstance(command, click.Group):
            yield from _commands(command, click.Context(command, parent=context, info_name=name))


def _help(command: click.Command, name: str, parent: click.Context | None) -> str:
    settings: dict[str, Any] = {**command.context_settings, "terminal_width": _WIDTH}
    context = click.Context(command, info_name=name, parent=parent, **settings)
    lines = "\n".join(line.rstrip() for line in command.get_help(context).splitlines())
    return f"### {context.command_path}\n\n```text\n{lines}\n```"


# errors.md and problems.md


def errors() -> str:
    """Give each error with an example, by the occasion on which it is raised."""
    return "\n\n".join(
        f"## {title}\n\n{told}\n\n" + "\n\n".join(_error(example) for example in examples)
        for title, told, examples in BY_OCCASION
    )


def _error(example: backend_caps.BackendCapsError) -> str:
    kind = type(example)
    fields = list(inspect.signature(kind).parameters)
    told = f"Fields: {', '.join(f'`{name}`' for name in fields)}." if fields else "No fields."
    return f"### {kind.__name__}\n\n{first_line(kind)} {told}\n\n```text\n{example}\n```"


def discovery_problems() -> str:
    """Give each fault of a plugin."""
    return _problems(CODES)


def engine_problems() -> str:
    """Give each thing that can be wrong with an engine's source."""
    return _problems(ENGINE_CODES)


def _problems(codes: Mapping[str, str]) -> str:
    remedies = {text.code: text.remedies for text in problem_texts()}
    rows = [
        (f"`{code}`", f"{meaning[0].upper()}{meaning[1:]}.", " Or: ".join(remedies[code]))
        for code, meaning in codes.items()
    ]
    return table(("code", "meaning", "what to do"), rows)


def plan_problems() -> str:
    """Give each problem of a plan."""
    texts = [text for text in problem_texts() if text.code not in {*CODES, *ENGINE_CODES}]
    rows = [(f"`{t.code}`", t.message, " Or: ".join(t.remedies)) for t in texts]
    for fact in CHECKED_AGAINST.values():
        code = fact.replace("_", "-")
        taken = f"backend … takes {fact} …; here it is …."
        unsaid = f"backend … does not say which {fact} it takes; here it is …."
        unknown = f"backend … takes {fact} …; here it is not known."
        rows.append((f"`{code}-unsupported`", taken, f"Use another backend, or {fact} …."))
        say = f"Say what it is, such as by --fact {fact}=…."
        told = f"{unsaid} Or, in a selection: {unknown}"
        ask = f"Ask the backend's author to declare it. Or: {say}"
        rows.append((f"`{code}-not-checked`", told, ask))
    return table(("code", "what it says", "what to do"), sorted(rows))
