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
from backend_caps.resolution.engine import option_of
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.plan import Cause
from backend_caps.resolution.resolver import resolve
from backend_caps.resolution.routing import uses_of
from backend_caps.resolution.uses import Handover, Use, UseKind, made_of
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
    rows,
    shipped,
    use,
)

_FA3, _MLA, _TRITON = installed("fa3", OPTS_OUT), installed("mla", READS), installed("triton")
_FLASHMLA2 = installed("flashmla2")
_THREE = named(_FA3, _MLA, _TRITON)
_DEVICE_PARTS = [
    Part("fa3", given=Given(device={"cuda"})),
    Part("mla", given=Given(device={"npu"})),
]
_BY_DEVICE = installed("pair", parts=_DEVICE_PARTS)
_ON_BY_DEVICE = flags("--attention-backend pair")
_OPTIONS = {
    "a": "attention_backend",
    "p": "prefill_attention_backend",
    "d": "decode_attention_backend",
    "s": "speculative_draft_attention_backend",
    "alg": "speculative_algorithm",
    "mode": "speculative_attention_mode",
    "steps": "speculative_num_steps",
}


def _flags(line: str) -> ServerFlags:
    """Read flags by short names."""
    pairs = (word.split("=") for word in line.split())
    return flags(" ".join(f"{option_of(_OPTIONS[name])} {value}" for name, value in pairs))


_LETTERS = {
    "--attention-backend": "a",
    "--prefill-attention-backend": "p",
    "--decode-attention-backend": "d",
    "--speculative-draft-attention-backend": "s",
    "no --attention-backend": "none",
}


def _places(uses: Iterable[Use]) -> str:
    """Write each use as role, phase, backend and the flag's letter: `draft.decode=mla/d`."""
    return " ".join(
        f"{use.role.value}.{use.phase.value}={use.backend}/{_LETTERS[use.slot]}" for use in uses
    ).replace("target.", "")


@pytest.mark.parametrize(
    ("line", "places"),
    rows("""
one backend | a=fa3 | prefill=fa3/a decode=fa3/a
one a phase | p=fa3 d=mla | prefill=fa3/p decode=mla/d
a phase's own first | a=fa3 d=mla | prefill=fa3/a decode=mla/d
NGRAM has no draft model | a=fa3 alg=NGRAM | prefill=fa3/a decode=fa3/a verify=fa3/a
the engine chooses | | prefill=engine default/none decode=engine default/none
the engine chooses for prefill | d=mla | prefill=engine default/none decode=mla/d
"""),
)
def test_uses_follow_the_engines_routing(line: str, places: str) -> None:
    """Each slot is filled with the backend that really runs there."""
    assert _places(uses_of(_flags(line), _THREE)) == places


@pytest.mark.parametrize(
    ("line", "verify", "draft"),
    rows("""
verify as prefill | p=fa3 d=mla | fa3/p | draft.prefill=fa3/p draft.decode=mla/d
verify as decode | p=fa3 d=mla mode=decode | mla/d | draft.prefill=fa3/p draft.decode=mla/d
a draft of its own | p=fa3 d=mla s=triton | fa3/p | draft.prefill=triton/s draft.decode=triton/s
one step, no draft decode | p=fa3 d=mla steps=1 | fa3/p | draft.prefill=fa3/p
several steps | p=fa3 d=mla steps=3 | fa3/p | draft.prefill=fa3/p draft.decode=mla/d
"""),
)
def test_uses_of_a_draft_model_follow_the_engines_routing(
    line: str, verify: str, draft: str
) -> None:
    """Verify and draft-extend run on one backend of the pair, unless the draft has its own."""
    extend = "triton/s" if "s=triton" in line else verify

    places = _places(uses_of(_flags(f"{line} alg=EAGLE"), _THREE))

    target = f"prefill=fa3/p decode=mla/d verify={verify}"
    assert places == f"{target} {draft} draft_extend.verify={extend}"


_INSTALL = "Install the plugin that does, or name a backend that is declared: "
_READ = (
    "Add --engine sglang, where a command takes it, to read the engine's own; or install a "
    "plugin that declares it; or name a backend that is declared: "
)
_NOBODY = "no installed plugin declares backend {!r} (--attention-backend)."
_ENGINE_READ = named(
    installed("mine"),
    replace(installed("EngineClass"), engine_class=EngineClass(path="engine.Class")),
)
_UNDECIDED = "--attention-backend is auto, and no backend was chosen for it."
_CHOOSE = "Choose with backend_caps.select, or name a backend."
_NEITHER = "neither the engine nor a plugin has backend {!r} (--attention-backend)."


