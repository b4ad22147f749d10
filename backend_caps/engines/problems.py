"""What can be wrong with an engine's source: each problem, with its code and its sentence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from backend_caps.capability.status import Problem

CODES: Mapping[str, str] = {
    "engine-anchor-missing": "something is not where every known version of the engine has it",
    "engine-base-dynamic": "a class takes its base from what only running code knows",
    "engine-base-not-found": "a class has a base of the engine's own that its source lacks",
    "engine-bases-inconsistent": "the bases of a class have no method resolution order",
    "engine-class-defined-twice": "a module defines a class more than once, under conditions",
    "engine-file-not-parsed": "a file is no Python that this interpreter can parse",
    "engine-file-repeated": "a wheel holds a file more than once",
    "engine-file-too-large": "a file is larger than what is read of one",
    "engine-file-unreadable": "a file cannot be opened or unpacked",
    "engine-import-circle": "modules import a name from one another in a circle",
    "engine-name-not-followed": "no class was found behind a name that the engine registers",
    "engine-name-registered-twice": "more than one file registers a name",
    "engine-name-unusable": "a registered name cannot be printed, or is none",
    "engine-path-unsafe": "a wheel holds a path that is none inside it",
    "engine-rule-unknown": "the engine forces something under a condition that no rule knows",
    "engine-star-import": "a name may come from a star import of what the source lacks",
    "engine-value-not-bool": "a class gives a flag a value that is neither True nor False",
    "engine-version-unknown": "nobody has compared this version of the engine with the reader",
    "engine-wrapper-not-checked": "the engine wraps its backends in what no flag names",
}
"""Each stable code with its meaning."""
_REST = "The rest of the engine is read."


def unsafe_path(path: str) -> Problem:
    """Tell of a path that leads out of the wheel it is in."""
    return Problem(
        code="engine-path-unsafe",
        message=f"the wheel holds {path!r}, which is no path inside it; it was not read.",
        remedy="Do not install this wheel: get it from its publisher again.",
    )


def entry_repeated(path: str) -> Problem:
    """Tell of a file that a wheel holds more than once."""
    return Problem(
        code="engine-file-repeated",
        message=f"the wheel holds {path!r} more than once; the last one was read.",
        remedy="Do not install this wheel: get it from its publisher again.",
    )


def too_large(path: str, limit: int) -> Problem:
    """Tell of a file that is larger than anybody writes."""
    return Problem(
        code="engine-file-too-large",
        message=f"{path} has more than the {limit:,} bytes that are read.",
        remedy=f"{_REST} If backends stand in it, tell the authors of backend-caps.",
    )


def unreadable(path: str, error: str) -> Problem:
    """Tell of a file that could not be opened or unpacked."""
    return Problem(
        code="engine-file-unreadable",
        message=f"{path} cannot be read: {error}.",
        remedy=f"{_REST} Install the engine again.",
    )


def unparsed(path: str, error: str, classes: Iterable[str]) -> Problem:
    """Tell of a file that is no Python of this interpreter's version."""
    named = ", ".join(sorted(classes))
    lost = f" Not read: {named}." if named else ""
    return Problem(
        code="engine-file-not-parsed",
        message=f"{path} is no Python that this interpreter can parse: {error}.{lost}",
        remedy=f"{_REST} Use the Python that the engine runs on, or install the engine again.",
    )


def dynamic_base(where: str, name: str, base: str) -> Problem:
    """Tell of a base class that only running code knows."""
    return Problem(
        code="engine-base-dynamic",
        message=f"{where}: class {name} takes its base from {base}, which only running code "
        "knows; what it inherits from there is not read.",
        remedy="What the class does not state itself counts as undeclared.",
    )


def base_not_found(where: str, name: str, base: str) -> Problem:
    """Tell of a base class of the engine's own that is nowhere in its source."""
    return Problem(
        code="engine-base-not-found",
        message=f"{where}: class {name} has the base {base}, which is not in the source.",
        remedy="What the class does not state itself counts as undeclared.",
    )


