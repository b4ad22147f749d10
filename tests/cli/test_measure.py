"""What `explain --measure` counts, and what it says where nothing can be counted."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from backend_caps import Capabilities, Facts, HostSeqLens, Plan, ServerFlags, discover, resolve
from backend_caps.insight import measure as measures
from backend_caps.insight.errors import InsightError
from backend_caps.insight.measure import measured_levels
from backend_caps.relay.host_lengths import HostLengths
from backend_caps.relay.layout import RelayBatch
from backend_caps.report.step_costs import LevelDocument, MeasuredDocument, MeasureDocument
from benchmarks.gpu import Timing
from tests.cases import cases_of
from tests.cli.conftest import CASES, PREPARES_AT, CommandLine
from tests.unit.building import RULES_13

PADDED = "--attention-backend torch_padded"
EAGLE3 = f"{PADDED} --speculative-algorithm EAGLE3"
OPTED_OUT = f"{EAGLE3} --disable-piecewise-cuda-graph"
SMALL = "--speculative-num-steps 1"
ASKS = "assert batch.seq_lens.sum().item() >= 0"
"""What a backend does that declares nothing of the host, and asks the device for a number."""
OURS = Timing(
    comparison="mirror 4096",
    side="exact",
    batch_size=32,
    step_us=812.4,
    ratio=1.0,
    host_wait_us=41.6,
    lengths_us=12.5,
)
ROWS = (OURS, replace(OURS, side="sglang exact"), replace(OURS, comparison="loops"))
RESULT = {"benchmark": "gpu", "hardware": "NVIDIA H200", "rows": [asdict(row) for row in ROWS]}
"""As `make gpu` writes one: by our relay, by SGLang's, and of another comparison."""


def _plan(flags: str, facts: Facts | None = None) -> Plan:
    registry, read = discover(), ServerFlags.from_argv(f"{flags} {SMALL}".split())
    return resolve(registry.uses(read), read, facts=facts, policy="quiet", rules=RULES_13)


def _document(line: CommandLine, flags: str, options: str = "") -> MeasureDocument:
    result = line.run(
        f"explain --measure --rules sglang-0.5.13 {options} --format json -- {flags} {SMALL}"
    )
    assert result.exit_code == 0, result.stderr
    return MeasureDocument.model_validate_json(result.stdout)


def _measured(document: MeasureDocument) -> MeasuredDocument:
    assert document.measured is not None, document.problem
    return document.measured


def _levels(document: MeasureDocument) -> dict[str, LevelDocument]:
    return {level.level: level for level in _measured(document).levels}


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, MeasureDocument]:
    """Count what steps cost, once for each of two servers."""
    line = CommandLine(tmp_path_factory.mktemp("counted"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BACKEND_CAPS_PLUGINS", "backend-caps-torch-native")
        return {flags: _document(line, flags) for flags in (EAGLE3, OPTED_OUT)}


@pytest.mark.slow
def test_measure_counts_the_exact_mirror_once_a_step(counted: dict[str, MeasureDocument]) -> None:
    """An exact mirror costs a wait, the pool's column and a launch; less costs none of it.

    Where the host is told nothing, or a bound, a step waits for its tokens alone.
    """
    document = counted[EAGLE3]

    levels = _levels(document)
    exact, none = levels["exact"], levels["none"]
    assert (exact.host_waits, exact.waits_for_lengths) == (2, 1)
    assert exact.bytes_of_lengths == 8 * _measured(document).pool_size
    assert exact.bytes_to_host - none.bytes_to_host == exact.bytes_of_lengths
    assert (exact.launches - none.launches, exact.event_waits - none.event_waits) == (1, 1)
    for own in (none, levels["upper_bound"]):
        assert (own.host_waits, own.waits_for_lengths, own.bytes_of_lengths) == (1, 0, 0)
        assert own.hidden_syncs == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "planned"),
    [
        pytest.param(EAGLE3, "exact", id="forced by a rule"),
        pytest.param(OPTED_OUT, "none", id="opted out"),
    ],
)
def test_measure_marks_the_level_of_the_plan(
    counted: dict[str, MeasureDocument], flags: str, planned: str
) -> None:
    """Other levels stand beside the plan's own, which alone is marked."""
    levels = _levels(counted[flags])

    assert [*levels] == ["none", "upper_bound", "exact"]
    assert [name for name, level in levels.items() if level.is_planned] == [planned]


