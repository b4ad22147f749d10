from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from backend_caps.capability.backend import Backend, Problem, Status
from backend_caps.capability.declaration import Part, When
from backend_caps.capability.facts import Facts, Given
from backend_caps.capability.kind import ANY, Phase, Role
from backend_caps.capability.sets import ComputeRange, Exact, MultipleOf
from backend_caps.capability.vocabulary import CAPABILITIES, AttentionArch, Capabilities
from backend_caps.resolution.plan import Choice, Policy
from backend_caps.resolution.resolver import resolve
from backend_caps.resolution.selection import Selection, check_named, plan_for, select
from tests.unit.building import (
    RULES_13,
    SPECULATING,
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
_DRAFTING = SPECULATING
_BOTH_AUTO = "--prefill-attention-backend auto --decode-attention-backend auto"
_ON_CPU = Facts(device="cpu")
_FROM_9 = {"compute_capability": [ComputeRange((9, 0))]}


def _fits(name: str, priority: int | None = None, /, **but: object) -> Backend:
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
    selection = select(named(*backends), flags(line), facts=facts, rules=RULES_13)
    return {c.flag: None if c.chosen is None else c.chosen.name for c in selection.choices}


def _one(*backends: Backend, line: str = _AUTO, facts: Facts | None = None) -> Choice:
    """Return the one choice of a command line."""
    (choice,) = select(named(*backends), flags(line), facts=facts, rules=RULES_13).choices
    return choice


def _codes(problems: Iterable[Problem]) -> list[str]:
    return [found.code for found in problems]


@pytest.mark.parametrize(
    ("backends", "chosen"),
    [
        pytest.param([_fits("a", 10), _fits("b", 50)], "b", id="the higher priority"),
        pytest.param([_fits("b", 50), _fits("a", 50)], "a", id="of equals the first by name"),
        pytest.param([_fits("a"), _fits("b", 1)], "b", id="undeclared is the lowest"),
        pytest.param([_fits("b", 0), _fits("a")], "a", id="undeclared is as 0"),
        pytest.param([], None, id="of none, none"),
        pytest.param([_fits("a", 90, devices={"cuda"}), _fits("b", 10)], "a", id="not known"),
        pytest.param([broken("a", Status.BROKEN), _fits("c")], "c", id="not a broken one"),
        pytest.param([broken("a", Status.CONFLICT), _fits("c")], "c", id="not one of two"),
        # The word that asks for a choice is no name: nobody could choose it.
        pytest.param([installed("auto", _FITS), _fits("b")], "b", id="not one named auto"),
    ],
)
def test_select_takes_the_highest_priority_that_fits(
    backends: list[Backend], chosen: str | None
) -> None:
    """Of the backends that fit, the highest priority is chosen, and of equals the first by name."""
    assert _chosen(backends) == {"--attention-backend": chosen}


@pytest.mark.parametrize(
    ("but", "facts"),
    [
        ({"devices": {"cuda"}}, _ON_CPU),
        (_FROM_9, Facts(device="cuda", compute_capability=(8, 0))),
        ({"dtypes": {"bfloat16"}}, Facts(dtype="float32")),
        ({"head_sizes": MultipleOf(64)}, Facts(head_size=80)),
        ({"attention_arch": {AttentionArch.MHA}}, Facts(attention_arch=AttentionArch.MLA)),
        ({"page_sizes": Exact(64)}, Facts(page_size=16)),
    ],
    ids=lambda given: ", ".join(given) if isinstance(given, dict) else "",
)
def test_select_heeds_the_facts(but: Mapping[str, object], facts: Facts) -> None:
    """A backend of a higher priority is passed over where it does not fit what is known."""
    backends = [_fits("a", 90, **but), _fits("b", 10)]

    assert _chosen(backends, facts=facts) == {"--attention-backend": "b"}


@pytest.mark.parametrize(
    ("line", "but"),
    [
        ("--kv-cache-dtype fp8_e5m2", {"kv_cache_dtypes": {"bfloat16"}}),
        ("--page-size 16", {"page_sizes": Exact(64)}),
        ("--device npu", {"devices": {"cuda"}}),
        ("--enable-two-batch-overlap", {"two_batch_overlap": False}),
        (_DRAFTING, {"roles": {Role.TARGET}}),
        (f"{_DRAFTING} --speculative-eagle-topk 4", {"max_speculative_topk": 2}),
        # Pages are shared with another backend.
        ("--prefill-attention-backend other", {"page_sizes": Exact(48)}),
    ],
)
def test_select_heeds_what_the_plan_needs(line: str, but: Mapping[str, object]) -> None:
    """A backend of a higher priority is passed over where the plan with it has a problem."""
    other = _fits("other", 0, page_sizes=Exact(32))
    backends = [_fits("best", 90, **but), _fits("good", 10), other]

    assert _chosen(backends, f"{_AUTO} {line}") == {"--attention-backend": "good"}


def test_candidate_keeps_every_reason() -> None:
    """Everything that speaks against a backend is kept, with what is and what it needs."""
    but = {
        "devices": {"cuda"},
        "page_sizes": Exact(64),
        "roles": {Role.TARGET},
        "max_speculative_topk": 2,
    }
    line = f"{_AUTO} {_DRAFTING} --speculative-eagle-topk 4 --page-size 16"

    choice = _one(_fits("a", **but), line=line, facts=_ON_CPU)

    assert [(r.code, r.actual, r.needed) for r in choice.candidates[0].reasons] == [
        ("device-unsupported", "cpu", "cuda"),
        ("page-size-unsupported", "16", "64"),
        ("role-unsupported", "draft", "target"),
        ("role-unsupported", "draft_extend", "target"),
        ("speculative-topk-unsupported", "4", "at most 2"),
    ]


def test_limit_of_another_backend_hides_no_reason() -> None:
    """What speaks against a backend alone is reported, also where another's limit is narrower."""
    draft = "--speculative-draft-attention-backend other"
    backends = [_fits("a", max_speculative_topk=2), _fits("other", max_speculative_topk=1)]

    choice = _one(*backends, line=f"{_AUTO} {_DRAFTING} {draft} --speculative-eagle-topk 4")

    tried = next(each for each in choice.candidates if each.name == "a")
    assert [(r.code, r.needed) for r in tried.reasons] == [
        ("speculative-topk-unsupported", "at most 2")
    ]


def test_reason_shared_with_another_backend_is_reported_once() -> None:
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


def test_unknown_fact_is_reported_those_that_restrict_it() -> None:
    """Where a fact is not known, the backends that do not take every value were not checked."""
    choice = _one(_fits("a", devices={"cuda"}, dtypes={"float16"}), _fits("b", dtypes=ANY))

    tried, free = choice.candidates
    assert (_codes(tried.unchecked), free.unchecked, free.reasons) == (
        ["device-not-checked", "dtype-not-checked"],
        (),
        (),
    )
    unknown = "device dtype kv_cache_dtype head_size compute_capability attention_arch"
    assert choice.unknown_facts == tuple(unknown.split())


def test_unknown_fact_is_reported_in_words() -> None:
    """What was not checked names the backend, what it takes, and how to tell the fact."""
    (found,) = _one(_fits("a", devices={"cuda"})).candidates[0].unchecked
    assert (found.message, found.remedy, found.actual, found.needed) == (
        "backend 'a' takes device cuda; here it is not known.",
        "Say what it is, such as by --fact device=VALUE.",
        "not known",
        "cuda",
    )


def test_only_a_cuda_device_lacks_a_compute_capability() -> None:
    """On another device nobody is asked for the compute capability of a GPU."""
    assert _one(_fits("a", **_FROM_9), facts=_ON_CPU).candidates[0].unchecked == ()


def test_undeclared_fit_speaks_against_nobody() -> None:
    """A backend that does not say what it takes is not checked, and fits."""
    (tried,) = _one(installed("a"), facts=_ON_CPU).candidates
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
        named(backend), flags(_AUTO), facts=facts, policy=Policy.STRICT, rules=RULES_13
    )

    (tried,) = selection.choices[0].candidates
    assert (_codes(tried.reasons), tried.unchecked) == (["device-not-checked"], ())


