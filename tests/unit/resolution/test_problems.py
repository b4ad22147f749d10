from __future__ import annotations

from dataclasses import replace

import pytest

from backend_caps.capability.backend import Problem, Reading
from backend_caps.capability.declaration import When
from backend_caps.capability.facts import Facts, Given
from backend_caps.capability.kind import Phase, Role
from backend_caps.capability.provenance import Origin
from backend_caps.capability.sets import Exact, MultipleOf
from backend_caps.capability.vocabulary import Capabilities, KVLayout
from backend_caps.resolution.resolver import resolve
from backend_caps.resolution.routing import uses_of
from backend_caps.resolution.rules import RuleSet
from backend_caps.resolution.uses import Use
from tests.unit.building import (
    OPTS_OUT,
    READS,
    RULES_13,
    SPECULATING,
    flags,
    missing_use,
    named,
    use,
)

_WIDE = Capabilities(max_speculative_topk=8, two_batch_overlap=True)
_NARROW = Capabilities(max_speculative_topk=4)


def _problems(uses: list[Use], line: str = "", facts: Facts | None = None) -> list[Problem]:
    return list(resolve(uses, flags(line), facts=facts).problems)


def test_missing_backend_is_a_problem() -> None:
    """A use that could not be read brings its own problem; undeclared capabilities are none."""
    problems = _problems([missing_use("fa3"), use()])

    assert problems == [Problem(code="backend-missing", message="no fa3.", remedy="Install it.")]


def test_engine_default_is_a_problem() -> None:
    """A backend that the engine chooses is reported once, with its phases."""
    read = flags("")

    problems = resolve(uses_of(read, named()), read).problems

    own = "the backend for decode, prefill is the engine's own choice (no --attention-backend)"
    message = f"{own}; nothing is known of it, so it counts as undeclared."
    remedy = (
        "Name it with --attention-backend, or follow its choice: --engine sglang with "
        "--model-config and --fact device_name."
    )
    assert list(problems) == [Problem(code="engine-default", message=message, remedy=remedy)]


@pytest.mark.parametrize(
    ("roles", "declared", "told"),
    [
        pytest.param([Role.DRAFT], set(), "draft", id="one"),
        pytest.param([Role.TARGET, Role.DRAFT_EXTEND], set(), "draft_extend", id="not the target"),
        pytest.param([Role.DRAFT_EXTEND, Role.DRAFT], set(), "draft, draft_extend", id="two"),
        pytest.param([Role.DRAFT], {Role.DRAFT}, None, id="declared"),
    ],
)
def test_undeclared_role_is_a_problem(
    roles: list[Role], declared: set[Role], told: str | None
) -> None:
    """A backend that declares no roles is for the target; others are reported once, together."""
    said = Capabilities(roles=declared) if declared else Capabilities()

    problems = _problems([use("fa3", said, role=role) for role in roles])

    problem = Problem(
        code="role-not-declared",
        message=f"backend 'fa3' is used as {told} and declares no roles; "
        "undeclared is target alone.",
        remedy="Ask the backend's author to declare its roles.",
    )
    assert problems == ([] if told is None else [problem])


_OTHER = (
    "kv-cache-dtype-unsupported",
    "backend 'fa3' takes kv_cache_dtype bfloat16; here it is fp8_e5m2.",
    "Use another backend, or kv_cache_dtype bfloat16.",
)
_SILENT = (
    "kv-cache-dtype-not-checked",
    "backend 'fa3' does not say which kv_cache_dtype it takes; here it is fp8_e5m2.",
    "Ask the backend's author to declare it.",
)
_BF16, _E5M2 = (Capabilities(kv_cache_dtypes={name}) for name in ("bfloat16", "fp8_e5m2"))


@pytest.mark.parametrize(
    ("capabilities", "dtype", "problems"),
    [
        pytest.param(_BF16, "fp8_e5m2", [_OTHER], id="another dtype"),
        pytest.param(Capabilities(), "fp8_e5m2", [_SILENT], id="does not say"),
        pytest.param(_E5M2, "fp8_e5m2", [], id="fits"),
        pytest.param(_BF16, "auto", [], id="auto is open"),
    ],
)
def test_machine_and_model_are_checked(
    capabilities: Capabilities, dtype: str, problems: list[tuple[str, str, str]]
) -> None:
    """What a backend takes is checked against what flags say, once for all its uses."""
    uses = [use("fa3", capabilities, phase=phase) for phase in Phase]

    found = _problems(uses, f"--kv-cache-dtype {dtype}")

    assert [(each.code, each.message, each.remedy) for each in found] == problems


_IF_TWO, _IF_NPU = Given(tp_size={2}), Given(device={"npu"})
_NOT_CHECKED = ["page-size-not-checked"]


