"""The options that commands share, and the request that is read from them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias, TypeVar

import click
from click.core import ParameterSource
from pydantic import BaseModel, ValidationError

from backend_caps.capability.facts import Facts
from backend_caps.capability.model import AUTO
from backend_caps.capability.vocabulary import Capabilities
from backend_caps.cli import invocation
from backend_caps.cli.launch import model_and_words
from backend_caps.cli.output import Format, examples, printer
from backend_caps.cli.request import Request, query_of, without_launch
from backend_caps.resolution.engine import ENGINES, RULE_SETS, Engine, engine, installed_engine
from backend_caps.resolution.errors import raise_all
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.plan import Policy
from backend_caps.resolution.rules import RuleSet
from backend_caps.resolution.selection import BACKEND_FLAGS

_Model = TypeVar("_Model", bound=BaseModel)
fact_option = click.option(
    "--fact",
    multiple=True,
    metavar="NAME=VALUE",
    help="What is known of machine and model, such as head_size=128. Repeatable.",
)
_OPTIONS = (
    invocation.setting_option(
        "--policy",
        type=click.Choice([policy.value for policy in Policy]),
        default=Policy.WARN.value,
        show_default=True,
        help="Refuse problems (exit status 1), show them, or leave them out.",
    ),
    fact_option,
    click.option(
        "--unsafe-override",
        multiple=True,
        metavar="NAME=VALUE",
        help="Put a value in place of the joined one; recorded as a cause. Repeatable.",
    ),
    invocation.setting_option(
        "--require-evidence/--no-require-evidence",
        help="Count a claim that the conformance kit has not verified as undeclared.",
    ),
    click.option(
        "--flags-file",
        type=click.Path(path_type=Path),
        help="Server flags from a YAML or JSON file; those after -- go before them.",
    ),
    invocation.format_option(),
    invocation.setting_option(
        "--verbose/--no-verbose", help="Name the server flags that do not matter here."
    ),
)


EngineOptions: TypeAlias = Callable[[click.Command], click.Command]
Option: TypeAlias = Callable[[Callable[..., None]], Callable[..., None]]
Reads: TypeAlias = Callable[[Engine, str], bool]
"""Returns whether a command itself reads an option of the server, so that it matters."""


class ServerCommand(click.Command):
    """A command that takes server flags after `--`."""

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Show where server flags go."""
        return [*super().collect_usage_pieces(ctx), "[-- SERVER FLAGS...]"]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Add to an unknown option's error that server flags go after `--`."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            text = f"{error.message} Server flags go after --."
            raise click.NoSuchOption(error.option_name, text, error.possibilities, ctx) from error


def request_options(command: click.Command, *, rules: str | None = None) -> click.Command:
    """Add the options that `request_of` reads; `rules` is the default of `--rules`.

    Without one it is the installed SGLang's version where its rules are known, else the newest.
    """
    invocation.search_options(command)
    invocation.setting_option(
        "--rules",
        default=rules or (lambda: installed_engine()[0]),
        show_default=rules or f"the installed SGLang's, else {ENGINES[-1]}",
        type=click.Choice(RULE_SETS),
        help="The engine version whose flags and rules hold.",
    )(command)
    for option in _OPTIONS:
        option(command)
    return command


def server_command(
    summary: str,
    *typed: str,
    engine: EngineOptions | None = None,
    rules: str | None = None,
    name: str | None = None,
) -> Callable[[Callable[..., None]], click.Command]:
    """Turn a function into a command with server flags and the options of `request_of`.

    Args:
        summary: its line in the list of commands, up to 60 letters.
        typed: examples, for the end of its help.
        engine: adds the options of an engine; without it, there are none.
        rules: the default of `--rules`; without one, as `request_options` says.
        name: the command's; by default the function's.
    """

    def decorate(function: Callable[..., None]) -> click.Command:
        command = click.command(
            name, cls=ServerCommand, short_help=summary, epilog=examples(*typed)
        )(function)
        return request_options(command if engine is None else engine(command), rules=rules)

    return decorate


def device_option(default: str, words: str) -> Option:
    """Make `--device`, which the settings have too."""
    return invocation.setting_option("--device", default=default, show_default=True, help=words)


def steps_option(default: int, words: str, most: int | None = None) -> Option:
    """Make `--steps`."""
    kind = click.IntRange(min=1, max=most)
    return click.option("--steps", default=default, show_default=True, type=kind, help=words)


def seed_option(words: str) -> Option:
    """Make `--seed`, any that torch takes."""
    kind = click.IntRange(min=0, max=2**63 - 1)
    return click.option("--seed", default=0, show_default=True, type=kind, help=words)


def folder_option(name: str, words: str) -> Option:
    """Make an option for a folder, such as a model's."""
    return click.option(name, type=click.Path(path_type=Path), metavar="FOLDER", help=words)


def check_draft_model(ctx: click.Context) -> None:
    """Refuse a named draft model beside no named model.

    Raises:
        UsageError: it would draft for the small model, which is made without it.
    """
    if ctx.params["draft_model"] is not None and ctx.params["model"] is None:
        raise click.UsageError(
            f"--draft-model {ctx.params['draft_model']} drafts for a model of its own, and none is "
            "named. Add --model, or leave --draft-model out: a small one is then made with the "
            "small model."
        )


