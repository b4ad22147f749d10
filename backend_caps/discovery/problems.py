"""Every fault that discovery tells of: its code, its sentence and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from backend_caps.capability.status import Problem
from backend_caps.discovery.claims import BACKENDS, RULES, Claim

CODES: Mapping[str, str] = {
    "crashes": "a signal ended the process that read it",
    "declared-twice": "two distributions claim the backend's name",
    "duplicate-entry": "one distribution claims the name twice, for different objects",
    "exits": "it ends the interpreter while it is imported",
    "hangs": "it did not answer before the deadline",
    "imports-torch": "reading it imports torch",
    "leftover": "pip could not remove the distribution and renamed it",
    "malformed-entry": "a line of a section of ours is not an entry",
    "missing-attribute": "its module has no such attribute",
    "missing-module": "its module is not there",
    "no-such-folder": "a folder that was to be searched is not there",
    "not-allowed": "the allow-list leaves its distribution out",
    "not-installed": "the allow-list names a distribution that declares nothing",
    "not-started": "the process that reads declarations did not start",
    "prints": "it writes to standard output or error while it is read",
    "raises": "it raises while it is imported",
    "schema": "it does not fit the contract of the backend-caps that is installed",
    "shadowed": "the same distribution comes earlier on the path",
    "two-versions": "two versions of its distribution stand in one folder",
    "unknown-api": "its entry-point group is of an api that is not known here",
    "unknown-engine": "a rule names a rule set that is not known, and is not used in it",
    "unreadable": "a distribution's metadata cannot be read",
    "working-directory": "its metadata stands in the working directory, which is not searched",
    "wrong-type": "it is not a declaration, or not rules",
}
"""Each stable code with its meaning."""

_SHOWN = 200
"""As much of a plugin's output as a report can bear."""


def crashes(claim: Claim, by: str) -> Problem:
    """Tell of a process that a signal ended."""
    return Problem(
        code="crashes",
        message=f"{claim} crashes the interpreter by {by} while it is read.",
        remedy=f"Repair {_module(claim)}, or uninstall {claim.distribution}.",
    )


def declared_twice(claims: Sequence[Claim]) -> Problem:
    """Tell of a backend's name that several distributions claim."""
    owners = sorted(f"{claim.owner} ({claim.value})" for claim in claims)
    how_often = "twice" if len(owners) == len("12") else f"{len(owners)} times"
    return Problem(
        code="declared-twice",
        message=f"backend {claims[0].name!r} is declared {how_often}: by {' and '.join(owners)}.",
        remedy="Uninstall one, or name the plugins to use in BACKEND_CAPS_PLUGINS.",
    )


def duplicate_entry(claims: Sequence[Claim]) -> Problem:
    """Tell of a name that one distribution gives to several objects."""
    values = " and ".join(claim.value for claim in claims)
    kind = "backend" if claims[0].is_backend else "rules"
    return Problem(
        code="duplicate-entry",
        message=f"{kind} {claims[0].name!r} is declared twice by {claims[0].owner}: as {values}.",
        remedy=f"Take one out of the entry points of {claims[0].distribution}.",
    )


def exits(claim: Claim, how: str) -> Problem:
    """Tell of a plugin that ends the interpreter."""
    return Problem(
        code="exits",
        message=f"{claim} {how} while it is imported; expected a module that only declares.",
        remedy=f"Repair {_module(claim)}, or uninstall {claim.distribution}.",
    )


def hangs(claim: Claim, deadline: str) -> Problem:
    """Tell of a plugin that missed the deadline."""
    return Problem(
        code="hangs",
        message=f"{claim} was not read in {deadline}; expected a module that only declares.",
        remedy=f"Repair {_module(claim)}, uninstall {claim.distribution}, or allow it more time.",
    )


def imports_torch(claim: Claim) -> Problem:
    """Tell of a declaration whose reading costs a second or more."""
    return Problem(
        code="imports-torch",
        message=f"{claim} imports torch; expected a declaration that can be read without it.",
        remedy="Move the declaration to a top-level module of its own that imports backend_caps "
        "alone.",
    )


def leftover(claim: Claim, folder: str) -> Problem:
    """Tell of what pip left behind."""
    return Problem(
        code="leftover",
        message=f"{claim} is what pip left behind of a distribution it could not remove: "
        f"{folder!r}.",
        remedy="Delete that folder.",
    )


def malformed_entry(owner: str, stated_at: str, text: str) -> Problem:
    """Tell of a line that cannot be read."""
    return Problem(
        code="malformed-entry",
        message=f"{stated_at} says {text!r}; expected name = module:ATTRIBUTE.",
        remedy=f"Repair or reinstall {owner}.",
    )


def missing_attribute(claim: Claim, name: str) -> Problem:
    """Tell of an object that is not there."""
    return Problem(
        code="missing-attribute",
        message=f"{claim} is not there: {_module(claim)} has no {name!r}.",
        remedy=f"Correct the entry point of {claim.distribution}, or reinstall it.",
    )


def missing_module(claim: Claim, name: str) -> Problem:
    """Tell of a module that is not there."""
    return Problem(
        code="missing-module",
        message=f"{claim} is not there: no module {name!r} is found.",
        remedy=f"Correct the entry point of {claim.distribution}, or reinstall it.",
    )


