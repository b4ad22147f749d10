from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from backend_caps.capability.backend import Backend, Problem, Status
from backend_caps.capability.declaration import Part, When
from backend_caps.capability.facts import AtLeast, Facts, Given, Truth
from backend_caps.capability.kind import Phase, Role
from backend_caps.capability.scale import ANY
from backend_caps.capability.sets import ComputeRange
from backend_caps.capability.sizes import Exact, MultipleOf
from backend_caps.capability.vocabulary import CAPABILITIES, AttentionArch, Capabilities
from backend_caps.resolution.plan import Candidate, Choice, Policy
from backend_caps.resolution.resolver import resolve
from backend_caps.resolution.rules import RuleSet
from backend_caps.resolution.selection import Selection, check_named, plan_for, select
from tests.unit.building import (
    broken,
    error_of,
    errors_of,
    flags,
    installed,
    missing_use,
    named,
    use,
)

_FITS = Capabilities.model_validate(
    {name: kind.best for name, kind in CAPABILITIES.items() if name != "auto_priority"}
)
"""Takes everything, and declares no priority."""
_AUTO = "--attention-backend auto"
_DRAFTING = "--speculative-algorithm EAGLE --disable-piecewise-cuda-graph"
_ON_CPU = Facts(device="cpu")


def _fits(name: str, priority: int | None = None, **but: object) -> Backend:
    own = but if priority is None else {**but, "auto_priority": priority}
    return installed(name, _FITS.model_copy(update=own))


def _when(priority: int, **given: object) -> When:
    return When(
        given=Given.model_validate(given),
        capabilities=Capabilities(auto_priority=priority),
        reason="it was measured",
    )


def _chosen(
    backends: Iterable[Backend], line: str = _AUTO, *, facts: Facts | None = None
) -> Mapping[str, str | None]:
    """Name the backend that each flag chose."""
    selection = select(
        named(*backends), flags(line), facts=facts, rules=RuleSet.builtin("sglang-0.5.13")
    )
    return {c.flag: None if c.chosen is None else c.chosen.name for c in selection.choices}


def _one(*backends: Backend, line: str = _AUTO, facts: Facts | None = None) -> Choice:
    """Return the one choice of a command line."""
    (choice,) = select(
        named(*backends), flags(line), facts=facts, rules=RuleSet.builtin("sglang-0.5.13")
    ).choices
    return choice


def _codes(problems: Iterable[Problem]) -> list[str]:
    return [found.code for found in problems]


@pytest.mark.parametrize(
    ("backends", "facts", "chosen"),
    [
        pytest.param([_fits("a", 10), _fits("b", 50)], None, "b", id="the higher priority"),
        pytest.param([_fits("b", 50), _fits("a", 50)], None, "a", id="of equals the first by name"),
        pytest.param([_fits("a"), _fits("b", 1)], None, "b", id="undeclared is the lowest"),
        pytest.param([_fits("b", 0), _fits("a")], None, "a", id="undeclared is as 0"),
        pytest.param([], None, None, id="of none, none"),
        pytest.param(
            [_fits("a", 90, devices={"cuda"}), _fits("b", 10)], _ON_CPU, "b", id="by the device"
        ),
        pytest.param(
            [_fits("a", 90, compute_capability=[ComputeRange((9, 0))]), _fits("b", 10)],
            Facts(device="cuda", compute_capability=(8, 0)),
            "b",
            id="by the compute capability",
        ),
        pytest.param(
            [_fits("a", 90, dtypes={"bfloat16"}), _fits("b", 10)],
            Facts(dtype="float32"),
            "b",
            id="by the dtype",
        ),
        pytest.param(
            [_fits("a", 90, head_sizes=MultipleOf(64)), _fits("b", 10)],
            Facts(head_size=80),
            "b",
            id="by the head size",
        ),
        pytest.param(
            [_fits("a", 90, attention_arch={AttentionArch.MHA}), _fits("b", 10)],
            Facts(attention_arch=AttentionArch.MLA),
            "b",
            id="by the family of attention",
        ),
        pytest.param(
            [_fits("a", 90, page_sizes=Exact(64)), _fits("b", 10)],
            Facts(page_size=16),
            "b",
            id="by the page size",
        ),
        pytest.param(
            [_fits("a", 90, devices={"cuda"}), _fits("b", 10)], None, "a", id="unless it is unknown"
        ),
        pytest.param(
            [broken("a", Status.BROKEN), broken("b", Status.CONFLICT), _fits("c")],
            None,
            "c",
            id="not a broken one",
        ),
    ],
)
def test_select_takes_the_highest_priority_that_fits(
    backends: list[Backend], facts: Facts | None, chosen: str | None
) -> None:
    """Of the backends that fit, the highest priority is chosen, and of equals the first by name."""
    found = _chosen(backends, facts=facts)

    assert found == {"--attention-backend": chosen}


