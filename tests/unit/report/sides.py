"""Two versions of an engine, and what a lock is made of, in few words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from backend_caps.capability.backend import Backend, EngineClass, Problem, Reading, Status
from backend_caps.capability.declaration import Declaration, Part, When
from backend_caps.capability.facts import Facts, Given
from backend_caps.capability.provenance import Origin, Source
from backend_caps.capability.vocabulary import BatchKind, Capabilities, GraphMetadata, HostSeqLens
from backend_caps.discovery.registry import Registry
from backend_caps.engines.reading import EngineReading
from backend_caps.report.diff import Side
from backend_caps.report.difference import (
    DifferenceDocument,
    DifferenceKind,
    WhereDocument,
    in_order,
)
from backend_caps.report.lock import LockDocument, LockedRequest, lock_document
from backend_caps.report.plans import PlanDocument
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.plan import Policy
from backend_caps.resolution.rules import Rule, RuleSet
from tests.unit.building import UNDECLARING, flags

NONE = Capabilities(host_seq_lens=HostSeqLens.NONE, max_context_len_known=True)
EXACT = Capabilities(host_seq_lens=HostSeqLens.EXACT, max_context_len_known=True)
RAGGED = When(
    given=Given(expression="self.use_ragged"),
    capabilities=Capabilities(host_seq_lens=HostSeqLens.EXACT),
    reason="the ragged path reads the lengths",
)
PAGED = When(
    given=Given(expression="self.page_size > 1"),
    capabilities=Capabilities(host_seq_lens=HostSeqLens.EXACT),
    reason="the paged path reads the lengths",
)
INHERITED = Reading(
    origin=Origin.INHERITED,
    words="needs_cpu_seq_lens = False",
    declared_at="sglang/base.py:7",
    inherited_from="BaseAttnBackend",
)
STATED = Reading(
    origin=Origin.DECLARED,
    words="needs_cpu_seq_lens = False",
    value=HostSeqLens.NONE,
    declared_at="sglang/fa3.py:11",
)
TBO = Rule(
    name="two-batch overlap",
    given=Given(enable_two_batch_overlap=True),
    forces=Capabilities(needs_cpu_seq_lens=True),
    reason="the split is made on the host",
)
NGRAM = Rule(
    name="ngram",
    given=Given(speculative_algorithm={"NGRAM"}),
    forces=Capabilities(needs_cpu_seq_lens=True),
    reason="drafts are made on the host",
)


def rule_set(*rules: Rule, relays: Iterable[str] = ("EAGLE",)) -> RuleSet:
    """Make a rule set."""
    return RuleSet(
        name="sglang-0.5.13",
        rules=rules,
        relays=frozenset(relays),
        algorithms=frozenset({"EAGLE", "NGRAM"}),
    )


def problem(code: str) -> Problem:
    """Make a problem of a code."""
    return Problem(code=code, message=f"it is {code}.", remedy="Repair it.")


def read_class(
    name: str = "FlashAttentionBackend",
    capabilities: Capabilities = UNDECLARING,
    *,
    conditions: Sequence[When] = (),
    parts: Sequence[Part] = (),
    readings: Mapping[str, Reading] | None = None,
    attributes: Mapping[str, Reading] | None = None,
    registered_as: tuple[str, ...] = (),
    composite: str | None = None,
    line: int = 10,
    version: str = "0.5.13",
) -> Backend:
    """Describe a class as a reader of an engine's source finds it."""
    return Backend(
        name=name,
        status=Status.OK,
        source=Source(distribution="sglang", version=version, declared_at=f"sglang/fa3.py:{line}"),
        declaration=Declaration(capabilities=capabilities, conditions=conditions, parts=parts),
        engine_class=EngineClass(
            path=f"sglang.fa3.{name}",
            registered_as=registered_as,
            readings=readings or {},
            attributes=attributes or {},
            composite=composite,
        ),
    )


def reading(
    *backends: Backend,
    version: str | None = "0.5.13",
    rules: RuleSet | None = None,
    problems: Iterable[Problem] = (),
) -> EngineReading:
    """Describe an engine as its reader does."""
    return EngineReading(
        engine="sglang",
        version=version,
        source="installed",
        backends=backends,
        rules=rules,
        command_line=None,
        problems=tuple(problems),
        num_files=2,
        num_parsed=1,
    )


