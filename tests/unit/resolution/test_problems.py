from __future__ import annotations

from dataclasses import replace

import pytest

from backend_caps.capability.backend import Problem, Reading
from backend_caps.capability.declaration import Declaration, Part, When
from backend_caps.capability.facts import Facts, Given
from backend_caps.capability.kind import Phase, Role
from backend_caps.capability.provenance import Origin
from backend_caps.capability.sizes import Exact, MultipleOf
from backend_caps.capability.vocabulary import Capabilities
from backend_caps.resolution.resolver import resolve
from backend_caps.resolution.rules import RuleSet
from backend_caps.resolution.uses import Use, uses_of
from tests.unit.building import OPTS_OUT, SPECULATING, flags, installed, missing_use, named, use

_WIDE = Capabilities(max_speculative_topk=8, two_batch_overlap=True)
_NARROW = Capabilities(max_speculative_topk=4)


def _problems(uses: list[Use], line: str = "", facts: Facts | None = None) -> list[Problem]:
    return list(resolve(uses, flags(line), facts=facts).problems)


def test_plan_without_faults_has_no_problem() -> None:
    """Undeclared capabilities are no problem as long as nothing depends on them."""
    problems = _problems([use()])

    assert problems == []


def test_missing_backend_is_a_problem() -> None:
    """A use that could not be read brings its own problem."""
    problems = _problems([missing_use("fa3")])

    assert problems == [Problem(code="backend-missing", message="no fa3.", remedy="Install it.")]


def test_engine_default_is_a_problem() -> None:
    """A backend that the engine chooses is told of once, with its phases."""
    read = flags("")

    problems = resolve(uses_of(read, named()), read).problems

    assert list(problems) == [
        Problem(
            code="engine-default",
            message="the backend for decode, prefill is the engine's own choice "
            "(no --attention-backend); nothing is known of it, so it counts as undeclared.",
            remedy="Name it with --attention-backend.",
        )
    ]


@pytest.mark.parametrize(
    ("roles", "told"),
    [
        pytest.param([Role.DRAFT], "draft", id="one"),
        pytest.param([Role.TARGET, Role.DRAFT_EXTEND], "draft_extend", id="one beside the target"),
        pytest.param([Role.DRAFT_EXTEND, Role.DRAFT], "draft, draft_extend", id="two"),
    ],
)
def test_undeclared_role_is_a_problem(roles: list[Role], told: str) -> None:
    """A backend that declares no roles is for the target; others are told of once, together."""
    problems = _problems([use("fa3", role=role) for role in roles])

    assert problems == [
        Problem(
            code="role-not-declared",
            message=f"backend 'fa3' is used as {told} and declares no roles; "
            "undeclared is target alone.",
            remedy="Ask the backend's author to declare its roles.",
        )
    ]


def test_declared_role_is_no_problem() -> None:
    """A backend in a role that it declares is as it should be."""
    problems = _problems([use("fa3", Capabilities(roles={Role.DRAFT}), role=Role.DRAFT)])

    assert problems == []


_UNSUPPORTED = Problem(
    code="kv-cache-dtype-unsupported",
    message="backend 'fa3' takes kv_cache_dtype bfloat16; here it is fp8_e5m2.",
    remedy="Use another backend, or kv_cache_dtype bfloat16.",
)
_NOT_CHECKED = Problem(
    code="kv-cache-dtype-not-checked",
    message="backend 'fa3' does not say which kv_cache_dtype it takes; here it is fp8_e5m2.",
    remedy="Ask the backend's author to declare it.",
)


@pytest.mark.parametrize(
    ("capabilities", "line", "problems"),
    [
        pytest.param(
            Capabilities(kv_cache_dtypes={"bfloat16"}),
            "--kv-cache-dtype fp8_e5m2",
            [_UNSUPPORTED],
            id="another dtype",
        ),
        pytest.param(
            Capabilities(), "--kv-cache-dtype fp8_e5m2", [_NOT_CHECKED], id="does not say"
        ),
        pytest.param(
            Capabilities(kv_cache_dtypes={"fp8_e5m2"}), "--kv-cache-dtype fp8_e5m2", [], id="fits"
        ),
        pytest.param(Capabilities(kv_cache_dtypes={"bfloat16"}), "", [], id="auto is open"),
    ],
)
def test_machine_and_model_are_checked(
    capabilities: Capabilities, line: str, problems: list[Problem]
) -> None:
    """What a backend takes is checked against what flags say."""
    actual = _problems([use("fa3", capabilities)], line)

    assert actual == problems