@pytest.mark.parametrize(
    ("line", "but"),
    [
        pytest.param("--kv-cache-dtype fp8_e5m2", {"kv_cache_dtypes": {"bfloat16"}}, id="kv dtype"),
        pytest.param("--page-size 16", {"page_sizes": Exact(64)}, id="page size"),
        pytest.param("--device npu", {"devices": {"cuda"}}, id="device"),
        pytest.param(
            "--enable-two-batch-overlap", {"two_batch_overlap": False}, id="two-batch overlap"
        ),
        pytest.param(_DRAFTING, {"roles": {Role.TARGET}}, id="roles"),
        pytest.param(
            f"{_DRAFTING} --speculative-eagle-topk 4", {"max_speculative_topk": 2}, id="topk"
        ),
        pytest.param(
            "--prefill-attention-backend other", {"page_sizes": Exact(48)}, id="shared page size"
        ),
    ],
)
def test_select_heeds_what_the_plan_needs(line: str, but: Mapping[str, object]) -> None:
    """A backend of a higher priority is passed over where the plan with it has a problem."""
    backends = [
        installed("best", _FITS.model_copy(update={**but, "auto_priority": 90})),
        _fits("good", 10),
        _fits("other", 0, page_sizes=Exact(32)),
    ]

    found = _chosen(backends, f"{_AUTO} {line}")

    assert found == {"--attention-backend": "good"}


def test_candidate_keeps_every_reason() -> None:
    """Everything that speaks against a backend is kept, with what is and what it needs."""
    but = {
        "devices": {"cuda"},
        "page_sizes": Exact(64),
        "roles": {Role.TARGET},
        "max_speculative_topk": 2,
    }
    backend = installed("a", _FITS.model_copy(update=but))

    choice = _one(
        backend,
        line=f"{_AUTO} {_DRAFTING} --speculative-eagle-topk 4 --page-size 16",
        facts=_ON_CPU,
    )

    assert [(r.code, r.actual, r.needed) for r in choice.candidates[0].reasons] == [
        ("device-unsupported", "cpu", "cuda"),
        ("page-size-unsupported", "16", "64"),
        ("role-unsupported", "draft", "target"),
        ("role-unsupported", "draft_extend", "target"),
        ("speculative-topk-unsupported", "4", "at most 2"),
    ]


def test_candidate_says_what_to_do() -> None:
    """Each reason has a remedy."""
    choice = _one(_fits("a", devices={"cuda"}), facts=_ON_CPU)

    assert choice.candidates[0].reasons[0].remedy == "Use another backend, or device cuda."


def test_limit_of_another_backend_hides_no_reason() -> None:
    """What speaks against a backend alone is told, also where another's limit is narrower."""
    draft = "--speculative-draft-attention-backend other"
    backends = [_fits("a", max_speculative_topk=2), _fits("other", max_speculative_topk=1)]

    choice = _one(*backends, line=f"{_AUTO} {_DRAFTING} {draft} --speculative-eagle-topk 4")

    tried = next(each for each in choice.candidates if each.name == "a")
    assert [(r.code, r.needed) for r in tried.reasons] == [
        ("speculative-topk-unsupported", "at most 2")
    ]


def test_reason_shared_with_another_backend_is_told_once() -> None:
    """What a candidate lacks by itself is one reason, also where another backend lacks it too."""
    backends = [_fits("a", two_batch_overlap=False), _fits("other", two_batch_overlap=False)]
    line = f"{_AUTO} --decode-attention-backend other --enable-two-batch-overlap"

    choice = _one(*backends, line=line)

    tried = next(each for each in choice.candidates if each.name == "a")
    assert _codes(tried.reasons) == ["two-batch-overlap-unsupported"]


def test_problem_of_another_backend_speaks_against_nobody() -> None:
    """What is wrong with the server whatever is chosen is no reason against a candidate."""
    backends = [_fits("a"), _fits("other", devices={"cuda"})]

    choice = _one(*backends, line=f"{_AUTO} --decode-attention-backend other", facts=_ON_CPU)

    assert [(each.name, _codes(each.reasons)) for each in choice.candidates] == [
        ("a", []),
        ("other", ["device-unsupported"]),
    ]