@pytest.mark.parametrize(
    ("name", "backends", "code", "message", "remedy", "engine"),
    [
        ("my_flash", _THREE, "backend-missing", _NOBODY, f"{_INSTALL}fa3, mla, triton.", None),
        ("my_flash", {}, "backend-missing", _NOBODY, f"{_INSTALL}there is none.", None),
        # A name of the engine's own is no misspelling of a plugin's.
        ("flashmla", named(_FLASHMLA2), "backend-missing", _NOBODY, f"{_READ}flashmla2.", "sglang"),
        ("flashmla", _ENGINE_READ, "backend-missing", _NEITHER, f"{_INSTALL}mine.", None),
        ("auto", _ENGINE_READ, "backend-missing", _NEITHER, f"{_INSTALL}mine.", None),
        ("auto", _THREE, "auto-undecided", _UNDECIDED, _CHOOSE, None),
    ],
)
def test_backend_that_is_not_installed_is_missing(
    name: str,
    backends: Mapping[str, Backend],
    code: str,
    message: str,
    remedy: str,
    engine: str | None,
) -> None:
    """A backend that nobody declares is a use with a problem that says what to do."""
    uses = uses_of(flags(f"--attention-backend {name}"), backends)

    problem = Problem(code=code, message=message.format(name), remedy=remedy)
    assert [(use.declaration, use.problem, use.unread_engine) for use in uses] == [
        (None, problem, engine)
    ] * 2


_RAISES = Problem(code="raises", message="fa3_caps raises KeyError.", remedy="Repair it.")
_PRINTS = Problem(code="prints", message="fa3_caps prints.", remedy="Silence it.")


@pytest.mark.parametrize(
    ("status", "problems", "told"),
    [
        (Status.BROKEN, [_RAISES, _PRINTS], "fa3_caps raises KeyError. Repair it."),
        (Status.CONFLICT, [_RAISES], "fa3_caps raises KeyError. Repair it."),
        (Status.SKIPPED, [], "the declaration of 'fa3' was not read. See the report."),
    ],
)
def test_backend_that_could_not_be_read_is_an_error(
    status: Status, problems: list[Problem], told: str
) -> None:
    """A backend in use that was not read is an error with its first problem."""
    backends = named(broken("fa3", status, problems))

    error = error_of(lambda: uses_of(flags("--attention-backend fa3"), backends))

    assert error == f"--attention-backend names a backend that cannot be used: {told}"


def test_broken_backend_that_is_not_used_does_no_harm() -> None:
    """A fault of a backend that no slot names is no error; the uses hold what the named one has."""
    uses = uses_of(flags("--attention-backend fa3"), named(_FA3, broken("mla", Status.BROKEN)))

    held = [(use.backend, use.declaration, use.source, use.problem) for use in uses]
    assert held == [("fa3", _FA3.declaration, shipped("fa3"), None)] * 2


def test_faults_of_several_slots_come_as_one_group() -> None:
    """Faults of different slots are reported at once; a misspelling with the likely name."""
    backends = named(_TRITON, broken("mla", Status.BROKEN))
    line = "--prefill-attention-backend tritn --decode-attention-backend mla"

    group = errors_of(lambda: uses_of(flags(line), backends))

    unknown = (
        "no backend 'tritn' is declared (--prefill-attention-backend); "
        "declared: mla, triton. Did you mean 'triton'?"
    )
    unread = (
        "--decode-attention-backend names a backend that cannot be used: the declaration "
        "of 'mla' was not read. See the report."
    )
    assert group == ("backends in use: 2 faults", [unknown, unread])


def _expanded(uses: Iterable[Use]) -> list[tuple[str, str, tuple[str, ...], bool]]:
    return [(use.phase.value, use.backend, use.composites, use.adds_only) for use in uses]


_READS_ON_TWO = When(given=Given(tp_size={2}), capabilities=READS, reason="why")
_HYBRID = [Part("fa3", phases={Phase.PREFILL}), Part("mla", phases={Phase.DECODE, Phase.VERIFY})]


@pytest.mark.parametrize(
    ("capabilities", "conditions", "adds"),
    [
        pytest.param(Capabilities(), [], False, id="nothing"),
        pytest.param(READS, [], True, id="capabilities"),
        pytest.param(Capabilities(), [_READS_ON_TWO], True, id="a condition"),
    ],
)
def test_composite_that_says_something_adds_to_its_parts(
    capabilities: Capabilities, conditions: list[When], *, adds: bool
) -> None:
    """Each part takes the uses of its phases; a composite's own words may only add."""
    hybrid = installed("hybrid", capabilities, conditions=conditions, parts=_HYBRID)

    uses = uses_of(flags("--attention-backend hybrid"), named(_FA3, _MLA, hybrid))

    expected = [("prefill", "fa3", ("hybrid",), False), ("decode", "mla", ("hybrid",), False)]
    own = [("prefill", "hybrid", (), True), ("decode", "hybrid", (), True)] if adds else []
    assert set(_expanded(uses)) == {*expected, *own}


