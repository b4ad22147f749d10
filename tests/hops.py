"""Breaks of one line on the way from an entry point to a step, each with the test that sees it.

`python -m tests.hops` copies the tree, makes one break after the other in the copy, and runs the
test that has to fail; it exits with 1 where a test passes all the same. Before, all the tests are
run unbroken, and have to pass. `--find TESTS...` runs these tests instead of the named ones, and
prints what fails first: for a break whose test is not known yet.

The breaks were chosen from the code, before the tests were looked at.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import click

ROOT = Path(__file__).resolve().parents[1]
_COPIED = ("backend_caps", "tests", "plugins", "benchmarks", "conftest.py", "pyproject.toml")
_QUICKLY = ("-n", "0", "-q", "-x", "-p", "no:cacheprovider")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """One line, broken."""

    hop: str
    file: str
    """Under `backend_caps`."""
    line: str
    """As it stands there, without its indentation; where it occurs more than once, the first."""
    broken: str
    """What stands there instead."""
    test: str
    """What has to fail."""


BREAKS: tuple[Break, ...] = (
    Break(
        hop="entry point",
        file="discovery/metadata.py",
        line="return (text if _OURS.fullmatch(text) else None), bool(bracket)",
        broken="return None, bool(bracket)",
        test="tests/discovery/test_entries.py::test_our_entries_are_read_whatever_else_the_file_holds",
    ),
    Break(
        hop="entry point",
        file="discovery/loading_child.py",
        line="return (found,) if isinstance(found, Declaration) else None",
        broken="return (found,)",
        test="tests/discovery/test_loading.py::test_loading_tells_what_a_plugin_does",
    ),
    Break(
        hop="declaration",
        file="discovery/registry.py",
        line="declaration=declaration,",
        broken="declaration=None,",
        test="tests/discovery/test_registry.py::test_registry_lists_the_uses_of_a_server",
    ),
    Break(
        hop="declaration",
        file="capability/vocabulary.py",
        line='return {**data, "host_seq_lens": HostSeqLens.EXACT if flag else HostSeqLens.NONE}',
        broken='return {**data, "host_seq_lens": HostSeqLens.NONE if flag else HostSeqLens.EXACT}',
        test="tests/unit/capability/test_capabilities.py::test_spellings_fill_each_other",
    ),
    Break(
        hop="declaration",
        file="capability/vocabulary.py",
        line='requires="max_context_len_known",',
        broken="requires=None,",
        test="tests/unit/capability/test_table.py::test_opting_out_of_the_mirror_alone_requires_another_capability",
    ),
    Break(
        hop="use",
        file="resolution/uses.py",
        line='verify = prefill if flags.speculative_attention_mode == "prefill" else decode',
        broken="verify = decode",
        test="tests/unit/resolution/test_uses.py::test_uses_of_a_draft_model_follow_the_engines_routing",
    ),
    Break(
        hop="use",
        file="resolution/uses.py",
        line="yield _use(Role.DRAFT_EXTEND, Phase.VERIFY, draft or verify)",
        broken="return",
        test="tests/unit/resolution/test_uses.py::test_uses_of_a_draft_model_follow_the_engines_routing",
    ),
    Break(
        hop="use",
        file="resolution/uses.py",
        line="if flags.speculative_num_steps != 1:",
        broken="if flags.speculative_num_steps is None:",
        test="tests/unit/resolution/test_uses.py::test_uses_of_a_draft_model_follow_the_engines_routing",
    ),
    Break(
        hop="cause",
        file="resolution/contributions.py",
        line='unsaid = kind.worst, Origin.UNDECLARED, f"does not declare {capability}"',
        broken='unsaid = kind.best, Origin.UNDECLARED, f"does not declare {capability}"',
        test="tests/unit/resolution/test_rules.py::test_rule_never_improves_a_value",
    ),
    Break(
        hop="cause",
        file="resolution/contributions.py",
        line="if truth is Truth.FALSE:",
        broken="if truth is not Truth.TRUE:",
        test="tests/unit/resolution/test_rules.py::test_rule_whose_condition_is_open_counts",
    ),
    Break(
        hop="cause",
        file="resolution/contributions.py",
        line="return CAPABILITIES[capability].worst, origin, words",
        broken="return stated",
        test="tests/unit/resolution/test_conditions.py::test_longest_context_may_be_known_under_a_condition",
    ),
    Break(
        hop="plan",
        file="resolution/resolver.py",
        line="causes = (*backends, *self._of_rules(capability, phase))",
        broken="causes = backends",
        test="tests/unit/resolution/test_rules.py::test_rule_over_a_phase_forces_that_phase",
    ),
    Break(
        hop="plan",
        file="resolution/resolver.py",
        line="return kind.counted is RELAY_LOOP and self.rules.relays_prompts(self.situation)",
        broken="return False",
        test="tests/unit/resolution/test_runtime_rules.py::test_prefill_backend_counts_where_its_steps_carry_relayed_rows",
    ),
    Break(
        hop="plan",
        file="resolution/plan.py",
        line="if algorithm is None or self.flags.disable_overlap_schedule:",
        broken="if algorithm is None:",
        test="tests/unit/resolution/test_plan.py::test_plan_relays_speculation_that_is_overlapped",
    ),
    Break(
        hop="configured FutureMap",
        file="relay/future_map.py",
        line="host_seq_lens=HostSeqLens.NONE if is_plain_loop else plan.host_seq_lens,",
        broken="host_seq_lens=HostSeqLens.EXACT,",
        test="tests/runtime/test_configuration.py::test_map_of_the_plain_loop_brings_nothing",
    ),
    Break(
        hop="configured FutureMap",
        file="relay/future_map.py",
        line="if self.host_seq_lens is HostSeqLens.NONE or not self.speculative:",
        broken="if not self.speculative:",
        test="tests/relay/test_host_lengths.py::test_host_fields_follow_the_mode",
    ),
    Break(
        hop="configured FutureMap",
        file="startup/configuration.py",
        line="graph_choices=_graph_choices(plan, traits, graph_sizes),",
        broken="graph_choices=_graph_choices(plan, traits, NO_SIZES),",
        test="tests/runtime/test_configuration.py::test_configuration_says_how_batches_run",
    ),
    Break(
        hop="step",
        file="runtime/speculative/runner.py",
        line="self._relay.resolve_seq_lens_cpu(running)",
        broken="pass",
        test="tests/runtime/speculative/test_decoding.py::test_prepare_takes_lengths_from_the_device",
    ),
    Break(
        hop="step",
        file="runtime/speculative/runner.py",
        line="self.relay.publish(batch.req_pool_indices, contexts.seq_lens + taken.accept_lens)",
        broken="self.relay.publish(batch.req_pool_indices, contexts.seq_lens)",
        test="tests/runtime/speculative/test_runner.py::test_step_publishes_what_is_committed",
    ),
    Break(
        hop="step",
        file="relay/host_lengths.py",
        line="batch.seq_lens_cpu = None",
        broken="pass",
        test="tests/relay/test_host_lengths.py::test_host_fields_follow_the_mode",
    ),
)


def broken_text(text: str, own: Break) -> str:
    """Put the broken line in the place of the other, which stands there at least once.

    Where it stands more than once, the first is broken.
    """
    place = text.find(own.line)
    assert place >= 0, f"{own.file} has no line {own.line!r}: choose the break anew"
    return text[:place] + own.broken + text[place + len(own.line) :]


def main(words: Sequence[str]) -> int:
    """Run all breaks; return the exit status."""
    found = list(words[1:]) if words[:1] == ["--find"] else []
    with TemporaryDirectory(prefix="backend-caps-hops-") as folder:
        copy = Path(folder)
        for name in _COPIED:
            _copy(ROOT / name, copy / name)
        if not found and (failed := _failing(copy, sorted({own.test for own in BREAKS}))):
            click.echo(f"unbroken, {failed} fails")
            return 1
        survived = [own for own in BREAKS if not _caught(copy, own, found)]
    click.echo(f"{len(BREAKS) - len(survived)} of {len(BREAKS)} breaks were caught")
    return 1 if survived else 0


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy2(source, target)


def _caught(copy: Path, own: Break, found: Sequence[str]) -> bool:
    path = copy / "backend_caps" / own.file
    text = path.read_text("utf-8")
    path.write_text(broken_text(text, own), "utf-8")
    try:
        failed = _failing(copy, found or [own.test])
    finally:
        path.write_text(text, "utf-8")
    click.echo(f"{own.hop:<22}{own.file:<36}{failed or 'SURVIVED'}")
    return failed is not None


def _failing(copy: Path, tests: Sequence[str]) -> str | None:
    """Run tests over the copy; return the first that fails."""
    done = subprocess.run(
        [sys.executable, "-B", "-m", "pytest", *_QUICKLY, *tests],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return None
    names = _FAILED.findall(done.stdout)
    assert names, f"pytest ended with {done.returncode}: {done.stdout}{done.stderr}"
    return str(names[0])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
