from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from backend_caps.capability.backend import Backend, Reading, Status
from backend_caps.capability.declaration import Declaration, Part, When
from backend_caps.capability.facts import Facts, Given
from backend_caps.capability.kind import Phase, Role
from backend_caps.capability.provenance import Origin, Source
from backend_caps.capability.sizes import Conflict, Exact, MultipleOf, OneOf, Unchecked
from backend_caps.capability.vocabulary import BatchKind, Capabilities, HostSeqLens
from backend_caps.report.diff import differences, severity
from backend_caps.report.difference import (
    DifferenceDocument,
    DifferenceKind,
    diff_document,
    diff_view,
)
from backend_caps.report.sections import markdown
from backend_caps.report.snapshot import Snapshot
from tests.unit.building import broken, flags, installed
from tests.unit.report import scene
from tests.unit.report.conftest import Golden, Shown
from tests.unit.report.sides import (
    EXACT,
    INHERITED,
    NEW,
    NGRAM,
    NONE,
    OLD,
    PAGED,
    RAGGED,
    STATED,
    TBO,
    asked,
    engine,
    installed_side,
    locked,
    mirrored,
    problem,
    read_class,
    reading,
    rule_set,
)

K = DifferenceKind
Told = tuple[DifferenceKind, str, str, str | None, str | None]
CLASS = "class FlashAttentionBackend"


def _told(found: Sequence[DifferenceDocument]) -> list[Told]:
    return [(each.kind, each.subject, each.field, each.before, each.after) for each in found]


