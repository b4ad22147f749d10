from __future__ import annotations

from dataclasses import replace

import pytest

from backend_caps.capability.backend import Backend, Reading, Status
from backend_caps.capability.declaration import Declaration, Part, When
from backend_caps.capability.facts import Facts, Given
from backend_caps.capability.kind import Phase, Role
from backend_caps.capability.provenance import Origin, Source
from backend_caps.capability.sets import Conflict, Exact, MultipleOf, OneOf, Unchecked
from backend_caps.capability.vocabulary import BatchKind, Capabilities, HostSeqLens
from backend_caps.report.diff import Side, differences
from backend_caps.report.difference import (
    DifferenceKind,
    diff_document,
    diff_view,
    severity,
    statement_of,
)
from backend_caps.report.sections import markdown
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


UNREAD = Reading(origin=Origin.CONDITIONAL, words="return self.reads")
ONE = Reading(origin=Origin.DECLARED, words="one = 1", value=1)
_SAME = Reading(origin=Origin.DECLARED, words="same: int = 1", value=1)
_SHARED = Reading(origin=Origin.DECLARED, words="shared = True", value=True)
_OF_BASE = Reading(origin=Origin.INHERITED, words="shared = True", inherited_from="Base")
_BOUND = NONE.model_copy(update={"host_seq_lens": "upper_bound"})
_KNOWN = Capabilities(max_context_len_known=True)
_WORST = Capabilities(host_seq_lens=HostSeqLens.EXACT)
_HALVES = Capabilities(two_batch_overlap=True)
_ON_SELF_A = Given(expression="self.a")
_CLASSES = {
    "reads lengths now": (read_class(capabilities=NONE), read_class(capabilities=EXACT)),
    "reads no lengths any more": (read_class(capabilities=EXACT), read_class(capabilities=NONE)),
    "declared, then inherited": (
        read_class(capabilities=NONE, readings={"host_seq_lens": STATED}),
        read_class(capabilities=_KNOWN, readings={"host_seq_lens": INHERITED}),
    ),
    "undeclared, then inherited": (read_class(), read_class(readings={"host_seq_lens": INHERITED})),
    "the worst value, then stated": (read_class(), read_class(capabilities=_WORST)),
    "on a condition now": (
        read_class(capabilities=NONE),
        read_class(capabilities=NONE, conditions=[RAGGED]),
    ),
    "on no condition any more": (read_class(conditions=[RAGGED]), read_class(capabilities=NONE)),
    "on another condition": (
        read_class(capabilities=NONE, conditions=[RAGGED]),
        read_class(capabilities=NONE, conditions=[PAGED]),
    ),
    "another value where the condition does not hold": (
        read_class(capabilities=NONE, conditions=[RAGGED]),
        read_class(capabilities=_BOUND, conditions=[RAGGED]),
    ),
    "a condition that was read and not understood": (
        read_class(),
        read_class(readings={"host_seq_lens": UNREAD}),
    ),
    "another line, conditions in another order": (
        read_class(capabilities=NONE, conditions=[RAGGED, PAGED], line=3),
        read_class(capabilities=NONE, conditions=[PAGED, RAGGED], line=44),
    ),
    "other names": (
        read_class(registered_as=("fa3", "fa4")),
        read_class(registered_as=("fa3", "fa5")),
    ),
    "the engine's own attributes": (
        read_class(attributes={"same": replace(_SAME, words="same = 1"), "shared": _SHARED}),
        read_class(attributes={"same": _SAME, "shared": _OF_BASE}),
    ),
    "another composite": (
        read_class(composite="any(children)"),
        read_class(composite="all(children)"),
    ),
    "another part": (
        read_class(parts=[Part("a", phases={Phase.DECODE}), Part("b")]),
        read_class(parts=[Part("a", roles={Role.TARGET}, given=_ON_SELF_A), Part("b")]),
    ),
    "no longer left to the parts": (
        read_class(parts=[Part("a")]),
        read_class(parts=[Part("a")], capabilities=_HALVES),
    ),
}
"""Two versions of one class."""


