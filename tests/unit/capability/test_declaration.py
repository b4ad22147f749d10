from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import replace
from datetime import date

import pytest

from backend_caps import Capabilities, Declaration, Facts, Given, Part, Phase, Role, When
from backend_caps.capability.evidence import (
    Change,
    ClaimState,
    Evidence,
    Standing,
    changes_since,
    declaration_digest,
)
from backend_caps.capability.facts import Reason
from tests.unit.building import faults_of
from tests.unit.capability.test_capabilities import EVERYTHING
from tests.unit.evidence import FAILED, HELD, NOT_CHECKED, PRESENT, evidence, verified

_CHANGED = (Change(what="torch", was="2.13.0", now="2.14.0"),)


def test_evidence_is_read_as_it_is_written() -> None:
    """Writing and reading gives the same evidence, and its file ends with a line."""
    written = evidence({"host_seq_lens": HELD})

    text = written.text()

    assert (Evidence.model_validate_json(text), text[-2:]) == (written, "}\n")


def test_evidence_of_another_day_is_of_the_same_run() -> None:
    """Only the date may differ between runs that found the same."""
    one = evidence({"host_seq_lens": HELD})
    later = one.model_copy(update={"date": date(2027, 1, 1)})
    other = evidence({"host_seq_lens": FAILED})

    same = [one.is_of_same_run(later), later.is_of_same_run(one), one.is_of_same_run(other)]

    assert same == [True, True, False]


def _standing(
    verdicts: Mapping[str, str], *, owed: str = HELD, changes: tuple[Change, ...] = ()
) -> Standing:
    return Standing(evidence=evidence(verdicts, owed=owed), changes=changes)


_CLAIM, _NO_CASE = "host_seq_lens", "not checked: no case"
_STALE = "stale: torch was 2.13.0 and is 2.14.0"
_FOREIGN = Standing(problem="fa3.json is of 'mla'")
_VERIFIED, _DECLARED, _FAILED = ClaimState.VERIFIED, ClaimState.DECLARED, ClaimState.FAILED


@pytest.mark.parametrize(
    ("standing", "state", "why_not"),
    [
        (verified(_CLAIM), _VERIFIED, None),
        (Standing(), _DECLARED, "no evidence"),
        (verified("dtypes"), _DECLARED, "no evidence"),
        (_FOREIGN, _DECLARED, "no evidence: fa3.json is of 'mla'"),
        (_standing({_CLAIM: NOT_CHECKED}), ClaimState.NOT_CHECKED, _NO_CASE),
        (_standing({_CLAIM: FAILED}), _FAILED, "failed: check-host-seq-lens"),
        (_standing({_CLAIM: HELD, "dtypes": FAILED}), _VERIFIED, None),
        (_standing({_CLAIM: HELD}, owed=FAILED), _FAILED, "failed: check-races"),
        (_standing({_CLAIM: HELD}, changes=_CHANGED), ClaimState.STALE, _STALE),
        (_standing({_CLAIM: NOT_CHECKED}, changes=_CHANGED), ClaimState.NOT_CHECKED, _NO_CASE),
    ],
)
def test_claim_stands_as_the_evidence_says(
    standing: Standing, state: ClaimState, why_not: str | None
) -> None:
    """A claim is verified where its checks held, nothing owed failed, and nothing changed."""
    assert standing.state(_CLAIM) == (state, why_not)


def test_failed_checks_are_named() -> None:
    """Those of claims and those that are owed, in the order in which they ran."""
    standing = Standing(evidence=evidence({"dtypes": FAILED, "page_sizes": HELD}, owed=FAILED))

    assert [check.code for check in standing.failed_checks] == ["check-dtypes", "check-races"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"kit_version": "1.1"}, "backend-caps was 1.0 and is 1.1"),
        ({"torch": None}, "torch was 2.13.0 and is not known"),
        ({"version": "1.1"}, "the distribution was fa3-caps 1.0 and is fa3-caps 1.1"),
        ({"distribution": "acme"}, "the distribution was fa3-caps 1.0 and is acme 1.0"),
        ({"source": "sha256:6"}, "the source changed"),
        ({"declaration": "sha256:e"}, "the declaration changed"),
        ({}, None),
    ],
)
def test_change_makes_evidence_stale(change: dict[str, str], text: str | None) -> None:
    """Each thing that the evidence rests on is reported when it is another."""
    changes = changes_since(evidence({}), replace(PRESENT, **change))

    assert [str(each) for each in changes] == ([] if text is None else [text])


