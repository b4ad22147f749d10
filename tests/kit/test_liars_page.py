from __future__ import annotations

import re

import pytest

from tests.kit.liars.everyone import LIARS
from tests.kit.liars.liar import Liar

_MET = re.compile(r"[a-z-]+#\d+")
_MODELLED = re.compile(rf"modelled on ({_MET.pattern}|[^#:]+)")


@pytest.mark.parametrize("own", LIARS, ids=lambda own: own.name)
def test_liar_says_where_it_was_met_in_one_of_two_forms(own: Liar) -> None:
    """It was met in a thread, or it is modelled on one, or on what kernels and engines do."""
    assert _MET.fullmatch(own.seen) or _MODELLED.fullmatch(own.seen)


def test_names_of_liars_are_their_own() -> None:
    """Each is found by its name."""
    names = [own.name for own in LIARS]

    assert len(set(names)) == len(names)