@pytest.mark.parametrize(
    ("given", "facts", "priority"),
    [
        pytest.param(_FROM_9, Facts(compute_capability=(9, 0)), 80, id="it holds"),
        pytest.param(_FROM_9, Facts(compute_capability=(8, 0)), 30, id="it does not"),
        pytest.param(_FROM_9, Facts(), 30, id="not known: the lower"),
        pytest.param({"phase": {Phase.DECODE}}, Facts(), 30, id="of several uses, the least"),
    ],
)
def test_priority_depends_on_conditions(
    given: Mapping[str, object], facts: Facts, priority: int
) -> None:
    """A priority can be declared for a condition; the least that may hold in any use counts."""
    declared = _FITS.model_copy(update={"auto_priority": 30})

    choice = _one(installed("a", declared, conditions=[_when(80, **given)]), facts=facts)

    assert choice.candidates[0].priority == priority


_PREFILLS, _DECODES = Part("a", phases={Phase.PREFILL}), Part("b", phases={Phase.DECODE})


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
    pair = installed("pair", own, parts=[_PREFILLS, _DECODES])
    backends = [pair, _fits("a", 60), _fits("b", 20)]

    choice = _one(*backends)

    assert {each.name: each.priority for each in choice.candidates}["pair"] == priority


_ON_CUDA = Part("a", given=Given(device={"cuda"}))
_TORN = [broken("a", Status.BROKEN), broken("b", Status.BROKEN)]


