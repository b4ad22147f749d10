"""What becomes of command lines, read from SGLang's wheel."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from backend_caps.capability.facts import Facts, text_of
from backend_caps.discovery.registry import Registry
from backend_caps.engines.read import read_engine
from backend_caps.engines.reading import EngineReading
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.launch import Launch, Refusal
from backend_caps.resolution.plan import Plan
from backend_caps.resolution.resolver import resolve
from tests.upstream.launch_trials import RECORDED, TABLES, Verdict, read, trials_of
from tests.upstream.launches import MACHINES, Case
from tests.upstream.sglang_wheel import find_wheel
from tests.upstream.trial_engines import SGLANG

_VERSION = "0.5.23"
_CASES: list[dict[str, Any]] = tomllib.loads(
    (Path(__file__).parent / "tables" / "launches.toml").read_text("utf-8")
)["case"]
_RECORDED = {
    version: [
        *map(
            json.loads,
            (TABLES / RECORDED["sglang"].format(version)).read_text("utf-8").splitlines(),
        )
    ]
    for version in ("0.5.13", "0.5.23")
}


@cache
def _reading() -> EngineReading:
    return read_engine("sglang", find_wheel(_VERSION))


def _launch(case: Mapping[str, Any]) -> Launch:
    model = case["model"]
    if model.startswith("hub/"):
        model = str(TABLES.parent / f"{model}.json")
    return read(SGLANG, _VERSION, Case(case["machine"], model, tuple(case["line"].split())))


def _plan(case: Mapping[str, Any], launch: Launch) -> Plan:
    reading = _reading()
    assert reading.rules is not None, "SGLang's rules are read"
    flags = launch.over(
        ServerFlags.from_argv(case["line"].split(), engine_name=reading.command_line)
    )
    facts = launch.with_facts(Facts(device_name=case["machine"]))
    uses = Registry.of(reading.backends).uses(flags, launch)
    open_ = (*reading.unread(facts, launch), *reading.known_faults(uses, facts))
    rules = reading.rules.with_problems(open_)
    return resolve(uses, flags, rules=rules, facts=facts, launch=launch, policy="quiet")


@pytest.mark.slow
@pytest.mark.upstream
@pytest.mark.parametrize("case", [pytest.param(each, id=each["id"]) for each in _CASES])
def test_command_line_is_answered_as_sglang_does(case: Mapping[str, Any]) -> None:
    """What was once wrong: refused where SGLang starts, or accepted where it refuses."""
    launch = _launch(case)
    plan = _plan(case, launch)

    codes = {problem.code for problem in plan.problems}
    if "starts" in case:
        assert launch.starts is case["starts"], (launch.refusal, launch.unchecked)
    if launch.refusal is not None:
        assert case["says"] in launch.refusal.message
        assert codes == {"engine-refuses"}
    else:
        assert codes == {*filter(None, [case.get("problem")])}, plan.problems
    if "backend" in case:
        assert launch.flags["attention_backend"] == case["backend"]
    if "lengths" in case:
        assert text_of(plan["host_seq_lens"].value) == case["lengths"]


@pytest.mark.slow
@pytest.mark.upstream
@pytest.mark.parametrize("version", _RECORDED)
@pytest.mark.parametrize("machine", MACHINES)
def test_reader_agrees_with_recorded_answers(version: str, machine: str) -> None:
    """SGLang's own answers, as `make upstream` found them, are the reader's."""
    lines = [line for line in _RECORDED[version] if line["machine"] == machine]
    cases, answers = map(_case, lines), [_recorded(version, line) for line in lines]

    wrong = [
        str(trial)
        for trial in trials_of(SGLANG, version, [*cases], answers)
        if trial.verdict not in {Verdict.REFUSED, Verdict.ACCEPTED}
    ]

    assert lines
    assert not wrong


def _case(line: Mapping[str, Any]) -> Case:
    return Case(line["machine"], line["model"], tuple(line["argv"]))


def _recorded(version: str, line: Mapping[str, Any]) -> Launch:
    refused = line.get("refused at")
    return Launch(
        engine=f"sglang-{version}",
        machine=line["machine"],
        model=line["model"],
        refusal=None if refused is None else Refusal(message=line["message"], at=refused),
        values=line.get("values", {}),
        classes={slot: tuple(paths) for slot, paths in line.get("classes", {}).items()},
    )
