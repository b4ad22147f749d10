"""What discovery finds wrong: each problem by its code, and the error of a caller's mistake."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple

from backend_caps.capability.provenance import Problem
from backend_caps.errors import CodedError

_DECLARES = "expected a module that only declares."
_REPAIR = "Repair {claim.module}, or uninstall {claim.distribution}."
_CORRECT_ENTRY = "Correct the entry point of {claim.distribution}, or reinstall it."


class ProblemText(NamedTuple):
    """The texts of a code, with values to fill in as in `str.format`."""

    meaning: str
    message: str
    remedy: str
    hint: str = ""
    """The remedy where a value `meant` is known."""

    def problem(self, code: str, **values: object) -> Problem:
        """Fill in the values."""
        remedy = self.remedy if values.get("meant") is None else self.hint
        message = self.message.format(**values)
        return Problem(code=code, message=message, remedy=remedy.format(**values))


TEXTS: Mapping[str, ProblemText] = {
    "crashes": ProblemText(
        "a signal ended the process that read it",
        "{claim} crashes the interpreter by {detail} while it is read.",
        _REPAIR,
    ),
    "declared-twice": ProblemText(
        "two distributions claim the backend's name",
        "backend {name!r} is declared {how_often}: by {owners}.",
        "Uninstall one, or name the plugins to use in BACKEND_CAPS_PLUGINS.",
    ),
    "duplicate-entry": ProblemText(
        "one distribution claims the name twice, for different objects",
        "{claim.kind} {claim.name!r} is declared twice by {claim.owner}: as {values}.",
        "Take one out of the entry points of {claim.distribution}.",
    ),
    "exits": ProblemText(
        "it ends the interpreter while it is imported",
        f"{{claim}} {{detail}} while it is imported; {_DECLARES}",
        _REPAIR,
    ),
    "hangs": ProblemText(
        "it did not answer before the deadline",
        f"{{claim}} was not read in {{detail}}; {_DECLARES}",
        "Repair {claim.module}, uninstall {claim.distribution}, or allow it more time.",
    ),
    "imports-torch": ProblemText(
        "reading it imports torch",
        "{claim} imports torch; expected a declaration that can be read without it.",
        "Move the declaration to a top-level module of its own that imports backend_caps alone.",
    ),
    "leftover": ProblemText(
        "pip could not remove the distribution and renamed it",
        "{claim} is what pip left behind of a distribution it could not remove: {folder!r}.",
        "Delete that folder.",
    ),
    "malformed-entry": ProblemText(
        "a line of a section of ours is not an entry",
        "{stated_at} says {text!r}; expected name = module:ATTRIBUTE.",
        "Repair or reinstall {owner}.",
    ),
    "missing-attribute": ProblemText(
        "its module has no such attribute",
        "{claim} is not there: {claim.module} has no {detail!r}.",
        _CORRECT_ENTRY,
    ),
    "missing-module": ProblemText(
        "its module is not there",
        "{claim} is not there: no module {detail!r} is found.",
        _CORRECT_ENTRY,
    ),
    "no-such-folder": ProblemText(
        "a folder that was to be searched is not there",
        "{folder!r} is not there; expected a folder or archive with metadata in it.",
        "Correct the path to search.",
    ),
    "not-allowed": ProblemText(
        "the allow-list leaves its distribution out",
        "{claim} is not in {allow_list}, which names: {allowed}.",
        "Add {claim.distribution} to {allow_list} to use it.",
    ),
    "not-installed": ProblemText(
        "the allow-list names a distribution that declares nothing",
        "{allow_list} names {name!r}, and no installed distribution of that name declares "
        "anything; those that do: {known}.",
        "Take it out of {allow_list}, or install it.",
        "Did you mean {meant!r}?",
    ),
    "not-started": ProblemText(
        "the process that reads declarations did not start",
        "{claim} was not read: {cause}.",
        "Look at sitecustomize and at what PYTHONPATH holds; they run in every Python.",
    ),
    "prints": ProblemText(
        "it writes to standard output or error while it is read",
        "{claim} prints {num_bytes} bytes while it is read: {output!r}.",
        "Take the output out of {claim.module}.",
    ),
    "raises": ProblemText(
        "it raises while it is imported", f"{{claim}} raises {{detail}}; {_DECLARES}", _REPAIR
    ),
    "schema": ProblemText(
        "it does not fit the contract of the backend-caps that is installed",
        "{claim} does not fit the contract: {detail}. {claim.owner} requires {claim.wanted}; "
        "installed: {installed}.",
        "Correct the declaration, or install a backend-caps that {claim.distribution} was "
        "written for.",
    ),
    "shadowed": ProblemText(
        "the same distribution comes earlier on the path",
        "{claim} in {folder!r} is shadowed by {winner!r}, which comes first.",
        "Uninstall one of the two.",
    ),
    "two-versions": ProblemText(
        "two versions of its distribution stand in one folder",
        "{claim} is installed more than once in {root!r}: as {folders}.",
        "Delete what is stale, or uninstall {claim.distribution} and install it again.",
    ),
    "unknown-api": ProblemText(
        "its entry-point group is of an api that is not known here",
        "{claim} stands in the group {claim.group!r}, which {installed} does not read; it reads "
        "backend_caps.backends and backend_caps.rules. {claim.owner} requires {claim.wanted}.",
        "Upgrade backend-caps, or install a release of {claim.distribution} that declares in "
        "backend_caps.backends.",
    ),
    "unknown-engine": ProblemText(
        "a rule names a rule set that is not known, and is not used in it",
        "{claim} has the rule {rule!r} for {engine!r}, and no rule set of that name is known; "
        "known: {known}.",
        "Correct the engines of {rule!r}, or install a backend-caps that knows {engine!r}.",
        "Did you mean {meant!r}?",
    ),
    "unreadable": ProblemText(
        "a distribution's metadata cannot be read",
        "{path!r} cannot be read: {cause}.",
        "Correct its permissions, or reinstall the distribution.",
    ),
    "working-directory": ProblemText(
        "its metadata stands in the working directory, which is not searched",
        "{claim} stands in the working directory {folder!r}, which is not searched.",
        "Install it, or name the folder: --path . (in Python, discover(path=['.'])).",
    ),
    "wrong-type": ProblemText(
        "it is not a declaration, or not rules",
        "{claim} is of type {detail}; expected {claim.expected_type}.",
        "Correct {claim.module}.",
    ),
}
"""Each stable code with its meaning, its message and its remedy."""


def problem(code: str, **values: object) -> Problem:
    """Fill in the texts of a code."""
    return TEXTS[code].problem(code, **values)


def installed_release(distribution: str = "backend-caps") -> str:
    """Return this package's name with its version."""
    # Only some problems need it, and this import takes half as long as a scan.
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    try:
        return f"{distribution} {version(distribution)}"
    except PackageNotFoundError:
        return f"{distribution} (not installed, run from its source)"


class DiscoveryError(CodedError):
    """A caller of discovery gave what it cannot use; a plugin's fault is a `Problem`."""

    codes: ClassVar[Mapping[str, str]] = {
        "string-instead-of-list": "an argument that takes several strings was given one",
        "deadline": "a deadline leaves no time at all, or has no end",
        "repeated-backend": "two backends of a registry made by hand have one name",
    }
