from __future__ import annotations

from collections.abc import Iterable

import pytest

from backend_caps.capability.backend import Backend, Problem, Status
from backend_caps.capability.declaration import Declaration, Part, When
from backend_caps.capability.facts import Given
from backend_caps.capability.kind import Phase, Role
from backend_caps.capability.provenance import BY_HAND
from backend_caps.capability.vocabulary import Capabilities
from backend_caps.resolution.uses import ENGINE_DEFAULT, Use, made_of, uses_of
from tests.unit.building import (
    OPTS_OUT,
    READS,
    broken,
    error_of,
    errors_of,
    flags,
    installed,
    named,
    shipped,
)

_FA3, _MLA, _TRITON = installed("fa3", OPTS_OUT), installed("mla", READS), installed("triton")
_THREE = named(_FA3, _MLA, _TRITON)
_SPLIT = "--prefill-attention-backend fa3 --decode-attention-backend mla"
_DEVICE_PARTS = [
    Part("fa3", given=Given(device={"cuda"})),
    Part("mla", given=Given(device={"npu"})),
]
_BY_DEVICE = installed("pair", parts=_DEVICE_PARTS)
_ON_BY_DEVICE = flags("--attention-backend pair")
_EAGLE = "--speculative-algorithm EAGLE"


def _places(uses: Iterable[Use]) -> list[str]:
    return [f"{use.role.value} {use.phase.value}: {use.backend} by {use.slot}" for use in uses]


@pytest.mark.parametrize(
    ("line", "places"),
    [
        pytest.param(
            "--attention-backend fa3",
            [
                "target prefill: fa3 by --attention-backend",
                "target decode: fa3 by --attention-backend",
            ],
            id="one backend, no speculation",
        ),
        pytest.param(
            _SPLIT,
            [
                "target prefill: fa3 by --prefill-attention-backend",
                "target decode: mla by --decode-attention-backend",
            ],
            id="one backend a phase",
        ),
        pytest.param(
            "--attention-backend fa3 --decode-attention-backend mla",
            [
                "target prefill: fa3 by --attention-backend",
                "target decode: mla by --decode-attention-backend",
            ],
            id="a phase's own backend goes first",
        ),
        pytest.param(
            f"{_SPLIT} {_EAGLE}",
            [
                "target prefill: fa3 by --prefill-attention-backend",
                "target decode: mla by --decode-attention-backend",
                "target verify: fa3 by --prefill-attention-backend",
                "draft prefill: fa3 by --prefill-attention-backend",
                "draft decode: mla by --decode-attention-backend",
                "draft_extend verify: fa3 by --prefill-attention-backend",
            ],
            id="verify and draft-extend run on prefill's",
        ),
        pytest.param(
            f"{_SPLIT} {_EAGLE} --speculative-attention-mode decode",
            [
                "target prefill: fa3 by --prefill-attention-backend",
                "target decode: mla by --decode-attention-backend",
                "target verify: mla by --decode-attention-backend",
                "draft prefill: fa3 by --prefill-attention-backend",
                "draft decode: mla by --decode-attention-backend",
                "draft_extend verify: mla by --decode-attention-backend",
            ],
            id="verify and draft-extend run on decode's",
        ),
        pytest.param(
            f"{_SPLIT} {_EAGLE} --speculative-draft-attention-backend triton",
            [
                "target prefill: fa3 by --prefill-attention-backend",
                "target decode: mla by --decode-attention-backend",
                "target verify: fa3 by --prefill-attention-backend",
                "draft prefill: triton by --speculative-draft-attention-backend",
                "draft decode: triton by --speculative-draft-attention-backend",
                "draft_extend verify: triton by --speculative-draft-attention-backend",
            ],
            id="the draft model has its own",
        ),
        pytest.param(
            f"--attention-backend fa3 {_EAGLE} --speculative-num-steps 1",
            [
                "target prefill: fa3 by --attention-backend",
                "target decode: fa3 by --attention-backend",
                "target verify: fa3 by --attention-backend",
                "draft prefill: fa3 by --attention-backend",
                "draft_extend verify: fa3 by --attention-backend",
            ],
            id="with one step the draft decodes nothing",
        ),
        pytest.param(
            "--attention-backend fa3 --speculative-algorithm NGRAM",
            [
                "target prefill: fa3 by --attention-backend",
                "target decode: fa3 by --attention-backend",
                "target verify: fa3 by --attention-backend",
            ],
            id="ngram has no draft model",
        ),
        pytest.param(
            "",
            [
                f"target prefill: {ENGINE_DEFAULT} by no --attention-backend",
                f"target decode: {ENGINE_DEFAULT} by no --attention-backend",
            ],
            id="the engine chooses",
        ),
        pytest.param(
            "--decode-attention-backend mla",
            [
                f"target prefill: {ENGINE_DEFAULT} by no --attention-backend",
                "target decode: mla by --decode-attention-backend",
            ],
            id="the engine chooses for prefill",
        ),
    ],
)
def test_uses_follow_the_engines_routing(line: str, places: list[str]) -> None:
    """Each slot is filled with the backend that really runs there."""
    uses = uses_of(flags(line), _THREE)

    assert _places(uses) == places