def engine(*backends: Backend) -> Side:
    """Take an engine's classes as one side."""
    return Side.of_reading(reading(*backends))


def asked(
    server: ServerFlags | None = None,
    *,
    facts: Facts | None = None,
    unsafe_override: Capabilities | None = None,
    rules: str | None = "sglang-0.5.13",
    engine: str | None = None,
) -> LockedRequest:
    """Make a request."""
    return LockedRequest(
        flags=server or flags(),
        facts=facts or Facts(),
        unsafe_override=unsafe_override,
        policy=Policy.WARN,
        rules=rules,
        engine=engine,
    )


def locked(
    *backends: Backend,
    request: LockedRequest | None = None,
    rules: RuleSet | None = None,
    read: EngineReading | None = None,
    problems: Iterable[Problem] = (),
    plan: PlanDocument | None = None,
) -> LockDocument:
    """Lock what is installed."""
    return lock_document(
        request or asked(),
        Registry(entries=backends, problems=tuple(problems)),
        rules or RuleSet.builtin("sglang-0.5.13"),
        plan,
        read,
    )


def installed_side(
    *backends: Backend, plan: PlanDocument | None = None, request: LockedRequest | None = None
) -> Side:
    """Take what is installed as one side."""
    return Side.of_lock(locked(*backends, plan=plan, request=request))


_MOVED = {"host_seq_lens": STATED}
_SHARES = Reading(origin=Origin.DECLARED, words="shares_graph = True", value=True)
_RETURNS = Reading(origin=Origin.CONDITIONAL, words="return self.a")
_FULL = Capabilities(
    graph_replay={BatchKind.SINGLE_TOKEN_DECODE, BatchKind.UNIFORM_BATCH},
    graph_metadata=GraphMetadata.DEVICE,
)
OLD = reading(
    read_class("FlashAttentionBackend", NONE, readings=_MOVED, registered_as=("fa3", "fa4")),
    read_class("FlashMLABackend", NONE, readings=_MOVED),
    read_class("TritonAttnBackend", NONE, attributes={"shares_graph": _SHARES}),
    read_class("TorchFlexAttnBackend", EXACT),
    read_class("HybridAttnBackend", composite="any(self.children)"),
    read_class("GoneBackend", NONE, registered_as=("gone",)),
    rules=rule_set(TBO),
    problems=[problem("engine-star-import")],
)
"""An engine before."""
NEW = reading(
    read_class(
        "FlashAttentionBackend",
        readings={"host_seq_lens": INHERITED},
        registered_as=("fa3",),
        version="0.5.23",
    ),
    read_class("FlashMLABackend", NONE, conditions=[RAGGED], version="0.5.23"),
    read_class("TritonAttnBackend", NONE, attributes={"shares_graph": _RETURNS}, version="0.5.23"),
    read_class("TorchFlexAttnBackend", _FULL, line=99, version="0.5.23"),
    read_class("HybridAttnBackend", composite="self.full.needs", version="0.5.23"),
    read_class("FreshBackend", _FULL, conditions=[PAGED], registered_as=("new",), version="0.5.23"),
    version="0.5.23",
    rules=rule_set(NGRAM, relays=("EAGLE", "NGRAM")),
    problems=[problem("engine-star-import"), problem("engine-star-import")],
)
"""The engine after."""


_FROM_THE_OTHER_SIDE = {
    DifferenceKind.STRICTER: DifferenceKind.LOOSER,
    DifferenceKind.APPEARED: DifferenceKind.VANISHED,
    DifferenceKind.BECAME_CONDITIONAL: DifferenceKind.BECAME_UNCONDITIONAL,
}
_KINDS = {**_FROM_THE_OTHER_SIDE, **{own: kind for kind, own in _FROM_THE_OTHER_SIDE.items()}}


def mirrored(found: Iterable[DifferenceDocument]) -> tuple[DifferenceDocument, ...]:
    """Write the same differences as the comparison the other way round has them."""
    return in_order(
        DifferenceDocument(
            kind=_KINDS.get(each.kind, each.kind),
            subject=each.subject,
            field=each.field,
            before=each.after,
            after=each.before,
            where=WhereDocument(before=each.where.after, after=each.where.before),
        )
        for each in found
    )