def test_difference_says_where_both_sides_say_so() -> None:
    """A difference of a capability has the lines of both statements."""
    moved = Reading(origin=Origin.INHERITED, words="...", declared_at="sglang/base.py:9")
    before = read_class(capabilities=NONE, readings={"host_seq_lens": STATED})
    after = read_class(readings={"host_seq_lens": moved})

    where = differences(engine(before), engine(after))[0].where
    assert (where.before, where.after) == ("sglang/fa3.py:11", "sglang/base.py:9")


def _declaring(**said: object) -> Backend:
    source = Source(distribution="acme", version="1.0")
    declaration = Declaration.model_validate(said)
    return Backend(name="fa3", status=Status.OK, source=source, declaration=declaration)


def test_every_field_of_a_declaration_is_compared() -> None:
    """Whatever a declaration says otherwise than before is reported."""
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


_BROKEN = broken("fa3", Status.BROKEN, [problem("raises")])
_BACKENDS: dict[str, tuple[list[Backend], list[Backend]]] = {
    "one that appeared": ([], [installed("fa3", NONE, conditions=[RAGGED])]),
    "one that vanished": ([installed("fa3")], []),
    "a broken one that appeared": (
        [],
        [broken("fa3", Status.BROKEN, [problem("raises"), problem("imports-torch")])],
    ),
    "a composite that appeared": (
        [],
        [read_class("Wraps", parts=[Part("a"), Part("b")], registered_as=("wraps",))],
    ),
    "broken now": ([installed("fa3")], [_BROKEN]),
    "another distribution": (
        [_shipped(Source(distribution="acme", version="1.0"), "acme.old:FA3")],
        [_shipped(Source(distribution="acme-fa", version="1.0"), "acme.new:FA3")],
    ),
    "another adapter, and no tolerance": (
        [_declaring(adapters={"sglang": "acme:old"}, tolerances={"float16": 0.01})],
        [_declaring(adapters={"sglang": "acme:new", "vllm": "acme:FA3"})],
    ),
    "repaired": ([broken("fa3", Status.BROKEN)], [installed("fa3")]),
    "unread for another cause": ([broken("fa3", Status.BROKEN)], [broken("fa3", Status.SKIPPED)]),
    "a problem once more": (
        [_BROKEN],
        [broken("fa3", Status.BROKEN, [problem("raises"), problem("raises")])],
    ),
    "a further claim": (
        [installed("fa3")],
        [installed("fa3"), broken("fa3", Status.SKIPPED, [problem("shadowed")])],
    ),
}
"""What is installed, before and after."""


_FORCED, _FREE = (scene.plan(line)[1] for line in (scene.FORCED, scene.FREE))
_IDLE = _FREE.server["page_sizes"].model_copy(update={"effect": "no effect: none"})
_REQUEST = asked(
    flags("--page-size 16"),
    facts=Facts(head_size=128),
    unsafe_override=Capabilities(needs_cpu_seq_lens=False),
)
_MOVED = replace(
    read_class(capabilities=NONE),
    source=Source(distribution="sglang"),
    declaration=Declaration(capabilities=NONE, implementation="sglang.other:FlashAttentionBackend"),
)
_OF_ONE = {"one": ONE}
_OTHERS: dict[str, tuple[Side, Side]] = {
    "an attribute that another class has": (
        engine(read_class("A", attributes=_OF_ONE), read_class("B")),
        engine(read_class("A"), read_class("B", attributes=_OF_ONE)),
    ),
    "an attribute that no class had": (
        engine(read_class("A"), read_class("B")),
        engine(
            read_class("A", attributes=_OF_ONE),
            read_class("B", attributes=_OF_ONE),
            read_class("New", attributes={"two": ONE}),
        ),
    ),
    "another file": (engine(read_class(capabilities=NONE)), engine(_MOVED)),
    "another release of two classes": (
        Side.of_reading(reading(read_class("A"), read_class("B"), version=None)),
        Side.of_reading(
            reading(read_class("A", version="2"), read_class("B", version="2"), version="2")
        ),
    ),
    "other rules": (
        Side.of_reading(reading(rules=rule_set(TBO))),
        Side.of_reading(reading(rules=rule_set(NGRAM, relays=()))),
    ),
    "rules that are not known": (
        Side.of_reading(reading(rules=rule_set(TBO))),
        Side.of_reading(reading(rules=None)),
    ),
    "a problem of the environment": (
        Side.of_lock(locked(problems=[problem("no-such-folder")])),
        Side.of_lock(locked()),
    ),
    "another request": (installed_side(), installed_side(request=_REQUEST)),
    "another plan": (installed_side(plan=_FORCED), installed_side(plan=_FREE)),
    "a value that does nothing now": (
        installed_side(plan=_FREE),
        installed_side(
            plan=_FREE.model_copy(update={"server": {**_FREE.server, "page_sizes": _IDLE}})
        ),
    ),
    "a plan of one lock alone": (installed_side(plan=_FREE), installed_side()),
    "a plan beside an engine": (
        installed_side(plan=_FREE),
        replace(installed_side(), request=None),
    ),
}