def test_use_carries_declaration_and_source() -> None:
    """A use holds what its backend declares, and where that stands."""
    uses = uses_of(flags("--attention-backend fa3"), _THREE)

    held = [(use.declaration, use.source, use.problem) for use in uses]

    assert held == [(_FA3.declaration, shipped("fa3"), None)] * 2


def test_engine_default_is_undeclared() -> None:
    """Nothing is known of a backend that the engine chooses by itself."""
    uses = uses_of(flags(), _THREE)

    held = {(use.declaration, use.source) for use in uses}

    assert held == {(Declaration(), BY_HAND)}


@pytest.mark.parametrize(
    ("backends", "declared"),
    [
        pytest.param(_THREE, "fa3, mla, triton", id="others are installed"),
        pytest.param(named(), "there is none", id="none is installed"),
    ],
)
def test_backend_that_is_not_installed_is_missing(
    backends: dict[str, Backend], declared: str
) -> None:
    """A backend that nobody declares is a use with a problem, not an error."""
    uses = uses_of(flags("--attention-backend my_flash"), backends)

    problem = Problem(
        code="backend-missing",
        message="no installed plugin declares backend 'my_flash' (--attention-backend).",
        remedy=f"Install the plugin that does, or name a backend that is declared: {declared}.",
    )
    assert [(use.declaration, use.problem) for use in uses] == [(None, problem)] * 2


def test_backend_that_is_nearly_installed_is_an_error() -> None:
    """A misspelling of an installed name is an error that suggests it, once for all slots."""
    error = error_of(lambda: uses_of(flags("--attention-backend tritn"), _THREE))

    assert error == (
        "no backend 'tritn' is declared (--attention-backend); declared: fa3, mla, triton. "
        "Did you mean 'triton'?"
    )


def test_backend_of_the_engine_is_no_misspelling() -> None:
    """A name that an engine has itself is missing, though a plugin's name is near."""
    backends = named(installed("flashmla2"))

    uses = uses_of(flags("--attention-backend flashmla"), backends)

    assert [use.problem and use.problem.code for use in uses] == ["backend-missing"] * 2


@pytest.mark.parametrize("status", [Status.BROKEN, Status.CONFLICT])
def test_backend_that_could_not_be_read_is_an_error(status: Status) -> None:
    """A backend in use that is broken or claimed twice is an error with its first problem."""
    told = [
        Problem(code="raises", message="fa3_caps raises KeyError.", remedy="Repair it."),
        Problem(code="prints", message="fa3_caps prints.", remedy="Silence it."),
    ]

    error = error_of(
        lambda: uses_of(flags("--attention-backend fa3"), named(broken("fa3", status, told)))
    )

    assert error == (
        "--attention-backend names a backend that cannot be used: fa3_caps raises KeyError. "
        "Repair it."
    )