def test_broken_candidate_has_its_problems_as_reasons() -> None:
    """A backend that was not read is a candidate that does not fit, for what is wrong with it."""
    torn = Problem(code="raises", message="torn raises.", remedy="Repair it.")

    choice = _one(broken("torn", Status.BROKEN, [torn]), broken("lost", Status.BROKEN))

    assert [(each.name, _codes(each.reasons)) for each in choice.candidates] == [
        ("lost", ["broken"]),
        ("torn", ["raises"]),
    ]


def test_unknown_fact_is_told_of_those_that_restrict_it() -> None:
    """Where a fact is not known, the backends that do not take every value were not checked."""
    choice = _one(_fits("a", devices={"cuda"}, dtypes={"float16"}), _fits("b"))

    assert [(each.name, _codes(each.unchecked)) for each in choice.candidates] == [
        ("a", ["device-not-checked", "dtype-not-checked"]),
        ("b", []),
    ]
    assert choice.unknown_facts == (
        "device",
        "dtype",
        "kv_cache_dtype",
        "head_size",
        "compute_capability",
        "attention_arch",
    )


def test_unknown_fact_is_told_in_words() -> None:
    """What was not checked names the backend, what it takes, and how to tell the fact."""
    choice = _one(_fits("a", devices={"cuda"}))

    (found,) = choice.candidates[0].unchecked
    assert (found.message, found.remedy, found.actual, found.needed) == (
        "backend 'a' takes device cuda; here it is not known.",
        "Say what it is, such as by --fact device=VALUE.",
        "not known",
        "cuda",
    )


def test_only_a_cuda_device_lacks_a_compute_capability() -> None:
    """On another device nobody is asked for the compute capability of a GPU."""
    choice = _one(_fits("a", compute_capability=[ComputeRange((9, 0))]), facts=_ON_CPU)

    assert choice.candidates[0].unchecked == ()


def test_undeclared_fit_speaks_against_nobody() -> None:
    """A backend that does not say what it takes is not checked, and fits."""
    choice = _one(installed("a"), facts=_ON_CPU)

    (tried,) = choice.candidates
    assert (tried.fits, _codes(tried.unchecked)) == (True, ["device-not-checked"])


@pytest.mark.parametrize(
    ("backend", "facts"),
    [
        pytest.param(installed("a"), _ON_CPU, id="what a backend does not say"),
        pytest.param(_fits("a", devices={"cuda"}), Facts(), id="what nobody knows"),
    ],
)
def test_strict_counts_what_is_not_checked(backend: Backend, facts: Facts) -> None:
    """Under strict, what is not checked is a reason."""
    selection = select(
        named(backend),
        flags(_AUTO),
        facts=facts,
        policy=Policy.STRICT,
        rules=RuleSet.builtin("sglang-0.5.13"),
    )

    (tried,) = selection.choices[0].candidates
    assert (_codes(tried.reasons), tried.unchecked) == (["device-not-checked"], ())


@pytest.mark.parametrize(
    ("facts", "priority"),
    [
        pytest.param(Facts(compute_capability=(9, 0)), 80, id="it holds"),
        pytest.param(Facts(compute_capability=(8, 0)), 30, id="it does not"),
        pytest.param(Facts(), 30, id="not known: the lower"),
    ],
)
def test_priority_depends_on_conditions(facts: Facts, priority: int) -> None:
    """A priority can be declared for a condition; while that is open, the lower counts."""
    hopper = _when(80, compute_capability=[ComputeRange((9, 0))])
    declared = _FITS.model_copy(update={"auto_priority": 30})

    choice = _one(installed("a", declared, conditions=[hopper]), facts=facts)

    assert choice.candidates[0].priority == priority


def test_priority_depends_on_the_context() -> None:
    """A backend can step back where contexts are long."""
    long = _when(1, context_length=AtLeast(32768))
    padded = installed("a", _FITS.model_copy(update={"auto_priority": 60}), conditions=[long])

    found = [
        _chosen([padded, _fits("b", 50)], f"{_AUTO} --context-length {length}")
        for length in ("4096", "65536")
    ]

    assert found == [{"--attention-backend": "a"}, {"--attention-backend": "b"}]


