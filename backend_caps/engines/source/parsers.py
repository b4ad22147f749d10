"""Python's parser of command lines, for an interpreted program."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NoReturn

from backend_caps.engines.source.calls import NotFollowedError
from backend_caps.engines.source.instances import library_class
from backend_caps.engines.source.objects import Objects
from backend_caps.engines.source.values import (
    Args,
    ClassValue,
    Hook,
    Instance,
    Named,
    Native,
    Raised,
    Unknown,
)

_PARSER = "\0parser"
"""The attribute of a program's parser with Python's own."""


class Parser(argparse.ArgumentParser):
    """Python's parser; its error is one of the interpreted program."""

    def __init__(self, run: Objects, prog: str | None = None) -> None:
        super().__init__(prog=prog)
        self._interpreter = run
        self._replaced: dict[Native, Native] = {}

    def replace_action(self, _kind: str, action: Native, by: Native) -> None:
        """Take another class in place of an action's, as `register` does."""
        self._replaced[action] = by

    def added(self, to: Native, names: Args, named: dict[str, Native]) -> Native:
        """Add an argument to this parser or a group of it; type and action may be the program's."""
        action = named.get("action")
        action = self._replaced.get(action, action)
        if isinstance(action, ClassValue):
            named["action"] = _action(self._interpreter, action)
        kind = named.get("type")
        if kind is not None and not isinstance(kind, type):
            named["type"] = _converter(self._interpreter, kind)
        if isinstance(named.get("choices"), Unknown):
            named.pop("choices")
        named["help"] = None
        return to.add_argument(*names, **named)

    def error(self, message: str) -> NoReturn:
        """Raise the error of a command line that the parser refuses."""
        raise self._interpreter.raised(CommandLineError(message))


class CommandLineError(Exception):
    """The program's parser refuses the command line."""


def _converter(run: Objects, kind: Native) -> Native:
    def convert(text: str) -> Native:
        try:
            return run.call(kind, text)
        except Raised as error:
            if isinstance(error.value, Exception):
                raise error.value from error
            raise ValueError(error.message) from error

    convert.__name__ = getattr(kind, "name", "value")
    return convert


_OF_ACTION = ("nargs", "const", "default", "type", "choices", "required", "help", "metavar")


def _init_action(_run: Objects, args: Args, named: Named) -> Native:
    """Do what `argparse.Action.__init__` does."""
    owner, *given = args
    names = ("option_strings", "dest", *_OF_ACTION)
    stated = {**dict.fromkeys(names), "required": False, **dict(zip(names, given, strict=False))}
    owner.attributes.update({**stated, **named})


def _action(run: Objects, cls: Native) -> type[argparse.Action]:
    """Make a native action of an interpreted class, whose constructor and call it runs."""

    class Action(argparse.Action):
        def __init__(self, *args: Native, **named: Native) -> None:
            self.own = run.call(cls, *args, **named)
            stated = self.own.attributes
            kept = {name: stated[name] for name in _OF_ACTION}
            super().__init__(stated["option_strings"], stated["dest"], **kept)

        def __call__(
            self, parser: Native, namespace: Native, values: Native, option: Native = None
        ) -> None:
            run.call(cls.lookup("__call__"), self.own, parser, namespace, values, option)

    return Action


def _init_parser(run: Objects, args: Args, named: Named) -> Native:
    args[0].attributes[_PARSER] = Parser(run, named.get("prog"))


def _add_argument(run: Objects, args: Args, named: Named) -> Native:
    owner, *names = args
    parser, to = _of_owner(owner)
    return _followed(run, lambda: parser.added(to, names, dict(named)))


def _of_owner(owner: Instance) -> tuple[Parser, Native]:
    """Return the parser of a parser or of a group, and the one of the two that it is."""
    found = owner.attributes[_PARSER]
    return found if isinstance(found, tuple) else (found, found)


def _init_group(_run: Objects, args: Args, _named: Named) -> Native:
    owner, container, *_ = args
    parser, _ = _of_owner(container)
    owner.attributes[_PARSER] = (parser, parser.add_argument_group())


def _add_group(name: str) -> Hook:
    def add(_run: Objects, args: Args, _named: Named) -> Native:
        parser, to = _of_owner(args[0])
        return Instance(_GROUP, {_PARSER: (parser, getattr(to, name)())})

    return Hook(add)


def _of_parser(name: str) -> Hook:
    """Call a method of Python's parser."""

    def call(run: Objects, args: Args, named: Named) -> Native:
        parser, _ = _of_owner(args[0])
        return _followed(run, lambda: getattr(parser, name)(*args[1:], **named))

    return Hook(call)


def _followed(run: Objects, call: Callable[[], Native]) -> Native:
    """Call Python's parser; an error of it, which is not the program's, ends the following."""
    try:
        return call()
    except (Raised, NotFollowedError):
        raise
    except (Exception, SystemExit) as error:
        raise NotFollowedError(f"{type(error).__name__}: {error}", run.at) from error


def _init_boolean(run: Objects, args: Args, named: Named) -> Native:
    """Do what the constructor of `argparse.BooleanOptionalAction` does."""
    owner, *given = args
    stated = {**dict(zip(("option_strings", "dest", "default"), given, strict=False)), **named}
    options = [
        each
        for option in stated["option_strings"]
        for each in (option, f"--no-{option[2:]}")
        if each == option or option.startswith("--")
    ]
    return _init_action(run, [owner], {**stated, "option_strings": options, "nargs": 0})


def _call_boolean(run: Objects, args: Args, _named: Named) -> Native:
    owner, _, namespace, _, option = args
    value = not option.startswith("--no-")
    run.set_attribute(namespace, owner.attributes["dest"], value)


_GROUP = library_class(
    "argparse._ArgumentGroup",
    {
        "__init__": Hook(_init_group),
        "add_argument": Hook(_add_argument),
        "add_mutually_exclusive_group": _add_group("add_mutually_exclusive_group"),
    },
)
_OF_PARSER: dict[str, Native] = {
    "__init__": Hook(_init_parser),
    "__getattr__": Hook(
        lambda run, args, _named: run.attribute(args[0].attributes[_PARSER], args[1])
    ),
    "add_argument": Hook(_add_argument),
    "add_argument_group": _add_group("add_argument_group"),
    "add_mutually_exclusive_group": _add_group("add_mutually_exclusive_group"),
    "register": _of_parser("replace_action"),
    **{
        name: _of_parser(name)
        for name in ("parse_args", "parse_known_args", "error", "set_defaults", "get_default")
    },
}
PARSING: dict[str, Native] = {
    "argparse.Action.__init__": Hook(_init_action),
    "argparse.ArgumentParser": library_class("argparse.ArgumentParser", _OF_PARSER),
    "argparse._ArgumentGroup": _GROUP,
    "argparse.BooleanOptionalAction": library_class(
        "argparse.BooleanOptionalAction",
        {"__init__": Hook(_init_boolean), "__call__": Hook(_call_boolean)},
    ),
    "argparse.SUPPRESS": argparse.SUPPRESS,
    "argparse.Namespace": Hook(lambda _run, _args, named: argparse.Namespace(**named)),
    "argparse.ArgumentTypeError": argparse.ArgumentTypeError,
}
"""What names of `argparse` mean."""