_CLASSES = [
    pytest.param(
        read_class(capabilities=NONE),
        read_class(capabilities=EXACT),
        [(K.STRICTER, CLASS, "host_seq_lens", "none", "exact")],
        id="reads lengths now",
    ),
    pytest.param(
        read_class(capabilities=EXACT),
        read_class(capabilities=NONE),
        [(K.LOOSER, CLASS, "host_seq_lens", "exact", "none")],
        id="reads no lengths any more",
    ),
    pytest.param(
        read_class(capabilities=NONE, readings={"host_seq_lens": STATED}),
        read_class(
            capabilities=Capabilities(max_context_len_known=True),
            readings={"host_seq_lens": INHERITED},
        ),
        [
            (
                K.STRICTER,
                CLASS,
                "host_seq_lens",
                "none",
                "inherited from BaseAttnBackend, counts as exact",
            )
        ],
        id="declared, then inherited",
    ),
    pytest.param(
        read_class(),
        read_class(readings={"host_seq_lens": INHERITED}),
        [
            (
                K.CHANGED,
                CLASS,
                "host_seq_lens",
                "undeclared, counts as exact",
                "inherited from BaseAttnBackend, counts as exact",
            )
        ],
        id="undeclared, then inherited",
    ),
    pytest.param(
        read_class(),
        read_class(capabilities=Capabilities(host_seq_lens=HostSeqLens.EXACT)),
        [(K.CHANGED, CLASS, "host_seq_lens", "undeclared, counts as exact", "exact")],
        id="the worst value, then stated",
    ),
    pytest.param(
        read_class(capabilities=NONE),
        read_class(capabilities=NONE, conditions=[RAGGED]),
        [
            (K.STRICTER, CLASS, "host_seq_lens", "none", "exact on a condition, else none"),
            (
                K.BECAME_CONDITIONAL,
                CLASS,
                "host_seq_lens",
                "none",
                "exact where self.use_ragged: the ragged path reads the lengths",
            ),
        ],
        id="on a condition now",
    ),
    pytest.param(
        read_class(conditions=[RAGGED]),
        read_class(capabilities=NONE),
        [
            (K.LOOSER, CLASS, "host_seq_lens", "exact on a condition, else undeclared", "none"),
            (K.LOOSER, CLASS, "max_context_len_known", "undeclared, counts as no", "yes"),
            (
                K.BECAME_UNCONDITIONAL,
                CLASS,
                "host_seq_lens",
                "exact where self.use_ragged: the ragged path reads the lengths",
                "none",
            ),
        ],
        id="on no condition any more",
    ),
    pytest.param(
        read_class(capabilities=NONE, conditions=[RAGGED]),
        read_class(capabilities=NONE, conditions=[PAGED]),
        [
            (
                K.CHANGED,
                CLASS,
                "host_seq_lens",
                "exact where self.use_ragged: the ragged path reads the lengths",
                "exact where self.page_size > 1: the paged path reads the lengths",
            )
        ],
        id="on another condition",
    ),
    pytest.param(
        read_class(capabilities=NONE, conditions=[RAGGED]),
        read_class(
            capabilities=NONE.model_copy(update={"host_seq_lens": "upper_bound"}),
            conditions=[RAGGED],
        ),
        [
            (
                K.CHANGED,
                CLASS,
                "host_seq_lens",
                "exact on a condition, else none",
                "exact on a condition, else upper_bound",
            )
        ],
        id="another value where the condition does not hold",
    ),
    pytest.param(
        read_class(),
        read_class(
            readings={
                "host_seq_lens": Reading(origin=Origin.CONDITIONAL, words="return self.reads")
            }
        ),
        [
            (
                K.BECAME_CONDITIONAL,
                CLASS,
                "host_seq_lens",
                "undeclared, counts as exact",
                "return self.reads",
            )
        ],
        id="a condition that was read and not understood",
    ),
    pytest.param(
        read_class(capabilities=NONE, conditions=[RAGGED, PAGED], line=3),
        read_class(capabilities=NONE, conditions=[PAGED, RAGGED], line=44),
        [],
        id="another line, conditions in another order",
    ),
    pytest.param(
        read_class(registered_as=("fa3", "fa4")),
        read_class(registered_as=("fa3", "fa5")),
        [
            (K.VANISHED, CLASS, "registered as", "fa4", None),
            (K.APPEARED, CLASS, "registered as", None, "fa5"),
        ],
        id="other names",
    ),
    pytest.param(
        read_class(
            attributes={
                "same": Reading(origin=Origin.DECLARED, words="same = 1", value=1),
                "shared": Reading(origin=Origin.DECLARED, words="shared = True", value=True),
            }
        ),
        read_class(
            attributes={
                "same": Reading(origin=Origin.DECLARED, words="same: int = 1", value=1),
                "shared": Reading(
                    origin=Origin.INHERITED, words="shared = True", inherited_from="Base"
                ),
            }
        ),
        [(K.CHANGED, CLASS, "shared", "yes", "shared = True (inherited from Base)")],
        id="the engine's own attributes",
    ),
    pytest.param(
        read_class(composite="any(children)"),
        read_class(composite="all(children)"),
        [(K.CHANGED, CLASS, "composite", "any(children)", "all(children)")],
        id="another composite",
    ),
    pytest.param(
        read_class(parts=[Part("a", phases={Phase.DECODE}), Part("b")]),
        read_class(
            parts=[
                Part("a", roles={Role.TARGET}, given=Given(expression="self.a")),
                Part("b"),
            ]
        ),
        [
            (
                K.CHANGED,
                CLASS,
                "parts",
                "a (every role in decode)",
                "a (target) where self.a",
            ),
        ],
        id="another part",
    ),
    pytest.param(
        read_class(parts=[Part("a")]),
        read_class(parts=[Part("a")], capabilities=Capabilities(two_batch_overlap=True)),
        [(K.CHANGED, CLASS, "two_batch_overlap", "left to its parts", "yes")],
        id="no longer left to the parts",
    ),
]


@pytest.mark.parametrize(("before", "after", "expected"), _CLASSES)
def test_class_differs_in(before: Backend, after: Backend, expected: list[Told]) -> None:
    """What differs between two versions of one class is told, with the direction."""
    found = differences(engine(before), engine(after))

    assert _told(found) == expected


