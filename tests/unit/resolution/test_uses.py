from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import permutations, product

import pytest

from backend_caps.capability.backend import Backend, EngineClass, Problem, Status
from backend_caps.capability.declaration import Declaration, Part, When
from backend_caps.capability.facts import Given
from backend_caps.capability.kind import Phase, Role
from backend_caps.capability.provenance import BY_HAND
from backend_caps.capability.vocabulary import Capabilities, HostSeqLens
from backend_caps.resolution.plan import Cause
from backend_caps.resolution.resolver import resolve
from backend_caps.resolution.uses import Handover, Use, UseKind, made_of, uses_of
from tests.unit.building import (
    OPTS_OUT,
    READS,
    SPECULATING,
    broken,
    error_of,
    errors_of,
    flags,
    installed,
    named,
    shipped,
    use,
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
            f"--attention-backend fa3 {_EAGLE} --speculative-num-steps 3",
            [
                "target prefill: fa3 by --attention-backend",
                "target decode: fa3 by --attention-backend",
                "target verify: fa3 by --attention-backend",
                "draft prefill: fa3 by --attention-backend",
                "draft decode: fa3 by --attention-backend",
                "draft_extend verify: fa3 by --attention-backend",
            ],
            id="with several steps it decodes",
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
                "target prefill: engine default by no --attention-backend",
                "target decode: engine default by no --attention-backend",
            ],
            id="the engine chooses",
        ),
        pytest.param(
            "--decode-attention-backend mla",
            [
                "target prefill: engine default by no --attention-backend",
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


def test_missing_backend_of_an_engine_asks_to_read_the_engine() -> None:
    """A missing backend that an engine has itself is read with it, so the remedy names that."""
    uses = uses_of(flags("--attention-backend flashmla"), named(installed("mine")))

    remedy = (
        "Add --engine sglang, where a command takes it, to read the engine's own; or install a "
        "plugin that declares it; or name a backend that is declared: mine."
    )
    assert {use.problem and use.problem.remedy for use in uses} == {remedy}
    assert {use.unread_engine for use in uses} == {"sglang"}


def test_missing_backend_asks_for_no_engine_where_one_was_read() -> None:
    """Where an engine was read and has not what it once had, to read it again is no remedy."""
    of_engine = replace(installed("EngineClass"), engine_class=EngineClass(path="engine.Class"))

    uses = uses_of(flags("--attention-backend flashmla"), named(installed("mine"), of_engine))

    assert {use.problem and use.problem.remedy for use in uses} == {
        "Install the plugin that does, or name a backend that is declared: mine."
    }
    assert {use.unread_engine for use in uses} == {None}


def test_auto_that_nobody_decided_is_missing() -> None:
    """Where nobody chose a backend for `auto`, the use has a problem that tells how to."""
    uses = uses_of(flags("--attention-backend auto"), _THREE)

    problem = Problem(
        code="auto-undecided",
        message="--attention-backend is auto, and no backend was chosen for it.",
        remedy="Choose with backend_caps.select, or name a backend.",
    )
    assert [(use.declaration, use.problem) for use in uses] == [(None, problem)] * 2


def test_auto_is_a_name_like_any_where_an_engine_was_read() -> None:
    """An engine has its own way to choose: there `auto` is a name that it does not have."""
    of_engine = replace(installed("EngineClass"), engine_class=EngineClass(path="engine.Class"))

    uses = uses_of(flags("--attention-backend auto"), {**_THREE, "EngineClass": of_engine})

    assert [use.problem and use.problem.code for use in uses] == ["backend-missing"] * 2


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
    return [(use.phase.value, use.backend, use.composites, use.adds_only) for use in uses]


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


_YES, _NO, _OPEN = Given(device={"cuda"}), Given(device={"npu"}), Given(head_size={64})
_CUDA = {"device": "cuda"}
_Tree = Mapping[str, Sequence[Part]]


def _tree(parts: _Tree) -> Mapping[str, Backend]:
    """Install these composites, and every part that is none; `safe` alone reads no lengths."""
    leaves = {part.backend for own in parts.values() for part in own} - set(parts)
    backends = [installed(name, OPTS_OUT if name == "safe" else READS) for name in leaves]
    return named(*backends, *(installed(name, parts=own) for name, own in parts.items()))


def _ways(uses: Iterable[Use]) -> list[str]:
    """Write each way to a decode; a composite that has no part ends in a dash."""
    ways = [
        "/".join((*use.composites, use.backend, *([] if use.declaration else ["-"])))
        for use in uses
        if use.phase is Phase.DECODE and not use.adds_only
    ]
    return sorted(ways)


def _made(backends: Mapping[str, Backend]) -> Iterator[Use]:
    return made_of(uses_of(flags("--attention-backend outer"), backends), _CUDA)


@pytest.mark.parametrize(
    ("parts", "ways"),
    [
        pytest.param(
            {"outer": [Part("inner"), Part("safe")], "inner": [Part("needy", given=_NO)]},
            ["outer/inner/-", "outer/safe"],
            id="the outer has another part",
        ),
        pytest.param(
            {"outer": [Part("inner")], "inner": [Part("needy", given=_NO)]},
            ["outer/inner/-"],
            id="the outer has no other part",
        ),
        pytest.param(
            {
                "outer": [Part("inner"), Part("safe", given=_NO)],
                "inner": [Part("needy", given=_NO)],
            },
            ["outer/inner/-"],
            id="the outer's other part is ruled out",
        ),
        pytest.param(
            {
                "outer": [Part("inner"), Part("other")],
                "inner": [Part("needy", given=_NO)],
                "other": [Part("needy", given=_NO), Part("safe", given=_NO)],
            },
            ["outer/inner/-", "outer/other/-"],
            id="both parts are left without one",
        ),
        pytest.param(
            {
                "outer": [Part("inner", given=_NO), Part("inner", given=_YES), Part("safe")],
                "inner": [Part("needy", given=_NO)],
            },
            ["outer/inner/-", "outer/safe"],
            id="one of two ways to the inner holds",
        ),
        pytest.param(
            {
                "outer": [Part("middle"), Part("safe")],
                "middle": [Part("inner"), Part("safe")],
                "inner": [Part("needy", given=_NO)],
            },
            ["outer/middle/inner/-", "outer/middle/safe", "outer/safe"],
            id="the third level",
        ),
        pytest.param(
            {
                "outer": [Part("middle"), Part("safe")],
                "middle": [Part("inner", given=_NO)],
                "inner": [Part("needy", given=_NO), Part("safe")],
            },
            ["outer/middle/-", "outer/safe"],
            id="the second level of three",
        ),
    ],
)
def test_inner_composite_whose_every_part_is_ruled_out_is_missing(
    parts: _Tree, ways: list[str]
) -> None:
    """A composite inside another has no part where none is left, whatever the outer has."""
    made = _made(_tree(parts))

    assert _ways(made) == ways


@pytest.mark.parametrize(
    ("parts", "ways"),
    [
        pytest.param(
            {
                "outer": [Part("inner"), Part("safe")],
                "inner": [Part("needy", given=_NO), Part("other", given=_YES)],
            },
            ["outer/inner/other", "outer/safe"],
            id="one of two parts holds",
        ),
        pytest.param(
            {
                "outer": [Part("inner"), Part("safe")],
                "inner": [Part("needy", given=_NO), Part("other", given=_OPEN)],
            },
            ["outer/inner/other", "outer/safe"],
            id="one of two parts is open",
        ),
        pytest.param(
            {
                "outer": [Part("inner", given=_NO), Part("safe")],
                "inner": [Part("needy", given=_NO)],
            },
            ["outer/safe"],
            id="the outer does not use it",
        ),
        pytest.param(
            {"outer": [Part("inner", given=_NO)], "inner": [Part("needy", given=_NO)]},
            ["outer/-"],
            id="the outer is left without one",
        ),
        pytest.param(
            {
                "outer": [Part("middle"), Part("safe")],
                "middle": [Part("inner")],
                "inner": [Part("needy", given=_NO), Part("other")],
            },
            ["outer/middle/inner/other", "outer/safe"],
            id="a part is left on the third level",
        ),
        pytest.param(
            {"outer": [Part("needy", given=Given(phase={Phase.PREFILL})), Part("safe")]},
            ["outer/safe"],
            id="the use's own phase rules a part out",
        ),
    ],
)
def test_inner_composite_that_has_a_part_or_is_not_used_is_not_missing(
    parts: _Tree, ways: list[str]
) -> None:
    """Only a composite that gets a use, and has no part left for it, is missing."""
    made = _made(_tree(parts))

    assert _ways(made) == ways


_CONDITIONS = (None, _YES, _NO, _OPEN)


def _expected(name: str, parts: _Tree, via: tuple[str, ...] = ()) -> Iterator[str]:
    """Walk the tree from its root, as the engine does."""
    way = (*via, name)
    if name not in parts:
        yield "/".join(way)
        return
    left = [part for part in parts[name] if part.given is not _NO]
    for part in left:
        yield from _expected(part.backend, parts, way)
    if not left:
        yield "/".join((*way, "-"))


def test_made_uses_are_those_of_a_walk_from_the_root() -> None:
    """For any conditions on three levels, the uses are what the engine's own walk reaches."""
    trees = [
        {
            "outer": [Part("middle", given=a), Part("safe", given=b)],
            "middle": [Part("inner", given=c), Part("other", given=d)],
            "inner": [Part("needy", given=e)],
        }
        for a, b, c, d, e in product(_CONDITIONS, repeat=5)
    ]

    found = [_ways(_made(_tree(parts))) for parts in trees]

    assert found == [sorted(_expected("outer", parts)) for parts in trees]


def _host_lens(parts: _Tree, line: str = "--device cuda") -> tuple[HostSeqLens, list[Cause]]:
    read = flags(f"--attention-backend outer {SPECULATING} {line}")
    resolved = resolve(uses_of(read, _tree(parts)), read)["host_seq_lens"]
    assert isinstance(resolved.value, HostSeqLens)
    return resolved.value, [cause for cause in resolved.causes if cause.phase is Phase.DECODE]


_HOLE: _Tree = {"outer": [Part("inner"), Part("safe")], "inner": [Part("needy", given=_NO)]}


def test_inner_composite_without_a_part_counts_as_the_worst() -> None:
    """What nobody is left to say is no opt-out: the host's lengths stay exact."""
    value, _ = _host_lens(_HOLE)

    assert value is HostSeqLens.EXACT


def test_inner_composite_without_a_part_is_named_by_the_cause() -> None:
    """The cause names the inner composite, the way to it and the condition that failed."""
    _, causes = _host_lens(_HOLE)

    words = "composite backend 'inner' has no part for {} decode (--attention-backend): {}."
    found = [(cause.name, cause.via, cause.reason) for cause in causes if cause.name != "safe"]
    assert found == [
        ("inner", ("outer",), words.format(role, "not device = npu"))
        for role in ("draft", "target")
    ]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        pytest.param(_OPEN, " (used where head_size = 64: not known yet)", id="open"),
        pytest.param(Given(role=set(Role), phase={Phase.DECODE}), "", id="decided by the use"),
    ],
)
def test_missing_use_keeps_the_conditions_on_the_way_to_it(given: Given, words: str) -> None:
    """A composite without a part that is reached under an open condition says so."""
    parts = {**_HOLE, "outer": [Part("inner", given=given), Part("safe")]}

    _, causes = _host_lens(parts)

    reasons = {cause.reason.partition("npu.")[2] for cause in causes if cause.name == "inner"}
    assert reasons == {words}


