"""Which changes of a command line lead to better values, each followed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from backend_caps.capability.backend import Problem, Reading
from backend_caps.capability.provenance import Origin
from backend_caps.capability.vocabulary import Capabilities, HostSeqLens
from backend_caps.engines.launch_flips import launch_flips
from backend_caps.resolution.launch import GraphMode, Launch, LayerGroup, Refusal, Unchecked
from backend_caps.resolution.plan import Plan
from backend_caps.resolution.resolver import resolve
from tests.unit.building import RULES_23, flags, use

_LEVELS = {"EXACT": HostSeqLens.EXACT, "NONE": HostSeqLens.NONE}
_SPECULATES = "--speculative-algorithm EAGLE"


def _plan(
    level: str,
    mode: str | None = "FULL",
    *,
    refusal: Refusal | None = None,
    problems: tuple[Problem, ...] = (),
    speculates: bool = True,
) -> Plan:
    group = LayerGroup(
        role="target",
        layer="Attention",
        num_layers=1,
        backend="TAKEN",
        path="a.Taken",
        graph_support="ALWAYS",
        cache="FullAttentionSpec",
        sizes={},
    )
    graphs = (
        GraphMode(asked="FULL", mode=mode, support="ALWAYS", by=None, words=()) if mode else None
    )
    launch = Launch(
        engine="vllm-9.0",
        machine="H100",
        model="m",
        layers=(group,),
        graphs=graphs,
        refusal=refusal,
    )
    own = Capabilities(host_seq_lens=_LEVELS[level], max_context_len_known=True)
    return resolve(
        [use("taken", own)],
        flags(_SPECULATES if speculates else ""),
        rules=RULES_23.with_problems(problems),
        launch=launch,
    )


def _flips(
    plan: Plan, line: str, others: Mapping[str, Plan], backends: Sequence[str] = ()
) -> list[tuple[str, object, object, str]]:
    """Return the flips of a line; a line that `others` lacks gives the plan itself."""

    def plans_of(lines: Sequence[Sequence[str]]) -> list[Plan]:
        return [others.get(" ".join(words), plan) for words in lines]

    found = launch_flips(plan, line.split(), backends, plans_of)
    return [(f.capability, f.value, f.becomes, " ".join(r.text for r in f.remedies)) for f in found]


def test_option_is_left_out_with_its_values() -> None:
    """The model's stays; a word behind no option is no option."""
    plan = _plan("EXACT", "PIECEWISE")
    others = {
        "serve --model m --lists a b --last": _plan("EXACT", "FULL"),
        "serve --model m --eager=1 --last": _plan("NONE", "PIECEWISE"),
        "serve --eager=1 --lists a b --last": _plan("NONE", "FULL_AND_PIECEWISE"),
    }

    assert _flips(plan, "serve --model m --eager=1 --lists a b --last", others) == [
        ("graphs", "PIECEWISE", "FULL", "Leave out --eager=1."),
        ("host_seq_lens", HostSeqLens.EXACT, HostSeqLens.NONE, "Leave out --lists a b."),
    ]


def test_line_without_options_has_none_to_leave_out() -> None:
    """Other backends are tried for it."""
    found = _flips(
        _plan("EXACT"), "serve m", {"serve m --attention-backend ONE": _plan("NONE")}, ["ONE"]
    )

    levels = HostSeqLens.EXACT, HostSeqLens.NONE
    assert found == [("host_seq_lens", *levels, "Set --attention-backend ONE.")]


def test_other_backends_are_tried_in_place_of_the_named() -> None:
    """Those that lead to the same are one flip, and the one taken is not tried."""
    plan = _plan("EXACT")
    better = _plan("NONE")
    others = {
        "--x --attention-backend ONE": better,
        "--x --attention-backend TWO": better,
        "--attention-backend TAKEN": better,
    }

    found = _flips(plan, "--attention-backend TAKEN --x", others, ["ONE", "TAKEN", "TWO", "WORSE"])
    inline = _flips(plan, "--attention-backend=TAKEN --x", others, ["ONE"])

    levels = HostSeqLens.EXACT, HostSeqLens.NONE
    assert found == [
        ("host_seq_lens", *levels, "Set --attention-backend ONE, TWO, or leave out --x.")
    ]
    assert inline == [("host_seq_lens", *levels, "Set --attention-backend ONE.")]


@pytest.mark.parametrize(
    ("plan", "other"),
    [
        pytest.param(_plan("EXACT"), _plan("EXACT"), id="the same"),
        pytest.param(_plan("NONE"), _plan("EXACT"), id="worse"),
        pytest.param(_plan("EXACT"), _plan("NONE", speculates=False), id="no effect then"),
        pytest.param(
            _plan("EXACT"), _plan("NONE", refusal=Refusal(message="no", at="a:1")), id="refused"
        ),
        pytest.param(
            _plan("EXACT"),
            _plan("NONE", problems=(Problem(code="new", message="m", remedy="r"),)),
            id="a new problem",
        ),
        pytest.param(_plan("NONE", "FULL"), _plan("NONE", "PIECEWISE"), id="less graphs"),
        pytest.param(_plan("NONE", "SOME"), _plan("NONE", "FULL"), id="a mode that is new"),
        pytest.param(_plan("NONE", None), _plan("NONE", "FULL"), id="no mode before"),
    ],
)
def test_nothing_better_is_no_flip(plan: Plan, other: Plan) -> None:
    """A change that is refused, brings a problem or leads to no better value is left out."""
    assert _flips(plan, "--x", {"": other}) == []


def test_refused_server_starts_without_an_option() -> None:
    """Its values are of no server, so nothing else is better."""
    refused = _plan("EXACT", refusal=Refusal(message="no", at="a:1"))

    assert _flips(refused, "--x --y", {"--y": _plan("NONE")}) == [
        ("starts", False, True, "Leave out --x.")
    ]


def test_start_that_is_not_known_is_no_better() -> None:
    """What the engine may refuse leads to other values, and is not said to start."""
    unchecked = (Unchecked(message="m", at="a:1", unless="u"),)
    plan = _plan("EXACT")
    open_ = replace(plan, launch=replace(_launch_of(plan), unchecked=unchecked))
    refused = _plan("EXACT", refusal=Refusal(message="no", at="a:1"))

    assert _flips(refused, "--x", {"": open_}) == []
    assert _flips(open_, "--x", {"": _plan("NONE")}) == [
        ("host_seq_lens", HostSeqLens.EXACT, HostSeqLens.NONE, "Leave out --x.")
    ]


def _launch_of(plan: Plan) -> Launch:
    assert plan.launch is not None
    return plan.launch


def test_value_that_is_not_known_is_no_better() -> None:
    """What the engine's source does not tell may be better or worse."""
    plan = _plan("EXACT")
    reading = Reading(origin=Origin.NOT_KNOWN, words="it is not read")
    own = replace(use("taken", Capabilities()), readings={"host_seq_lens": reading})
    unknown = resolve([own], plan.flags, rules=plan.rules, launch=plan.launch)

    assert not unknown["host_seq_lens"].is_known
    assert _flips(unknown, "--x", {"": plan}) == []
    assert _flips(plan, "--x", {"": unknown}) == []


def test_plan_without_a_launch_has_none() -> None:
    """Its flips are those of its flags."""
    plan = resolve([use("taken", Capabilities())], flags(), rules=RULES_23)

    assert _flips(plan, "--x", {}) == []
