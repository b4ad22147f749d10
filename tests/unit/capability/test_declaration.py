from __future__ import annotations

import pickle

import pytest

from backend_caps import Capabilities, Declaration, Facts, Given, Part, Phase, Role, When
from backend_caps.capability.facts import Reason
from tests.unit.building import faults_of
from tests.unit.capability.test_capabilities import EVERYTHING

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
