"""From an engine's source to a plan: what is read decides what a server keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend_caps import Facts, HostSeqLens, Origin, Plan, resolve
from backend_caps.engines.reading import EngineReading
from tests.unit.building import flags
from tests.unit.engines.sglang import building

EAGLE = "--speculative-algorithm EAGLE --disable-piecewise-cuda-graph --attention-backend "
TWO = """
class Base(AttentionBackend):
    needs_cpu_seq_lens = False

    def __init__(self, runner):
        self.max_context_len = runner.context_len

class Quiet(AttentionBackend):
    needs_cpu_seq_lens = False

    def __init__(self, runner):
        self.max_context_len = runner.context_len

class Heir(Base):
    pass

class Loud(AttentionBackend):
    needs_cpu_seq_lens = True
"""
IMPORT_TWO = "    from sglang.srt.layers.attention.two import Quiet, Heir, Loud\n"


def _registered(body: str) -> str:
    return "@register_attention_backend('two')\ndef make(runner):\n" + IMPORT_TWO + body


def _reading(folder: Path, body: str, steps: str = "Quiet") -> EngineReading:
    """Read an engine whose `two` makes what a body returns, and drafts by one class."""
    method = f"def _two(self):\n{IMPORT_TWO}    return ('two', {steps}(self.runner))\n"
    files = {
        f"{building.ATTENTION}/two.py": building.IMPORTS + TWO,
        building.REGISTRY: building.registry(building.REGISTERED_ONE + _registered(body)),
        building.DRAFTS: building.drafts('"two": self._two', '"two": self._two', method),
    }
    return building.read(folder, files)


def _plan(reading: EngineReading, line: str = EAGLE + "two", facts: Facts | None = None) -> Plan:
    given = flags(line)
    return resolve(reading.registry.uses(given), given, rules=reading.rules, facts=facts)


def _deciding(plan: Plan) -> list[tuple[str, str | None]]:
    """List who needs the lengths exactly, and in which role."""
    causes = plan["host_seq_lens"].causes
    exact = [each for each in causes if each.value is HostSeqLens.EXACT]
    return sorted({(each.name, each.role.value if each.role else None) for each in exact})


def test_target_and_draft_that_opt_out_drop_the_copy(tmp_path: Path) -> None:
    """Where every class that runs opts out, nothing keeps the mirror."""
    plan = _plan(_reading(tmp_path, "    return Quiet(runner)\n"))

    assert _deciding(plan) == []
    assert plan["host_seq_lens"].value is HostSeqLens.NONE


def test_draft_that_reads_lengths_keeps_the_copy(tmp_path: Path) -> None:
    """One class of the draft's is enough."""
    plan = _plan(_reading(tmp_path, "    return Quiet(runner)\n", "Loud"))

    assert _deciding(plan) == [("Loud", "draft"), ("Loud", "draft_extend")]


def test_inherited_opt_out_counts_as_exact(tmp_path: Path) -> None:
    """What a class has from its base and does not state again opts out of nothing."""
    plan = _plan(_reading(tmp_path, "    return Heir(runner)\n"))

    heirs = [each for each in plan["host_seq_lens"].causes if each.name == "Heir"]
    assert {(each.value, each.origin) for each in heirs} == {(HostSeqLens.EXACT, Origin.INHERITED)}
    assert heirs[0].reason == (
        "inherits needs_cpu_seq_lens = False of Base, and does not state it again: counts as "
        "undeclared"
    )


@pytest.mark.parametrize(
    ("condition", "quiet", "loud"),
    [
        pytest.param(
            "not runner.use_mla_backend",
            Facts.model_validate({"attention_arch": "mha"}),
            Facts.model_validate({"attention_arch": "mla"}),
            id="attention",
        ),
        pytest.param("is_npu()", Facts(device="npu"), Facts(device="cuda"), id="device"),
        pytest.param("not _is_hip", Facts(rocm=False), Facts(rocm=True), id="ROCm"),
        pytest.param("is_npu()", Facts(device="npu"), None, id="device, not known"),
    ],
)
def test_facts_choose_among_the_classes_of_a_name(
    tmp_path: Path, condition: str, quiet: Facts, loud: Facts | None
) -> None:
    """A class counts where its condition holds, and where nobody knows."""
    body = f"    if {condition}:\n        return Quiet(runner)\n    return Loud(runner)\n"
    reading = _reading(tmp_path, body)

    assert _deciding(_plan(reading, facts=quiet)) == []
    assert _deciding(_plan(reading, facts=loud)) == [("Loud", "target")]


def test_open_condition_counts_both_ways(tmp_path: Path) -> None:
    """Of two classes that only running code chooses from, both are in use."""
    body = "    if runner.is_new:\n        return Quiet(runner)\n    return Loud(runner)\n"

    plan = _plan(_reading(tmp_path, body))

    names = {each.name for each in plan["host_seq_lens"].causes if each.role is not None}
    assert names == {"Loud", "Quiet"}


def test_class_that_was_not_followed_keeps_the_copy(tmp_path: Path) -> None:
    """What nobody could read counts as undeclared, under its condition alone."""
    body = "    if is_npu():\n        return gone.Gone(runner)\n    return Quiet(runner)\n"
    reading = _reading(tmp_path, body)

    assert _deciding(_plan(reading, facts=Facts(device="cuda"))) == []
    assert _deciding(_plan(reading, facts=Facts(device="npu"))) == [("two, not followed", "target")]


def test_rule_that_nobody_knows_keeps_the_copy(tmp_path: Path) -> None:
    """A condition in the engine's own function that no rule knows counts while it is open."""
    odd = "    if args.odd:\n        return True\n    return any"
    files = {building.DECIDES: building.DECISION.replace("    return any", odd)}

    plan = _plan(building.read(tmp_path, files), EAGLE + "one")

    assert _deciding(plan) == [("unknown: args.odd", None)]
