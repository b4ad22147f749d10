"""Python's parser of command lines, for an interpreted program."""

from __future__ import annotations

import argparse
from typing import NoReturn

from backend_caps.engines.source.objects import Objects
from backend_caps.engines.source.values import (
    Args,
    ClassValue,
    Hook,
    Named,
    Native,
    Raised,
    Unknown,
)


def _parser(run: Objects, args: Args, named: Named) -> Native:
    return Parser(run, *args, **named)


class Parser(argparse.ArgumentParser):
    """Python's parser; its error is one of the interpreted program."""

    def __init__(self, run: Objects, *args: Native, **named: Native) -> None:
        del args
        super().__init__(prog=named.get("prog"))
        self._interpreter = run

    def add_argument(self, *names: Native, **named: Native) -> Native:
        """Add an argument, whose type and action may be of the interpreted program."""
        if isinstance(named.get("action"), ClassValue):
            named["action"] = _action(self._interpreter, named["action"])
        kind = named.get("type")
        if kind is not None and not isinstance(kind, type):
            named["type"] = _converter(self._interpreter, kind)
        if isinstance(named.get("choices"), Unknown):
            named.pop("choices")
        named["help"] = None
        return super().add_argument(*names, **named)

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


PARSING: dict[str, Native] = {
    "argparse.Action.__init__": Hook(_init_action),
    "argparse.ArgumentParser": Hook(_parser),
    "argparse.BooleanOptionalAction": argparse.BooleanOptionalAction,
    "argparse.Namespace": Hook(lambda _run, _args, named: argparse.Namespace(**named)),
    "argparse.ArgumentTypeError": argparse.ArgumentTypeError,
}
"""What names of `argparse` mean."""