def test_attribute_of_one_class_is_compared_where_another_has_it() -> None:
    """A class that stops to set what others still set has another value."""
    one = Reading(origin=Origin.DECLARED, words="one = 1", value=1)
    before = engine(read_class("A", attributes={"one": one}), read_class("B"))
    after = engine(read_class("A"), read_class("B", attributes={"one": one}))

    found = differences(before, after)

    assert _told(found) == [
        (K.CHANGED, "class A", "one", "1", None),
        (K.CHANGED, "class B", "one", None, "1"),
    ]


def test_attribute_that_no_class_has_on_one_side_is_one_difference() -> None:
    """A flag that an engine comes to know is told once, with the classes that set it."""
    one = Reading(origin=Origin.DECLARED, words="one = 1", value=1)
    before = engine(read_class("A"), read_class("B"))
    after = engine(
        read_class("A", attributes={"one": one}),
        read_class("B", attributes={"one": one}),
        read_class("New", attributes={"two": one}),
    )

    found = differences(before, after)

    assert _told(found) == [
        (K.APPEARED, "attribute one", "", None, "set by A, B"),
        (K.APPEARED, "class New", "", None, "declares nothing"),
    ]


def test_class_that_moved_to_another_file_is_the_same() -> None:
    """Neither a class's module nor its line is compared."""
    before = read_class(capabilities=NONE)
    moved = Declaration(capabilities=NONE, implementation="sglang.other:FlashAttentionBackend")
    after = replace(before, source=Source(distribution="sglang"), declaration=moved)

    found = differences(engine(before), Snapshot.of_reading(reading(after)))

    assert found == ()


def test_difference_says_where_both_sides_say_so() -> None:
    """A difference of a capability has the lines of both statements."""
    moved = Reading(origin=Origin.INHERITED, words="...", declared_at="sglang/base.py:9")
    before = read_class(capabilities=NONE, readings={"host_seq_lens": STATED})
    after = read_class(readings={"host_seq_lens": moved})

    found = differences(engine(before), engine(after))

    where = found[0].where
    assert (where.before, where.after) == ("sglang/fa3.py:11", "sglang/base.py:9")


def _declaring(**said: object) -> Backend:
    source = Source(distribution="acme", version="1.0")
    declaration = Declaration.model_validate(said)
    return Backend(name="fa3", status=Status.OK, source=source, declaration=declaration)


def test_every_field_of_a_declaration_is_compared() -> None:
    """Whatever a declaration says otherwise than before is told."""
    said = {
        "capabilities": NONE,
        "conditions": [RAGGED],
        "parts": [Part("a")],
        "implementation": "acme:FA3",
        "adapters": {"vllm": "acme_vllm:FA3"},
        "tolerances": {"float16": 0.01},
    }
    assert said.keys() == Declaration.model_fields.keys() - {"api"}

    before = installed_side(_declaring())
    after = {name: installed_side(_declaring(**{name: value})) for name, value in said.items()}

    assert [name for name, side in after.items() if not differences(before, side)] == []


def _shipped(source: Source, implementation: str) -> Backend:
    declaration = Declaration(implementation=implementation)
    return Backend(name="fa3", status=Status.OK, source=source, declaration=declaration)


