"""Two backends in SGLang's wrapper."""

from __future__ import annotations

import pytest

from backend_caps import Declaration, HostSeqLens, Origin, Part, RuleSet, Source, flips, resolve
from backend_caps.capability.backend import Backend, EngineClass, Reading, Status
from backend_caps.engines.sglang.read import pair_of
from backend_caps.resolution.uses import PAIR, uses_of
from tests.unit.building import OPTS_OUT, SPECULATING, flags, installed, named

_PATH = "sglang.srt.layers.attention.hybrid_attn_backend.HybridAttnBackend"
_SOURCE = Source(distribution="sglang", version="0.5.13", declared_at="hybrid.py:12")
_PAIR = f"--prefill-attention-backend fa3 --decode-attention-backend mla {SPECULATING}"


def _wrapper(path: str = _PATH, origin: Origin | None = Origin.UNDECLARED) -> Backend:
    readings = {} if origin is None else {"host_seq_lens": Reading(origin=origin, words="")}
    return Backend(
        name="HybridAttnBackend",
        status=Status.OK,
        source=_SOURCE,
        declaration=Declaration(),
        engine_class=EngineClass(path=path, readings=readings),
    )


@pytest.mark.parametrize(
    ("backend", "has_record"),
    [
        pytest.param(_wrapper(), True, id="undeclared"),
        pytest.param(_wrapper(origin=None), True, id="nothing at all"),
        pytest.param(_wrapper(origin=Origin.CONDITIONAL), False, id="a rule of its own"),
        pytest.param(_wrapper(path="sglang.Other"), False, id="another class"),
        pytest.param(installed("fa3"), False, id="a plugin"),
    ],
)
def test_pair_has_a_record_where_its_wrapper_says_nothing(
    backend: Backend, has_record: bool
) -> None:
    """Only a wrapper without a rule is a backend of its own."""
    record = Backend(
        name=PAIR,
        status=Status.OK,
        source=_SOURCE,
        declaration=Declaration(parts=[Part("HybridAttnBackend")]),
    )

    assert list(pair_of([backend])) == ([record] if has_record else [])


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param(_PAIR, HostSeqLens.EXACT, id="a pair"),
        pytest.param(f"--attention-backend fa3 {SPECULATING}", HostSeqLens.NONE, id="one backend"),
    ],
)
def test_pair_counts_as_its_wrapper_says(line: str, expected: HostSeqLens) -> None:
    """Both opt out, and the wrapper that runs them has the base class's need."""
    backends = [installed("fa3", OPTS_OUT), installed("mla", OPTS_OUT), _wrapper()]
    known = named(*backends, *pair_of(backends))
    read = flags(line)

    plan = resolve(uses_of(read, known), read, rules=RuleSet.builtin("sglang-0.5.13"))

    assert plan["host_seq_lens"].value is expected


@pytest.mark.parametrize(
    ("line", "told"),
    [
        pytest.param(_PAIR, [["Set --prefill-attention-backend mla."]], id="by name"),
        pytest.param(f"--prefill-attention-backend fa3 {SPECULATING}", [], id="by default"),
    ],
)
def test_pair_is_undone_by_one_backend_for_both(line: str, told: list[list[str]]) -> None:
    """Where the wrapper alone stands in the way, it is what has to go."""
    backends = [installed("fa3", OPTS_OUT), installed("mla", OPTS_OUT), _wrapper()]
    known = named(*backends, *pair_of(backends))
    read = flags(line)

    found = flips(
        resolve(uses_of(read, known), read, rules=RuleSet.builtin("sglang-0.5.13")), known, read
    )

    mirror = [flip for flip in found if flip.capability == "host_seq_lens"]
    assert [[remedy.text for remedy in flip.remedies] for flip in mirror] == told


def test_name_that_the_engine_lacks_is_told_of_both() -> None:
    """Beside an engine, neither it nor a plugin has what is missing."""
    use, *_ = uses_of(flags("--attention-backend quite_another"), named(_wrapper()))

    assert use.problem is not None
    assert use.problem.message == (
        "neither the engine nor a plugin has backend 'quite_another' (--attention-backend)."
    )