def request_of(
    ctx: click.Context,
    reads: Reads | None = None,
    *,
    follows_line: bool = True,
    always_plans: bool = True,
) -> Request:
    """Read a request from a command's options, the flags after `--` and the environment.

    Args:
        ctx: the command's.
        reads: returns whether the command itself reads a flag, so that it matters.
        follows_line: whether the launch of the command line itself is used, with a model, so that
            it is followed while the engine is read.
        always_plans: whether there is to be a plan, also without flags.

    Raises:
        UsageError: the engine's own functions read its flags, and model or machine is not known.
    """
    given, facts = ctx.params, facts_of(ctx)
    model, words = model_and_words(ctx, facts)
    is_layered = given.get("engine") in invocation.LAYERED
    if is_layered and model is None and (always_plans or has_server_flags(ctx)):
        raise without_launch(f"a plan for {given['engine']} is of the layers of a model")
    python, search = given.get("engine_python"), invocation.PluginSearch.from_context(ctx)
    query = None if model is None or not follows_line else query_of([words], model, facts)
    reading = invocation.reading_of(given.get("engine"), given.get("source"), python, query, search)
    line = (None if reading is None else reading.command_line) or given["rules"]
    flags = ServerFlags() if is_layered else _flags(ctx, given["flags_file"], line)
    left_to_engine = [name for name in BACKEND_FLAGS if dict(flags)[name] == AUTO]
    if reading is not None and left_to_engine:
        flags = flags.updated(dict.fromkeys(left_to_engine))
    known = line if isinstance(line, Engine) else engine(line)
    unread = [flag for flag in flags.unrelated if reads is None or not reads(known, flag)]
    if unread and model is None:  # else the engine's own code reads all
        names = ", ".join(unread) if given["verbose"] else "--verbose names them"
        click.echo(f"server flags that do not matter here: {len(unread)} ({names})", err=True)
    rules: str | RuleSet = given["rules"]
    if reading is not None and ctx.get_parameter_source("rules") is ParameterSource.DEFAULT:
        rules = reading.rules or rules
    return Request(
        search=search,
        rules=rules,
        policy=Policy(given["policy"]),
        facts=facts,
        override=override_from(given["unsafe_override"]),
        flags=flags,
        show=printer(Format(given["format_"])),
        reading=reading,
        requires_evidence=given["require_evidence"],
        words=words,
        model=model,
    )


def has_server_flags(ctx: click.Context) -> bool:
    """Return whether there are server flags, on the command line or in the settings."""
    traced = invocation.traced_in(ctx)
    is_set = traced is not None and bool(traced.server(None).values)
    return is_set or bool(ctx.ensure_object(invocation.Invocation).server_flags)


def _flags(ctx: click.Context, file: Path | None, line: str | Engine) -> ServerFlags:
    """Read the flags: the command line's, its file's, the environment's, those of the settings."""
    flags = ServerFlags.from_argv(
        ctx.ensure_object(invocation.Invocation).server_flags, engine_name=line
    )
    if file is not None:
        flags = flags.over(ServerFlags.from_file(file, engine_name=line))
    traced = invocation.traced_in(ctx)
    if traced is None:
        return flags
    server = traced.server(line)
    raise_all("server flags", server.faults)
    return flags.over(server.flags)


def facts_of(ctx: click.Context) -> Facts:
    """Put the facts of the command line over those of the settings."""
    facts, traced = facts_from(ctx.params["fact"]), invocation.traced_in(ctx)
    if traced is None:
        return facts
    return Facts.model_validate({**traced.settings.facts.known(), **facts.known()})


@contextmanager
def importable(folders: Sequence[Path]) -> Iterator[None]:
    """Import first from the folders of `--path`, which hold plugins' code, in a block."""
    paths = [str(folder.absolute()) for folder in folders]
    sys.path[:0] = paths
    try:
        yield
    finally:
        for path in paths:
            sys.path.remove(path)


def facts_from(pairs: Iterable[str]) -> Facts:
    """Read facts, such as `head_size=128` or `compute_capability=[9, 0]`."""
    return _read(Facts, pairs, "--fact")


def override_from(pairs: Sequence[str]) -> Capabilities | None:
    """Read capabilities, such as `host_seq_lens=none` or `graph_replay=[uniform_batch]`."""
    return _read(Capabilities, pairs, "--unsafe-override") if pairs else None


def _read(model: type[_Model], pairs: Iterable[str], option: str) -> _Model:
    try:
        return model.model_validate(dict(_values(pairs, option)))
    except ValidationError as error:
        known = ", ".join(sorted(model.model_fields))
        sentences = []
        for detail in error.errors():
            name = detail["loc"][0] if detail["loc"] else ""
            if detail["type"] == "extra_forbidden":
                sentences.append(f"{option} has no {name!r}; it has: {known}.")
            else:
                sentences.append(f"{option} {name}: {detail['msg']}; got {detail['input']!r}.")
        raise click.UsageError(" ".join(sentences)) from error


def _values(pairs: Iterable[str], option: str) -> Iterator[tuple[str, object]]:
    for pair in pairs:
        import yaml  # noqa: PLC0415 - 17 ms that only a pair is worth

        name, equals, value = pair.partition("=")
        if not equals:
            raise click.UsageError(f"{option} {pair} has no value; expected {option} NAME=VALUE.")
        try:
            yield name.strip(), yaml.safe_load(value)
        except (ValueError, RecursionError, yaml.YAMLError) as error:
            wanted = "expected a word, a number or a list such as [a, b]"
            raise click.UsageError(f"{option} {pair} cannot be read; {wanted}.") from error