def no_such_folder(folder: str) -> Problem:
    """Tell of a folder that the caller named."""
    return Problem(
        code="no-such-folder",
        message=f"{folder!r} is not there; expected a folder or archive with metadata in it.",
        remedy="Correct the path to search.",
    )


def not_allowed(claim: Claim, list_name: str, allowed: Sequence[str]) -> Problem:
    """Tell of a distribution that the allow-list leaves out."""
    return Problem(
        code="not-allowed",
        message=f"{claim} is not in {list_name}, which names: {', '.join(allowed) or 'nothing'}.",
        remedy=f"Add {claim.distribution} to {list_name} to use it.",
    )


def not_installed(name: str, list_name: str, known: Sequence[str], meant: str | None) -> Problem:
    """Tell of an allowed distribution that declares nothing."""
    return Problem(
        code="not-installed",
        message=f"{list_name} names {name!r}, and no installed distribution of that name declares "
        f"anything; those that do: {', '.join(known) or 'none'}.",
        remedy=f"Take it out of {list_name}, or install it."
        if meant is None
        else f"Did you mean {meant!r}?",
    )


def not_started(claim: Claim, cause: str) -> Problem:
    """Tell of a process that never got as far as this entry."""
    return Problem(
        code="not-started",
        message=f"{claim} was not read: {cause}.",
        remedy="Look at sitecustomize and at what PYTHONPATH holds; they run in every Python.",
    )


def prints(claim: Claim, output: bytes, num_bytes: int) -> Problem:
    """Tell of output that has no business in a declaration, by how it begins."""
    text = output.decode("utf-8", "replace").strip()
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return Problem(
        code="prints",
        message=f"{claim} prints {num_bytes} bytes while it is read: {shown!r}.",
        remedy=f"Take the output out of {_module(claim)}.",
    )


def raises(claim: Claim, error: str) -> Problem:
    """Tell of an exception."""
    return Problem(
        code="raises",
        message=f"{claim} raises {error}; expected a module that only declares.",
        remedy=f"Repair {_module(claim)}, or uninstall {claim.distribution}.",
    )


def schema(claim: Claim, fault: str, installed: str) -> Problem:
    """Tell of a declaration of another version of the contract."""
    wanted = claim.requires or "backend-caps in no stated version"
    return Problem(
        code="schema",
        message=f"{claim} does not fit the contract: {fault}. {claim.owner} requires {wanted}; "
        f"installed: {installed}.",
        remedy=f"Correct the declaration, or install a backend-caps that {claim.distribution} "
        "was written for.",
    )


def shadowed(claim: Claim, folder: str, winner: str) -> Problem:
    """Tell of a distribution that stands earlier on the path."""
    return Problem(
        code="shadowed",
        message=f"{claim} in {folder!r} is shadowed by {winner!r}, which comes first.",
        remedy="Uninstall one of the two.",
    )


def two_versions(claim: Claim, root: str, folders: Sequence[str]) -> Problem:
    """Tell of metadata of which nobody knows which holds."""
    return Problem(
        code="two-versions",
        message=f"{claim} is installed more than once in {root!r}: as {' and '.join(folders)}.",
        remedy=f"Delete what is stale, or uninstall {claim.distribution} and install it again.",
    )


def unknown_api(claim: Claim, installed: str) -> Problem:
    """Tell of a group that a later backend-caps may read."""
    wanted = claim.requires or "backend-caps in no stated version"
    return Problem(
        code="unknown-api",
        message=f"{claim} stands in the group {claim.group!r}, which {installed} does not read; it "
        f"reads {BACKENDS} and {RULES}. {claim.owner} requires {wanted}.",
        remedy=f"Upgrade backend-caps, or install a release of {claim.distribution} that declares "
        f"in {BACKENDS}.",
    )


def unknown_engine(claim: Claim, rule: str, engine: str, known: Sequence[str]) -> Problem:
    """Tell of a rule of a rule set that there is none of."""
    close = get_close_matches(engine, known, n=1)
    return Problem(
        code="unknown-engine",
        message=f"{claim} has the rule {rule!r} for {engine!r}, and no rule set of that name is "
        f"known; known: {', '.join(known)}.",
        remedy=f"Did you mean {close[0]!r}?"
        if close
        else f"Correct the engines of {rule!r}, or install a backend-caps that knows {engine!r}.",
    )


def unreadable(path: str, cause: str) -> Problem:
    """Tell of a file that is there and cannot be read."""
    return Problem(
        code="unreadable",
        message=f"{path!r} cannot be read: {cause}.",
        remedy="Correct its permissions, or reinstall the distribution.",
    )


def working_directory(claim: Claim, folder: str) -> Problem:
    """Tell of metadata that anybody could have put there."""
    return Problem(
        code="working-directory",
        message=f"{claim} stands in the working directory {folder!r}, which is not searched.",
        remedy="Install it, or name the folder: --path . (in Python, discover(path=['.'])).",
    )


def wrong_type(claim: Claim, kind: str) -> Problem:
    """Tell of an object that is none of ours."""
    expected = "a Declaration" if claim.is_backend else "a Rule or a sequence of Rules"
    return Problem(
        code="wrong-type",
        message=f"{claim} is of type {kind}; expected {expected}.",
        remedy=f"Correct {_module(claim)}.",
    )


def _module(claim: Claim) -> str:
    return claim.value.partition(":")[0]