def test_missing_use_names_the_conditions_of_its_own_parts_alone() -> None:
    """What failed or is open further out is no cause of a composite that has no part."""
    middle = [Part("inner"), Part("needy", given=Given(device={"musa"}))]
    inner = [Part("needy", given=_NO), Part("other", given=Given(device={"xpu"}))]

    made = _made(_tree({"outer": [Part("middle")], "middle": middle, "inner": inner}))

    assert {use.problem.message.partition(": ")[2] for use in made if use.problem} == {
        "neither device = npu nor device = xpu."
    }


def test_missing_use_is_of_the_composite_and_not_of_its_part() -> None:
    """A part's source, words and place say nothing of a composite that has lost it."""
    inner = installed("inner", READS, parts=[Part("needy", given=_NO)])
    outer = installed("outer", parts=[Part("inner", given=_OPEN), Part("safe")])

    made = _made(named(inner, outer, installed("needy", READS), installed("safe", OPTS_OUT)))

    missing = [use for use in made if use.declaration is None]
    assert {(use.backend, use.source, use.via, use.adds_only) for use in missing} == {
        ("inner", BY_HAND, (Handover(composite="outer", given=_OPEN),), False)
    }


def test_uses_hold_one_condition_for_each_composite() -> None:
    """A composite that hands a use on under no condition has its place all the same."""
    middle, inner = [Part("inner", given=_YES)], [Part("safe")]
    backends = _tree({"outer": [Part("middle")], "middle": middle, "inner": inner})

    uses = uses_of(flags("--attention-backend outer"), backends)

    assert {use.via for use in uses} == {
        (
            Handover(composite="outer"),
            Handover(composite="middle", given=_YES),
            Handover(composite="inner"),
        )
    }