def test_broken_backend_without_a_problem_refers_to_the_report() -> None:
    """A backend that was not read, for no stated cause, is an error all the same."""
    backends = named(broken("fa3", Status.SKIPPED))

    error = error_of(lambda: uses_of(flags("--attention-backend fa3"), backends))

    assert error == (
        "--attention-backend names a backend that cannot be used: the declaration of 'fa3' was "
        "not read. "
        "See the report."
    )


def test_broken_backend_that_is_not_used_does_no_harm() -> None:
    """A fault of a backend that no slot names is no error."""
    backends = named(_FA3, broken("mla", Status.BROKEN))

    uses = uses_of(flags("--attention-backend fa3"), backends)

    assert {use.backend for use in uses} == {"fa3"}


def test_faults_of_several_slots_come_as_one_group() -> None:
    """Different faults in different slots are told at once."""
    backends = named(_TRITON, broken("mla", Status.BROKEN))
    line = "--prefill-attention-backend tritn --decode-attention-backend mla"

    group = errors_of(lambda: uses_of(flags(line), backends))

    assert group == (
        "backends in use: 2 faults",
        [
            (
                "no backend 'tritn' is declared (--prefill-attention-backend); "
                "declared: mla, triton. Did you mean 'triton'?"
            ),
            (
                "--decode-attention-backend names a backend that cannot be used: the declaration "
                "of 'mla' was not read. See the report."
            ),
        ],
    )


def _expanded(uses: Iterable[Use]) -> list[tuple[str, str, tuple[str, ...], bool]]:
    return [(use.phase.value, use.backend, use.via, use.adds_only) for use in uses]


_HYBRID = [Part("fa3", phases={Phase.PREFILL}), Part("mla", phases={Phase.DECODE, Phase.VERIFY})]


def test_composite_is_expanded_to_its_parts() -> None:
    """Each part takes the uses of its phases; the composite itself says nothing."""
    backends = named(_FA3, _MLA, installed("hybrid", parts=_HYBRID))

    uses = uses_of(flags("--attention-backend hybrid"), backends)

    assert _expanded(uses) == [
        ("prefill", "fa3", ("hybrid",), False),
        ("decode", "mla", ("hybrid",), False),
    ]


@pytest.mark.parametrize(
    ("capabilities", "conditions"),
    [
        pytest.param(READS, [], id="capabilities"),
        pytest.param(
            Capabilities(),
            [When(given=Given(tp_size={2}), capabilities=READS, reason="why")],
            id="a condition",
        ),
    ],
)
def test_composite_that_says_something_adds_to_its_parts(
    capabilities: Capabilities, conditions: list[When]
) -> None:
    """A composite's own words stand beside its parts', and may only add."""
    hybrid = installed("hybrid", capabilities, conditions=conditions, parts=_HYBRID)

    uses = uses_of(flags("--attention-backend hybrid"), named(_FA3, _MLA, hybrid))

    assert _expanded(uses) == [
        ("prefill", "hybrid", (), True),
        ("prefill", "fa3", ("hybrid",), False),
        ("decode", "hybrid", (), True),
        ("decode", "mla", ("hybrid",), False),
    ]


def test_composite_of_composites_is_expanded_to_the_last() -> None:
    """Parts that are composites themselves are expanded too, with the whole way kept."""
    inner = installed("inner", parts=[Part("fa3")])
    outer = installed("outer", parts=[Part("inner", phases={Phase.PREFILL}), Part("mla")])

    uses = uses_of(flags("--attention-backend outer"), named(_FA3, _MLA, inner, outer))

    assert _expanded(uses) == [
        ("prefill", "fa3", ("outer", "inner"), False),
        ("prefill", "mla", ("outer",), False),
        ("decode", "mla", ("outer",), False),
    ]


def test_composite_parts_may_take_roles() -> None:
    """A part may be for the draft model alone."""
    parts = [Part("fa3", roles={Role.TARGET}), Part("mla", roles={Role.DRAFT, Role.DRAFT_EXTEND})]
    backends = named(_FA3, _MLA, installed("hybrid", parts=parts))

    uses = uses_of(flags(f"--attention-backend hybrid {_EAGLE}"), backends)

    assert [(use.role.value, use.backend) for use in uses] == [
        ("target", "fa3"),
        ("target", "fa3"),
        ("target", "fa3"),
        ("draft", "mla"),
        ("draft", "mla"),
        ("draft_extend", "mla"),
    ]


