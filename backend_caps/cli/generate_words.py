"""From words on the command line of `generate` to numbers; loads no torch."""

from __future__ import annotations

import math

import click

HOTTEST = 100.0
"""Where any model's next token is as good as drawn from all of them alike."""


def token_ids(
    _ctx: click.Context, _option: click.Parameter, prompts: tuple[str, ...]
) -> tuple[tuple[int, ...], ...]:
    """Read each prompt's numbers, which commas divide."""
    try:
        return tuple(tuple(int(number) for number in prompt.split(",")) for prompt in prompts)
    except ValueError as error:
        given = " ".join(prompts)
        expected = "numbers with commas between them were expected, such as 1,2,3"
        raise click.BadParameter(f"{given!r} holds what is no number; {expected}.") from error


def sizes(_ctx: click.Context, _option: click.Parameter, text: str) -> tuple[int, ...]:
    """Read sizes of graphs, which commas divide; no word is none."""
    try:
        read = tuple(int(number) for number in text.split(",")) if text else ()
    except ValueError:
        read = (0,)
    if any(size < 1 for size in read):
        expected = "numbers from 1 with commas between them were expected, such as 1,2,4"
        raise click.BadParameter(f"{text!r} is none; {expected}.")
    return tuple(sorted(set(read)))


def temperature(_ctx: click.Context, _option: click.Parameter, value: float) -> float:
    """Refuse what no model samples by; nothing compares with `nan`, which a range lets pass."""
    if math.isnan(value) or not 0 <= value <= HOTTEST:
        expected = f"0 to {HOTTEST:g} was expected, where 0 takes the likeliest token"
        raise click.BadParameter(f"{value:g} is no temperature; {expected}.")
    return value