def test_priority_of_several_uses_is_the_least() -> None:
    """A backend that is good in one phase alone has the lesser priority where it runs in all."""
    decodes = _when(90, phase={Phase.DECODE})
    backend = installed("a", _FITS.model_copy(update={"auto_priority": 20}), conditions=[decodes])

    choice = _one(backend)

    assert choice.candidates[0].priority == 20


@pytest.mark.parametrize(
    ("own", "priority"),
    [
        pytest.param(Capabilities(), 20, id="the least of its parts"),
        pytest.param(Capabilities(two_batch_overlap=False), 20, id="which other needs leave alone"),
        pytest.param(Capabilities(auto_priority=70), 70, id="its own before theirs"),
    ],
)
def test_priority_of_a_composite(own: Capabilities, priority: int) -> None:
    """A composite has the priority that it declares, else the least of its parts'."""
    parts = [Part("a", phases={Phase.PREFILL}), Part("b", phases={Phase.DECODE})]
    backends = [installed("pair", own, parts=parts), _fits("a", 60), _fits("b", 20)]

    choice = _one(*backends)

    assert {each.name: each.priority for each in choice.candidates}["pair"] == priority


@pytest.mark.parametrize(
    ("parts", "others", "codes"),
    [
        pytest.param([Part("a")], [_fits("a", devices={"cuda"})], ["device-unsupported"], id="fit"),
        pytest.param([Part("gone")], [], ["backend-missing"], id="a part that is not installed"),
        pytest.param([Part("auto")], [], ["backend-missing"], id="a part by a flag's word"),
        pytest.param(
            [Part("a")], [broken("a", Status.BROKEN)], ["composite-unusable"], id="a broken part"
        ),
        pytest.param([Part("pair")], [], ["composite-unusable"], id="itself"),
        pytest.param(
            [Part("a", phases={Phase.PREFILL}), Part("b", phases={Phase.DECODE})],
            [broken("a", Status.BROKEN), broken("b", Status.BROKEN)],
            ["composite-unusable"] * 2,
            id="two broken parts",
        ),
        pytest.param([Part("a", phases={Phase.DECODE})], [_fits("a")], ["no-part"], id="no part"),
        pytest.param(
            [Part("a", given=Given(device={"cuda"}))], [_fits("a")], ["no-part"] * 2, id="none left"
        ),
    ],
)
def test_composite_is_rejected_for_its_parts(
    parts: list[Part], others: list[Backend], codes: list[str]
) -> None:
    """What is wrong with a composite's parts speaks against the composite."""
    choice = _one(installed("pair", parts=parts), *others, facts=_ON_CPU)

    tried = next(each for each in choice.candidates if each.name == "pair")
    assert _codes(tried.reasons) == codes


def test_candidates_come_in_order() -> None:
    """Those that fit come first, best first; then the others, as they would be."""
    backends = [
        _fits("low", 10),
        _fits("high", 90),
        _fits("out", 20, devices={"cuda"}),
        _fits("top", 99, devices={"cuda"}),
        broken("torn", Status.BROKEN),
    ]

    choice = _one(*backends, facts=_ON_CPU)

    assert [each.name for each in choice.fitting] == ["high", "low"]
    assert [each.name for each in choice.rejected] == ["top", "out", "torn"]


def test_ties_are_told() -> None:
    """Those of the same priority as the chosen one are named: only the name decided."""
    choice = _one(_fits("b", 50), _fits("a", 50), _fits("c", 49), _fits("d", 50))

    assert (choice.chosen, choice.tied) == (choice.candidates[0], ("b", "d"))


def test_no_tie_where_nothing_fits() -> None:
    """Where nothing was chosen, nothing tied with it."""
    choice = _one(broken("torn", Status.BROKEN))

    assert (choice.chosen, choice.tied) == (None, ())


def test_candidate_shows_what_it_costs() -> None:
    """Beside each candidate stands what the server needs with it, and what that does."""
    line = f"{_AUTO} {_DRAFTING} --speculative-eagle-topk 1"

    choice = _one(_fits("a", needs_cpu_seq_lens=True), _fits("b"), line=line)

    assert [(each.host_seq_lens, each.costs) for each in choice.candidates] == [
        ("exact", "a D2H copy and a host wait in every overlapped speculative step"),
        ("none", "no copy, no wait"),
    ]