def test_composite_of_composites_is_expanded_to_the_last() -> None:
    """Parts that are composites themselves are expanded too, installed or not, by the whole way."""
    inner = installed("inner", parts=[Part("gone")])
    outer = installed("outer", parts=[Part("inner", phases={Phase.PREFILL}), Part("mla")])

    uses = uses_of(flags("--attention-backend outer"), named(_MLA, inner, outer))

    assert _expanded(uses) == [
        ("prefill", "gone", ("outer", "inner"), False),
        ("prefill", "mla", ("outer",), False),
        ("decode", "mla", ("outer",), False),
    ]
    assert [use.problem and use.problem.code for use in uses] == ["backend-missing", None, None]


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
    [_BY_DEVICE, installed("pair", OPTS_OUT, parts=_DEVICE_PARTS)],
    ids=["that hands on", "that says something itself"],
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
_GONE = Part("needy", given=_NO)
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
            {"outer": [Part("inner"), Part("other")], "inner": [_GONE], "other": [_GONE] * 2},
            ["outer/inner/-", "outer/other/-"],
            id="both parts are left without one",
        ),
        pytest.param(
            {
                "outer": [Part("inner", given=_NO), Part("inner", given=_YES), Part("safe")],
                "inner": [_GONE],
            },
            ["outer/inner/-", "outer/safe"],
            id="one of two ways to the inner holds",
        ),
        pytest.param(
            {"outer": [Part("needy", given=Given(phase={Phase.PREFILL})), Part("safe")]},
            ["outer/safe"],
            id="the use's own phase rules a part out",
        ),
    ],
)
def test_inner_composite_whose_every_part_is_ruled_out_is_missing(
    parts: _Tree, ways: list[str]
) -> None:
    """A composite that gets a use, and has no part left for it, is missing; others are not."""
    assert _ways(_made(_tree(parts))) == ways


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


def _host_lens(parts: _Tree) -> tuple[HostSeqLens, list[Cause]]:
    read = flags(f"--attention-backend outer {SPECULATING} --device cuda")
    resolved = resolve(uses_of(read, _tree(parts)), read)["host_seq_lens"]
    assert isinstance(resolved.value, HostSeqLens)
    return resolved.value, [cause for cause in resolved.causes if cause.phase is Phase.DECODE]


_HOLE: _Tree = {"outer": [Part("inner"), Part("safe")], "inner": [Part("needy", given=_NO)]}


def test_inner_composite_without_a_part_counts_as_the_worst() -> None:
    """The host's lengths stay exact, for the inner composite, the way to it and what failed."""
    value, causes = _host_lens(_HOLE)

    words = "composite backend 'inner' has no part for {} decode (--attention-backend): {}."
    found = [(cause.name, cause.via, cause.reason) for cause in causes if cause.name != "safe"]
    assert value is HostSeqLens.EXACT
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


def _by_hand(*given: Given | None) -> Use:
    """Put a backend in use by way of two composites, which hand it on under these conditions."""
    pairs = zip(("outer", "inner"), given, strict=True)
    via = tuple(Handover(composite=name, given=condition) for name, condition in pairs)
    return replace(use("a"), via=via)


@pytest.mark.parametrize(
    ("given", "ways"),
    [
        pytest.param((_YES, _NO), ["outer/inner/-"], id="the inner fails"),
        pytest.param((_NO, None), ["outer/-"], id="the outer fails"),
        pytest.param((None, _YES), ["outer/inner/a"], id="none fails"),
    ],
)
def test_use_by_hand_never_vanishes(given: tuple[Given | None, ...], ways: list[str]) -> None:
    """A failing condition of a use by hand is reported as one that a flag's composite has."""
    assert _ways(made_of([_by_hand(*given)], _CUDA)) == ways


def test_backend_may_be_called_as_the_engines_own_choice() -> None:
    """What no flag names is undeclared, by its kind: a backend of that very name is like others."""
    backends = named(installed("engine default", OPTS_OUT))

    chosen = uses_of(flags(), backends)
    by_name = uses_of(flags().updated({"attention_backend": "engine default"}), backends)

    held = {(use.kind, use.declaration, use.source) for use in chosen}
    assert held == {(UseKind.ENGINE_DEFAULT, Declaration(), BY_HAND)}
    assert {use.kind for use in by_name} == {UseKind.NAMED}


def test_uses_with_one_condition_on_different_levels_have_one_order() -> None:
    """Where a condition stands counts for the order, as its words do."""
    uses = [_by_hand(_OPEN, None), _by_hand(None, _OPEN), _by_hand(None, None)]

    orders = [sorted(each, key=lambda use: use.sort_key) for each in permutations(uses)]

    assert orders == [[uses[2], uses[1], uses[0]]] * 6


@pytest.mark.parametrize(
    ("parts", "cycle"),
    [
        pytest.param({"ring": ["ring"]}, "ring -> ring", id="of itself"),
        pytest.param({"ring": ["b"], "b": ["ring"]}, "ring -> b -> ring", id="by another"),
        pytest.param({"ring": ["b"], "b": ["c"], "c": ["b"]}, "b -> c -> b", id="further in"),
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