_BACKENDS = [
    pytest.param(
        [],
        [installed("fa3", NONE, conditions=[RAGGED])],
        [(K.APPEARED, "backend fa3", "", None, "host_seq_lens: exact on a condition, else none")],
        id="one that appeared",
    ),
    pytest.param(
        [installed("fa3")],
        [],
        [(K.VANISHED, "backend fa3", "", "declares nothing", None)],
        id="one that vanished",
    ),
    pytest.param(
        [],
        [broken("fa3", Status.BROKEN, [problem("raises"), problem("imports-torch")])],
        [(K.APPEARED, "backend fa3", "", None, "broken, imports-torch, raises")],
        id="a broken one that appeared",
    ),
    pytest.param(
        [],
        [read_class("Wraps", parts=[Part("a"), Part("b")], registered_as=("wraps",))],
        [
            (
                K.APPEARED,
                "class Wraps",
                "",
                None,
                "registered as wraps; hands its uses to a (every role); b (every role)",
            )
        ],
        id="a composite that appeared",
    ),
    pytest.param(
        [installed("fa3")],
        [broken("fa3", Status.BROKEN, [problem("raises")])],
        [
            (K.STRICTER, "backend fa3", "status", "ok", "broken"),
            (K.APPEARED, "backend fa3", "problem", None, "raises"),
        ],
        id="broken now",
    ),
    pytest.param(
        [_shipped(Source(distribution="acme", version="1.0"), "acme.old:FA3")],
        [_shipped(Source(distribution="acme-fa", version="1.0"), "acme.new:FA3")],
        [
            (K.CHANGED, "backend fa3", "distribution", "acme", "acme-fa"),
            (K.CHANGED, "backend fa3", "implementation", "acme.old:FA3", "acme.new:FA3"),
        ],
        id="another distribution",
    ),
    pytest.param(
        [_declaring(adapters={"sglang": "acme:old"}, tolerances={"float16": 0.01})],
        [_declaring(adapters={"sglang": "acme:new", "vllm": "acme:FA3"})],
        [
            (K.VANISHED, "backend fa3", "tolerance in float16", "0.01", None),
            (K.APPEARED, "backend fa3", "adapter for vllm", None, "acme:FA3"),
            (K.CHANGED, "backend fa3", "adapter for sglang", "acme:old", "acme:new"),
        ],
        id="another adapter, and no tolerance",
    ),
    pytest.param(
        [broken("fa3", Status.BROKEN)],
        [installed("fa3")],
        [(K.LOOSER, "backend fa3", "status", "broken", "ok")],
        id="repaired",
    ),
    pytest.param(
        [broken("fa3", Status.BROKEN)],
        [broken("fa3", Status.SKIPPED)],
        [(K.CHANGED, "backend fa3", "status", "broken", "skipped")],
        id="unread for another cause",
    ),
    pytest.param(
        [broken("fa3", Status.BROKEN, [problem("raises")])],
        [broken("fa3", Status.BROKEN, [problem("raises"), problem("raises")])],
        [(K.CHANGED, "backend fa3", "problem", "raises", "raises (2 times)")],
        id="a problem once more",
    ),
    pytest.param(
        [installed("fa3")],
        [installed("fa3"), broken("fa3", Status.SKIPPED, [problem("shadowed")])],
        [
            (
                K.APPEARED,
                "backend fa3",
                "further claim",
                None,
                "fa3-caps 1.0 skipped shadowed",
            )
        ],
        id="a further claim",
    ),
]


@pytest.mark.parametrize(("before", "after", "expected"), _BACKENDS)
def test_backends_differ_in(
    before: list[Backend], after: list[Backend], expected: list[Told]
) -> None:
    """What became of a backend's name is one difference."""
    found = differences(installed_side(*before), installed_side(*after))

    assert _told(found) == expected


def test_releases_are_compared_once_for_all_their_backends() -> None:
    """Another version of an engine is one difference, and not one for each class."""
    before = reading(read_class("A"), read_class("B"), version=None)
    after = reading(read_class("A", version="2"), read_class("B", version="2"), version="2")

    found = differences(Snapshot.of_reading(before), Snapshot.of_reading(after))

    assert _told(found) == [(K.CHANGED, "release sglang", "version", "unknown", "2")]


def test_rules_are_compared() -> None:
    """Rules that are gone or new are named, and which algorithms overlap."""
    before = Snapshot.of_reading(reading(rules=rule_set(TBO)))
    after = Snapshot.of_reading(reading(rules=rule_set(NGRAM, relays=())))

    found = differences(before, after)

    assert [(each.kind, each.subject, each.field) for each in found] == [
        (K.VANISHED, "rule two-batch overlap", ""),
        (K.APPEARED, "rule ngram", ""),
        (K.CHANGED, "rules", "overlapped algorithms"),
    ]
    assert (found[2].before, found[2].after) == ("EAGLE", "none")


def test_rules_that_are_not_known_are_not_compared() -> None:
    """An engine whose rules are not read has none to miss."""
    before = Snapshot.of_reading(reading(rules=rule_set(TBO)))
    after = Snapshot.of_reading(reading(rules=None))

    assert differences(before, after) == ()