@pytest.mark.slow
def test_measure_runs_the_speculation_of_the_flags(line: CommandLine) -> None:
    """Top-k, steps and draft tokens are the server's."""
    tree = "--speculative-eagle-topk 2 --speculative-num-steps 2 --speculative-num-draft-tokens 5"
    result = line.run(f"explain --measure --format json -- {OPTED_OUT} {tree}")

    drafts = _measured(MeasureDocument.model_validate_json(result.stdout)).drafts
    assert drafts is not None
    assert (drafts.topk, drafts.num_steps, drafts.num_draft_tokens) == (2, 2, 5)


def test_measure_shows_the_explanation_first(line: CommandLine) -> None:
    """What is counted comes behind the causes, as markdown too."""
    result = line.run(f"explain --measure --format markdown -- {OPTED_OUT} {SMALL}")

    causes, _, costs = result.stdout.partition("## What a step costs")
    assert result.exit_code == 0
    assert "| backend torch\\_padded | none (declared) |" in causes
    assert "| none (this plan) | 1 | 0 |" in costs


@pytest.mark.parametrize(("flags", "problem"), cases_of(CASES / "measure.txt"))
def test_measure_says_why_nothing_can_be_counted(
    line: CommandLine, flags: str, problem: str
) -> None:
    """What cannot run here is explained all the same; the reason and a status say the rest."""
    result = line.run(f"explain --measure --rules sglang-0.5.13 -- {flags}")

    nothing = "error: this configuration cannot be run here, so nothing of it is counted: "
    assert result.exit_code == 2
    assert "host_seq_lens = exact" in result.stdout
    assert result.stderr.splitlines()[-1].startswith(f"{nothing}{problem}")


def test_measure_as_json_has_the_reason_too(line: CommandLine) -> None:
    """Without counts the document has the plan, and why there are none."""
    result = line.run("explain --measure --format json -- --attention-backend fa3")

    document = MeasureDocument.model_validate_json(result.stdout)
    assert (result.exit_code, document.measured) == (2, None)
    assert f"error: {document.problem}" == result.stderr.splitlines()[-1]


def _install(line: CommandLine, monkeypatch: pytest.MonkeyPatch, prepares: str) -> str:
    """Put a backend into the folder of plugins, and return the flags that name it."""
    monkeypatch.delenv("BACKEND_CAPS_PLUGINS")
    says = "needs_cpu_seq_lens=False, max_context_len_known=True, roles=set(Role)"
    line.install_backend("asks", says, prepares=prepares)
    return "--attention-backend asks --speculative-algorithm EAGLE3"


def test_measure_names_hidden_syncs(line: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend that asks the device for a number is named with its line, and counts as a wait."""
    exact = _levels(_document(line, _install(line, monkeypatch, ASKS), "--path @"))["exact"]

    assert {sync.rpartition("/")[2] for sync in exact.hidden_syncs} == {
        f"asks_caps.py:{PREPARES_AT}"
    }
    num_hidden = sum(exact.hidden_syncs.values()) / 8
    assert exact.host_waits == 2 + num_hidden


def test_measure_tells_what_a_backend_raises(
    line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plugin whose code fails is no traceback, and its own words are reported."""
    flags = _install(line, monkeypatch, "raise ValueError('no such batch')")

    result = line.run(f"explain --measure --path @ -- {flags}")

    assert result.exit_code == 2
    assert "a step raised ValueError: no such batch. " in result.stderr


def test_measured_levels_leave_out_what_a_backend_needs() -> None:
    """A level below what a backend declares is not tried, and the backend is named."""
    flags = "--attention-backend torch_native --speculative-algorithm EAGLE3"

    measured = measured_levels(_plan(flags))

    assert [each.level for each in measured.levels] == ["exact"]
    assert {each.reason for each in measured.left_out} == {
        "backend 'torch_native' declares host_seq_lens=exact"
    }


_REFRESH = HostLengths.refresh


def _fails(lengths: HostLengths, batch: RelayBatch) -> None:
    """Fail at the level `none`; the bounded level calls the same method of its base."""
    if type(lengths) is HostLengths:
        message = "no such kernel"
        raise RuntimeError(message)
    _REFRESH(lengths, batch)


@pytest.mark.slow
def test_measured_levels_leave_out_what_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A level below the plan's whose steps fail is left out, with what was raised."""
    monkeypatch.setattr(HostLengths, "refresh", _fails)

    measured = measured_levels(_plan(f"{OPTED_OUT} --enable-two-batch-overlap"))

    assert [each.level for each in measured.left_out] == ["none"]
    assert "a step raised RuntimeError: no such kernel" in measured.left_out[0].reason


@pytest.mark.slow
def test_halves_cost_no_lengths_where_no_backend_reads_them() -> None:
    """SGLang's rule brings lengths for its own split; here halves run without them as well."""
    measured = measured_levels(_plan(f"{OPTED_OUT} --enable-two-batch-overlap"))

    waits = {own.level: own.waits_for_lengths for own in measured.levels}
    assert waits["none"] == 0
    assert waits["exact"] > 0


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(PADDED, id="without speculation"),
        pytest.param(f"{EAGLE3} --disable-overlap-schedule", id="without overlap"),
    ],
)
def test_measured_levels_are_one_where_no_lengths_are_relayed(flags: str) -> None:
    """Where the scheduler knows the lengths, a step costs the same at every level."""
    (own,) = measured_levels(_plan(flags)).levels

    assert own.is_planned
    assert own.waits_for_lengths == 0


