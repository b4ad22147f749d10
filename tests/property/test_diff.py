from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from backend_caps import Facts, Origin, Policy, RuleSet, ServerFlags, Source, resolve
from backend_caps.capability.backend import Backend, EngineClass, Problem, Reading, Status
from backend_caps.capability.declaration import Declaration, declared
from backend_caps.capability.kind import Scale, Scope
from backend_caps.capability.vocabulary import CAPABILITIES, Capabilities
from backend_caps.discovery.registry import Registry
from backend_caps.engines.reading import EngineReading
from backend_caps.report.diff import Side, differences
from backend_caps.report.difference import DifferenceKind, comparable, severity
from backend_caps.report.document import json_of, value_of
from backend_caps.report.lock import LockDocument, LockedRequest, lock_document
from backend_caps.report.plans import PlanDocument, plan_document
from tests.property import strategies
from tests.unit.report.sides import mirrored

_NAME = st.sampled_from(["fa3", "flashinfer", "mla", "triton"])
_TEXT = st.sampled_from(["any(children)", "größer | x", "self.needs"])
_VERSION = st.sampled_from(["1.0", "2.0"])
_CODE = st.sampled_from(["missing-module", "raises", "shadowed"])
_PLACE = st.none() | st.sampled_from(["sglang/a.py:1", "sglang/a.py:2"])
_PLANNED = [name for name, kind in CAPABILITIES.items() if kind.scope is not Scope.USE]
_ORDERED = [name for name, kind in CAPABILITIES.items() if isinstance(kind.worst, Scale | bool)]

problems = st.builds(Problem, code=_CODE, message=_TEXT, remedy=_TEXT)
readings = st.builds(
    Reading,
    origin=st.sampled_from(
        [Origin.CONDITIONAL, Origin.DECLARED, Origin.INHERITED, Origin.UNDECLARED]
    ),
    words=_TEXT,
    value=st.none() | st.booleans() | st.frozensets(_TEXT),
    declared_at=_PLACE,
    inherited_from=st.none() | _NAME,
)
classes = st.builds(
    EngineClass,
    path=_TEXT,
    registered_as=st.lists(_NAME, unique=True).map(tuple),
    readings=st.dictionaries(st.sampled_from(list(CAPABILITIES)), readings, max_size=2),
    attributes=st.dictionaries(_NAME, readings, max_size=2),
    composite=st.none() | _TEXT,
)
sources = st.builds(
    Source, distribution=st.none() | _NAME, version=st.none() | _VERSION, declared_at=_PLACE
)


def _backend(
    name: str,
    status: Status,
    declaration: Declaration,
    source: Source,
    found: list[Problem],
    engine_class: EngineClass | None,
) -> Backend:
    return Backend(
        name=name,
        status=status,
        source=source,
        declaration=declaration if status is Status.OK else None,
        problems=tuple(found),
        engine_class=engine_class,
    )


backends = st.builds(
    _backend,
    _NAME,
    st.sampled_from(Status),
    strategies.declarations,
    sources,
    st.lists(problems, max_size=2),
    st.none() | classes,
)
rule_sets = st.builds(
    RuleSet,
    name=st.sampled_from(["sglang-0.5.13", "sglang-0.5.23"]),
    rules=st.lists(strategies.rules, max_size=2).map(tuple),
    relays=st.frozensets(st.sampled_from(["EAGLE", "NGRAM"])),
    algorithms=st.just(frozenset({"EAGLE", "NGRAM"})),
)
engines = st.builds(
    EngineReading,
    engine=st.sampled_from(["sglang", "vllm"]),
    version=st.none() | _VERSION,
    source=st.just("installed"),
    backends=st.lists(backends, max_size=3).map(tuple),
    rules=st.none() | rule_sets,
    command_line=st.none(),
    problems=st.lists(problems, max_size=2).map(tuple),
    num_files=st.just(2),
    num_parsed=st.just(1),
)
requests = st.builds(
    LockedRequest,
    flags=strategies.flags,
    facts=st.builds(Facts, head_size=st.none() | st.just(64)),
    unsafe_override=st.none() | st.just(Capabilities(needs_cpu_seq_lens=False)),
    policy=st.sampled_from(Policy),
    rules=st.none() | st.just("sglang-0.5.13"),
    engine=st.none() | st.just("sglang"),
)

NOTHING_ASKED = LockedRequest(
    flags=ServerFlags(),
    facts=Facts(),
    unsafe_override=None,
    policy=Policy.WARN,
    rules=None,
    engine=None,
)