@pytest.mark.parametrize(
    ("given", "line", "codes"),
    [
        pytest.param(_IF_TWO, "--tp-size 2", [], id="holds, and fits"),
        pytest.param(_IF_TWO, "--tp-size 4", _NOT_CHECKED, id="fails, and says nothing"),
        pytest.param(_IF_NPU, "", _NOT_CHECKED, id="open: may or may not fit"),
    ],
)
def test_machine_and_model_are_checked_under_conditions(
    given: Given, line: str, codes: list[str]
) -> None:
    """What a backend takes under a condition is what is checked where it holds."""
    when = When(given=given, capabilities=Capabilities(page_sizes=Exact(16)), reason="why")

    problems = _problems([use("fa3", conditions=[when])], f"--page-size 16 {line}")

    assert [found.code for found in problems] == codes


@pytest.mark.parametrize(
    "said",
    [
        pytest.param({"devices": "any"}, id="any device"),
        pytest.param({"devices": {"cuda", "xpu"}}, id="some devices"),
        pytest.param({"compute_capability": [{"at_least": (8, 0)}]}, id="windows"),
        pytest.param({"compute_capability": "any"}, id="any version"),
    ],
)
def test_machine_is_checked_under_several_conditions(said: dict[str, object]) -> None:
    """Conditions over the machine that hold together join, whatever they take."""
    whens = [
        When(given=given, capabilities=Capabilities.model_validate(said), reason="why")
        for given in (Given(tp_size={1}), Given(dp_size={1}))
    ]

    facts = Facts(device="cuda", compute_capability=(9, 0))
    problems = _problems([use("fa3", conditions=whens)], facts=facts)

    codes = {found.code.removesuffix("-not-checked") for found in problems}
    stated = {name.replace("_", "-").rstrip("s") for name in said}
    assert codes == {"device", "compute-capability"} - stated


_STATED = Capabilities(devices={"cuda"}, page_sizes=Exact(64))


@pytest.mark.parametrize(
    ("said", "codes"),
    [
        pytest.param(Capabilities(), [], id="left to its parts"),
        pytest.param(_STATED, ["device-unsupported", "page-size-unsupported"], id="its own words"),
    ],
)
def test_machine_of_a_composite_is_checked_as_it_says(said: Capabilities, codes: list[str]) -> None:
    """What a composite leaves out is no problem of its own; what it states holds."""
    own = replace(use("hybrid", said), adds_only=True)

    problems = _problems([own], "--page-size 16 --device cpu")

    assert [found.code for found in problems] == codes


def test_facts_that_contradict_flags_are_a_problem() -> None:
    """Where a fact says otherwise than a flag, a condition on it stays open."""
    reads = When(given=Given(page_size={64}), capabilities=READS, reason="why")
    uses, read = [use("fa3", OPTS_OUT, conditions=[reads])], flags(f"{SPECULATING} --page-size 64")

    plan = resolve(uses, read, facts=Facts(page_size=1))

    told = [each.message for each in plan.problems if each.code == "facts-contradict-flags"]
    assert told == ["--page-size is 64, and the fact page_size is 1; conditions on it stay open."]
    assert plan.needs_cpu_seq_lens


def test_page_size_conflict_is_a_problem_naming_its_owners() -> None:
    """Backends without a common page size are named with what each takes; the rest is not."""
    uses = [
        use("fa3", Capabilities(page_sizes=Exact(16))),
        use("mla", Capabilities(page_sizes=MultipleOf(64))),
        use("triton", Capabilities(page_sizes="any")),
    ]

    problems = _problems(uses)

    message = "no page size serves every backend: 'fa3' takes 16, 'mla' takes multiples of 64."
    remedy = "Use backends that share a page size."
    assert problems == [Problem(code="page-size-conflict", message=message, remedy=remedy)]


_TOO_WIDE = (
    "speculative-topk-unsupported",
    "--speculative-eagle-topk is 5, and the backends take at most 4: 'lean', 'mla'.",
    "Set it to 4, or use other backends.",
)
_NOT_GIVEN = (
    "speculative-topk-not-checked",
    (
        "--speculative-eagle-topk is not given, and the engine may pick more than the 4 that "
        "'lean', 'mla' take."
    ),
    "Give it.",
)


@pytest.mark.parametrize(
    ("line", "problems"),
    [
        pytest.param(f"{SPECULATING} --speculative-eagle-topk 5", [_TOO_WIDE], id="too wide"),
        pytest.param(f"{SPECULATING} --speculative-eagle-topk 4", [], id="as wide as it may be"),
        pytest.param(SPECULATING, [_NOT_GIVEN], id="not given"),
        pytest.param("--speculative-eagle-topk 5", [], id="no speculation"),
    ],
)
def test_draft_tree_that_is_too_wide_is_a_problem(
    line: str, problems: list[tuple[str, str, str]]
) -> None:
    """A draft tree wider than a backend takes is reported, with all who limit it."""
    said = {"fa3": _WIDE, "mla": _NARROW, "lean": _NARROW}
    uses = [use(name, own, phase=Phase.VERIFY) for name, own in said.items()]

    found = _problems(uses, line)

    assert [(each.code, each.message, each.remedy) for each in found] == problems