@pytest.mark.slow
def test_measured_models_have_the_head_size_that_is_known() -> None:
    """A fact of the server's model is one of the small model that stands in for it."""
    measured = measured_levels(_plan(OPTED_OUT, Facts(head_size=32, dtype="bfloat16")))

    assert (measured.levels[0].level, measured.levels[0].host_waits) == ("none", 1)


@pytest.mark.slow
def test_measured_levels_keep_other_overrides() -> None:
    """A level that was put in place of the plan's is the plan's own, under either of its names."""
    plan = _plan(OPTED_OUT)
    override = Capabilities(needs_cpu_seq_lens=True, sync_free_prepare=False)
    raised = resolve(
        plan.uses, plan.flags, policy="quiet", unsafe_override=override, rules=plan.rules
    )

    levels = measured_levels(raised).levels

    assert [own.level for own in levels if own.is_planned] == ["exact"]
    assert {own.level for own in levels} == {own.value for own in HostSeqLens}


@pytest.mark.parametrize(
    ("flags", "facts", "told"),
    [
        (OPTED_OUT, Facts(head_size=7), "head_dim is 7"),
        (f"{EAGLE3} --kv-cache-dtype fp8_e5m2", None, "--kv-cache-dtype fp8_e5m2"),
    ],
)
def test_measured_levels_refuse_what_no_engine_runs(
    flags: str, facts: Facts | None, told: str
) -> None:
    """A head size that no model here can have, or a flag that no engine here does, is reported."""
    with pytest.raises(InsightError, match=told):
        measured_levels(_plan(flags, facts))


@pytest.mark.slow
def test_measure_shows_times_that_are_stored(line: CommandLine, tmp_path: Path) -> None:
    """Of stored results the rows of our relay on a GPU are shown, with the GPU's name.

    A rehearsal on the simulated device names no hardware, and its times mean nothing; what else
    `make gpu` writes has rows of its own kind.
    """
    rehearsed = {name: value for name, value in RESULT.items() if name != "hardware"}
    attention = {"benchmark": "attention", "hardware": "NVIDIA H200", "rows": [{"side": "sdpa"}]}
    for name, result in {"gpu": RESULT, "sim": rehearsed, "attention": attention}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(result))

    measured = _measured(_document(line, OPTED_OUT, f"--results {tmp_path}"))

    times = [(own.file, own.hardware, own.level, own.host_wait_us) for own in measured.times]
    assert times == [("gpu.json", "NVIDIA H200", "exact", 41.6)]


def test_installed_package_has_no_times(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Beside an installed package lies no checkout, so whatever else lies there is not read."""
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    (tmp_path / "benchmarks" / "results" / "alien.json").write_text("{}")
    monkeypatch.setattr(measures, "_CHECKOUT", tmp_path)

    assert measures.stored_times(None) == []


def test_measure_refuses_a_result_that_is_none(line: CommandLine, tmp_path: Path) -> None:
    """A file without rows is named."""
    (tmp_path / "other.json").write_text("{}")

    result = line.run(f"explain --measure --results {tmp_path} -- {OPTED_OUT}")

    assert result.exit_code == 1
    assert "other.json' holds no result of a GPU: Field required" in result.stderr
