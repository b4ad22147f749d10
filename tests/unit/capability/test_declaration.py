from __future__ import annotations

import pickle

import pytest

from backend_caps.capability.declaration import Declaration, Part, When
from backend_caps.capability.facts import Facts, Given
from backend_caps.capability.fit import Reason
from backend_caps.capability.kind import Phase, Role
from backend_caps.capability.vocabulary import Capabilities, HostSeqLens
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


def test_declaration_of_nothing_is_valid() -> None:
    """An author may ship a backend and say nothing of it."""
    declaration = Declaration()

    said = (declaration.capabilities.stated(), declaration.conditions, declaration.parts)

    assert said == ({}, (), ())


@pytest.mark.parametrize(
    ("said", "place", "text"),
    [
        pytest.param({"api": 2}, "api", "Input should be 1", id="another api"),
        pytest.param(
            {"capability": {}}, "capability", "Extra inputs are not permitted", id="unknown name"
        ),
        pytest.param(
            {"implementation": "my_flash.backend"},
            "implementation",
            "Input should be 'my_flash.backend:Name'",
            id="an implementation without its object",
        ),
        pytest.param(
            {"implementation": "my_flash.backend.MyFlash"},
            "implementation",
            "Input should be 'my_flash.backend:MyFlash'",
            id="an implementation as it is imported",
        ),
        pytest.param(
            {"implementation": "src/my_flash.py"},
            "implementation",
            "Input should be 'package.module:Name'",
            id="an implementation by its file",
        ),
        pytest.param(
            {"implementation": Phase},
            "implementation",
            "Input should be 'backend_caps.capability.kind:Phase'",
            id="an implementation that is imported",
        ),
        pytest.param(
            {"implementation": 3},
            "implementation",
            "Input should be a valid string",
            id="an implementation that is a number",
        ),
        pytest.param(
            {"adapters": {"sglang": "my_flash.sglang.adapter"}},
            "adapters.sglang",
            "Input should be 'my_flash.sglang.adapter:Name'",
            id="an adapter without its object",
        ),
        pytest.param(
            {"adapters": {"tgi": "my_flash.tgi:adapter"}},
            "adapters.tgi.[key]",
            "Input should be 'sglang' or 'vllm'",
            id="an adapter for an engine that nobody knows",
        ),
        pytest.param(
            {"tolerances": {"float16": 0}},
            "tolerances.float16",
            "Input should be greater than 0",
            id="a tolerance of nothing",
        ),
        pytest.param(
            {"conditions": _WHEN},
            "conditions",
            "Input should be a list: [When(...)]",
            id="one condition",
        ),
        pytest.param(
            {"parts": Part("triton")}, "parts", "Input should be a list: [Part(...)]", id="one part"
        ),
        pytest.param(
            {"parts": "triton"},
            "parts",
            "Input should be a list: [Part('triton'), ...]",
            id="one part by its name",
        ),
        pytest.param(
            {"capabilities": None},
            "capabilities",
            "Input should be a valid dictionary or instance of Capabilities",
            id="no capabilities",
        ),
        pytest.param(
            {"parts": ["triton"]},
            "parts",
            "Input should be a list: [Part('triton'), ...]",
            id="a part by its name",
        ),
    ],
)
def test_declaration_refuses_what_it_cannot_be(
    said: dict[str, object], place: str, text: str
) -> None:
    """A wrong name or type is an error that says where."""
    faults = faults_of(lambda: Declaration.model_validate(said))

    assert faults == [(place, text)]


def test_declaration_stores_its_sequences_as_tuples() -> None:
    """Lists that the author may change later are stored as tuples."""
    kinds = (type(_FULL.conditions), type(_FULL.parts))

    assert kinds == (tuple, tuple)


def test_tolerances_are_of_dtypes_by_their_main_names() -> None:
    """A dtype has one spelling, and its tolerance is found by that one."""
    tolerances = _FULL.tolerances

    listed = [*tolerances.items()]

    assert (listed, repr(tolerances)) == (
        [("bfloat16", 0.02), ("float32", 1e-6)],
        "{'bfloat16': 0.02, 'float32': 1e-06}",
    )


def test_tolerances_cannot_be_changed() -> None:
    """What the author may change later is stored as what nobody can."""
    said = {"float16": 0.5}
    declaration = Declaration(tolerances=said)

    said["float16"] = 1.0

    assert (declaration.tolerances["float16"], len(declaration.tolerances)) == (0.5, 1)


def test_adapters_are_sorted_by_engine() -> None:
    """Adapters are a mapping that nobody changes, and that reads the same however it was made."""
    adapters = _FULL.adapters

    assert (len(adapters), repr(adapters)) == (
        2,
        "{'sglang': 'my_flash.sglang:my_flash', 'vllm': 'my_flash.vllm:MyFlashBackend'}",
    )


def test_declaration_survives_json() -> None:
    """A declaration crosses into another process as JSON and is the same there."""
    carried = Declaration.model_validate_json(_FULL.model_dump_json())

    assert carried == _FULL