@pytest.mark.parametrize(
    ("line", "chosen"),
    [
        pytest.param("", {}, id="no flag"),
        pytest.param("--attention-backend a", {}, id="a name"),
        pytest.param(
            "--attention-backend a --decode-attention-backend auto",
            {"--decode-attention-backend": "decodes"},
            id="decode alone",
        ),
        pytest.param(
            "--prefill-attention-backend auto --decode-attention-backend auto",
            {"--prefill-attention-backend": "a", "--decode-attention-backend": "decodes"},
            id="each by its own priority",
        ),
        pytest.param(
            f"--attention-backend a --speculative-draft-attention-backend auto {_DRAFTING}",
            {"--speculative-draft-attention-backend": "a"},
            id="the draft model's",
        ),
    ],
)
def test_select_decides_each_flag_that_says_auto(line: str, chosen: Mapping[str, str]) -> None:
    """A flag that says auto has its own choice, for the uses that it names a backend for."""
    decodes = installed("decodes", _FITS, conditions=[_when(90, phase={Phase.DECODE})])

    found = _chosen([_fits("a", 50), decodes], line)

    assert found == chosen


def test_flags_name_what_was_chosen() -> None:
    """The chosen names stand in the flags of a selection; the user's own stay."""
    line = f"{_AUTO} --decode-attention-backend b"

    selection = select(
        named(_fits("a", 50), _fits("b")), flags(line), rules=RuleSet.builtin("sglang-0.5.13")
    )

    assert selection.flags == flags("--attention-backend a --decode-attention-backend b")


def test_flag_without_a_use_is_dropped() -> None:
    """Where nothing would run, there is nothing to choose."""
    line = "--attention-backend a --speculative-draft-attention-backend auto"

    selection = select(named(_fits("a")), flags(line), rules=RuleSet.builtin("sglang-0.5.13"))

    assert selection == Selection(flags=flags("--attention-backend a"), choices=())


def test_second_flag_heeds_the_first() -> None:
    """Flags are decided one after the other: decode shares its pages with prefill's choice."""
    line = "--prefill-attention-backend auto --decode-attention-backend auto"
    backends = [
        installed(
            "prefills",
            _FITS.model_copy(update={"page_sizes": Exact(32)}),
            conditions=[_when(90, phase={Phase.PREFILL})],
        ),
        _fits("a", 80, page_sizes=Exact(48)),
        _fits("b", 10),
    ]

    found = _chosen(backends, line)

    assert found == {"--prefill-attention-backend": "prefills", "--decode-attention-backend": "b"}


def test_uses_by_a_chosen_name_are_marked() -> None:
    """A use says whether its backend was chosen."""
    backends = named(_fits("a"), _fits("b"))
    selection = select(
        backends,
        flags(f"{_AUTO} --decode-attention-backend b"),
        rules=RuleSet.builtin("sglang-0.5.13"),
    )

    uses = selection.uses(backends)

    assert {use.backend: use.by_auto for use in uses} == {"a": True, "b": False}


def test_uses_are_refused_where_nothing_fits() -> None:
    """Without a backend that fits there are no uses: the error has every reason."""
    backends = named(_fits("a", devices={"cuda"}), broken("torn", Status.BROKEN))
    selection = select(
        backends, flags(_AUTO), facts=_ON_CPU, rules=RuleSet.builtin("sglang-0.5.13")
    )

    told = error_of(lambda: selection.uses(backends))

    assert told == (
        "--attention-backend is auto, and no installed backend fits:\n"
        "  a, device-unsupported: backend 'a' takes device cuda; here it is cpu. Use another "
        "backend, or device cuda.\n"
        "  torn, broken: the declaration of 'torn' was not read. See the report.\n"
        "Install one that does, or change what they do not take; backend-caps select shows each."
    )


def test_uses_are_refused_for_each_flag() -> None:
    """Each flag that finds no backend is an error of its own."""
    line = "--prefill-attention-backend auto --decode-attention-backend auto"
    selection = select({}, flags(line), rules=RuleSet.builtin("sglang-0.5.13"))

    told = errors_of(lambda: selection.uses({}))

    refused = "{} is auto, and no installed backend fits: None is installed. Install one that does"
    flag_names = ("--prefill-attention-backend", "--decode-attention-backend")
    assert [text.partition(", or")[0] for text in told[1]] == [
        refused.format(name) for name in flag_names
    ]


def test_fault_of_a_named_backend_is_raised() -> None:
    """A flag that names a broken backend is refused, whatever another flag chooses."""
    backends = named(_fits("a"), broken("torn", Status.BROKEN))
    line = f"{_AUTO} --decode-attention-backend torn"

    told = error_of(lambda: select(backends, flags(line), rules=RuleSet.builtin("sglang-0.5.13")))

    assert told.startswith("--decode-attention-backend names a backend that cannot be used")