def test_problems_of_the_environment_are_compared() -> None:
    """What no single backend can be blamed for is told by its code."""
    before = Snapshot.of_lock(locked(problems=[problem("no-such-folder")]))

    found = differences(before, Snapshot.of_lock(locked()))

    assert _told(found) == [(K.VANISHED, "environment", "problem", "no-such-folder", None)]


def test_requests_are_compared() -> None:
    """Locks of different flags, facts and overrides say so."""
    facts = Facts(head_size=128)
    override = Capabilities(needs_cpu_seq_lens=False)
    request = asked(flags("--page-size 16"), facts=facts, unsafe_override=override)

    found = differences(installed_side(), installed_side(request=request))

    assert _told(found) == [
        (K.CHANGED, "request", "fact head_size", None, "128"),
        (K.CHANGED, "request", "flag page_size", None, "16"),
        (K.CHANGED, "request", "override host_seq_lens", None, "none"),
    ]


def test_plans_are_compared_with_who_decides() -> None:
    """A value of a plan that changed names who decides it, and so does one decided by others."""
    forced, free = (scene.plan(line)[1] for line in (scene.FORCED, scene.FREE))

    found = differences(installed_side(plan=forced), installed_side(plan=free))

    told = [each for each in _told(found) if each[2] in {"host_seq_lens", "max_speculative_topk"}]
    assert told == [
        (
            K.LOOSER,
            "plan",
            "max_speculative_topk",
            "1, decided by backend triton",
            "8, decided by backend fa3",
        ),
        (
            K.CHANGED,
            "plan",
            "host_seq_lens",
            "exact, decided by backend fa3; rule piecewise-cuda-graph; rule two-batch-overlap",
            "exact, decided by backend fa3 (draft decode, target decode)",
        ),
    ]


def test_plan_value_without_its_effect_differs() -> None:
    """The same value may come to do nothing."""
    lines = ("--attention-backend triton", "--attention-backend triton --page-size 64")
    plans = [scene.plan(f"{line} --speculative-algorithm EAGLE")[1] for line in lines]
    idle = plans[0].server["page_sizes"].model_copy(update={"effect": "no effect: none"})
    changed = plans[0].model_copy(update={"server": {**plans[0].server, "page_sizes": idle}})

    found = differences(installed_side(plan=plans[0]), installed_side(plan=changed))

    assert [(each.kind, each.subject, each.field, each.after) for each in found] == [
        (K.CHANGED, "plan", "page_sizes", "no effect: none")
    ]


def test_plan_of_one_lock_alone_is_one_difference() -> None:
    """A plan that is gone is told as such, and not value by value."""
    plan = scene.plan(scene.FREE)[1]

    found = differences(installed_side(plan=plan), installed_side())

    assert [(each.kind, each.subject, each.field) for each in found] == [(K.VANISHED, "plan", "")]


def test_plan_is_compared_only_with_a_lock() -> None:
    """An engine alone has no request, so it misses no plan."""
    plan = scene.plan(scene.FREE)[1]

    found = differences(installed_side(plan=plan), replace(installed_side(), request=None))

    assert [each for each in found if each.subject.startswith("plan")] == []


