"""Prompts that run with speculative decoding, under the plan of a server's flags."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend_caps import ServerFlags, configure
from backend_caps.cli.generate import DIFFERS
from backend_caps.report.generate_documents import GenerateDocument
from backend_caps.runtime.engine import Engine
from backend_caps.runtime.model.random_models import eagle3_of, first_layers, random_llama
from tests.cli.conftest import CommandLine, generated, outputs_of

NATIVE = "--attention-backend torch_native"
PADDED = "--attention-backend torch_padded"
EAGLE, EAGLE3, STANDALONE, NGRAM = (
    f"--speculative-algorithm {algorithm} --speculative-eagle-topk 1"
    for algorithm in ("EAGLE", "EAGLE3", "STANDALONE", "NGRAM")
)
PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10]]


@pytest.fixture
def drafted(tmp_path: Path) -> tuple[Path, Path]:
    """The folders of a target, and of a small model that drafts for it."""
    folder, draft = tmp_path / "target", tmp_path / "draft"
    random_llama(folder, seed=3, later_gain=0.2)
    first_layers(draft, folder)
    return folder, draft


@pytest.mark.parametrize(
    "algorithm", [EAGLE, EAGLE3, STANDALONE], ids=["EAGLE", "EAGLE3", "STANDALONE"]
)
def test_generate_makes_models_that_are_often_right(line: CommandLine, algorithm: str) -> None:
    """Without folders a target and a draft are made, of which some drafts are accepted."""
    document = generated(line, "--prompts 2", f"{PADDED} {algorithm}")

    drafted = document.speculation
    assert drafted is not None
    assert 0 < drafted.num_accepted < drafted.num_drafts
    assert drafted.num_drafts == 3 * drafted.num_verified
    given = sum(sum(step.accept_lens or ()) for step in document.steps)
    assert drafted.accept_length == given / drafted.num_verified


def test_generate_drafts_with_the_model_that_is_named(
    line: CommandLine, drafted: tuple[Path, Path]
) -> None:
    """The draft model's folder is in the document, and the tokens are the target's own."""
    target, draft = drafted
    plan = configure(ServerFlags(attention_backend="torch_native"), pool_size=2, device="cpu").plan

    named = f"--model {target} --draft-model {draft} --token-ids 1,2,3 --token-ids 4,5,6,7,8,9,10"
    document = generated(line, named, f"{PADDED} {STANDALONE}")

    assert (document.model, document.draft_model) == (str(target), str(draft))
    assert outputs_of(document) == Engine.from_plan(target, plan, "cpu").generate(PROMPTS, 6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "for_lengths"),
    [
        pytest.param(f"{NATIVE} {EAGLE}", True, id="an exact mirror"),
        pytest.param(f"{PADDED} {EAGLE}", False, id="no mirror"),
        pytest.param(f"{NATIVE} {EAGLE} --disable-overlap-schedule", False, id="not overlapped"),
    ],
)
def test_generate_counts_the_waits_that_are_planned(
    line: CommandLine, flags: str, *, for_lengths: bool
) -> None:
    """The simulated device sees the waits of the plan: for tokens, and for lengths if any."""
    document = generated(line, "--prompts 2 --device sim", flags)

    drafted, run = document.speculation, document.run
    assert drafted is not None
    assert drafted.planned_waits_for_lengths == for_lengths * run.num_steps["decode"]
    assert drafted.counted_waits == run.planned_waits
    assert run.planned_waits == sum(run.num_steps.values()) + drafted.planned_waits_for_lengths


def test_generate_names_the_backends_of_the_draft(line: CommandLine) -> None:
    """A draft with a backend of its own is distinguished from the target."""
    own = "--speculative-draft-attention-backend torch_native"

    document = generated(line, "--prompts 1", f"{PADDED} {EAGLE} {own}")

    assert document.speculation is not None
    assert {*document.speculation.draft_backends.values()} == {"torch_native"}
    assert {*document.backends.values()} == {"torch_padded"}


@pytest.mark.parametrize("page_size", [1, 16])
def test_generate_makes_room_for_drafts(line: CommandLine, page_size: int) -> None:
    """Drafts behind the end of the longest requests have their room: none is retracted."""
    document = generated(
        line, "--prompts 6", f"{PADDED} {EAGLE} --page-size {page_size} --context-length 64"
    )

    assert document.run.num_retracted == 0


def test_generate_says_why_speculating_steps_are_eager(line: CommandLine) -> None:
    """What keeps a verify from a full graph is named, and what keeps prompts from one."""
    graphs = generated(line, "--prompts 1", f"{PADDED} {EAGLE}").graphs

    because = {own.name: own.refused["full"] for own in graphs.phases}
    assert because["verify"] == ["the device has no graphs"]
    assert "of the target, speculation captures only the verify" in because["prefill"]


def test_generate_runs_an_eagle3_head_whose_drafts_are_replayed(
    line: CommandLine, tmp_path: Path
) -> None:
    """A head in a published layout gives the target's tokens; its forwards are graphs' replays."""
    random_llama(tmp_path / "target", seed=3, num_layers=3, later_gain=0.2)
    eagle3_of(tmp_path / "head", tmp_path / "target")
    prompts = f"--model {tmp_path / 'target'} --token-ids 1,2,3 --token-ids 4,5,6,7"
    named = f"{prompts} --draft-model {tmp_path / 'head'} --device sim"

    document = generated(line, named, f"{PADDED} --speculative-algorithm EAGLE3")

    modes = {own.name: own.effective for own in document.graphs.phases}
    assert [modes[name] for name in ("verify", "draft", "draft_extend")] == ["full"] * 3
    assert outputs_of(document) == outputs_of(generated(line, prompts, NATIVE))


@pytest.mark.slow
def test_generate_blames_no_sizes_that_are_named(line: CommandLine) -> None:
    """Where speculation alone keeps prompts from full graphs, no option is said to be missing."""
    options = "--prompts 1 --device sim --graph-token-counts 16"

    phases = generated(line, options, f"{PADDED} {NGRAM}").graphs.phases

    refused = {own.phase: own.refused.get("full") for own in phases}
    speculation = ["of the target, speculation captures only the verify"]
    assert refused == {"prefill": speculation, "decode": speculation, "verify": None}


def test_generate_needs_no_draft_model_for_n_grams(
    line: CommandLine, drafted: tuple[Path, Path]
) -> None:
    """Drafts that are looked up run beside a named model alone."""
    options = f"--model {drafted[0]} --prompts 1"

    document = generated(line, options, f"{PADDED} {NGRAM}")

    assert document.draft_model is None
    assert document.speculation is not None
    assert document.speculation.draft_backends == {}


@pytest.mark.slow
@pytest.mark.parametrize("device", ["--device cpu", "--device sim"])
def test_generate_compares_with_the_plain_loop(line: CommandLine, device: str) -> None:
    """The same prompts without drafts, overlap and graphs have the same tokens."""
    document = generated(line, f"--prompts 2 --compare-plain {device}", f"{PADDED} {EAGLE}")

    assert document.differs_from_plain == []


@pytest.mark.slow
def test_generate_counts_no_wait_of_the_plain_loop(line: CommandLine) -> None:
    """What the plain loop waits for on the same simulated device is not counted."""
    document = generated(line, "--prompts 2 --compare-plain --device sim", f"{PADDED} {EAGLE}")

    assert document.simulation is not None
    assert document.simulation.hidden_syncs == []


def test_generate_fails_where_the_plain_loop_differs(acme: CommandLine) -> None:
    """A backend that verifies wrongly gives other tokens than its plain decode: exit status 1."""
    sees_nothing = 'output * 0 if batch.mode.value == "verify" else output'
    says = "needs_cpu_seq_lens=True, roles=set(Role)"
    acme.install_backend("lies", says, returns=sees_nothing, base="TorchNative")
    words = "generate --path @ --format json --token-ids 1,2,3 --compare-plain"

    result = acme.run(f"{words} -- --attention-backend lies {EAGLE}")

    document = GenerateDocument.model_validate_json(result.stdout)
    assert (result.exit_code, document.differs_from_plain) == (DIFFERS, [0])