def test_backend_that_no_distribution_ships_has_none() -> None:
    """What was shipped by nobody and now is has changed."""
    written = evidence({})
    versions = written.versions.model_copy(update={"distribution": None, "version": None})

    (change,) = changes_since(written.model_copy(update={"versions": versions}), PRESENT)

    assert str(change) == "the distribution was none and is fa3-caps 1.0"


@pytest.mark.parametrize(("triton", "num_changes"), [("3.7.0", 1), ("3.7.1", 0), (None, 0)])
def test_triton_counts_where_it_is_used(triton: str | None, num_changes: int) -> None:
    """A backend without Triton does not care which one is installed."""
    assert len(changes_since(evidence({}, triton=triton), PRESENT)) == num_changes


@pytest.mark.parametrize(
    ("ran_on", "device", "num_changes"),
    [
        pytest.param("sim", "cuda", 0, id="the simulated one stands in for any"),
        pytest.param("cuda", "cuda", 0, id="the same"),
        pytest.param("cpu", "cuda", 1, id="another"),
        pytest.param("cpu", None, 0, id="not known"),
    ],
)
def test_device_counts_where_it_is_known(ran_on: str, device: str | None, num_changes: int) -> None:
    """What held on one real device says nothing of another."""
    changes = changes_since(evidence({}, device=ran_on), replace(PRESENT, device=device))

    assert len(changes) == num_changes


def test_digest_of_a_declaration_is_of_what_it_says() -> None:
    """The order of a set is nothing, nor is an adapter; a value or a tolerance is something."""
    one = Declaration(capabilities=Capabilities(dtypes={"float32", "bfloat16"}))
    same = Declaration(
        capabilities=Capabilities(dtypes={"bfloat16", "float32"}),
        adapters={"sglang": "my_flash.sglang:my_flash"},
    )
    others = [
        Declaration(capabilities=Capabilities(dtypes={"bfloat16"})),
        one.model_copy(update={"tolerances": {"float32": 1e-3}}),
    ]

    digests = {declaration_digest(each) for each in (one, same, *others)}

    assert (declaration_digest(one) == declaration_digest(same), len(digests)) == (True, 3)


_READS = Capabilities(needs_cpu_seq_lens=True)
_FP8 = Given(kv_cache_dtype={"fp8_e5m2"}, phase={Phase.DECODE})
_WHEN = When(given=_FP8, capabilities=_READS, reason="the fp8 path sizes its workspace")
_FULL = Declaration(
    capabilities=EVERYTHING,
    conditions=[_WHEN],
    parts=[Part("triton", phases={Phase.PREFILL}), Part("fa3", roles={Role.TARGET})],
    implementation="my_flash.backend:MyFlash",
    adapters={"vllm": "my_flash.vllm:MyFlashBackend", "sglang": "my_flash.sglang:my_flash"},
    tolerances={"bf16": 0.02, "float32": 1e-6},
)
_TOO_FEW = "Frozenset should have at least 1 item after validation, not 0"


_NO_OBJECT = "Input should be 'my_flash.sglang:Name'"


@pytest.mark.parametrize(
    ("name", "said", "text"),
    [
        ("api", 2, "Input should be 1"),
        ("capability", {}, "Extra inputs are not permitted"),
        ("implementation", "my_flash.backend", "Input should be 'my_flash.backend:Name'"),
        ("implementation", "my_flash.b.MyFlash", "Input should be 'my_flash.b:MyFlash'"),
        ("implementation", "src/my_flash.py", "Input should be 'package.module:Name'"),
        ("implementation", Phase, "Input should be 'backend_caps.capability.kind:Phase'"),
        ("implementation", 3, "Input should be a valid string"),
        ("adapters.sglang", {"sglang": "my_flash.sglang"}, _NO_OBJECT),
        ("adapters.tgi.[key]", {"tgi": "my_flash.tgi:a"}, "Input should be 'sglang' or 'vllm'"),
        ("tolerances.float16", {"float16": 0}, "Input should be greater than 0"),
        ("conditions", _WHEN, "Input should be a list: [When(...)]"),
        ("parts", Part("triton"), "Input should be a list: [Part(...)]"),
        ("parts", "triton", "Input should be a list: [Part('triton'), ...]"),
        ("parts", ["triton"], "Input should be a list: [Part('triton'), ...]"),
        ("parts.0.backend", [{"backend": " "}], "String should have at least 1 character"),
        ("parts.0.phases", [{"backend": "fa3", "phases": set()}], _TOO_FEW),
        ("parts.0.roles", [{"backend": "fa3", "roles": set()}], _TOO_FEW),
        ("parts.0.phase", [{"backend": "fa3", "phase": "decode"}], "Unexpected keyword argument"),
        ("capabilities", ["fa3"], "Input should be a valid dictionary or instance of Capabilities"),
    ],
)
def test_declaration_refuses_what_it_cannot_be(name: str, said: object, text: str) -> None:
    """A wrong name or type is an error that says where, in a copy too."""
    field = name.partition(".")[0]

    assert faults_of(lambda: Declaration().model_copy(update={field: said})) == [(name, text)]


