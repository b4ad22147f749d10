"""From `NAME=VALUE` on the command line to facts and capabilities."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import click
from pydantic import ValidationError

from backend_caps.capability.facts import Facts
from backend_caps.capability.vocabulary import Capabilities


def facts_from(pairs: Iterable[str]) -> Facts:
    """Read facts, such as `head_size=128` or `compute_capability=[9, 0]`."""
    try:
        return Facts.model_validate(dict(_values(pairs, "--fact")))
    except ValidationError as error:
        raise _usage(error, "--fact", sorted(Facts.model_fields)) from error


def override_from(pairs: Iterable[str]) -> Capabilities | None:
    """Read capabilities, such as `host_seq_lens=none` or `graph_replay=[uniform_batch]`."""
    values = dict(_values(pairs, "--unsafe-override"))
    try:
        return Capabilities.model_validate(values) if values else None
    except ValidationError as error:
        known = sorted(Capabilities.model_fields)
        raise _usage(error, "--unsafe-override", known) from error


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


def _usage(error: ValidationError, option: str, known: list[str]) -> click.UsageError:
    told = []
    for detail in error.errors():
        name = detail["loc"][0] if detail["loc"] else ""
        if detail["type"] == "extra_forbidden":
            told.append(f"{option} has no {name!r}; it has: {', '.join(known)}.")
        else:
            told.append(f"{option} {name}: {detail['msg']}; got {detail['input']!r}.")
    return click.UsageError(" ".join(told))