@pytest.mark.parametrize(
    ("capability", "before", "after", "expected"),
    [
        pytest.param("two_batch_overlap", True, True, None, id="the same"),
        pytest.param("two_batch_overlap", True, False, K.STRICTER, id="denied now"),
        pytest.param("two_batch_overlap", None, False, K.CHANGED, id="left to parts before"),
        pytest.param("max_speculative_topk", 8, 4, K.STRICTER, id="a smaller limit"),
        pytest.param(
            "graph_replay",
            frozenset({BatchKind.MIXED_BATCH}),
            frozenset(BatchKind),
            K.LOOSER,
            id="more graphs",
        ),
        pytest.param(
            "graph_replay",
            frozenset({BatchKind.MIXED_BATCH}),
            frozenset({BatchKind.UNIFORM_BATCH}),
            K.CHANGED,
            id="other graphs",
        ),
        pytest.param(
            "roles",
            frozenset({Role.TARGET}),
            frozenset({Role.DRAFT}),
            K.CHANGED,
            id="other roles",
        ),
        pytest.param("page_sizes", MultipleOf(16), Exact(64), K.STRICTER, id="one size of many"),
        pytest.param("page_sizes", Exact(64), OneOf({32, 64}), K.LOOSER, id="one size more"),
        pytest.param("page_sizes", Exact(64), Unchecked(), K.STRICTER, id="not said any more"),
        pytest.param("page_sizes", Unchecked(), Exact(64), K.LOOSER, id="said now"),
        pytest.param(
            "page_sizes", Unchecked(), Unchecked(Exact(64)), K.LOOSER, id="said on a condition"
        ),
        pytest.param("page_sizes", Unchecked(), Conflict(), K.STRICTER, id="a conflict now"),
    ],
)
def test_severity_follows_the_join(
    capability: str, before: object, after: object, expected: DifferenceKind | None
) -> None:
    """A value is stricter where the join with what it was is what it is."""
    assert severity(capability, before, after) is expected


def test_mirror_of_versions_is_the_other_comparison() -> None:
    """Comparing the other way round gives the same differences, mirrored."""
    old, new = Snapshot.of_reading(OLD), Snapshot.of_reading(NEW)

    assert differences(new, old) == mirrored(differences(old, new))


def test_diff_is_written_as_markdown(golden: Golden) -> None:
    """A comparison of two versions is a comment on a pull request, known to the last letter."""
    found = differences(Snapshot.of_reading(OLD), Snapshot.of_reading(NEW))

    text = markdown(diff_view(diff_document("sglang@old", "sglang@new", found)))

    golden("diff.md", text)


def test_diff_is_drawn_as_tables(golden: Golden, shown: Shown) -> None:
    """A comparison is known to the last letter where the output is no terminal."""
    found = differences(Snapshot.of_reading(OLD), Snapshot.of_reading(NEW))

    text = shown(diff_view(diff_document("sglang@old", "sglang@new", found)))

    golden("diff.txt", text)


def test_diff_of_equal_sides_says_so() -> None:
    """Where nothing differs there is one sentence."""
    text = markdown(diff_view(diff_document("a.json", "b.json", ())))

    assert text == "- Nothing differs between a.json and b.json.\n"


def test_diff_keeps_both_columns_where_something_changed() -> None:
    """A flag that is not given any more has an empty cell, not a missing column."""
    found = differences(installed_side(request=asked(flags("--page-size 16"))), installed_side())

    text = markdown(diff_view(diff_document("a", "b", found)))

    assert text.splitlines()[-1] == "| request: flag page\\_size | 16 |  |"


def test_long_text_is_cut_in_a_view() -> None:
    """A cell holds the head of an engine's words; the document holds them all."""
    words = "x" * 1000
    found = differences(engine(read_class()), engine(read_class(composite=words)))
    document = diff_document("a", "b", found)

    text = markdown(diff_view(document))

    assert (document.differences[0].after, f"{'x' * 240} ..." in text) == (words, True)


def test_condition_that_repeats_itself_is_told_once() -> None:
    """A reason that holds the condition's own words is left out."""
    told = When(
        given=Given(expression="self.a"),
        capabilities=Capabilities(two_batch_overlap=True),
        reason="two_batch_overlap is True where self.a",
    )

    side = engine(read_class(conditions=[told]))

    said = side.backends["FlashAttentionBackend"].capabilities["two_batch_overlap"]
    assert said.conditions == ("yes where self.a",)


def test_diff_document_counts_each_kind() -> None:
    """The document has the counts, the most important kind first."""
    found = differences(Snapshot.of_reading(OLD), Snapshot.of_reading(NEW))

    document = diff_document("a", "b", found)

    assert (document.schema_, list(document.counts)) == (
        "backend-caps/diff@1",
        [kind.value for kind in K if kind is not K.BECAME_UNCONDITIONAL],
    )
    assert sum(document.counts.values()) == len(found)