@pytest.mark.parametrize(
    ("parts", "others", "codes"),
    [
        pytest.param([Part("a")], [_fits("a", devices={"cuda"})], ["device-unsupported"], id="fit"),
        pytest.param([Part("gone")], [], ["backend-missing"], id="a part that is not installed"),
        pytest.param([Part("auto")], [], ["backend-missing"], id="a part by a flag's word"),
        pytest.param([Part("a")], _TORN, ["composite-unusable"], id="a broken part"),
        pytest.param([Part("pair")], [], ["composite-unusable"], id="itself"),
        pytest.param([_PREFILLS, _DECODES], _TORN, ["composite-unusable"] * 2, id="two broken"),
        pytest.param([_PREFILLS], [_fits("a")], ["no-part"], id="no part"),
        pytest.param([_ON_CUDA], [_fits("a")], ["no-part"] * 2, id="none left"),
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
    fitting = [_fits("low", 10), _fits("high", 90)]
    others = [_fits("out", 20, devices={"cuda"}), _fits("top", 99, devices={"cuda"})]

    choice = _one(*fitting, *others, broken("torn", Status.BROKEN), facts=_ON_CPU)

    assert [each.name for each in choice.fitting] == ["high", "low"]
    assert [each.name for each in choice.rejected] == ["top", "out", "torn"]


def test_ties_are_reported() -> None:
    """Those of the same priority as the chosen one are named: only the name decided."""
    choice = _one(_fits("b", 50), _fits("a", 50), _fits("c", 49), _fits("d", 50))
    of_none = _one(broken("torn", Status.BROKEN))

    assert (choice.chosen, choice.tied) == (choice.candidates[0], ("b", "d"))
    assert (of_none.chosen, of_none.tied) == (None, ())


def test_candidate_shows_what_it_costs() -> None:
    """Beside each candidate stands what the server needs with it, and what that does."""
    line = f"{_AUTO} {_DRAFTING} --speculative-eagle-topk 1"

    choice = _one(_fits("a", needs_cpu_seq_lens=True), _fits("b"), line=line)

    assert [(each.host_seq_lens, each.costs) for each in choice.candidates] == [
        ("exact", "a D2H copy and a host wait in every overlapped speculative step"),
        ("none", "no copy, no wait"),
    ]


_A, _PREFILL = "--attention-backend a", "--prefill-attention-backend"
_DECODE, _DRAFT = "--decode-attention-backend", "--speculative-draft-attention-backend"


@pytest.mark.parametrize(
    ("line", "chosen"),
    [
        pytest.param("", {}, id="no flag"),
        pytest.param(_A, {}, id="a name"),
        pytest.param(f"{_A} {_DECODE} auto", {_DECODE: "decodes"}, id="decode alone"),
        pytest.param(_BOTH_AUTO, {_PREFILL: "a", _DECODE: "decodes"}, id="by their priorities"),
        pytest.param(f"{_A} {_DRAFT} auto {_DRAFTING}", {_DRAFT: "a"}, id="the draft model's"),
    ],
)
def test_select_decides_each_flag_that_says_auto(line: str, chosen: Mapping[str, str]) -> None:
    """A flag that says auto has its own choice, for the uses that it names a backend for."""
    decodes = installed("decodes", _FITS, conditions=[_when(90, phase={Phase.DECODE})])

    assert _chosen([_fits("a", 50), decodes], line) == chosen


def test_flags_name_what_was_chosen() -> None:
    """The chosen names stand in flags and uses, which are marked; the user's own stay."""
    backends = named(_fits("a", 50), _fits("b"))
    line = f"{_AUTO} --decode-attention-backend b"

    selection = select(backends, flags(line), rules=RULES_13)

    assert selection.flags == flags("--attention-backend a --decode-attention-backend b")
    marked = {use.backend: use.by_auto for use in selection.uses(backends)}
    assert marked == {"a": True, "b": False}


def test_flag_without_a_use_is_dropped() -> None:
    """Where nothing would run, there is nothing to choose."""
    line = "--attention-backend a --speculative-draft-attention-backend auto"

    selection = select(named(_fits("a")), flags(line), rules=RULES_13)

    assert selection == Selection(flags=flags("--attention-backend a"), choices=())


def test_second_flag_heeds_the_first() -> None:
    """Flags are decided one after the other: decode shares its pages with prefill's choice."""
    pages, first = _FITS.model_copy(update={"page_sizes": Exact(32)}), {Phase.PREFILL}
    prefills = installed("prefills", pages, conditions=[_when(90, phase=first)])

    found = _chosen([prefills, _fits("a", 80, page_sizes=Exact(48)), _fits("b", 10)], _BOTH_AUTO)

    assert found == {_PREFILL: "prefills", _DECODE: "b"}


def test_uses_are_refused_for_each_flag() -> None:
    """Each flag that finds no backend is an error of its own."""
    selection = select({}, flags(_BOTH_AUTO), rules=RULES_13)

    told = errors_of(lambda: selection.uses({}))

    refused = "is auto, and no installed backend fits: None is installed. Install one that does"
    written = [text.partition(", or")[0] for text in told[1]]
    assert written == [f"{name} {refused}" for name in (_PREFILL, _DECODE)]


def test_fault_of_a_named_backend_is_raised() -> None:
    """A flag that names a broken backend is refused, whatever another flag chooses."""
    backends = named(_fits("a"), broken("torn", Status.BROKEN))
    line = f"{_AUTO} --decode-attention-backend torn"

    told = error_of(lambda: select(backends, flags(line), rules=RULES_13))

    assert told.startswith("--decode-attention-backend names a backend that cannot be used")


def test_missing_backend_is_not_refused() -> None:
    """Of a backend that is not installed nothing is known that would speak against it."""
    plan = resolve([missing_use()], flags(), facts=_ON_CPU, rules=RULES_13)

    check_named(plan, {}, but=frozenset())

    assert [found.code for found in plan.problems] == ["backend-missing"]


def test_part_of_a_named_composite_is_refused_by_the_composites_name() -> None:
    """The flag names the composite, and the reasons its parts."""
    backends = named(installed("pair", parts=[Part("a")]), _fits("a", devices={"cuda"}))
    read = flags("--attention-backend pair")
    plan = plan_for(backends, read, facts=_ON_CPU, rules=RULES_13)

    told = error_of(lambda: check_named(plan, backends, but=frozenset()))

    assert told.startswith(
        "--attention-backend names 'pair', which cannot run here: device-unsupported: backend 'a' "
        "takes device cuda"
    )


def test_fact_that_counts_for_nothing_refuses_nobody() -> None:
    """A fact can be left out, as a device that stands in for another."""
    uses = [use("a", Capabilities(devices={"cuda"}))]
    plan = resolve(uses, flags(), facts=_ON_CPU, rules=RULES_13)

    check_named(plan, {}, but=frozenset({"device"}))

    assert [found.code for found in plan.problems] == ["device-unsupported"]


def test_stand_in_device_is_no_reason_against_a_name() -> None:
    """Where a device stands in for others, the remedy says that a named backend is tried."""
    backends = named(_fits("a", devices={"cuda"}))

    told = []
    for stand_ins in ((), {"sim"}):
        facts = Facts(device="sim")
        selection = select(backends, flags(_AUTO), facts=facts, stand_ins=stand_ins, rules=RULES_13)
        told.append(selection.choices[0].rejected[0].reasons[0].remedy)

    by_name = "; by its name it is tried on the simulated device, unless the policy is strict."
    plain = "Use another backend, or device cuda"
    assert told == [f"{plain}.", plain + by_name]