def test_declaration_survives_pickling() -> None:
    """A declaration can be pickled."""
    carried = pickle.loads(pickle.dumps(_FULL))  # noqa: S301 - our own bytes

    assert carried == _FULL


def test_declaration_is_hashable() -> None:
    """Equal declarations are one member of a set, as plans of several ranks need."""
    twins = {_FULL, Declaration.model_validate_json(_FULL.model_dump_json())}

    assert len(twins) == 1


def test_declaration_copy_validates_what_it_is_given() -> None:
    """An update is checked like a declaration."""
    faults = faults_of(lambda: _FULL.model_copy(update={"api": 2}))

    assert faults == [("api", "Input should be 1")]


def test_declaration_copy_keeps_the_rest() -> None:
    """A copy differs from the original in what was updated, and in nothing else."""
    copy = _FULL.model_copy(update={"implementation": None})

    assert (copy.implementation, copy.capabilities, copy.parts) == (None, EVERYTHING, _FULL.parts)


def test_when_of_no_capability_is_refused() -> None:
    """A condition that changes nothing is an error that quotes it."""
    faults = faults_of(lambda: When(given=_FP8, capabilities=Capabilities(), reason="why"))

    text = (
        "Value error, When(phase = decode and kv_cache_dtype = fp8_e5m2) states no capability; "
        "name at least one that differs there."
    )
    assert faults == [("", text)]


@pytest.mark.parametrize("reason", ["", "  \n"])
def test_when_without_a_reason_is_refused(reason: str) -> None:
    """A condition says why it is one."""
    faults = faults_of(lambda: When(given=_FP8, capabilities=_READS, reason=reason))

    assert faults == [("reason", "String should have at least 1 character")]


def test_when_strips_its_reason() -> None:
    """A reason is a sentence, without the blanks around it."""
    when = When(given=_FP8, capabilities=_READS, reason="  because \n")

    assert when.reason == "because"


@pytest.mark.parametrize(
    ("part", "role", "phase", "taken"),
    [
        pytest.param(Part("fa3"), Role.DRAFT, Phase.VERIFY, True, id="everything"),
        pytest.param(
            Part("fa3", phases={Phase.DECODE}), Role.TARGET, Phase.DECODE, True, id="its phase"
        ),
        pytest.param(
            Part("fa3", phases={Phase.DECODE}),
            Role.TARGET,
            Phase.PREFILL,
            False,
            id="another phase",
        ),
        pytest.param(
            Part("fa3", roles={Role.DRAFT}), Role.TARGET, Phase.DECODE, False, id="another role"
        ),
    ],
)
def test_part_takes_its_roles_and_phases(part: Part, role: Role, phase: Phase, taken: bool) -> None:
    """A part takes a use where both its role and its phase are named."""
    actual = part.takes(role, phase)

    assert actual is taken


@pytest.mark.parametrize(
    ("said", "place", "text"),
    [
        pytest.param(
            {"backend": " "}, "backend", "String should have at least 1 character", id="no name"
        ),
        pytest.param({"backend": "fa3", "phases": set()}, "phases", _TOO_FEW, id="no phase"),
        pytest.param({"backend": "fa3", "roles": set()}, "roles", _TOO_FEW, id="no role"),
        pytest.param(
            {"backend": "fa3", "phase": "decode"},
            "phase",
            "Unexpected keyword argument",
            id="unknown",
        ),
    ],
)
def test_part_refuses_what_it_cannot_be(said: dict[str, object], place: str, text: str) -> None:
    """A part names a backend and takes something."""
    faults = faults_of(lambda: Declaration.model_validate({"parts": [said]}))

    assert faults == [(f"parts.0.{place}", text)]


def test_part_is_written_in_a_stable_order() -> None:
    """A part's phases and roles are written sorted."""
    declaration = Declaration(parts=[Part("fa3", phases={Phase.VERIFY, Phase.DECODE})])

    written = declaration.model_dump(mode="json")["parts"]

    assert written == [
        {
            "backend": "fa3",
            "phases": ["decode", "verify"],
            "roles": ["draft", "draft_extend", "target"],
            "given": None,
        }
    ]


def test_declaration_tells_why_it_does_not_fit() -> None:
    """A declaration is checked against facts by its base values."""
    declaration = Declaration(capabilities=Capabilities(devices={"xpu"}))

    reasons = declaration.unsupported_reasons(Facts(device="cuda"))

    assert reasons == (
        Reason(
            code="device-unsupported",
            fact="device",
            actual="cuda",
            needed="xpu",
            remedy="Use another backend, or device xpu.",
        ),
    )


def test_when_is_read_from_json() -> None:
    """A condition is plain data, in JSON as in Python."""
    written = {
        "given": {"kv_cache_dtype": ["fp8_e5m2"], "phase": ["decode"]},
        "capabilities": {"host_seq_lens": "exact"},
        "reason": "the fp8 path sizes its workspace",
    }

    when = When.model_validate(written)

    assert (when, when.capabilities.host_seq_lens) == (_WHEN, HostSeqLens.EXACT)