def test_tolerances_are_of_dtypes_by_their_main_names() -> None:
    """A dtype has one spelling, and its tolerance stays as it was declared."""
    said = {"bf16": 0.02, "float32": 1e-6}
    declaration = Declaration(tolerances=said)

    said["bf16"] = 1.0

    assert [*declaration.tolerances.items()] == [("bfloat16", 0.02), ("float32", 1e-6)]
    assert repr(declaration.tolerances) == "{'bfloat16': 0.02, 'float32': 1e-06}"


def test_adapters_are_sorted_by_engine() -> None:
    """Adapters are a mapping that nobody changes, and that reads the same however it was made."""
    written = repr(_FULL.adapters)

    sglang, vllm = "'my_flash.sglang:my_flash'", "'my_flash.vllm:MyFlashBackend'"
    assert written == f"{{'sglang': {sglang}, 'vllm': {vllm}}}"


def test_declaration_survives_json_and_pickling() -> None:
    """A declaration crosses into another process, the same there, and hashes as its equals do."""
    read = Declaration.model_validate_json(_FULL.model_dump_json())
    unpickled = pickle.loads(pickle.dumps(_FULL))  # noqa: S301 - our own bytes

    assert {_FULL, read, unpickled, _FULL.model_copy()} == {_FULL}
    assert _FULL.model_copy(update={"implementation": None}) != _FULL


def test_when_of_no_capability_is_refused() -> None:
    """A condition that changes nothing is an error that quotes it."""
    faults = faults_of(lambda: When(given=_FP8, capabilities=Capabilities(), reason="why"))

    text = (
        "Value error, When(phase = decode and kv_cache_dtype = fp8_e5m2) states no capability; "
        "name at least one that differs there."
    )
    assert faults == [("", text)]


def test_when_says_why_it_is_one() -> None:
    """A reason is a sentence, without the blanks around it."""
    faults = faults_of(lambda: When(given=_FP8, capabilities=_READS, reason="  \n"))

    assert faults == [("reason", "String should have at least 1 character")]
    assert When(given=_FP8, capabilities=_READS, reason="  why \n").reason == "why"


def test_part_takes_its_roles_and_phases() -> None:
    """A part takes a use where both its role and its phase are named."""
    decodes, drafts = Part("fa3", phases={Phase.DECODE}), Part("fa3", roles={Role.DRAFT})

    assert Part("fa3").takes(Role.DRAFT, Phase.VERIFY)
    assert decodes.takes(Role.TARGET, Phase.DECODE)
    assert not decodes.takes(Role.TARGET, Phase.PREFILL)
    assert not drafts.takes(Role.TARGET, Phase.DECODE)


def test_part_is_written_in_a_stable_order() -> None:
    """A part's phases and roles are written sorted."""
    declaration = Declaration(parts=[Part("fa3", phases={Phase.VERIFY, Phase.DECODE})])

    (written,) = declaration.model_dump(mode="json")["parts"]

    assert written["phases"] == ["decode", "verify"]
    assert written["roles"] == ["draft", "draft_extend", "target"]


def test_declaration_tells_why_it_does_not_fit() -> None:
    """A declaration is checked against facts by its base values."""
    declaration = Declaration(capabilities=Capabilities(devices={"xpu"}))

    reasons = declaration.unsupported_reasons(Facts(device="cuda"))

    assert reasons == (Reason(fact="device", actual="cuda", needed="xpu"),)
