from __future__ import annotations

from backend_caps import BatchKind
from backend_caps.kit import Check, CheckResult, Effort, run_checks
from backend_caps.kit.checks.batches import BATCHES_APART
from backend_caps.kit.checks.writes import INPUTS_UNTOUCHED, PADDING_HARMLESS
from backend_caps.kit.execution import cases_on
from tests.kit.made import claiming
from tests.kit.specimens import SUBJECTS


def _result(name: str, check: Check) -> CheckResult:
    return run_checks(SUBJECTS[name], [check], device="cpu", effort=Effort.quick()).checks[0]


def _words(result: CheckResult) -> list[str]:
    return [finding.fault.what for finding in result.findings]


def test_changed_batch_is_told_with_its_line() -> None:
    """A fault says what was and what is, and which line of the backend did it."""
    finding = _result("lengths_in_place", INPUTS_UNTOUCHED).findings[0]

    assert finding.fault.what == "seq_lens of the batch was [24], and is [25] now"
    assert finding.fault.site is not None
    assert finding.fault.site.file.endswith("state.py")


def test_mirror_is_an_input_too() -> None:
    """The host's lengths are held as the device's are."""
    words = _words(_result("bound_in_place", INPUTS_UNTOUCHED))

    assert words[0] == "seq_lens_cpu of the batch was [24], and is [32] now"


def test_slots_are_told_with_their_owner() -> None:
    """KV that changes without leave is told by its slots, and whose they are."""
    words = _words(_result("saves_anyway", INPUTS_UNTOUCHED))

    assert words[0].startswith("with save_kv_cache=False KV of slots ")
    assert words[0].endswith("changed, which hold the context of request 0")


def test_tokens_that_are_not_stored_are_told() -> None:
    """New keys and values have to be in the cache as they came."""
    words = _words(_result("rounded_keys", INPUTS_UNTOUCHED))

    assert words[0].startswith("keys of new tokens 0, 1, 2, 3, 4, 5 and ")
    assert words[0].endswith("are not stored as they were given")


def test_stored_tokens_are_read() -> None:
    """With save_kv_cache=False what stands in the cache is what comes out."""
    words = _words(_result("new_tokens_apart", INPUTS_UNTOUCHED))

    assert words[0].startswith("with save_kv_cache=False, where its tokens are stored, tokens ")


def test_padding_is_told_with_its_size() -> None:
    """A fault says by how much the batch was padded, and whose outputs are others."""
    words = _words(_result("scaled_by_batch", PADDING_HARMLESS))

    assert words[0] == (
        "padded by 1 requests and 2 tokens, NaN or infinity in the outputs of tokens 0, 1, 2, 3, "
        "4, 5 and 18 more; what it gives without padding was expected"
    )


def test_stray_padding_is_told_by_its_slots() -> None:
    """Padded tokens that go elsewhere are told, where the elsewhere is not the padding's page."""
    result = _result("padding_to_slot_one", PADDING_HARMLESS)

    stray = [own for own in result.findings if "wrote to slots 1, which" in own.fault.what]
    assert stray
    assert all(own.case.scenario and own.case.scenario.page_size == 1 for own in stray)


def test_only_what_is_replayed_is_padded() -> None:
    """Of kinds of batches those that are claimed are tried."""
    single = claiming(graph_replay=frozenset({BatchKind.SINGLE_TOKEN_DECODE}))

    tried = {own.scenario for own in cases_on("sim", PADDING_HARMLESS, single, Effort.quick())}

    assert {own.forward.value for own in tried if own is not None} == {"decode"}


def test_batch_behind_others_is_told_with_them() -> None:
    """A fault says which forwards came before."""
    words = _words(_result("first_longest", BATCHES_APART))

    assert words[0].startswith("in turn 1, prefill behind prefill, tokens ")
    assert words[0].endswith("what a new backend gives was expected")