def test_backend_named_auto_is_no_candidate() -> None:
    """The word that asks for a choice is no name: nobody could choose it."""
    choice = _one(installed("auto", _FITS), _fits("b"))

    assert [each.name for each in choice.candidates] == ["b"]


def test_perfect_candidate_fits() -> None:
    """What takes everything has no reason against it, and nothing is unchecked."""
    choice = _one(_fits("a", dtypes=ANY))

    assert choice.candidates == (
        Candidate(
            name="a",
            source=choice.candidates[0].source,
            host_seq_lens="exact",
            costs="no effect: without speculative decoding the scheduler knows the lengths",
        ),
    )


@pytest.mark.parametrize(
    ("line", "truth"),
    [
        pytest.param(_AUTO, Truth.UNKNOWN, id="while it is auto"),
        pytest.param(f"{_AUTO} --decode-attention-backend fa3", Truth.TRUE, id="by its name"),
        pytest.param(f"{_AUTO} --decode-attention-backend mla", Truth.FALSE, id="another name"),
    ],
)
def test_condition_on_the_decode_backend_waits_for_the_choice(line: str, truth: Truth) -> None:
    """While decode's backend is to be chosen, a condition on its name is open."""
    given = Given(decode_attention_backend={"fa3"})

    found = given.truth(flags(line).situation(Facts()))

    assert found is truth


def test_named_backend_of_a_use_by_hand_is_refused_without_others() -> None:
    """Of a use that no flag made, nobody can say what would do in its place."""
    plan = resolve(
        [use("a", Capabilities(devices={"cuda"}))],
        flags(),
        facts=_ON_CPU,
        rules=RuleSet.builtin("sglang-0.5.13"),
    )

    told = error_of(lambda: check_named(plan, named(_fits("b")), but=frozenset()))

    assert told == (
        "by hand names 'a', which cannot run here: device-unsupported: backend 'a' takes device "
        "cuda; here it is cpu. Use another backend, or device cuda. In its place no installed "
        "backend fits. Install one that does, or change what it does not take."
    )


def test_missing_backend_is_not_refused() -> None:
    """Of a backend that is not installed nothing is known that would speak against it."""
    plan = resolve([missing_use()], flags(), facts=_ON_CPU, rules=RuleSet.builtin("sglang-0.5.13"))

    check_named(plan, {}, but=frozenset())

    assert [found.code for found in plan.problems] == ["backend-missing"]


def test_part_of_a_named_composite_is_refused_by_the_composites_name() -> None:
    """The flag names the composite, and the reasons its parts."""
    backends = named(installed("pair", parts=[Part("a")]), _fits("a", devices={"cuda"}))
    plan = plan_for(
        backends,
        flags("--attention-backend pair"),
        facts=_ON_CPU,
        rules=RuleSet.builtin("sglang-0.5.13"),
    )

    told = error_of(lambda: check_named(plan, backends, but=frozenset()))

    assert told.startswith(
        "--attention-backend names 'pair', which cannot run here: device-unsupported: backend 'a' "
        "takes device cuda"
    )


def test_fact_that_counts_for_nothing_refuses_nobody() -> None:
    """A fact can be left out, as a device that stands in for another."""
    plan = resolve(
        [use("a", Capabilities(devices={"cuda"}))],
        flags(),
        facts=_ON_CPU,
        rules=RuleSet.builtin("sglang-0.5.13"),
    )

    check_named(plan, {}, but=frozenset({"device"}))

    assert [found.code for found in plan.problems] == ["device-unsupported"]


def test_stand_in_device_is_no_reason_against_a_name() -> None:
    """Where a device stands in for others, the remedy says that a named backend is tried."""
    backends = named(_fits("a", devices={"cuda"}))
    line, facts = flags(_AUTO), Facts(device="sim")

    told = [
        select(backends, line, facts=facts, stand_ins=own, rules=RuleSet.builtin("sglang-0.5.13"))
        .choices[0]
        .rejected[0]
        .reasons[0]
        .remedy
        for own in ((), {"sim"})
    ]

    by_name = "; by its name it is tried on the simulated device, unless the policy is strict."
    plain = "Use another backend, or device cuda"
    assert told == [f"{plain}.", plain + by_name]