@pytest.mark.parametrize(
    ("line", "codes"),
    [
        pytest.param("--page-size 16 --tp-size 2", [], id="holds, and fits"),
        pytest.param(
            "--page-size 16 --tp-size 4", ["page-size-not-checked"], id="fails, and says nothing"
        ),
    ],
)
def test_machine_and_model_are_checked_under_conditions(line: str, codes: list[str]) -> None:
    """What a backend takes under a condition is what is checked where it holds."""
    when = When(
        given=Given(tp_size={2}), capabilities=Capabilities(page_sizes=Exact(16)), reason="why"
    )

    problems = _problems([use("fa3", conditions=[when])], line)

    assert [found.code for found in problems] == codes


def test_sizes_under_an_open_condition_are_not_checked() -> None:
    """Sizes that a backend takes under a condition that is open may or may not fit."""
    when = When(
        given=Given(device={"npu"}), capabilities=Capabilities(page_sizes=Exact(16)), reason="why"
    )

    problems = _problems([use("fa3", conditions=[when])], "--page-size 16")

    assert problems == [
        Problem(
            code="page-size-not-checked",
            message="backend 'fa3' does not say which page_size it takes; here it is 16.",
            remedy="Ask the backend's author to declare it.",
        )
    ]


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

    problems = _problems(
        [use("fa3", conditions=whens)], facts=Facts(device="cuda", compute_capability=(9, 0))
    )

    codes = {found.code.removesuffix("-not-checked") for found in problems}
    assert codes == {"device", "compute-capability"} - {
        name.replace("_", "-").rstrip("s") for name in said
    }


def test_machine_of_a_composite_is_checked_by_its_parts() -> None:
    """What a composite leaves out of its own words is no problem of its own."""
    own = Use(
        backend="hybrid",
        role=Role.DRAFT,
        phase=Phase.DECODE,
        declaration=Declaration(),
        adds_only=True,
    )

    problems = _problems([own], "--page-size 16")

    assert problems == []


def test_problem_of_several_uses_is_told_once() -> None:
    """A backend in several phases has each of its problems once."""
    uses = [use("fa3", phase=phase) for phase in Phase]

    problems = _problems(uses, "--page-size 16")

    assert [found.code for found in problems] == ["page-size-not-checked"]


def test_page_size_conflict_is_a_problem_naming_its_owners() -> None:
    """Backends without a common page size are named with what each takes; the rest is not."""
    uses = [
        use("fa3", Capabilities(page_sizes=Exact(16))),
        use("mla", Capabilities(page_sizes=MultipleOf(64))),
        use("triton", Capabilities(page_sizes="any")),
    ]

    problems = _problems(uses)

    assert problems == [
        Problem(
            code="page-size-conflict",
            message="no page size serves every backend: 'fa3' takes 16, "
            "'mla' takes multiples of 64.",
            remedy="Use backends that share a page size.",
        )
    ]


def test_draft_tree_that_several_limit_names_all() -> None:
    """Backends that share the limit are told of in one sentence."""
    uses = [use(name, _NARROW, phase=Phase.VERIFY) for name in ("mla", "lean")]

    (problem,) = _problems(uses, SPECULATING)

    assert problem.message.endswith("more than the 4 that 'lean', 'mla' take.")


@pytest.mark.parametrize(
    ("line", "problems"),
    [
        pytest.param(
            f"{SPECULATING} --speculative-eagle-topk 5",
            [
                Problem(
                    code="speculative-topk-unsupported",
                    message="--speculative-eagle-topk is 5, and the backends take at most 4: "
                    "'mla'.",
                    remedy="Set it to 4, or use other backends.",
                )
            ],
            id="too wide",
        ),
        pytest.param(f"{SPECULATING} --speculative-eagle-topk 4", [], id="as wide as it may be"),
        pytest.param(
            SPECULATING,
            [
                Problem(
                    code="speculative-topk-not-checked",
                    message="--speculative-eagle-topk is not given, and the engine may pick more "
                    "than the 4 that 'mla' takes.",
                    remedy="Give it.",
                )
            ],
            id="not given",
        ),
        pytest.param("--speculative-eagle-topk 5", [], id="no speculation"),
    ],
)
def test_draft_tree_that_is_too_wide_is_a_problem(line: str, problems: list[Problem]) -> None:
    """A draft tree wider than a backend takes is told of, with who limits it."""
    uses = [
        use("fa3", _WIDE, phase=Phase.VERIFY),
        use("mla", _NARROW, phase=Phase.VERIFY),
    ]

    actual = _problems(uses, line)

    assert actual == problems