_TWO_BATCHES = "--enable-two-batch-overlap"
_SEVERAL = [use("fa3", _WIDE), use("mla"), use("triton", _NARROW)]
_REMEDY = "Leave the flag out, or use other backends."


@pytest.mark.parametrize(
    ("uses", "line", "told"),
    [
        pytest.param(_SEVERAL, _TWO_BATCHES, "'mla', 'triton'", id="two may not"),
        pytest.param([use("fa3", _WIDE)], _TWO_BATCHES, None, id="all may"),
        pytest.param([use("mla")], "", None, id="not asked for"),
    ],
)
def test_two_batch_overlap_that_a_backend_does_not_take_is_a_problem(
    uses: list[Use], line: str, told: str | None
) -> None:
    """Two-batch overlap is reported where a backend does not take it."""
    message = f"{_TWO_BATCHES} is given, and not every backend may run under it: {told}."
    problem = Problem(code="two-batch-overlap-unsupported", message=message, remedy=_REMEDY)

    assert _problems(uses, line) == ([] if told is None else [problem])


_DETERMINISTIC = "--enable-deterministic-inference"


@pytest.mark.parametrize(
    ("said", "line", "told"),
    [
        ({"deterministic": True}, _DETERMINISTIC, "a request the same bits in every batch"),
        ({"batch_invariant": True}, _DETERMINISTIC, "the same bits each time"),
        ({"deterministic": True, "batch_invariant": True}, _DETERMINISTIC, None),
        ({}, "", None),
    ],
)
def test_determinism_that_a_backend_does_not_have_is_a_problem(
    said: dict[str, bool], line: str, told: str | None
) -> None:
    """Deterministic inference is reported where a backend has other bits each time, or batch."""
    message = f"{_DETERMINISTIC} is given, and not every backend gives {told}: 'fa3'."
    problem = Problem(code="deterministic-inference-unsupported", message=message, remedy=_REMEDY)

    found = _problems([use("fa3", _WIDE.model_copy(update=said))], line)

    assert found == ([] if told is None else [problem])


def test_problems_are_sorted() -> None:
    """Problems stand in one order, by code and text."""
    uses = [missing_use("mla"), missing_use("fa3"), use("fa3", role=Role.DRAFT)]

    problems = _problems(uses, "--device cuda", Facts(page_size=16))

    assert [(found.code, found.message[:8]) for found in problems] == [
        ("backend-missing", "no fa3."),
        ("backend-missing", "no mla."),
        ("device-not-checked", "backend "),
        ("page-size-not-checked", "backend "),
        ("role-not-declared", "backend "),
    ]


def test_draft_tree_that_nobody_speaks_of_is_open() -> None:
    """Where no backend says how wide a tree it takes, nobody knows that it is too wide."""
    uses = [use("fa3", OPTS_OUT, phase=Phase.VERIFY)]

    told = _problems(uses, f"{SPECULATING} --speculative-eagle-topk 4")

    (found,) = [problem for problem in told if "topk" in problem.code]
    assert (found.code, found.is_open) == ("speculative-topk-not-declared", True)
    assert (found.message, found.remedy) == (
        "--speculative-eagle-topk is 4, and no backend declares whether 'fa3' takes more than 1.",
        "Ask the backend's author, or see the engine's own checks.",
    )


def test_engines_class_is_not_asked_for_what_it_cannot_say() -> None:
    """An engine's class has no words for its device, so that it is silent is no problem."""
    silent = Reading(origin=Origin.UNDECLARED, words="nothing")
    uses = [replace(use("fa3"), readings={"host_seq_lens": silent})]

    assert _problems(uses, "--device cuda") == []


@pytest.mark.parametrize(
    ("algorithm", "rules", "told"),
    [
        pytest.param("EAGLE", None, [], id="the engine's own"),
        pytest.param("DSPARK", RULES_13, ["algorithm-not-checked"], id="of another version"),
        pytest.param("DSPARK", replace(RULES_13, algorithms=frozenset()), [], id="none is known"),
    ],
)
def test_algorithm_that_the_engine_lacks_is_reported(
    algorithm: str, rules: RuleSet | None, told: list[str]
) -> None:
    """What an engine would refuse, or a plugin brings, is not passed over."""
    read = flags(f"--speculative-algorithm {algorithm}")

    plan = resolve([use("fa3", OPTS_OUT)], read, rules=rules)

    assert [problem.code for problem in plan.problems] == told


def test_unknown_feature_is_not_asked_for() -> None:
    """Strict asks for what every server has; a feature counts where one is known to have it."""
    without_sinks = Capabilities(
        attention_sinks=False, kv_layouts={KVLayout.NHD}, kernel_block_sizes=Exact(16)
    )
    uses = [use("fa3", without_sinks)]

    of_strict = resolve(uses, flags(""), policy="strict").problems

    assert of_strict == ()
    assert [each.code for each in _problems(uses, facts=Facts(attention_sinks=True))] == [
        "attention-sinks-unsupported"
    ]