def import_circle(where: str, name: str, modules: Iterable[str]) -> Problem:
    """Tell of a name that modules import from one another in a circle."""
    return Problem(
        code="engine-import-circle",
        message=f"{where}: {name} is imported in a circle: {' -> '.join(modules)}.",
        remedy="What hangs on it counts as undeclared.",
    )


def star_import(where: str, name: str, module: str) -> Problem:
    """Tell of a name that may come from a star import that cannot be followed."""
    return Problem(
        code="engine-star-import",
        message=f"{where}: {name} may come from `from {module} import *`, which is not in the "
        "source.",
        remedy="What hangs on it counts as undeclared.",
    )


def defined_twice(where: str, name: str, others: Iterable[str]) -> Problem:
    """Tell of a class that one module defines more than once."""
    return Problem(
        code="engine-class-defined-twice",
        message=f"{where}: class {name} is defined again at {', '.join(others)}; which one runs "
        "depends on a condition.",
        remedy="Each is listed by itself, and all of them count.",
    )


def no_order(where: str, name: str) -> Problem:
    """Tell of a class whose bases have no method resolution order."""
    return Problem(
        code="engine-bases-inconsistent",
        message=f"{where}: the bases of class {name} have no common order.",
        remedy="What the class does not state itself counts as undeclared.",
    )


def anchor_missing(engine: str, version: str, what: str, path: str) -> Problem:
    """Tell that something is not where every known version has it."""
    return Problem(
        code="engine-anchor-missing",
        message=f"{engine} {version} has no {what} in {path}, where known versions have it.",
        remedy="What it says is unknown; use a backend-caps that knows this version.",
    )


def unknown_version(engine: str, version: str, known: Iterable[str]) -> Problem:
    """Tell that nobody has compared this version with the reader."""
    return Problem(
        code="engine-version-unknown",
        message=f"{engine} {version} is not a version that the reader was checked with "
        f"({', '.join(known)}).",
        remedy="Compare what the report says with the engine's source, line by line.",
    )


def unknown_rule(engine: str, version: str, where: str, condition: str) -> Problem:
    """Tell of a condition under which the engine forces the copy, and that no rule knows."""
    return Problem(
        code="engine-rule-unknown",
        message=f"{engine} {version} also keeps the copy where {condition} ({where}), and no "
        "known rule says so.",
        remedy="It counts as open, so the copy stays on; use a backend-caps that knows it.",
    )


def name_not_made(engine: str, name: str, where: str, condition: str = "") -> Problem:
    """Tell of a registered name behind which no class was found."""
    when = f" where {condition}" if condition else ""
    return Problem(
        code="engine-name-not-followed",
        message=f"what {engine} makes for the name {name!r}{when} ({where}) could not be followed "
        "to a class.",
        remedy=f"The name counts as undeclared{' there' if condition else ''}.",
    )


def registered_twice(engine: str, name: str, places: Iterable[str]) -> Problem:
    """Tell of a name that more than one file registers."""
    return Problem(
        code="engine-name-registered-twice",
        message=f"{engine} registers the name {name!r} in several files: {', '.join(places)}; "
        "which one counts depends on what is imported last.",
        remedy="All of them count.",
    )


def name_unusable(engine: str, name: str, where: str) -> Problem:
    """Tell of a registered name that nobody can type, such as one with control characters."""
    return Problem(
        code="engine-name-unusable",
        message=f"{engine} registers the name {name!a} ({where}); expected printable text "
        "without spaces around it.",
        remedy="It is left out: nothing that flags say can mean it.",
    )


def not_bool(where: str, words: str) -> Problem:
    """Tell of a flag whose value is neither True nor False."""
    return Problem(
        code="engine-value-not-bool",
        message=f"{where}: {words}, which is neither True nor False; the engine takes its truth.",
        remedy="It counts as undeclared.",
    )


def wrapper_unknown(engine: str, wrapper: str, fact: str) -> Problem:
    """Tell of a wrapper that the engine picks by the model, and that no plan knows."""
    return Problem(
        code="engine-wrapper-not-checked",
        message=f"where {fact}, {engine} runs its backends in a {wrapper}, whose own word is not "
        "in this plan.",
        remedy="See what the report says of it; where it is undeclared, the copy stays on.",
    )