def test_composite_without_a_part_for_a_use_is_a_problem() -> None:
    """A use that no part takes is missing, and says which."""
    hybrid = installed("hybrid", parts=[Part("fa3", phases={Phase.PREFILL})])

    uses = uses_of(flags("--attention-backend hybrid"), named(_FA3, hybrid))

    problem = Problem(
        code="no-part",
        message="composite backend 'hybrid' has no part for target decode (--attention-backend).",
        remedy="Name another backend, or a part that takes it in the composite's declaration.",
    )
    assert [(use.backend, use.declaration, use.problem) for use in uses[1:]] == [
        ("hybrid", None, problem)
    ]


def test_use_whose_conditions_fail_is_not_made() -> None:
    """Of two parts for one use, the facts leave one."""
    uses = list(made_of(uses_of(_ON_BY_DEVICE, named(_FA3, _MLA, _BY_DEVICE)), {"device": "cuda"}))

    assert [use.backend for use in uses] == ["fa3", "fa3"]


@pytest.mark.parametrize(
    "backend",
    [
        pytest.param(_BY_DEVICE, id="that hands on"),
        pytest.param(
            installed("pair", OPTS_OUT, parts=_DEVICE_PARTS),
            id="that says something itself",
        ),
    ],
)
def test_composite_whose_every_part_is_ruled_out_is_missing(backend: Backend) -> None:
    """To know a fact never takes a need away: a use that no part makes counts as the worst."""
    uses = uses_of(_ON_BY_DEVICE, named(_FA3, _MLA, backend))

    made = [use for use in made_of(uses, {"device": "xpu"}) if not use.adds_only]

    assert [(use.backend, use.declaration, use.via) for use in made] == [("pair", None, ())] * 2
    assert made[0].problem == Problem(
        code="no-part",
        message="composite backend 'pair' has no part for target prefill (--attention-backend): "
        "neither device = cuda nor device = npu.",
        remedy="Name another backend, or a part that takes it in the composite's declaration.",
    )


def test_composite_with_a_part_that_is_not_installed_has_a_missing_use() -> None:
    """A part that nobody declares is missing, by way of its composite."""
    hybrid = installed("hybrid", parts=[Part("my_flash")])

    uses = uses_of(flags("--attention-backend hybrid"), named(hybrid))

    assert [(use.backend, use.via, use.declaration) for use in uses] == [
        ("my_flash", ("hybrid",), None)
    ] * 2


@pytest.mark.parametrize(
    ("parts", "cycle"),
    [
        pytest.param({"ring": ["ring"]}, "ring -> ring", id="of itself"),
        pytest.param({"ring": ["b"], "b": ["ring"]}, "ring -> b -> ring", id="by another"),
        pytest.param(
            {"ring": ["b"], "b": ["c"], "c": ["b"]}, "b -> c -> b", id="that begins further in"
        ),
    ],
)
def test_composite_that_is_a_part_of_itself_is_an_error(
    parts: dict[str, list[str]], cycle: str
) -> None:
    """A circle of composites is an error that shows the way round."""
    rings = {name: [Part(part) for part in of] for name, of in parts.items()}
    backends = named(*(installed(name, parts=of) for name, of in rings.items()))

    error = error_of(lambda: uses_of(flags("--attention-backend ring"), backends))

    assert error == (
        f"composite backend {cycle.split(maxsplit=1)[0]!r} is a part of itself: {cycle}. "
        "Take one of these parts out of its declaration."
    )


def test_uses_are_sorted_by_role_phase_and_name() -> None:
    """Uses have one order, by which plans of the same uses are equal."""
    uses = uses_of(flags(f"{_SPLIT} {_EAGLE}"), _THREE)

    ordered = sorted(uses, key=lambda use: use.sort_key)

    assert _places(ordered) == sorted(_places(uses))