def _written(before: Side, after: Side) -> str:
    lines = (
        f"{each.kind.value} | {each.subject} | {each.field} | {each.before} | {each.after}\n"
        for each in differences(before, after)
    )
    return "".join(lines)


def test_value_that_one_plan_lacks_is_no_difference() -> None:
    """A plan of an earlier version has fewer capabilities; those that both have are compared."""
    earlier = _FREE.model_copy(update={"server": {}})

    assert _written(installed_side(plan=_FREE), installed_side(plan=earlier)) == ""


def test_differences_are_known_to_the_last_letter(golden: Golden) -> None:
    """What became of classes, backends, rules, requests and plans, each with the direction."""
    sides = {
        **{name: (engine(one), engine(other)) for name, (one, other) in _CLASSES.items()},
        **{
            name: (installed_side(*before), installed_side(*after))
            for name, (before, after) in _BACKENDS.items()
        },
        **_OTHERS,
    }

    text = "\n".join(f"# {name}\n{_written(*pair)}" for name, pair in sides.items())

    golden("differences.txt", text)


_MIXED, _UNIFORM = frozenset({BatchKind.MIXED_BATCH}), frozenset({BatchKind.UNIFORM_BATCH})
_TARGET, _DRAFT = frozenset({Role.TARGET}), frozenset({Role.DRAFT})


@pytest.mark.parametrize(
    ("capability", "before", "after", "expected"),
    [
        pytest.param("two_batch_overlap", True, True, None, id="the same"),
        pytest.param("two_batch_overlap", True, False, K.STRICTER, id="denied now"),
        pytest.param("two_batch_overlap", None, False, K.CHANGED, id="left to parts before"),
        pytest.param("max_speculative_topk", 8, 4, K.STRICTER, id="a smaller limit"),
        pytest.param("graph_replay", _MIXED, frozenset(BatchKind), K.LOOSER, id="more graphs"),
        pytest.param("graph_replay", _MIXED, _UNIFORM, K.CHANGED, id="other graphs"),
        pytest.param("roles", _TARGET, _DRAFT, K.CHANGED, id="other roles"),
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
    old, new = Side.of_reading(OLD), Side.of_reading(NEW)

    assert differences(new, old) == mirrored(differences(old, new))


def test_diff_is_known_to_the_last_letter(golden: Golden, shown: Shown) -> None:
    """A comparison of two versions is a comment on a pull request, and a table."""
    found = differences(Side.of_reading(OLD), Side.of_reading(NEW))
    document = diff_document("sglang@old", "sglang@new", found)

    golden("diff.md", markdown(diff_view(document)))
    golden("diff.txt", shown(diff_view(document)))


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


def test_condition_that_repeats_itself_is_reported_once() -> None:
    """A reason that holds the condition's own words is left out."""
    told = When(
        given=Given(expression="self.a"),
        capabilities=Capabilities(two_batch_overlap=True),
        reason="two_batch_overlap is True where self.a",
    )

    (own,) = engine(read_class(conditions=[told])).backends

    assert statement_of(own, "two_batch_overlap").conditions == ("yes where self.a",)
