"""`backend-caps check` of an engine's own backends, and what is left out of a check."""

from __future__ import annotations

import json
from dataclasses import replace

from click.testing import CliRunner

from backend_caps.cli.check import FORWARDS
from backend_caps.cli.main import cli
from backend_caps.discovery.registry import discover
from backend_caps.kit import (
    Case,
    Effort,
    Fault,
    Finding,
    Forward,
    Rig,
    Scenario,
    Subject,
    run_checks,
)
from backend_caps.kit.checks.numerics import NUMERICS
from backend_caps.kit.probes.playback import SteadyRun
from backend_caps.kit.scenarios import forwards_of

NO_VERIFY = frozenset({"verify"})


def _without_verify() -> Subject:
    return replace(Subject.of(discover()["torch_padded"]), without=NO_VERIFY)


def test_checks_of_an_engines_adapter_are_listed() -> None:
    """`--list --engine` has the kit's checks, and those of the adapter alone."""
    result = CliRunner().invoke(cli, ["check", "--list", "--engine", "sglang", "--format", "json"])

    codes = [own["code"] for own in json.loads(result.stdout)["checks"]]
    assert {"numerics", "sliding-window"} <= {*codes}


def test_forwards_on_the_command_line_are_those_of_the_kit() -> None:
    """What can be left out is each forward, by its name."""
    assert tuple(own.value for own in Forward) == FORWARDS


def test_forward_that_is_left_out_is_in_no_case() -> None:
    """Other forwards are tried, and this one is not."""
    subject = _without_verify()
    results = run_checks(subject, [NUMERICS], device="cpu", effort=Effort(seeds=[0]))
    names = [case.name for case in results.checks[0].cases]

    assert Forward.VERIFY not in forwards_of(subject)
    assert names
    assert not [name for name in names if "verify" in name]


def test_long_run_leaves_a_forward_out_too() -> None:
    """Steps that look for growth do not verify either."""
    scenario = Scenario(forward=Forward.DECODE)

    shapes = SteadyRun(Rig(subject=_without_verify(), device="cpu"), scenario, 0).shapes

    assert {forward for forward, *_ in shapes} == {Forward.DECODE}


def test_command_of_a_finding_has_the_words_of_its_run() -> None:
    """What a run was given beside the name is given again."""
    finding = Finding(
        subject="own",
        claims=(),
        case=Case(check="numerics"),
        fault=Fault(what="wrong"),
        words=("--without", "verify"),
    )

    assert finding.replay == "backend-caps check --without verify own --case 'numerics/-@eager#0'"