@st.composite
def plans(draw: st.DrawFn) -> PlanDocument:
    """Any plan."""
    return plan_document(resolve(draw(strategies.some_uses), draw(strategies.flags)), ())


@st.composite
def locks(draw: st.DrawFn) -> LockDocument:
    """Anything that may be installed and asked."""
    return lock_document(
        draw(requests),
        Registry(
            entries=tuple(draw(st.lists(backends, max_size=3))),
            problems=tuple(draw(st.lists(problems, max_size=2))),
        ),
        draw(rule_sets),
        draw(st.none() | plans()),
        draw(st.none() | engines),
    )


sides = locks().map(Side.of_lock) | engines.map(Side.of_reading)
"""Anything that can be compared."""


@strategies.law
@given(side=sides)
def test_nothing_differs_from_itself(side: Side) -> None:
    """A side compared with itself is the same."""
    assert differences(side, side) == ()


@strategies.law
@given(one=sides, other=sides)
def test_comparing_the_other_way_round_is_the_mirror(one: Side, other: Side) -> None:
    """What one way vanished, became stricter or conditional, the other way did the opposite."""
    assert differences(other, one) == mirrored(differences(one, other))


@strategies.law
@given(
    one=strategies.declarations,
    situation=strategies.situations,
    name=st.sampled_from(list(CAPABILITIES)),
    data=st.data(),
)
def test_backends_without_a_difference_answer_the_same(
    one: Declaration, situation: strategies.Situation, name: str, data: st.DataObject
) -> None:
    """Where no difference is reported, no server gets another value of a backend."""
    changed = one.capabilities.model_copy(update={name: data.draw(strategies.declared_value(name))})
    declared_twice = [one, one.model_copy(update={"capabilities": changed})]

    locks = [
        lock_document(
            NOTHING_ASKED,
            Registry.of([Backend(name="fa3", source=Source(), declaration=each)]),
            RuleSet.builtin("sglang-0.5.13"),
            None,
        )
        for each in declared_twice
    ]

    values = [comparable(name, declared(each, name, situation)[0]) for each in declared_twice]
    differs = differences(*map(Side.of_lock, locks)) != ()
    assert differs or values[0] == values[1]


@strategies.law
@given(one=sides, other=sides)
def test_mirror_of_the_mirror_is_the_comparison(one: Side, other: Side) -> None:
    """Looking from the other side twice changes nothing."""
    found = differences(one, other)

    assert mirrored(mirrored(found)) == found


@strategies.law
@given(lock=locks())
def test_lock_is_written_as_it_is_read(lock: LockDocument) -> None:
    """Writing, reading and writing again gives the same bytes."""
    text = lock.text()

    assert LockDocument.model_validate_json(text).text() == text


@strategies.law
@given(lock=locks())
def test_nothing_differs_from_a_lock_that_was_read(lock: LockDocument) -> None:
    """A lock says the same after it was a file."""
    read = LockDocument.model_validate_json(lock.text())

    assert differences(Side.of_lock(lock), Side.of_lock(read)) == ()


@strategies.law
@given(reading=engines, request=requests)
def test_locked_engine_is_the_engine(reading: EngineReading, request: LockedRequest) -> None:
    """An engine compared by a lock has the same backends as when it is read."""
    registry = Registry(entries=reading.backends, problems=reading.problems)
    rules = reading.rules or RuleSet.builtin("sglang-0.5.13")
    locked = lock_document(request, registry, rules, None, reading)

    assert differences(Side.of_lock(locked), Side.of_reading(reading)) == ()


@strategies.law
@given(data=st.data(), name=st.sampled_from(_PLANNED))
def test_value_of_a_plan_survives_json(data: st.DataObject, name: str) -> None:
    """Every value that a plan may hold is read back from its JSON."""
    value = data.draw(strategies.joined_value(name))

    assert comparable(name, value_of(name, json_of(value))) == comparable(name, value)


@strategies.law
@given(data=st.data(), name=st.sampled_from(_ORDERED))
def test_value_on_a_scale_is_stricter_or_looser(data: st.DataObject, name: str) -> None:
    """Two values of a total order are never just another."""
    one, other = (
        data.draw(strategies.declared_value(name)),
        data.draw(strategies.declared_value(name)),
    )

    kind = severity(name, one, other)

    assert kind in {None, DifferenceKind.STRICTER, DifferenceKind.LOOSER}
    assert (kind is None) is (one == other)