@pytest.mark.parametrize(
    ("given", "ways"),
    [
        pytest.param((_YES, _NO), ["outer/inner/-"], id="the inner fails"),
        pytest.param((_NO, None), ["outer/-"], id="the outer fails"),
        pytest.param((None, _YES), ["outer/inner/a"], id="none fails"),
    ],
)
def test_use_by_hand_never_vanishes(given: tuple[Given | None, ...], ways: list[str]) -> None:
    """A failing condition of a use by hand is told as one that a flag's composite has."""
    names = ("outer", "inner")
    via = tuple(Handover(composite=n, given=g) for n, g in zip(names, given, strict=True))

    made = made_of([replace(use("a"), via=via)], _CUDA)

    assert _ways(made) == ways


def test_backend_may_be_called_as_the_engines_own_choice() -> None:
    """What no flag names is told by its kind: a backend of that very name is one like others."""
    backends = named(installed("engine default", OPTS_OUT))

    chosen = uses_of(flags(), backends)
    by_name = uses_of(flags().updated({"attention_backend": "engine default"}), backends)

    assert {use.kind for use in chosen} == {UseKind.ENGINE_DEFAULT}
    assert {use.kind for use in by_name} == {UseKind.NAMED}


def test_uses_with_one_condition_on_different_levels_have_one_order() -> None:
    """Where a condition stands counts for the order, as its words do."""
    levels = [(_OPEN, None), (None, _OPEN), (None, None)]
    uses = [
        replace(
            use("a"),
            via=(
                Handover(composite="outer", given=outer),
                Handover(composite="inner", given=inner),
            ),
        )
        for outer, inner in levels
    ]

    orders = [sorted(each, key=lambda use: use.sort_key) for each in permutations(uses)]

    assert orders == [[uses[2], uses[1], uses[0]]] * 6


def test_composite_with_a_part_that_is_not_installed_has_a_missing_use() -> None:
    """A part that nobody declares is missing, by way of its composite."""
    hybrid = installed("hybrid", parts=[Part("my_flash")])

    uses = uses_of(flags("--attention-backend hybrid"), named(hybrid))

    assert [(use.backend, use.composites, use.declaration) for use in uses] == [
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