@pytest.mark.parametrize(
    ("uses", "line", "problems"),
    [
        pytest.param(
            [use("fa3", _WIDE), use("mla"), use("triton", _NARROW)],
            "--enable-two-batch-overlap",
            [
                Problem(
                    code="two-batch-overlap-unsupported",
                    message="--enable-two-batch-overlap is given, and not every backend may run "
                    "under it: 'mla', 'triton'.",
                    remedy="Leave the flag out, or use other backends.",
                )
            ],
            id="two may not",
        ),
        pytest.param([use("fa3", _WIDE)], "--enable-two-batch-overlap", [], id="all may"),
        pytest.param([use("mla")], "", [], id="not asked for"),
    ],
)
def test_two_batch_overlap_that_a_backend_does_not_take_is_a_problem(
    uses: list[Use], line: str, problems: list[Problem]
) -> None:
    """Two-batch overlap is told of where a backend does not take it."""
    actual = _problems(uses, line)

    assert actual == problems


_DETERMINISTIC = "--enable-deterministic-inference"


@pytest.mark.parametrize(
    ("capabilities", "line", "problems"),
    [
        pytest.param(
            Capabilities(deterministic=True),
            _DETERMINISTIC,
            [
                Problem(
                    code="deterministic-inference-unsupported",
                    message="--enable-deterministic-inference is given, and not every backend "
                    "gives a request the same bits in every batch: 'fa3'.",
                    remedy="Leave the flag out, or use other backends.",
                )
            ],
            id="not in every batch",
        ),
        pytest.param(
            Capabilities(batch_invariant=True),
            _DETERMINISTIC,
            [
                Problem(
                    code="deterministic-inference-unsupported",
                    message="--enable-deterministic-inference is given, and not every backend "
                    "gives the same bits each time: 'fa3'.",
                    remedy="Leave the flag out, or use other backends.",
                )
            ],
            id="not each time",
        ),
        pytest.param(
            Capabilities(deterministic=True, batch_invariant=True), _DETERMINISTIC, [], id="both"
        ),
        pytest.param(Capabilities(), "", [], id="not asked for"),
    ],
)
def test_determinism_that_a_backend_does_not_have_is_a_problem(
    capabilities: Capabilities, line: str, problems: list[Problem]
) -> None:
    """Deterministic inference is told of where a backend has other bits each time, or batch."""
    uses = [use("fa3", capabilities.model_copy(update=_WIDE.stated()))]

    actual = _problems(uses, line)

    assert actual == problems


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


def test_composite_without_a_part_is_a_problem_of_the_plan() -> None:
    """What routing could not fill stands among the plan's problems."""
    hybrid = installed("hybrid", parts=[Part("fa3", phases={Phase.PREFILL})])
    read = flags("--attention-backend hybrid")

    plan = resolve(uses_of(read, named(hybrid, installed("fa3"))), read)

    assert [found.code for found in plan.problems] == ["no-part"]


def test_draft_tree_that_nobody_speaks_of_is_open() -> None:
    """Where no backend says how wide a tree it takes, nobody knows that it is too wide."""
    uses = [use("fa3", OPTS_OUT, phase=Phase.VERIFY)]

    told = _problems(uses, f"{SPECULATING} --speculative-eagle-topk 4")

    found = [problem for problem in told if "topk" in problem.code]
    assert found == [
        Problem(
            code="speculative-topk-not-declared",
            message="--speculative-eagle-topk is 4, and nobody says whether 'fa3' takes more "
            "than 1.",
            remedy="Ask the backend's author, or see the engine's own checks.",
        )
    ]
    assert found[0].is_open


def test_engines_class_is_not_asked_for_what_it_cannot_say() -> None:
    """An engine's class has no words for its device, so that it is silent is no problem."""
    silent = Reading(origin=Origin.UNDECLARED, words="nothing")
    uses = [replace(use("fa3"), readings={"host_seq_lens": silent})]

    assert _problems(uses, "--device cuda") == []


@pytest.mark.parametrize(
    ("algorithm", "rules", "told"),
    [
        pytest.param("EAGLE", None, [], id="the engine's own"),
        pytest.param(
            "DSPARK",
            RuleSet.builtin("sglang-0.5.13"),
            ["algorithm-not-checked"],
            id="of another version",
        ),
        pytest.param(
            "DSPARK",
            replace(RuleSet.builtin("sglang-0.5.13"), algorithms=frozenset()),
            [],
            id="of an engine whose algorithms are not known",
        ),
    ],
)
def test_algorithm_that_the_engine_lacks_is_told(
    algorithm: str, rules: RuleSet | None, told: list[str]
) -> None:
    """What an engine would refuse, or a plugin brings, is not passed over."""
    read = flags(f"--speculative-algorithm {algorithm}")

    plan = resolve([use("fa3", OPTS_OUT)], read, rules=rules)

    assert [problem.code for problem in plan.problems] == told
